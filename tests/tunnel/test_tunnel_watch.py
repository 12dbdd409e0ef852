"""`tunnel describe` of a tunnel of several tables: the lag of each, and its client's rows in flight."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.records import Client
from spark_channel.tunnel.tunnel import ChannelView
from spark_channel.tunnel.worker import TunnelWorker
from tests.behaviour.reports.test_stream_progress import Heard, heard
from tests.cli.test_tunnel import call, cells
from tests.connectors.postgresql.log.test_tables import Shop
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import ADMISSION, Child
from tests.tunnel.test_tunnel_tables import options


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items", "quiet")
    yield made
    made.drop()


__all__ = ["heard"]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tunnel.md"
ROWS = {"items": 1000, "orders": 400}


class Watched:
    """A tunnel, and a client whose processor takes a row of `hold`, and then waits until it is let go."""

    def __init__(self, shop: Shop, folder: Path, **more: str) -> None:
        self.shop, self.store = shop, str(folder / "tunnels.db")
        self.options = options(shop, **more)
        self.tunnel = Tunnel("shop", self.options, store=self.store)
        self.tunnel.create()
        self.is_held, self.may_go = threading.Event(), threading.Event()
        self.hold = ""
        self.consumer = self._consumer()

    def _consumer(self) -> TunnelWorker:
        record = self.tunnel.store.get("shop")
        return TunnelWorker(
            self.tunnel.store, record, self.options, self.process, threads=2, drained=False
        )

    def process(self, delivery: Delivery) -> None:
        list(delivery.batches)
        if delivery.table.endswith(self.hold):
            self.is_held.set()
            assert self.may_go.wait(60)

    def start(self, hold: str) -> threading.Thread:
        """A client that holds each delivery of a table."""
        self.hold = hold
        self.consumer = self._consumer()
        thread = threading.Thread(target=self.consumer.run)
        thread.start()
        return thread

    def view(self) -> ChannelView:
        return self.tunnel.describe().channels[-1]

    def arguments(self) -> list[str]:
        return [*(f"-o{key}={value}" for key, value in self.options.items()), "--store", self.store]

    def shown(self, *more: str) -> str:
        found = call("describe", "shop", *self.arguments(), *more)
        assert found.exit_code == 0, found.output
        return found.output

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.shown("--output", "json"))
        return found

    def table(self, name: str) -> dict[str, Any]:
        """Return one table from the JSON output."""
        tables: list[dict[str, Any]] = self.plain()["channels"][-1]["tables"]
        return next(each for each in tables if each["table"] == f"{self.shop.name}.{name}")


@pytest.mark.timeout(120)
def test_each_table_has_its_lag_and_its_rows_in_flight(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    watched = Watched(shop, tmp_path, tunnelType="stream")
    assert watched.table("orders") == {
        "table": f"{shop.name}.orders",
        "stage": "changes",
        "changes": 0,
        "bytes": 0,
        "seconds": 0.0,
        "base": None,
        "rows_in_flight": None,
    }, "no client reports rows in flight"
    shop.run(
        "INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 30) i; INSERT INTO $s.items VALUES (1, 'x')"
    )
    thread = watched.start("orders")
    try:
        assert watched.is_held.wait(30)
        watched.consumer.client.heartbeat()
        orders, items, quiet = (watched.table(each) for each in ("orders", "items", "quiet"))
        assert (orders["changes"], items["changes"], quiet["changes"]) == (30, 1, 0)
        assert (orders["rows_in_flight"], items["rows_in_flight"], quiet["rows_in_flight"]) == (
            30,
            1,
            0,
        ), "also of a table that is processed: the range has no checkpoint"
        assert min(orders["seconds"], items["seconds"]) >= 0
        assert orders["bytes"] >= 600
        channel = watched.plain()["channels"][0]
        assert channel["in_flight"]["rows"] == 31
        assert channel["in_flight"]["seconds_ago"] < 30
        assert channel["lag"]["rows"] == 31
        assert channel["lag"]["wal_kept_bytes"] > 0
        text = watched.shown()
        assert cells(text, f"{shop.name}.orders")[4] == "30"
        assert cells(text, f"{shop.name}.orders")[-1] == "30"
        assert re.search(
            r"stream-0 \(in flight\) 31 rows are read .* as its client reported \d s ago", text
        )
        # The source is not asked: only the report of its client is known.
        without = call("describe", "shop", "--store", watched.store).output
        assert cells(without, f"{shop.name}.orders")[2:] == ["-", "-", "-", "-", "-", "30"]
        watched.may_go.set()
    finally:
        watched.may_go.set()
        watched.tunnel.stop()
        watched.consumer.stop()
        thread.join()
    assert (watched.table("orders")["changes"], watched.table("orders")["rows_in_flight"]) == (
        0,
        None,
    )
    watched.tunnel.delete()


@pytest.mark.timeout(120)
def test_a_range_that_is_tried_again_stays_in_flight(shop: Shop, tmp_path: Path) -> None:
    watched = Watched(shop, tmp_path, tunnelType="stream", maxRetryInterval="60")
    shop.run("INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 30) i")
    failed = threading.Event()

    def process(delivery: Delivery) -> None:
        list(delivery.batches)
        failed.set()
        raise ValueError("no")

    consumer = TunnelWorker(
        watched.tunnel.store,
        watched.tunnel.store.get("shop"),
        watched.options,
        process,
        threads=1,
        drained=False,
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        assert failed.wait(30)
        for _ in range(20):  # through several tries
            consumer.client.heartbeat()
            flight = watched.view().in_flight
            assert flight is not None
            assert flight.tables == {f"{shop.name}.orders": 30}
    finally:
        consumer.stop()
        thread.join()
    watched.tunnel.delete()


CONSUMER = """
import json, sys, time
from spark_channel.tunnel import Tunnel

