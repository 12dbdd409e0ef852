"""What a client reports while its existing rows wait for a transaction that does not end."""

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spark_channel.connectors.base.contract import Token
from spark_channel.errors import SourceError
from spark_channel.testing import VirtualClock
from spark_channel.tunnel import Tunnel, channel
from spark_channel.tunnel.channel import BackfillStallMonitor
from tests.cli.test_tunnel import call
from tests.connectors.postgresql.log.test_tables import Shop
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import ROOT
from tests.tunnel.test_tunnel_tables import Copy, options
from tests.tunnel.test_worker_drained import Log

pytestmark = pytest.mark.timeout(120)

BASE: Token = {"at": 1, "base": {}}


class Held(Log):
    """`said`: what holds it up, asked any number of times."""

    def __init__(self) -> None:
        super().__init__(5)
        self.said = "existing rows wait for 7"
        self.asked = 0

    def backfill_blocked_by(self, token: Token) -> str:
        self.asked += 1
        if self.said == "away":
            raise SourceError("away")
        return self.said


def reports(held: BackfillStallMonitor, clock: VirtualClock, seconds: int) -> list[int]:
    """Return the times of the reports, in seconds from the clock's zero."""
    found = []
    for _ in range(seconds):
        clock.advance(1)
        if held.look(BASE):
            found.append(round(clock.now()))
    return found


def test_it_is_told_once_and_seldom_again() -> None:
    clock, feed = VirtualClock(), Held()
    held = BackfillStallMonitor(feed, clock)
    assert reports(held, clock, 8_000) == [30, 630, 4230, 7830]
    assert feed.asked < 10


def test_what_has_passed_is_not_told_and_what_holds_again_is() -> None:
    clock, feed = VirtualClock(), Held()
    held = BackfillStallMonitor(feed, clock)
    assert reports(held, clock, 20) == []
    feed.said = ""
    assert reports(held, clock, 100) == []
    feed.said = "away"
    assert reports(held, clock, 100) == []
    feed.said = "another one"
    assert len(reports(held, clock, 60)) == 1
    asked = feed.asked
    clock.advance(10_000)
    assert held.look({"at": 1}) == "", "all existing rows are read"
    assert feed.asked == asked


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items")
    yield made
    made.drop()


@contextmanager
def open_transaction(shop: Shop) -> Iterator[psycopg.Connection[Any]]:
    server = shop.server
    with psycopg.connect(
        host=str(server.directory),
        port=server.port,
        user=server.user,
        dbname="postgres",
        application_name="forgotten",
    ) as session:
        session.execute("SELECT txid_current()")
        yield session
        session.rollback()


def waiting(shop: Shop, tmp_path: Path) -> Tunnel:
    """A tunnel, of which one table's existing rows wait."""
    tunnel = Tunnel("shop", options(shop, "$s.orders"), store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    shop.run("INSERT INTO $s.items VALUES (1, 'old')")
    return tunnel


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_transaction_that_never_ends_is_told_with_its_session(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel, "_ASKED_SECONDS", 0.3)
    monkeypatch.setenv("COLUMNS", "200")
    caplog.set_level(logging.WARNING)
    tunnel, copy = waiting(shop, tmp_path), Copy()
    with open_transaction(shop) as session:
        tunnel.add_table(f"{shop.name}.items")
        consumer = threading.Thread(target=lambda: tunnel.consume(copy.process, drained=True))
        consumer.start()
        what = (
            f"existing rows of {shop.name}.items wait for transaction "
            f"{session.execute('SELECT txid_current()').fetchone()[0]} of pid {session.info.backend_pid}"  # type: ignore[index] # there is one
        )
        wait_until(lambda: what in caplog.text)
        (line,) = [each for each in caplog.messages if what in each]
        assert line.startswith("channel stream-1: ")
        assert "application 'forgotten', idle in transaction), which has been open for" in line
        assert f"SELECT pg_terminate_backend({session.info.backend_pid}) ends it" in line
        assert "`consume(drained=True)` ends when they are read" in line
        source = [
            word for each in options(shop, "$s.orders").items() for word in ("-o", "=".join(each))
        ]
        shown = call("describe", "shop", "--store", str(tmp_path / "tunnels.db"), *source).output
        assert f"stream-1 (waits) {what}" in shown
        began = time.monotonic()
        tunnel.stop()
        consumer.join()
        assert time.monotonic() - began < 5, "it waits for nothing"
    tunnel.consume(copy.process, drained=True)
    assert copy.tables["items"] == {1: "old"}
    lag = tunnel.describe().channels[-1].lag
    assert lag is not None
    assert lag.backfill_blocked_by == ""
    tunnel.delete()


def test_a_role_without_rights_is_told_the_pid(shop: Shop) -> None:
    from spark_channel.connectors.postgresql.catalog import oldest_of

    shop.run("CREATE ROLE $s_other LOGIN")
    try:
        with open_transaction(shop) as session:
            number = int(session.execute("SELECT txid_current()").fetchone()[0])  # type: ignore[index] # there is one
            with shop.reader().connect("read") as other:
                other.execute(f"SET ROLE {shop.name}_other")
                found = oldest_of(other, [number, number + 1000])
                assert found.startswith(f"transaction {number} of pid {session.info.backend_pid}")
                assert oldest_of(other, [number + 1000]) == ""
    finally:
        shop.run("DROP ROLE $s_other")


CONSUMER = """
import json, sys
from spark_channel.tunnel import Tunnel, channel
channel._ASKED_SECONDS = 0.3
source, store = json.loads(sys.argv[1])
Tunnel("shop", source, store=store).consume(print, drained=True)
"""


def test_ctrl_c_ends_a_client_that_waits(shop: Shop, tmp_path: Path) -> None:
    tunnel = waiting(shop, tmp_path)
    with open_transaction(shop):
        tunnel.add_table(f"{shop.name}.items")
        given = json.dumps([options(shop, "$s.orders"), str(tmp_path / "tunnels.db")])
        with subprocess.Popen(
            [sys.executable, "-c", CONSUMER, given], cwd=ROOT, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stderr is not None
            assert "wait for transaction" in child.stderr.readline()
            began = time.monotonic()
            child.send_signal(signal.SIGINT)
            said = child.stderr.read()
            child.wait(60)
            took = time.monotonic() - began
    assert "KeyboardInterrupt" in said
    assert took < 10
    tunnel.delete()
