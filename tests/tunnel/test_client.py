"""Connections to the store and to the source that are lost: renewed, and no record is lost or comes twice."""

import logging
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import ChannelLostError, SourceError, TunnelError, TunnelStoreError
from spark_channel.retry import RetryingCalls
from spark_channel.testing import VirtualClock
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.shared_positions import SharedPositions
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.store import SqliteStore, SqlStore
from tests.servers.postgres import PostgresServer

ROWS = 2_000
KILLS = 5


class Killer(threading.Thread):
    """Ends every session of clients in the server, again and again, `KILLS` of them at least; `stop` ends it sooner."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server
        self.over = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while self.kills < KILLS and not self.over.is_set():
            self.kills += int(
                self.server.psql(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            )
            self.over.wait(0.05)

    def stop(self) -> None:
        self.over.set()
        if self.ident is not None:
            self.join()


class Ledger:
    """Rows by range, as a target that knows (channel, sequence) keeps them; and how often each was processed."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self.rows: dict[tuple[str, int], list[int]] = {}
        self.times: Counter[tuple[str, int]] = Counter()
        self.begun = begun
        self.lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        ids = [n for batch in delivery.batches for n in batch.column("id").to_pylist()]
        with self.lock:
            first = not self.rows
            key = delivery.channel, delivery.sequence
            assert self.rows.setdefault(key, ids) == ids
            self.times[key] += 1
        if first:
            self.begun()

    def check(self, rows: range) -> None:
        assert sorted(n for ids in self.rows.values() for n in ids) == list(rows)
        assert set(self.times.values()) == {1}, "what was processed is not processed again"


@pytest.fixture
def items(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    postgres_server.psql(
        f"CREATE TABLE renewed (id int PRIMARY KEY); INSERT INTO renewed SELECT generate_series(1, {ROWS})"
    )
    yield {
        **postgres_server.login,
        "dbtable": "renewed",
        "cursorColumn": "id",
        "lateSeconds": "0",
        "maxRowsPerTrigger": "200",
        "heartbeatInterval": "5",
        "heartbeatTimeout": "60",
    }
    postgres_server.psql("DROP TABLE renewed")


@pytest.mark.parametrize("make_store", ["postgresql"], indirect=True)
def test_a_consumer_goes_on_after_its_sessions_are_ended(
    make_store: Callable[[], SqlStore], postgres_server: PostgresServer, items: dict[str, str]
) -> None:
    store, killer, held = make_store(), Killer(postgres_server), held_resources()
    ledger = Ledger(killer.start)
    tunnel = Tunnel("renewed", items, store=store)
    tunnel.create(channels=4)
    postgres_server.psql(f"INSERT INTO renewed SELECT generate_series({ROWS + 1}, {2 * ROWS})")
    try:
        tunnel.consume(ledger, drained=True)
    finally:
        killer.stop()
    held.expect_no_more("after sessions were ended")
    assert killer.kills >= 1
    ledger.check(range(1, 2 * ROWS + 1))
    assert store.state("renewed").clients == {}


@pytest.mark.parametrize("make_store", ["postgresql"], indirect=True)
def test_a_querys_offsets_go_on_after_their_sessions_are_ended(
    make_store: Callable[[], SqlStore], postgres_server: PostgresServer, items: dict[str, str]
) -> None:
    store, killer = make_store(), Killer(postgres_server)
    Tunnel("renewed", items, store=store).create(channels=4)
    postgres_server.psql(f"INSERT INTO renewed SELECT generate_series({ROWS + 1}, {ROWS + 1000})")
    positions = SharedPositions(StreamSource({**items, "tunnel": "renewed"}), store)
    origins: dict[str, list[int]] = {}
    killer.start()
    try:
        offset = positions.initial()
        while (end := positions.latest(offset, FeedLimit(rows=500))) != offset:
            for each in positions.ranges(offset, end):
                ids = []
                for split in each.splits:
                    read = RetryingCalls(60).call(
                        lambda split=split: list(positions.source.feed.read(split)),  # type: ignore[misc] # mypy infers no lambda with a default
                        positions.source.feed.is_passing,
                    )
                    ids += [n for batch in read for n in batch.column("id").to_pylist()]
                assert each.origin not in origins
                origins[each.origin] = ids
            offset = end
        while not killer.kills:  # where all of it was quicker than the first look for sessions
            assert positions.latest(offset, FeedLimit(rows=500)) == offset
    finally:
        killer.stop()
        positions.close()
    assert killer.kills >= 1
    assert sorted(n for ids in origins.values() for n in ids) == list(range(1, ROWS + 1001))


_HOLDER = """
import sqlite3, sys
for path in sys.argv[1:]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    globals()[path] = connection
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Another process has begun to write to these SQLite files, and does not end."""
    command = [sys.executable, "-c", _HOLDER, *map(str, paths)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.kill()


class Heard(logging.Handler):
    """Waits for warnings of the tunnel."""

    def __init__(self, text: str, times: int) -> None:
        super().__init__(logging.WARNING)
        self.text, self.left, self.enough = text, times, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.left -= 1
            if self.left <= 0:
                self.enough.set()


@pytest.mark.parametrize("what", ["store", "source", "both"])
def test_a_consumer_goes_on_after_its_files_were_locked(tmp_path: Path, what: str) -> None:
    shop, place = tmp_path / "shop.db", tmp_path / "tunnels.db"
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(1, 1001)])
    options = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "lockTimeout": "0.05",
        "maxRowsPerTrigger": "100",
    }
    tunnel = Tunnel("orders", options, store=SqliteStore(place, lock_timeout=0.05))
    tunnel.create(channels=4)
    heard = Heard("trying again", 4)
    log = logging.getLogger("spark_channel.tunnel")
    log.addHandler(heard)

    def lock() -> None:
        paths = {"store": [place], "source": [shop], "both": [place, shop]}[what]
        with locked(*paths):
            held.set()
            assert heard.enough.wait(60)

    held = threading.Event()
    holder = threading.Thread(target=lock)

    def begun() -> None:
        holder.start()
        assert held.wait(60)

    ledger = Ledger(begun)
    try:
        tunnel.consume(ledger, drained=True)
    finally:
        log.removeHandler(heard)
        heard.enough.set()
        holder.join()
    ledger.check(range(1, 1001))


