"""What the Iceberg writer does to a table, read back by pyiceberg itself."""

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.claims import Follows
from spark_channel.connectors.iceberg.lake_table import check_files
from spark_channel.errors import (
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
    UnsupportedError,
)
from tests.connectors.iceberg.helpers import (
    create,
    leftovers,
    mark_as_deleted,
    numbers,
    read,
    reader_of,
    rows_by_pyiceberg,
    stage,
    write,
    writer_of,
)

Rows = list[tuple[object, ...]]

ONE, TWO = UUID(int=1), UUID(int=2)


def _rows(catalog: Catalog, *columns: str) -> Rows:
    table = rows_by_pyiceberg(catalog, "shop.t")
    names = columns or tuple(table.column_names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


def _shop(*rows: tuple[int, str, str]) -> pa.Table:
    ids, names, days = zip(*rows, strict=True)
    columns = [pa.array(ids, pa.int64()), pa.array(names, pa.string()), pa.array(days, pa.string())]
    return pa.table(columns, names=["id", "name", "day"])


def test_append_overwrite_and_time_travel(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(1, 2))
    write(tmp_path, numbers(3))
    assert _rows(catalog) == [(1,), (2,), (3,)]
    before = catalog.load_table("shop.t").current_snapshot()
    assert before is not None
    write(tmp_path, numbers(9), overwrite=True)
    assert _rows(catalog) == [(9,)]
    assert read(tmp_path).to_pydict() == {"id": [9]}
    assert sorted(read(tmp_path, snapshotId=before.snapshot_id)["id"].to_pylist()) == [1, 2, 3]
    from datetime import UTC, datetime

    when = datetime.fromtimestamp(before.timestamp_ms / 1000, UTC).isoformat()
    assert sorted(read(tmp_path, asOfTimestamp=when)["id"].to_pylist()) == [1, 2, 3]
    with pytest.raises(SourceError, match="has no snapshot 5"):
        read(tmp_path, snapshotId=5)
    assert leftovers(catalog, "shop.t") == []


@pytest.mark.parametrize("partition", [None, "day"])
def test_replace_where(tmp_path: Path, catalog: Catalog, partition: str | None) -> None:
    rows = _shop(*((n, f"name {n}", f"d{n % 4}") for n in range(100)))
    write(tmp_path, rows.slice(0, 50), rows.slice(50), partitionBy=partition)
    write(tmp_path, _shop((1000, "new", "d2")), overwrite=True, replaceWhere="day = 'd2'")
    expected = [(n, f"d{n % 4}") for n in range(100) if n % 4 != 2] + [(1000, "d2")]
    assert _rows(catalog, "id", "day") == sorted(expected, key=repr)
    scan = catalog.load_table("shop.t").scan(row_filter="day == 'd2'")
    assert scan.to_arrow()["id"].to_pylist() == [
        1000
    ]  # pruned by the partitions and bounds of the manifests
    with pytest.raises(TargetError, match="does not match option 'replaceWhere'"):
        write(tmp_path, _shop((5, "e", "d1")), overwrite=True, replaceWhere="day = 'd2'")


@pytest.mark.parametrize("partition", [None, "day"])
@pytest.mark.parametrize("key", ["id", "id,day"])
def test_upsert(tmp_path: Path, catalog: Catalog, partition: str | None, key: str) -> None:
    write(
        tmp_path,
        _shop((1, "a", "mon"), (2, "b", "tue")),
        _shop((3, "c", "mon")),
        partitionBy=partition,
    )
    more: dict[str, Any] = {"writeMode": "upsert", "keyColumns": key}
    write(tmp_path, _shop((2, "B", "tue"), (4, "d", "wed")), _shop((3, "C", "mon")), **more)
    expected = [(1, "a", "mon"), (2, "B", "tue"), (3, "C", "mon"), (4, "d", "wed")]
    assert _rows(catalog, "id", "name", "day") == expected
    with pytest.raises(TargetError, match=r"2 rows have the key \{'id': 7"):
        write(tmp_path, _shop((7, "a", "mon")), _shop((7, "b", "mon")), **more)
    assert _rows(catalog, "id", "name", "day") == expected


def test_files_that_where_rules_out_are_not_read(tmp_path: Path, catalog: Catalog) -> None:
    import datetime as dt

    def day(number: int) -> dt.date:
        return dt.date(1969, 12, 30) + dt.timedelta(days=number)

    tables = [pa.table({"id": [n * 10, n * 10 + 9], "day": [day(n), None]}) for n in range(5)]
    write(tmp_path, *tables)
    for where, files, rows in (
        ("id = 25", 1, 0),
        ("id >= 30", 2, 4),
        ("id < 0", 0, 0),
        ("id <> 0", 5, 9),
        ("day = DATE '1970-01-01'", 1, 1),
        ("day IS NULL", 5, 5),
        ("day > DATE '1969-12-31'", 3, 3),
    ):
        source = reader_of(tmp_path, where=where, splitBytes="1")
        source.schema()
        splits = source.split(8)
        assert sum(len(split.params["files"]) for split in splits) == files, where
        assert sum(batch.num_rows for split in splits for batch in source.read(split)) == rows, (
            where
        )


def test_new_columns(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(1))
    wide = pa.table({"id": [2], "name": ["b"], "tags": [["x"]]})
    with pytest.raises(SchemaError, match=r"has no column 'name', 'tags'; .*onSchemaChange=evolve"):
        write(tmp_path, wide)
    write(tmp_path, wide, onSchemaChange="evolve")
    write(tmp_path, numbers(3))
    assert _rows(catalog, "id", "name", "tags") == [
        (1, None, None),
        (2, "b", ["x"]),
        (3, None, None),
    ]
    assert read(tmp_path).sort_by("id")["tags"].to_pylist() == [None, ["x"], None]


def test_columns_widen_as_iceberg_promotes_types(tmp_path: Path, catalog: Catalog) -> None:
    narrow = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "r": pa.array([0.5], pa.float32()),
            "d": pa.array([Decimal("1.25")], pa.decimal128(4, 2)),
            "s": pa.array([7], pa.int32()),
        }
    )
    wide = pa.table(
        {
            "id": pa.array([2**40], pa.int64()),
            "r": [0.1],
            "d": pa.array([Decimal("99999.5")], pa.decimal128(6, 1)),
            "s": pa.array([8], pa.int32()),
            "new": ["x"],
        }
    )
    write(tmp_path, narrow)
    with pytest.raises(SchemaError, match="onSchemaChange=evolve widens the column"):
        write(tmp_path, wide)
    write(tmp_path, wide, onSchemaChange="evolve")
    expected = [(1, 0.5, Decimal("1.25"), 7, None), (2**40, 0.1, Decimal("99999.50"), 8, "x")]
    assert _rows(catalog, "id", "r", "d", "s", "new") == expected
    found = read(tmp_path)
    assert found.sort_by("id")["id"].to_pylist() == [1, 2**40]
    assert found.schema.field("d").type == pa.decimal128(7, 2)
    write(tmp_path, wide.drop_columns(["new"]), writeMode="insert")
    with pytest.raises(SchemaError, match="make the table again"):
        write(tmp_path, pa.table({"id": ["text"]}), onSchemaChange="evolve")


