"""What pyiceberg itself does to a table between a write's `prepare` and its `commit`."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table
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
    rows_by_pyiceberg,
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


def _by_a_field_that_was_dropped(catalog: Catalog, schema: pa.Schema) -> Table:
    """A table of format version 1, where the field stays in the partition spec, as `void`."""
    table = catalog.create_table("shop.t", schema, properties={"format-version": "1"})
    with table.update_spec() as spec:
        spec.add_identity("p")
        spec.add_identity("q")
    table.append(pa.table({"p": ["a", "b"], "q": ["x", "y"], "id": [1, 2]}, schema=schema))
    with table.update_spec() as spec:
        spec.remove_field("p")
    assert [str(field.transform) for field in table.spec().fields] == ["void", "identity"]
    return table


def _three(*, nullable: bool) -> pa.Schema:
    fields = [pa.field("p", pa.string(), nullable), ("q", pa.string()), ("id", pa.int64())]
    return pa.schema(fields)


def test_a_partition_field_that_was_dropped(tmp_path: Path, catalog: Catalog) -> None:
    _by_a_field_that_was_dropped(catalog, _three(nullable=True))
    rows = pa.table({"p": ["a", "b"], "q": ["x", "y"], "id": [1, 2]})
    row = rows.slice(0, 1)
    write(tmp_path, row)
    for found in (read(tmp_path), rows_by_pyiceberg(catalog, "shop.t")):
        assert sorted(found["id"].to_pylist()) == [1, 1, 2]
    write(tmp_path, row, overwrite=True, replaceWhere="q = 'x'")
    for found in (read(tmp_path), rows_by_pyiceberg(catalog, "shop.t")):
        assert found.sort_by("id").to_pydict() == rows.to_pydict()
    write(tmp_path, row, overwrite=True)
    write(tmp_path, row, writeMode="upsert", keyColumns="id")
    for found in (read(tmp_path), rows_by_pyiceberg(catalog, "shop.t")):
        assert found.to_pydict() == row.to_pydict()


def test_dropped_partition_fields_that_pyiceberg_cannot_write(
    tmp_path: Path, catalog: Catalog
) -> None:
    table = _by_a_field_that_was_dropped(catalog, _three(nullable=True))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("p")
    with pytest.raises(UnsupportedError, match=r"field 'p' .* was dropped, whose column is gone"):
        write(tmp_path, pa.table({"q": ["x"], "id": [1]}))
    assert sorted(read(tmp_path)["id"].to_pylist()) == [1, 2]


def test_a_dropped_partition_field_of_a_required_column(tmp_path: Path, catalog: Catalog) -> None:
    schema = _three(nullable=False)
    _by_a_field_that_was_dropped(catalog, schema)
    with pytest.raises(UnsupportedError, match="of column 'p', which is NOT NULL"):
        write(tmp_path, pa.table({"p": ["a"], "q": ["x"], "id": [1]}, schema=schema))


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


class ChecksStaging(SqlCatalog):
    """Refuses to stage the creation of a table that exists, as Iceberg's REST catalog does."""

    meanwhile: ClassVar[list[Callable[[], None]]] = []

    def create_table_transaction(self, identifier: Any, *rest: Any, **more: Any) -> Any:
        if self.meanwhile:
            self.meanwhile.pop()()
        if self.table_exists(identifier):
            raise TableAlreadyExistsError(f"Table already exists: {identifier}")
        return super().create_table_transaction(identifier, *rest, **more)


@pytest.mark.parametrize("when", ["before it plans", "before it commits"])
def test_a_table_that_another_job_creates_first(
    tmp_path: Path, catalog: Catalog, when: str
) -> None:
    properties = {**catalog.properties, "py-catalog-impl": f"{__name__}.ChecksStaging"}
    del properties["type"]
    given: dict[str, Any] = {"catalogProperties": json.dumps(properties)}
    out = writer_of(tmp_path, **given)
    if when == "before it plans":
        ChecksStaging.meanwhile.append(lambda: write(tmp_path, numbers(1)))
    staged = stage(out, [numbers(2)], WriteContext("later"))
    if when == "before it commits":
        write(tmp_path, numbers(1))
    out.commit(*staged)
    assert sorted(ids(catalog, "shop.t")) == [1, 2]
    assert leftovers(catalog, "shop.t") == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("variant", "variant"),
        (
            {"type": "list", "element-id": 3, "element-required": False, "element": "variant"},
            "variant",
        ),
        ("geometry(OGC:CRS84)", r"geometry\(OGC:CRS84\)"),
        ("geography(OGC:CRS84, spherical)", r"geography\(OGC:CRS84, spherical\)"),
    ],
)
def test_a_type_that_pyiceberg_does_not_know_is_named(
    tmp_path: Path, catalog: Catalog, kind: object, name: str
) -> None:
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text("utf-8"))
    metadata |= {"format-version": 3, "next-row-id": 0}
    metadata["schemas"][0]["fields"][1]["type"] = kind
    path.write_text(json.dumps(metadata), "utf-8")
    for use in (read, lambda folder: write(folder, numbers(1))):
        with pytest.raises(UnsupportedError, match=f"a column of type '{name}', which pyiceberg"):
            use(tmp_path)


def test_a_table_that_is_partitioned_by_a_field_inside_a_column(
    tmp_path: Path, catalog: Catalog
) -> None:
    kind = pa.struct([("a", pa.int64())])
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64()), ("n", kind)]))
    rows = pa.table({"id": [1], "n": pa.array([{"a": 5}], kind)})
    table.append(rows)
    with table.update_spec() as spec:
        spec.add_identity("n.a")
    assert read(tmp_path).to_pylist() == rows.to_pylist()
    with pytest.raises(UnsupportedError, match=r"partitioned by 'n\.a', a field inside a column"):
        write(tmp_path, rows)