def test_a_call_is_made_again_with_growing_waits_and_then_given_up() -> None:
    clock, times = VirtualClock(), []

    def fails() -> None:
        times.append(clock.now())
        raise TunnelStoreError("no answer")

    renewal = RetryingCalls(60.0, clock=clock)
    with pytest.raises(TunnelStoreError, match="no answer"):
        renewal.call(fails, lambda error: isinstance(error, TunnelStoreError))
    assert 8 <= len(times) <= 60
    assert times[-1] - times[0] <= 60
    assert max(b - a for a, b in pairwise(times)) <= 10
    times.clear()
    with pytest.raises(TunnelStoreError):
        renewal.call(fails, lambda error: isinstance(error, ChannelLostError))
    assert len(times) == 1, "an error of another kind is raised immediately"


def test_a_lost_connection_is_told_from_what_stays_wrong(
    postgres_server: PostgresServer, items: dict[str, str]
) -> None:
    feed = StreamSource(items).feed
    lost = SourceError("x: PostgreSQL says: server closed the connection unexpectedly")
    lost.__cause__ = OSError("server closed the connection unexpectedly")
    assert feed.is_passing(lost)
    assert not feed.is_passing(SourceError("table 't' does not exist"))
    assert not feed.is_passing(RuntimeError("server closed the connection"))


def test_a_removal_that_breaks_off_leaves_no_slot_that_nobody_knows_of(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_server.psql(
        "CREATE TABLE removed (id int PRIMARY KEY); CREATE PUBLICATION removed FOR TABLE removed"
    )
    options = {
        **postgres_server.login,
        "dbtable": "removed",
        "slot": "removed",
        "publication": "removed",
    }
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'removed'"
    store = SqliteStore(tmp_path / "tunnels.db")
    tunnel = Tunnel("removed", options, store=store)
    try:
        tunnel.create()
        with pytest.raises(TunnelError, match="there is a tunnel 'removed'"):
            Tunnel("removed", {**options, "slot": "another"}, store=store).create()
        assert (
            postgres_server.psql("SELECT string_agg(slot_name, ',') FROM pg_replication_slots")
            == "removed"
        )
        with monkeypatch.context() as broken:
            broken.setattr(store, "delete", lambda name: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                tunnel.delete()
        assert postgres_server.psql(slots) == "0"
        tunnel.store.delete("removed")
        tunnel.create()
        with pytest.raises(
            TunnelError, match=r"reads replication slot 'removed' of postgresql .*--leave-slot"
        ):
            Tunnel("removed", store=store).delete()
        with pytest.raises(TunnelError, match=r"slot=removed, and the options name .*slot=another"):
            Tunnel("removed", {**options, "slot": "another"}, store=store).delete()
        assert (tunnel.exists(), postgres_server.psql(slots)) == (True, "1")
        tunnel.delete(leave_slot=True)
        assert (tunnel.exists(), postgres_server.psql(slots)) == (False, "1")
        tunnel.create()
        tunnel.delete()
        assert not tunnel.exists()
        with pytest.raises(TunnelError, match="tunnel 'removed' does not exist"):
            tunnel.delete()
    finally:
        postgres_server.psql("DROP PUBLICATION removed; DROP TABLE removed")
