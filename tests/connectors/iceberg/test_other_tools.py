"""What pyiceberg itself does to a table between a write's `prepare` and its `commit`."""

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

from spark_channel.connectors import WriteContext
from spark_channel.errors import CommitError, SupersededError, UnsupportedError
from tests.connectors.iceberg.helpers import (
    create,
    ids,
    leftovers,
    numbers,
    read,
    stage,
    write,
    writer_of,
)


def test_rows_that_a_tool_removed_and_added_while_an_upsert_ran(
    tmp_path: Path, catalog: Catalog
) -> None:
    write(tmp_path, numbers(1, 2, 3))
    out = writer_of(tmp_path, writeMode="upsert", keyColumns="id")
    staged = stage(out, [numbers(2, 9)], WriteContext("job"))
    catalog.load_table("shop.t").delete("id = 1")
    catalog.load_table("shop.t").append(numbers(9, 10))
    out.commit(*staged)
    assert sorted(ids(catalog, "shop.t")) == [2, 3, 9, 10]
    assert leftovers(catalog, "shop.t") == []


def test_partitions_that_became_buckets_meanwhile(tmp_path: Path, catalog: Catalog) -> None:
    """The name of the partition column is the same, and its values are not."""
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    write(tmp_path, rows, partitionBy="id")
    out = writer_of(tmp_path)
    staged = stage(out, [pa.table({"id": [77], "v": ["c"]})], WriteContext("job"))
    with catalog.load_table("shop.t").update_spec() as spec:
        spec.remove_field("id")
        spec.add_field("id", BucketTransform(4), "id_bucket")
    with pytest.raises(UnsupportedError, match=r"partitioned by bucket\[4\]"):
        out.commit(*staged)
    assert read(tmp_path).sort_by("id").to_pydict() == rows.to_pydict()


def test_a_column_that_was_dropped_and_added_again_meanwhile(
    tmp_path: Path, catalog: Catalog
) -> None:
    write(tmp_path, pa.table({"id": [1], "v": ["a"]}))
    out = writer_of(tmp_path)
    staged = stage(out, [pa.table({"id": [2], "v": ["b"]})], WriteContext("job"))
    with catalog.load_table("shop.t").update_schema() as update:
        update.delete_column("v")
    with catalog.load_table("shop.t").update_schema() as update:
        update.add_column("v", StringType())
    with pytest.raises(CommitError, match=r"column 'v' of shop\.t was changed"):
        out.commit(*staged)
    assert read(tmp_path).to_pydict() == {"id": [1], "v": [None]}


def test_a_table_that_was_dropped_and_created_again_meanwhile(
    tmp_path: Path, catalog: Catalog
) -> None:
    write(tmp_path, numbers(1))
    out = writer_of(tmp_path)
    staged = stage(out, [numbers(2)], WriteContext("job"))
    catalog.drop_table("shop.t")
    create(catalog, "shop.t", numbers().schema)
    with pytest.raises(SupersededError):
        out.commit(*staged)
    assert ids(catalog, "shop.t") == []


def test_bounds_of_a_partition_that_was_widened_since(tmp_path: Path, catalog: Catalog) -> None:
    """Those of older files have four bytes."""
    write(tmp_path, pa.table({"id": pa.array([1, 2], pa.int32()), "v": [1, 2]}), partitionBy="id")
    with catalog.load_table("shop.t").update_schema() as update:
        update.update_column("id", LongType())
    write(tmp_path, pa.table({"id": [2**40], "v": [3]}))
    assert sorted(read(tmp_path, where="id >= 2")["v"].to_pylist()) == [2, 3]
    write(
        tmp_path, pa.table({"id": [2, 2**40], "v": [20, 30]}), writeMode="upsert", keyColumns="id"
    )
    assert sorted(read(tmp_path)["v"].to_pylist()) == [1, 20, 30]


class OwnLocations(SqlCatalog):
    """Chooses a new folder for each creation, as Nessie does, also for one that is only staged."""

    def _resolve_table_location(self, location: str | None, namespace: str, name: str) -> str:
        return f"{self.properties['warehouse']}/{namespace}/{name}_{uuid.uuid4()}"


def test_a_catalog_that_chooses_the_folder_of_each_creation(
    tmp_path: Path, catalog: Catalog
) -> None:
    properties = {**catalog.properties, "py-catalog-impl": f"{__name__}.OwnLocations"}
    del properties["type"]
    given: dict[str, Any] = {"catalogProperties": json.dumps(properties)}
    for rows in (numbers(1, 2), numbers(3)):
        write(tmp_path, rows, **given)
    assert sorted(ids(catalog, "shop.t")) == [1, 2, 3]
    assert sorted(read(tmp_path, **given)["id"].to_pylist()) == [1, 2, 3]
    write(tmp_path, numbers(9), overwrite=True, **given)
    assert ids(catalog, "shop.t") == [9]


@pytest.mark.parametrize(
    "kind",
    [
        "variant",
        {"type": "list", "element-id": 3, "element-required": False, "element": "variant"},
    ],
)
def test_a_type_that_pyiceberg_does_not_know_is_named(
    tmp_path: Path, catalog: Catalog, kind: object
) -> None:
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text("utf-8"))
    metadata |= {"format-version": 3, "next-row-id": 0}
    metadata["schemas"][0]["fields"][1]["type"] = kind
    path.write_text(json.dumps(metadata), "utf-8")
    for use in (read, lambda folder: write(folder, numbers(1))):
        with pytest.raises(UnsupportedError, match="a column of type 'variant', which pyiceberg"):
            use(tmp_path)
