"""What is said of a read that nothing cuts."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spark_channel.connectors import load_reader
from spark_channel.spark.read import ChannelReader, one_split
from spark_channel.spark.schema import as_spark
from spark_channel.spark.worker import SessionFacts


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
        database.executemany(
            "INSERT INTO orders VALUES (?, ?)", [(number, 1.0) for number in range(100)]
        )
        database.execute("CREATE VIEW big AS SELECT * FROM orders WHERE total > 0")
    return str(tmp_path / "shop.db")


def said(shop: str, **options: str) -> str:
    reader, _ = load_reader({"path": shop, **options})
    return one_split(reader.options, reader.split(4), 4, "sqlite shop.db#big")


@pytest.mark.parametrize("source", [{"dbtable": "big"}, {"query": "select * from orders"}])
@pytest.mark.parametrize("asked", [{"rowsPerSecond": "10k"}, {"channels": "4"}])
def test_what_nothing_cuts_names_what_to_index(
    shop: str, source: dict[str, str], asked: dict[str, str]
) -> None:
    text = said(shop, **source, **asked)
    assert text.startswith(
        "sqlite shop.db#big is read by one channel instead of 4, since nothing cuts it"
    )
    assert "option 'partitionColumn', and index it" in text


@pytest.mark.parametrize(
    "options",
    [
        {"dbtable": "big"},
        {"dbtable": "big", "channels": "4", "partitionColumn": "id"},
        {"dbtable": "orders", "channels": "4"},
    ],
)
def test_other_reads_say_nothing(shop: str, options: dict[str, str]) -> None:
    assert said(shop, **options) == ""


def test_it_is_said_when_the_read_is_planned(shop: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"path": shop, "dbtable": "big", "channels": "4"}
    schema = as_spark(load_reader(options)[0].schema(), times=False)
    with caplog.at_level(logging.WARNING):
        assert (
            len(ChannelReader(options, schema, SessionFacts(4, None, 4), "load").partitions()) == 1
        )
    assert "is read by one channel instead of 4" in caplog.text
