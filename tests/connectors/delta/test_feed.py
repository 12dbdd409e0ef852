"""A Delta table as a stream of its new versions."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.errors import OptionError, SchemaError, SourceError
from tests.connectors.delta.helpers import numbers, reader_of, write


def _feed(path: Path, **options: Any) -> ChangeFeed:
    return reader_of(path, **options).feed(FeedOptions())


def _ids(feed: ChangeFeed, after: Any, upto: Any) -> list[int]:
    splits = feed.changes(after, upto)
    return sorted(
        i for split in splits for batch in feed.read(split) for i in batch.column("id").to_pylist()
    )


def test_new_versions_come_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1, 2))
    feed = _feed(path)
    (start,) = feed.earliest()
    first = feed.latest(start, FeedLimit())
    assert _ids(feed, start, first) == [1, 2]
    assert feed.latest(first, FeedLimit()) == first
    write(path, numbers(3))
    write_deltalake(str(path), numbers(4, 5), mode="append")
    assert feed.lag(first).rows == 3
    second = feed.latest(first, FeedLimit())
    assert _ids(feed, first, second) == [3, 4, 5]
    assert _ids(_feed(path), first, second) == [3, 4, 5]  # read again, by another process
    (now,) = feed.now()
    assert now == second
    assert sorted(
        i for s in feed.base([now], 2) for b in feed.read(s) for i in b.column("id").to_pylist()
    ) == [1, 2, 3, 4, 5]


def test_a_limit_cuts_between_versions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(0))
    feed = _feed(path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    for number in range(1, 4):
        write(path, numbers(number, number * 10))
    seen = []
    while (upto := feed.latest(at, FeedLimit(rows=3))) != at:
        seen.append(_ids(feed, at, upto))
        at = upto
    assert [each for each in seen if each] == [[1, 10], [2, 20], [3, 30]]


def test_compaction_gives_no_row_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for number in range(3):
        write(path, numbers(number))
    feed = _feed(path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    DeltaTable(str(path)).optimize.compact()
    upto = feed.latest(at, FeedLimit())
    assert upto != at
    assert _ids(feed, at, upto) == []


def test_partition_values_of_new_versions(tmp_path: Path) -> None:
    """They are read from the log, where times have no zone, and an empty text is NULL."""
    path = tmp_path / "t"
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 678901)
    table = pa.table(
        {
            "id": [1, 2],
            "zoned": pa.array([at.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "plain": pa.array([at, None], pa.timestamp("us")),
            "price": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "name": ["é /=%", None],
            "day": pa.array([dt.date(1900, 1, 1), None]),
            "paid": [True, None],
        }
    )
    write_deltalake(str(path), table, partition_by=table.column_names[1:])
    feed = _feed(path)
    first = feed.latest(feed.earliest()[0], FeedLimit())
    write_deltalake(str(path), table, mode="append")
    log = path / "_delta_log" / f"{1:020d}.json"
    log.write_text(log.read_text().replace('"name":null', '"name":""'))
    second = feed.latest(first, FeedLimit())
    found = [
        row
        for split in feed.changes(first, second)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]
    assert sorted(found, key=lambda row: int(row["id"])) == table.to_pylist()


def test_removed_rows_end_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    feed = _feed(path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    write(path, numbers(2), overwrite=True)
    with pytest.raises(SourceError, match=r"version \d+ of .* removed rows"):
        feed.latest(at, FeedLimit())


def test_new_columns_end_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    feed = _feed(path)
    assert feed.schema().names == ["id"]
    at = feed.latest(feed.earliest()[0], FeedLimit())
    write(path, pa.table({"id": [2], "name": ["b"]}), onSchemaChange="evolve")
    with pytest.raises(SchemaError, match="changed column 'name'"):
        feed.latest(at, FeedLimit())


def test_versions_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    feed = _feed(path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    write(path, numbers(2))
    table = DeltaTable(str(path))
    table.create_checkpoint()
    (path / "_delta_log" / f"{at['version'] + 1:020d}.json").unlink()
    with pytest.raises(SourceError, match="was removed from the log of"):
        feed.latest(at, FeedLimit())
    with pytest.raises(SourceError, match="was created again"):
        feed.latest({"version": 99}, FeedLimit())
    with pytest.raises(SourceError, match="is damaged"):
        feed.latest({"part": 1}, FeedLimit())


def test_a_stream_of_one_state_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t", numbers(1))
    with pytest.raises(OptionError, match="omit them"):
        _feed(tmp_path / "t", version="0")