def test_columns_that_the_table_lacks_are_left_out(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, numbers(1))
    write(tmp_path, pa.table({"id": [2], "name": ["b"]}), onSchemaChange="ignore")
    assert _rows(catalog) == [(1,), (2,)]
    with pytest.raises(SchemaError, match="has none of the rows' columns"):
        write(tmp_path, pa.table({"name": ["b"]}), onSchemaChange="ignore")


def test_a_column_that_was_renamed_keeps_its_values(tmp_path: Path, catalog: Catalog) -> None:
    write(tmp_path, pa.table({"id": [1], "nmae": ["a"]}))
    with catalog.load_table("shop.t").update_schema() as update:
        update.rename_column("nmae", "name")
    write(tmp_path, pa.table({"id": [2], "name": ["b"]}))
    assert read(tmp_path).sort_by("id").to_pydict() == {"id": [1, 2], "name": ["a", "b"]}
    write(tmp_path, pa.table({"id": [1], "name": ["A"]}), writeMode="upsert", keyColumns="id")
    assert _rows(catalog, "id", "name") == [(1, "A"), (2, "b")]


def test_long_and_missing_partition_values(tmp_path: Path, catalog: Catalog) -> None:
    values = ["x" * 100 + "1", "x" * 100 + "2", None, "", "a/b=c %"]
    table = pa.table({"p": values, "id": range(5)})
    write(tmp_path, table, partitionBy="p")
    assert _rows(catalog, "p", "id") == sorted(zip(values, range(5), strict=True), key=repr)
    scan = catalog.load_table("shop.t").scan(row_filter=f"p == '{values[1]}'")
    assert scan.to_arrow()["id"].to_pylist() == [1]
    write(tmp_path, table, overwrite=True)
    assert read(tmp_path).num_rows == 5


