"""A job that uses an experimental connector logs one line, on the driver; here SQLite's, under another name."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from spark_channel.connectors import find_connector
from spark_channel.connectors.base import registry
from spark_channel.connectors.base.connector import Connector
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint, EndpointOverrides, Target, TransferSpec
from spark_channel.spark.read import ChannelReader
from spark_channel.spark.stream_read import ChannelStreamReader
from spark_channel.spark.stream_write import stream_writer
from spark_channel.spark.worker import SessionFacts
from spark_channel.spark.write import ChannelWriter
from spark_channel.transfers.dispatch import carry_out
from spark_channel.tunnel import Tunnel

SCHEMA = StructType().add("id", "long")
FACTS = SessionFacts(2, None, 2)


@pytest.fixture
def said(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[str]]:
    """The lines about experimental connectors; `mine` and `theirs` are such, and `good` is stable."""
    sqlite = replace(find_connector({"reader": "sqlite"}, "reader"), schemes=(), suffixes=())
    theirs = {
        "mine": replace(
            sqlite, name="mine", maturity="experimental", tested="a server written for the tests"
        ),
        "theirs": replace(sqlite, name="theirs", maturity="experimental", tested=""),
        "good": replace(sqlite, name="good"),
    }
    monkeypatch.setattr(registry, "_third_parties", lambda: theirs)
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "experimental" in record.getMessage():
                found.append(record.getMessage())

    collector = Collector(logging.WARNING)
    logging.getLogger("spark_channel").addHandler(collector)
    yield found
    logging.getLogger("spark_channel").removeHandler(collector)


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(10)])
    return str(tmp_path / "shop.db")


def test_what_was_it_tested_against() -> None:
    mine = replace(find_connector({"reader": "http"}, "reader"), tested="")
    assert mine.maturity == "experimental"
    remark = registry.experiment_remark([(mine, {})]) or ""
    assert "http, which does not declare what it was tested against" in remark
    assert (
        registry.experiment_remark([(find_connector({"reader": "sqlite"}, "reader"), {})]) is None
    )


@pytest.mark.parametrize(
    ("experimental", "options"),
    [
        *((False, {"reader": "adbc", "driver": each}) for each in ("sqlite", "/lib/libduckdb.so")),
        *((True, {"reader": "adbc", "Driver": each}) for each in ("snowflake", "profile://shop")),
        (False, {"reader": "iceberg", "catalogProperties": '{"type": "sql", "uri": "sqlite://"}'}),
        (False, {"reader": "iceberg", "catalogProperties": '{"uri": "postgresql://host/base"}'}),
        (False, {"reader": "iceberg", "catalogProperties": "[1]"}),
        (False, {"reader": "iceberg", "catalogProperties": '{"uri": "https://host"}'}),
        (True, {"reader": "iceberg", "catalogProperties": '{"type": "glue"}'}),
    ],
    ids=str,
)
def test_options_may_reach_what_is_experimental(
    experimental: bool, options: dict[str, str]
) -> None:
    remark = registry.experiment_remark([(find_connector(options, "reader"), options)])
    assert (remark is not None) == experimental
    assert "shop" not in (remark or "")


def test_a_connector_of_a_third_party_is_experimental_until_it_says_otherwise() -> None:
    assert Connector("theirs", "module:Reader", None).maturity == "experimental"


def test_a_transfer_with_several_ends_has_one_line(
    said: list[str], shop: str, tmp_path: Path
) -> None:
    parts = (EndpointOverrides({"dbtable": "t"}), EndpointOverrides({"query": "SELECT id FROM t"}))
    source = Endpoint("mine", {"path": shop}, parts=parts)
    ends = [
        Endpoint(name, {"path": str(tmp_path / f"{number}.db"), "dbtable": "t"})
        for number, name in enumerate(("theirs", "theirs", "good"))
    ]
    with LocalEngine() as engine:
        carry_out(engine, TransferSpec(source, ends[0], targets=tuple(map(Target, ends))))
        (line,) = said
        assert "mine, tested only against a server written for the tests; theirs, which" in line
        assert "good" not in line
        carry_out(
            engine, TransferSpec(replace(source, name="good"), replace(ends[2], name="sqlite"))
        )
        assert len(said) == 1
        carry_out(engine, TransferSpec(replace(source, name="good"), ends[0]))
        assert len(said) == 2


def test_a_read_and_a_write_have_one_line_each(said: list[str], shop: str) -> None:
    for name in ("good", "mine"):
        ChannelReader(
            {"reader": name, "path": shop, "dbtable": "t"}, SCHEMA, FACTS, "load"
        ).partitions()
    assert len(said) == 1
    for name in ("good", "mine"):
        ChannelWriter({"writer": name, "path": shop, "dbtable": "t"}, SCHEMA, False, FACTS).abort(
            []
        )
    assert len(said) == 2


def test_a_streaming_write_has_one_line_a_query(said: list[str], shop: str) -> None:
    """Spark makes a writer for each micro-batch."""
    for batch in range(3):
        options = {"writer": "mine", "path": shop, "dbtable": "t"}
        stream_writer(options, SCHEMA, overwrite=False, facts=FACTS).commit([], batch)
    assert len(said) == 1


def test_a_streaming_read_has_one_line_a_query(said: list[str], shop: str) -> None:
    options = {
        "reader": "mine",
        "path": shop,
        "dbtable": "t",
        "cursorColumn": "id",
        "tunnelType": "stream",
    }
    reader = ChannelStreamReader({**options, "startingOffsets": "earliest"}, SCHEMA, FACTS)
    start = reader.initialOffset()
    end = reader.latestOffset()
    for _ in range(2):
        assert reader.partitions(start, end)
    assert len(said) == 1


def test_a_tunnel_has_one_line_for_each_client(said: list[str], shop: str, tmp_path: Path) -> None:
    options = {"reader": "mine", "path": shop, "dbtable": "t", "cursorColumn": "id"}
    tunnel = Tunnel("orders", options, store=str(tmp_path / "tunnels.db"))
    tunnel.create(channels=2)
    assert said == []
    tunnel.consume(lambda _delivery: None, drained=True)
    assert len(said) == 1