source, store = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    print(sum(batch.num_rows for batch in delivery.batches), flush=True)
    time.sleep(300)

Tunnel("shop", source, store=store).consume(process)
"""


@pytest.mark.timeout(180)
def test_what_a_killed_client_told_is_not_shown_and_its_successor_tells_its_own(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    watched = Watched(shop, tmp_path, tunnelType="stream")
    shop.run("INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 30) i")
    killed = Child(
        CONSUMER, [json.dumps([watched.options, watched.store])], tmp_path / "consumer.log"
    )
    try:
        killed.go()
        assert killed.next() == 30
        for _ in range(100):  # its next heartbeat reports it
            if (flight := watched.view().in_flight) is not None and flight.rows:
                break
            threading.Event().wait(0.1)
        assert flight is not None
        assert flight.tables == {f"{shop.name}.orders": 30}
    finally:
        killed.kill()
    view = watched.view()
    assert view.channel.in_flight == {f"{shop.name}.orders": 30}, "the store still has it"
    assert view.in_flight is None
    assert watched.table("orders")["rows_in_flight"] is None
    assert watched.table("orders")["changes"] == 30, "the log still reports it"
    assert watched.plain()["clients"][0]["has_ended"] is True
    assert "its process has ended" in watched.shown()
    shop.run("INSERT INTO $s.items VALUES (1, 'x')")
    thread = watched.start("orders")
    try:
        assert watched.is_held.wait(60)
        view = watched.view()
        assert view.channel.client == watched.consumer.client.id
        watched.consumer.client.heartbeat()
        flight = watched.view().in_flight
        assert flight is not None
        assert flight.tables[f"{shop.name}.orders"] == 30
    finally:
        watched.may_go.set()
        watched.consumer.stop()
        thread.join()
    watched.tunnel.delete()


def test_a_client_of_another_host_tells_until_its_timeout(shop: Shop, tmp_path: Path) -> None:
    """Whether its process runs is not known there."""
    watched = Watched(shop, tmp_path, tunnelType="stream")
    store = watched.tunnel.store
    now = store.now()
    store.connect("shop", Client("far", timeout=5.0, host="elsewhere/", process="1@2"))
    (channel,) = store.heartbeat("shop", "far", [])
    token = channel.token
    store.hand_out("shop", "far", "stream-0", 0, token)
    store.checkpoint("shop", "far", "stream-0", 0, token, {f"{shop.name}.orders": 7})
    view = watched.tunnel.describe()
    flight = view.channels[0].in_flight
    assert flight is not None
    assert flight.rows == 7
    assert flight.seconds <= view.now - now
    real = store.now
    try:
        store.now = lambda: real() + 6  # type: ignore[method-assign] # replaced for a while
        assert watched.view().in_flight is None, "it is silent for longer than its timeout"
    finally:
        store.now = real  # type: ignore[method-assign] # replaced for a while
    store.disconnect("shop", "far")
    assert watched.view().channel.in_flight is None
    watched.tunnel.delete()


def test_why_the_lag_is_not_known(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    watched = Watched(shop, tmp_path, tunnelType="stream")
    shop.run("SELECT pg_drop_replication_slot('$s')")
    assert "stream-0 (lag) is not known: replication slot" in watched.shown()
    channel = watched.plain()["channels"][0]
    assert channel["lag"] is None
    assert "does not exist in" in channel["no_lag"]
    assert channel["tables"] == []
    watched.tunnel.delete()


def test_the_store_keeps_few_bytes_of_each_table(shop: Shop, tmp_path: Path) -> None:
    watched = Watched(shop, tmp_path, tunnelType="stream")
    store = watched.tunnel.store
    store.connect("shop", Client("a", timeout=5.0))
    (channel,) = store.heartbeat("shop", "a", [])
    rows_in_flight = {f"{shop.name}.table_{number}": 10**9 for number in range(100)}
    for sequence in range(3):
        store.hand_out("shop", "a", "stream-0", sequence, channel.token)
        store.checkpoint("shop", "a", "stream-0", sequence, channel.token, rows_in_flight)
    (found,) = store.state("shop").channels.values()
    assert found == replace(found, in_flight=rows_in_flight)
    assert len(json.dumps(dict(found.in_flight or {}))) < 5_000
    watched.tunnel.delete()


def test_a_slot_that_a_tunnel_leaves_is_told_and_found(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(shop, tmp_path)
    assert shop.name not in {each.slot for each in watched.tunnel.orphans()}
    other = Tunnel("shop", {**watched.options, "slot": f"{shop.name}_new"}, store=watched.store)
    other.reset()
    assert f"no longer reads slot '{shop.name}'" in caplog.text
    found = {each.slot: each.named_by for each in other.orphans()}
    assert found.get(shop.name) == ""
    assert f"{shop.name}_new" not in found
    other.delete()
    assert f"{shop.name}_new" not in {each.slot for each in other.orphans()}, "it is dropped"


def shape(shown: str) -> list[list[str]]:
    """The lines of `describe`, and the cells of its tables, without numbers and names that differ each time."""
    found = []
    for line in shown.strip().splitlines():
        if not set(line) & set("│┃") and not re.search(r"[a-z]", line):
            continue  # a border
        text = re.sub(r"\b[0-9a-f]{12}\b", "ID", line)
        text = re.sub(r"postgresql://[^#]+#", "URL#", text)
        text = re.sub(r"lsn=.*", "LSN", text)
        text = re.sub(r"(?<![\w-])[\d.]+(?: \d{3})*(?![\w-])", "N", text)
        cells = [cell.strip() for cell in re.split("[│┃]", text)]
        cells = cells[1:-1] if len(cells) > 1 else cells
        if cells[0] == "ID":
            cells[2] = "HOST"
        found.append(cells)
    return found


@pytest.mark.timeout(120)
def test_the_page_shows_what_describe_shows(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    postgres_server.psql("CREATE DATABASE watch_example")

    def run(statement: str) -> None:
        postgres_server.psql(statement, database="watch_example")

    run("CREATE SCHEMA shop; CREATE PUBLICATION shop")
    for name, count in ROWS.items():
        run(
            f"CREATE TABLE shop.{name} (id int PRIMARY KEY, item text); ALTER PUBLICATION shop ADD TABLE shop.{name};"
            f"INSERT INTO shop.{name} SELECT i, 'x' FROM generate_series(1, {count}) i; ANALYZE shop.{name}"
        )
    options = {
        **postgres_server.login,
        "url": f"{postgres_server.login['url'].rpartition('/')[0]}/watch_example",
        "tables": "shop.*",
        "slot": "shop",
        "publication": "shop",
        "maxRowsPerTrigger": "100",
        "heartbeatInterval": "5",
    }
    store = str(tmp_path / "tunnels.db")
    tunnel = Tunnel("shop", options, store=store)
    tunnel.create()
    is_held, may_go = threading.Event(), threading.Event()

    def process(delivery: Delivery) -> None:
        list(delivery.batches)
        if delivery.sequence == 4:
            is_held.set()
            may_go.wait(60)

    consumer = TunnelWorker(
        tunnel.store, tunnel.store.get("shop"), options, process, threads=1, drained=False
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        assert is_held.wait(60)
        run("INSERT INTO shop.orders SELECT i, 'new' FROM generate_series(2001, 2012) i")
        consumer.client.heartbeat()
        shown = call(
            "describe",
            "shop",
            *(f"-o{key}={value}" for key, value in options.items()),
            "--store",
            store,
        ).output
    finally:
        may_go.set()
        consumer.stop()
        thread.join()
    tunnel.delete()
    postgres_server.psql("DROP DATABASE watch_example")
    text = DOCS.read_text("utf-8")
    begins = text.index("shop: base_and_stream of ")
    on_page = shape(text[begins : text.index("```", begins)])
    assert on_page == shape(shown)[: len(on_page)], shown
    tables = [line[1] for line in shape(shown)[len(on_page) :] if line[0] == "stream-0"]
    assert tables == ["shop.items", "shop.orders"], shown


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ADMISSION, reason="a batch has all that is there")
def test_a_streams_report_has_chunks_and_the_wal_that_its_slot_keeps(
    spark: SparkSession, heard: Heard, shop: Shop, tmp_path: Path
) -> None:
    shop.run(
        "INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 1000) i; ANALYZE $s.orders"
    )
    source = {
        **shop.server.login,
        "dbtable": f"{shop.name}.orders",
        "slot": shop.name,
        "publication": shop.name,
        "maxRowsPerTrigger": "400",
    }
    query = (
        spark.readStream.format("channel")
        .options(**source, channels="1")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    first = next(report for _, report in heard.batches if report.kind == "read")
    assert {
        name: first.lag[name]
        for name in ("rows", "base_rows_read", "base_rows", "base_chunks_read")
    } == {
        "rows": 600,
        "base_rows_read": 400,
        "base_rows": 1000,
        "base_chunks_read": 1,
    }
    assert first.lag["wal_kept_bytes"] > 0
    assert first.lag["seconds"] == 0.0
    assert re.search(
        r"base 1 of 3 chunks \(400 of 1k rows\), slot keeps [\d.]+k?B of WAL", first.behind
    )
    assert "bytes" in first.lag