def test_claims_outlive_expired_snapshots(tmp_path: Path, catalog: Catalog) -> None:
    out = writer_of(tmp_path)
    out.commit(*stage(out, [numbers(1)], WriteContext("job", txn=("nightly", 1))))
    for number in range(3):
        write(tmp_path, numbers(number))
    table = catalog.load_table("shop.t")
    newest = table.current_snapshot()
    assert newest is not None
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.snapshots() if each.snapshot_id != newest.snapshot_id]
    ).commit()
    plan = writer_of(tmp_path).prepare(WriteContext("again", txn=("nightly", 1)), numbers().schema)
    assert plan.published_at is not None


def test_old_jobs_are_forgotten_and_pairs_are_not(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_channel.connectors.iceberg import claims

    monkeypatch.setattr(claims, "_JOBS_KEPT", 2)
    out = writer_of(tmp_path)
    out.commit(*stage(out, [numbers(1)], WriteContext("job", txn=("nightly", 1))))
    for number in range(6):
        write(tmp_path, numbers(number))
    kept = [
        text for name, text in catalog.load_table("shop.t").properties.items() if "claim" in name
    ]
    assert len([text for text in kept if '"kind": "job"' in text]) <= 4
    assert len([text for text in kept if '"kind": "txn"' in text]) == 1


def test_a_commit_copies_the_newest_snapshot_and_the_table_keeps_all(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg copies the metadata of a transaction each time that it asks for them."""
    for number in range(5):
        write(tmp_path, numbers(number))
    before = catalog.load_table("shop.t")
    oldest = before.metadata.snapshots[0].snapshot_id
    with before.manage_snapshots() as tags:
        tags.create_tag(oldest, "first")
    copies: list[int] = []
    metadata_of = vars(Transaction)["table_metadata"].fget

    def counted(transaction: Transaction) -> TableMetadata:
        metadata: TableMetadata = metadata_of(transaction)
        copies.append(len(metadata.snapshots))
        return metadata

    monkeypatch.setattr(Transaction, "table_metadata", property(counted))
    more = pa.table({"id": pa.array([5], pa.int64()), "s": ["five"]})
    write(tmp_path, more, onSchemaChange="evolve")
    write(tmp_path, numbers(6), overwrite=True)
    monkeypatch.undo()
    assert copies
    assert max(copies) == 1
    after = catalog.load_table("shop.t")
    snapshots = [each.snapshot_id for each in after.metadata.snapshots]
    assert snapshots[:5] == [each.snapshot_id for each in before.metadata.snapshots]
    assert [each.snapshot_id for each in after.history()] == snapshots
    assert after.metadata.refs["first"].snapshot_id == oldest
    assert len(after.metadata.metadata_log) > len(before.metadata.metadata_log)
    assert read(tmp_path, snapshotId=oldest)["id"].to_pylist() == [0]
    assert _rows(catalog, "id", "s") == [(6, None)]


def test_a_sql_catalog_that_is_lost_after_its_commit_has_committed(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    write(tmp_path, numbers(0))
    out = writer_of(tmp_path)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
    commit_table = SqlCatalog.commit_table

    def lost(*given: Any) -> None:
        monkeypatch.undo()
        commit_table(*given)
        raise OperationalError("COMMIT", None, Exception("server closed the connection"))

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    assert out.commit(plan, receipts) is True
    assert _rows(catalog) == [(0,), (1,)]
    assert leftovers(catalog, "shop.t") == []


def test_partitions_by_a_transform_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    create(catalog, "shop.t", numbers().schema)
    with catalog.load_table("shop.t").update_spec() as update:
        update.add_field("id", "bucket[4]")
    with pytest.raises(UnsupportedError, match=r"partitioned by bucket\[4\] of a column"):
        write(tmp_path, numbers(1))


@pytest.mark.parametrize("content", ["POSITION_DELETES", "EQUALITY_DELETES"])
def test_delete_files_are_refused(tmp_path: Path, catalog: Catalog, content: str) -> None:
    """Of both kinds, as a merge-on-read writer of Iceberg leaves them in the table's metadata."""
    write(tmp_path, numbers(1, 2))
    mark_as_deleted(catalog.load_table("shop.t"), content)
    with pytest.raises(UnsupportedError, match="merge-on-read"):
        read(tmp_path)
    with pytest.raises(UnsupportedError, match="merge-on-read"):
        write(tmp_path, numbers(2), overwrite=True)
    with pytest.raises(UnsupportedError, match="merge-on-read"):
        write(tmp_path, numbers(2), writeMode="upsert", keyColumns="id")
    write(tmp_path, numbers(3))  # what is appended leaves the others' files alone
    added = catalog.load_table("shop.t").current_snapshot()
    assert added is not None
    assert added.summary is not None
    assert added.summary.additional_properties["added-records"] == "1"


def test_places_that_are_not_there(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(SourceError, match=r"the catalog has no table shop\.t"):
        read(tmp_path)
    with pytest.raises(TargetError, match=r"the catalog has no namespace for nope\.t"):
        write(tmp_path, numbers(1), dbtable="nope.t")
    with pytest.raises(OptionError, match="with its namespace"):
        reader_of(tmp_path, dbtable="t")
    with pytest.raises(OptionError, match="takes a JSON object") as caught:
        reader_of(tmp_path, catalogProperties="s3cret")
    assert "s3cret" not in str(caught.value)
    shown = repr(reader_of(tmp_path, catalogProperties='{"token": "s3cret"}').options)
    assert "s3cret" not in shown


def test_a_table_elsewhere_names_no_files_of_this_host() -> None:
    """Whoever may write such a table would have them read by the user of the next job."""
    file = SimpleNamespace(file_path="file:///home/ann/a.parquet", file_format="PARQUET")
    task = SimpleNamespace(file=file, delete_files=[])
    with pytest.raises(
        UnsupportedError, match=r"file:///home/ann/a\.parquet on a disk of the host"
    ):
        check_files([task], "shop.t", "s3://bucket/shop/t")
    file.file_path = "/home/ann/a.parquet"
    with pytest.raises(UnsupportedError, match="on a disk of the host"):
        check_files([task], "shop.t", "abfss://c@a/shop/t")


@pytest.mark.parametrize(
    ("path", "location", "is_inside"),
    [
        ("s3://bucket/old/a.parquet", "s3a://bucket/shop/t", True),
        ("s3://payroll/a.parquet", "s3://bucket/shop/t", False),
        ("gs://bucket/a.parquet", "s3://bucket/shop/t", False),
        ("s3://bucket/a.parquet", "/w/s/t", False),
        ("file:/w/s/t/data/a.parquet", "file:///w/s/t", True),
        ("/w/s/t/data/a.parquet", "file:///w/s/t/", True),
        (f"/w/s/t-{ONE}/data/a.parquet", f"file:///w/s/t_{TWO.hex}", True),
        ("/w/s/t/data/a.parquet", f"file:///w/s/t-{ONE}", True),
        ("/w/s/t_1/data/a.parquet", "file:///w/s/t/", False),
        ("/w/s/payroll/data/a.parquet", "file:///w/s/t", False),
        (f"/w/s/{ONE}/data/a.parquet", f"file:///w/s/{TWO}", False),
        ("/w/s/t", "/w/s/t", True),
        ("/w/s/", "/w/s/t", False),
        ("/w/s", "/w/s/t", False),
        ("/etc/passwd", "/t", False),
        ("file:///w/s2/a.parquet", "file:///w/s/t", False),
        ("file:///w/s/t/../x/a.parquet", "file:///w/s/t", False),
        ("file:///w/s/t/%2e%2e/x/a.parquet", "file:///w/s/t", False),
        ("FILE:///etc/a.parquet", "file:///w/s/t", False),
    ],
)
def test_a_table_names_files_of_its_own_place(path: str, location: str, is_inside: bool) -> None:
    file = SimpleNamespace(file_path=path, file_format="PARQUET")
    task = SimpleNamespace(file=file, delete_files=[])
    check_files([task], "shop.t", None)
    if is_inside:
        check_files([task], "shop.t", location)
    else:
        with pytest.raises(UnsupportedError, match=r"outside of it.*'externalAccess'"):
            check_files([task], "shop.t", location)


def test_files_of_another_folder_are_read_where_the_user_trusts_the_table(
    tmp_path: Path, catalog: Catalog
) -> None:
    write(tmp_path, numbers(1))
    elsewhere = tmp_path / "elsewhere.parquet"
    pq.write_table(numbers(2), elsewhere)
    catalog.load_table("shop.t").add_files([elsewhere.as_uri()])
    with pytest.raises(UnsupportedError, match=r"elsewhere\.parquet.*'externalAccess'"):
        read(tmp_path)
    reader = reader_of(tmp_path, externalAccess="true")
    rows = [batch for split in reader.split(1) for batch in reader.read(split)]
    assert sorted(n for batch in rows for n in batch.column("id").to_pylist()) == [1, 2]


@pytest.mark.parametrize("through", ["file", "location"])
def test_a_table_reaches_no_table_beside_it(tmp_path: Path, catalog: Catalog, through: str) -> None:
    """By a file of the other table, or by metadata that say that the table is where the other one is."""
    write(tmp_path, numbers(1))
    write(tmp_path, numbers(42), dbtable="shop.payroll")
    table, other = catalog.load_table("shop.t"), catalog.load_table("shop.payroll")
    (task,) = other.scan().plan_files()
    if through == "file":
        table.add_files([task.file.file_path])
    else:
        mine = Path(table.metadata_location.removeprefix("file://")).with_name("mine.metadata.json")
        theirs = other.metadata.model_copy(update={"table_uuid": uuid4()})
        mine.write_text(theirs.model_dump_json(by_alias=True), encoding="utf-8")
        catalog.drop_table("shop.t")
        catalog.register_table("shop.t", mine.as_uri())
    with pytest.raises(UnsupportedError, match=r"payroll.*'externalAccess'"):
        read(tmp_path)
    if through == "file":
        with pytest.raises(UnsupportedError, match=r"payroll.*'externalAccess'"):
            write(tmp_path, numbers(3), overwrite=True)
    assert 42 in read(tmp_path, externalAccess="true")["id"].to_pylist()


def test_a_stream_begins_at_zero_and_its_record_ends_with_its_rows(
    tmp_path: Path, catalog: Catalog
) -> None:
    """Batch 0 is recorded as such; another writer's overwrite voids what follows it."""

    def publish(position: int, after: int | None, *values: int) -> None:
        out = writer_of(tmp_path)
        context = WriteContext(
            f"job-{position}",
            overwrite=after is None,
            stream=("s", position),
            follows=Follows(after),
        )
        plan, receipts = stage(out, (numbers(*values),), context)
        out.commit(plan, receipts)

    publish(0, None, 1, 2)
    found = writer_of(tmp_path).stream_progress("s")
    assert found is not None
    assert found.position == 0
    publish(0, None, 1, 2)
    publish(1, 0, 3)
    assert _rows(catalog) == [(1,), (2,), (3,)]
    write(tmp_path, numbers(9), overwrite=True)
    assert writer_of(tmp_path).stream_progress("s") is None
    publish(1, None, 1, 2, 3)
    assert _rows(catalog) == [(1,), (2,), (3,)]


def test_row_groups_have_about_the_bytes_asked_for(tmp_path: Path, catalog: Catalog) -> None:
    batches = [numbers(*range(n, n + 1_000)).to_batches()[0] for n in range(0, 10_000, 1_000)]
    write(tmp_path, pa.Table.from_batches(batches), rowGroupBytes="16kB")
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 5
