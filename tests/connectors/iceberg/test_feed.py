"""An Iceberg table as a stream of its new snapshots."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.errors import OptionError, SchemaError, SourceError
from tests.connectors.iceberg.helpers import create, numbers, reader_of, write


def _feed(path: Path, **options: Any) -> ChangeFeed:
    return reader_of(path, **options).feed(FeedOptions())


def _ids(feed: ChangeFeed, after: Any, upto: Any) -> list[int]:
    splits = feed.changes(after, upto)
    return sorted(
        i for split in splits for batch in feed.read(split) for i in batch.column("id").to_pylist()
    )


def test_new_snapshots_come_once(tmp_path: Path, catalog: Catalog) -> None:
    create(catalog, "shop.t", numbers().schema)
    feed = _feed(tmp_path)
    (start,) = feed.earliest()
    assert feed.latest(start, FeedLimit()) == start
    write(tmp_path, numbers(1, 2))
    first = feed.latest(start, FeedLimit())
    assert _ids(feed, start, first) == [1, 2]
    assert feed.latest(first, FeedLimit()) == first
    write(tmp_path, numbers(3))
    catalog.load_table("shop.t").append(numbers(4, 5))
    assert feed.lag(first).rows == 3
    second = feed.latest(first, FeedLimit())
    assert _ids(feed, first, second) == [3, 4, 5]
    assert _ids(_feed(tmp_path), first, second) == [3, 4, 5]  # read again, by another process
    (now,) = feed.now()
    assert now == second
    assert sorted(
        i for s in feed.base([now], 2) for b in feed.read(s) for i in b.column("id").to_pylist()
    ) == [
        1,
        2,
        3,
        4,
        5,
    ]


class NewestOnly(SqlCatalog):
    """Shows one snapshot of each table, as Nessie does."""

    def load_table(self, identifier: Any) -> Table:
        found = super().load_table(identifier)
        newest = found.metadata.current_snapshot_id
        snapshots = [each for each in found.metadata.snapshots if each.snapshot_id == newest]
        found.metadata = found.metadata.model_copy(update={"snapshots": snapshots})
        return found


def test_a_catalog_that_shows_one_snapshot(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(1))
    properties = {**catalog.properties, "py-catalog-impl": f"{__name__}.NewestOnly"}
    del properties["type"]
    feed = _feed(tmp_path, catalogProperties=json.dumps(properties))
    (start,) = feed.earliest()
    first = feed.latest(start, FeedLimit())
    assert _ids(feed, start, first) == [1]
    assert feed.latest(first, FeedLimit()) == first
    write(tmp_path, numbers(2))
    for use in (lambda: feed.latest(first, FeedLimit()), lambda: feed.lag(first)):
        with pytest.raises(SourceError, match=r"shows one snapshot of shop\.t.*Project Nessie"):
            use()


def test_splits_of_partitioned_tables_are_kept_in_a_tunnel(
    tmp_path: Path, catalog: Catalog
) -> None:
    from spark_channel import serialization
    from spark_channel.planning import Split

    write(tmp_path, pa.table({"p": ["a", "b", None], "id": [1, 2, 3]}), partitionBy="p")
    feed = _feed(tmp_path)
    kept = [serialization.dump_tagged(split.params) for split in feed.base(feed.now(), 2)]
    batches = [
        batch
        for text in kept
        for batch in _feed(tmp_path).read(Split(serialization.load_tagged(text)))
    ]
    assert sorted(i for batch in batches for i in batch.column("id").to_pylist()) == [1, 2, 3]


def test_a_limit_cuts_between_snapshots(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(0))
    feed = _feed(tmp_path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    for number in range(1, 4):
        write(tmp_path, numbers(number, number * 10))
    seen = []
    while (upto := feed.latest(at, FeedLimit(rows=3))) != at:
        seen.append(_ids(feed, at, upto))
        at = upto
    assert [each for each in seen if each] == [[1, 10], [2, 20], [3, 30]]


def test_what_ends_a_stream(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(1))
    feed = _feed(tmp_path)
    assert feed.schema().names == ["id"]
    at = feed.latest(feed.earliest()[0], FeedLimit())
    write(tmp_path, pa.table({"id": [2], "name": ["b"]}), onSchemaChange="evolve")
    with pytest.raises(SchemaError, match="has other columns"):
        feed.latest(at, FeedLimit())
    feed = _feed(tmp_path)
    at = feed.latest(feed.earliest()[0], FeedLimit())
    write(tmp_path, numbers(2), overwrite=True)
    with pytest.raises(SourceError, match="removed rows"):
        feed.latest(at, FeedLimit())
    with pytest.raises(SourceError, match="is not among those before"):
        feed.latest({"snapshot": 99}, FeedLimit())
    with pytest.raises(SourceError, match="is damaged"):
        feed.latest({"part": 1}, FeedLimit())
    with pytest.raises(OptionError, match="omit them"):
        _feed(tmp_path, snapshotId="1")
