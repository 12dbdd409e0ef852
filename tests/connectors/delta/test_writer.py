"""What the Delta writer does to a table, read back by deltalake itself."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")

import deltalake.transaction
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from pyarrow.fs import LocalFileSystem

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.delta.lake_table import file_path
from spark_channel.connectors.files.filesystem import Location
from spark_channel.errors import (
    MissingPackageError,
    OptionError,
    SchemaError,
    SupersededError,
    TargetError,
    UnsupportedError,
)
from tests.connectors.delta.helpers import (
    leftovers,
    numbers,
    read,
    reader_of,
    rows_by_deltalake,
    stage,
    write,
    writer_of,
)


def _rows(path: Path, *columns: str) -> list[tuple[object, ...]]:
    table = rows_by_deltalake(path)
    names = columns or tuple(table.column_names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


def _shop(*rows: tuple[int, str, str]) -> pa.Table:
    ids, names, days = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(ids, pa.int64()), pa.array(names, pa.string()), pa.array(days, pa.string())]
    return pa.table(columns, names=["id", "name", "day"])


def test_an_address_of_unity_catalog_is_refused_with_what_works() -> None:
    for end in (reader_of, writer_of):
        with pytest.raises(UnsupportedError, match=r"'uc://main\.shop\.t'.*storage location"):
            end("uc://main.shop.t")


def test_append_and_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1, 2))
    write(path, numbers(3))
    assert _rows(path) == [(1,), (2,), (3,)]
    write(path, numbers(9), overwrite=True)
    assert _rows(path) == [(9,)]
    assert leftovers(path) == []


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_a_table_that_was_dropped_and_created_again_gets_no_rows(
    tmp_path: Path, versions: int
) -> None:
    """Its log may be as long as the old one: then the next version is free, and of another table."""
    path = tmp_path / "t"
    write(path, numbers(0))
    write(path, numbers(1))
    out = writer_of(path)
    plan, receipts = stage(out, [numbers(2)], WriteContext("late", txn=("nightly", 1)))
    for file in (path / "_delta_log").glob("*.json"):
        file.unlink()
    for number in range(versions):
        write(path, numbers(10 + number))
    with pytest.raises(SupersededError, match="dropped, or created again"):
        out.commit(plan, receipts)
    assert _rows(path) == [(10 + number,) for number in range(versions)]


def test_old_versions_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    before = DeltaTable(str(path)).version()
    write(path, numbers(2), overwrite=True)
    assert read(path, version=before).to_pydict() == {"id": [1]}
    assert read(path).to_pydict() == {"id": [2]}
    commits = [
        json.loads(each.read_text().splitlines()[0])
        for each in sorted((path / "_delta_log").glob("*.json"))
    ]
    at = commits[before]["commitInfo"]["timestamp"] + 1
    from datetime import UTC, datetime

    when = datetime.fromtimestamp(at / 1000, UTC).isoformat()
    assert read(path, timestampAsOf=when).to_pydict() == {"id": [1]}


@pytest.mark.parametrize(
    "options",
    [{"writeMode": "upsert", "keyColumns": "id"}, {"overwrite": True, "replaceWhere": "id = 1"}],
)
@pytest.mark.parametrize("before", [{}, {"partitionBy": "day"}])
def test_an_older_deltalake_replaces_some_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    before: dict[str, Any],
) -> None:
    """Until 1.6.6 deltalake takes no list of the files that a commit removes."""
    monkeypatch.delattr(deltalake.transaction, "RemoveAction", raising=False)
    path = tmp_path / "t"
    write(path, _shop((1, "a", "mon"), (2, "b", "tue")), **before)
    for round_ in ("x", "y"):
        write(path, _shop((1, round_, "mon")), **options)
        assert _rows(path) == [(1, round_, "mon"), (2, "b", "tue")]
        assert read(path).sort_by("id")["name"].to_pylist() == [round_, "b"]
    write(path, _shop((7, "z", "wed")), overwrite=True)
    assert _rows(path) == [(7, "z", "wed")]


def test_a_rehearsal_refuses_what_a_write_would_and_changes_nothing(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "s": ["a"]})
    out = writer_of(tmp_path / "t")
    out.rehearse(WriteContext("rehearsal"), rows.schema)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "t", rows)
    before = sorted(tmp_path.rglob("*"))
    out = writer_of(tmp_path / "t")
    out.rehearse(WriteContext("rehearsal"), rows.schema)
    with pytest.raises(SchemaError):
        out.rehearse(
            WriteContext("rehearsal"), pa.schema([("id", pa.string()), ("s", pa.string())])
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_feature_of_a_newer_deltalake_is_named_with_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deltalake 1.6.0 says it when it commits."""
    from deltalake.exceptions import CommitFailedError

    from spark_channel.connectors.delta.table import explained

    said = "Unsupported table features required: [ColumnMapping]"
    with (
        pytest.raises(UnsupportedError, match="features ColumnMapping"),
        explained("t", TargetError),
    ):
        raise CommitFailedError(said)
    monkeypatch.delattr(deltalake.transaction, "RemoveAction", raising=False)
    with (
        pytest.raises(
            MissingPackageError, match=r"ColumnMapping.* need deltalake 1\.6\.6 or newer"
        ),
        explained("t", TargetError),
    ):
        raise CommitFailedError(said)


def test_replace_where(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, _shop((1, "a", "mon"), (2, "b", "tue")), _shop((3, "c", "mon"), (4, "d", "wed")))
    new = _shop((5, "e", "mon"))
    write(path, new, overwrite=True, replaceWhere="day = 'mon'")
    assert _rows(path, "id", "day") == [(2, "tue"), (4, "wed"), (5, "mon")]
    write(path, _shop((5, "f", "mon")), overwrite=True, replaceWhere="day = 'mon' AND id = 5")
    assert _rows(path) == [(2, "b", "tue"), (4, "d", "wed"), (5, "f", "mon")]
    assert leftovers(path) == []


def test_rows_outside_of_replace_where_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, _shop((1, "a", "mon")))
    with pytest.raises(TargetError, match="does not match option 'replaceWhere'"):
        write(path, _shop((5, "e", "tue")), overwrite=True, replaceWhere="day = 'mon'")
    with pytest.raises(OptionError, match="'replaceWhere' says which rows an overwrite replaces"):
        write(path, _shop((5, "e", "mon")), replaceWhere="day = 'mon'")
    with pytest.raises(OptionError, match="'replaceWhere' names 'nope'"):
        write(path, _shop((5, "e", "mon")), overwrite=True, replaceWhere="nope = 'mon'")
    assert _rows(path, "id") == [(1,)]


@pytest.mark.parametrize("partition", [None, "day"])
def test_replace_where_of_partitions(tmp_path: Path, partition: str | None) -> None:
    path = tmp_path / "t"
    rows = _shop(*((n, f"name {n}", f"d{n % 4}") for n in range(100)))
    write(path, rows, partitionBy=partition)
    write(path, _shop((1000, "new", "d2")), overwrite=True, replaceWhere="day = 'd2'")
    expected = [(n, f"d{n % 4}") for n in range(100) if n % 4 != 2] + [(1000, "d2")]
    assert _rows(path, "id", "day") == sorted(expected, key=repr)


@pytest.mark.parametrize("partition", [None, "day"])
@pytest.mark.parametrize("key", ["id", "id,day", "day, id"])
def test_upsert(tmp_path: Path, partition: str | None, key: str) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {} if partition is None else {"partitionBy": partition}
    write(path, _shop((1, "a", "mon"), (2, "b", "tue")), _shop((3, "c", "mon")), **options)
    more: dict[str, Any] = {"writeMode": "upsert", "keyColumns": key}
    write(path, _shop((2, "B", "tue"), (4, "d", "wed")), _shop((3, "C", "mon")), **more)
    expected = [(1, "a", "mon"), (2, "B", "tue"), (3, "C", "mon"), (4, "d", "wed")]
    assert _rows(path, "id", "name", "day") == expected
    assert leftovers(path) == []


def test_upsert_of_bad_keys(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, _shop((1, "a", "mon")))
    more: dict[str, Any] = {"writeMode": "upsert", "keyColumns": "id"}
    with pytest.raises(TargetError, match=r"2 rows have the key \{'id': 7\}"):
        write(path, _shop((7, "a", "mon")), _shop((7, "b", "mon")), **more)
    with pytest.raises(TargetError, match="key column 'id' holds NULL"):
        write(
            path,
            pa.table({"id": pa.array([None], pa.int64()), "name": ["x"], "day": ["x"]}),
            **more,
        )
    with pytest.raises(SchemaError, match="rows lack column 'day'"):
        write(path, pa.table({"id": [1], "name": ["x"]}), **more)
    assert _rows(path) == [(1, "a", "mon")]


def test_files_that_where_rules_out_are_not_read(tmp_path: Path) -> None:
    tables = [pa.table({"id": [n * 10, n * 10 + 9], "day": [str(n)] * 2}) for n in range(5)]
    write(tmp_path / "t", *tables, partitionBy="day")
    for where, pieces, rows in (
        ("id = 25", 1, 0),
        ("id >= 30", 2, 4),
        ("id < 0", 0, 0),
        ("day = '3'", 1, 2),
        ("day >= '3' AND id < 40", 1, 2),
    ):
        source = reader_of(tmp_path / "t", where=where, columns="id", splitBytes="1")
        assert source.schema().names == ["id"]
        splits = source.split(8)
        assert sum(len(split.params["pieces"]) for split in splits) == pieces, where
        assert sum(batch.num_rows for split in splits for batch in source.read(split)) == rows, (
            where
        )


def test_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    wide = pa.table({"id": [2], "name": ["b"]})
    with pytest.raises(SchemaError, match=r"has no column 'name'; .*onSchemaChange=evolve"):
        write(path, wide)
    write(path, wide, onSchemaChange="evolve")
    assert _rows(path, "id", "name") == [(1, None), (2, "b")]
    write(path, numbers(3))
    assert _rows(path, "id", "name") == [(1, None), (2, "b"), (3, None)]
    assert read(path).sort_by("id").to_pydict() == {"id": [1, 2, 3], "name": [None, "b", None]}


def test_columns_that_the_table_lacks_are_left_out_and_types_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, pa.table({"id": pa.array([1], pa.int32())}))
    write(path, pa.table({"id": pa.array([2], pa.int32()), "name": ["b"]}), onSchemaChange="ignore")
    assert _rows(path) == [(1,), (2,)]
    with pytest.raises(SchemaError, match=r"'id' is int64.*deltalake changes no type of a column"):
        write(path, numbers(3), onSchemaChange="evolve")


def test_partition_values_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "t"
    values = ["a b", "x=1/y", "50%", "ü", None, "a+b"]
    table = pa.table({"p": values, "id": range(6)})
    write(path, table, partitionBy="p")
    assert _rows(path, "p", "id") == sorted(zip(values, range(6), strict=True), key=repr)
    assert sorted(read(path).to_pylist(), key=repr) == sorted(table.to_pylist(), key=repr)
    with pytest.raises(
        TargetError, match=r"holds the empty text, which .* could not distinguish from NULL"
    ):
        write(path, pa.table({"p": [""], "id": [1]}))


def test_files_of_another_writer_with_any_name_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = pa.table({"p": ["a b", "x=1/y", "50%", "ü"], "id": range(4)})
    write_deltalake(str(path), table, partition_by=["p"])
    assert sorted(read(path).to_pylist(), key=repr) == sorted(table.to_pylist(), key=repr)
    write(path, pa.table({"p": ["a b"], "id": [9]}), overwrite=True, replaceWhere="p = 'a b'")
    assert _rows(path, "p", "id") == sorted(
        [("a b", 9), ("x=1/y", 1), ("50%", 2), ("ü", 3)], key=repr
    )
    more: dict[str, Any] = {"writeMode": "upsert", "keyColumns": "id"}
    write(path, pa.table({"p": ["ü", "z"], "id": [1, 2]}), **more)
    assert _rows(path, "p", "id") == sorted([("a b", 9), ("ü", 1), ("z", 2), ("ü", 3)], key=repr)
    write(path, pa.table({"p": ["a b"], "id": [9]}), overwrite=True)
    assert _rows(path, "p", "id") == [("a b", 9)]


def test_a_file_whose_name_deltalake_would_not_find_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [1, 2]}))
    log = path / "_delta_log" / f"{0:020d}.json"
    (name,) = [each.name for each in path.glob("*.parquet")]
    (path / name).rename(path / "a~b.parquet")
    log.write_text(log.read_text().replace(name, "a~b.parquet"))
    write(path, pa.table({"id": [1, 1]}), overwrite=True, replaceWhere="id = 1")
    assert _rows(path) == [(1,), (1,), (2,)]
    write(path, pa.table({"id": [3]}), overwrite=True)
    assert _rows(path) == [(3,)]


def test_a_pair_that_another_writer_of_delta_has_written(tmp_path: Path) -> None:
    """Spark's own `txnAppId` and `txnVersion` are the same actions of the log."""
    path = tmp_path / "t"
    write(path, numbers(1))
    pair = CommitProperties(app_transactions=[Transaction("nightly", 7)])
    write_deltalake(str(path), numbers(2), mode="append", commit_properties=pair)
    plan = writer_of(path).prepare(WriteContext("job", txn=("nightly", 7)), numbers().schema)
    assert plan.published_at is not None
    with pytest.raises(
        TargetError, match="nightly:6, and another writer has written version 7 of that name"
    ):
        writer_of(path).prepare(WriteContext("job", txn=("nightly", 6)), numbers().schema)
    for version in (9, 8):  # both written here, so that each is known by itself
        out = writer_of(path)
        out.commit(
            *stage(
                out, [numbers(version)], WriteContext(f"job-{version}", txn=("nightly", version))
            )
        )
    assert DeltaTable(str(path)).transaction_version("nightly") == 9
    assert _rows(path) == [(1,), (2,), (8,), (9,)]


def test_claims_outlive_checkpoints_and_cleaned_logs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    out = writer_of(path)
    out.commit(*stage(out, [numbers(1)], WriteContext("job", txn=("nightly", 1))))
    for number in range(12):
        write(path, numbers(number))
    DeltaTable(str(path)).create_checkpoint()
    newest = DeltaTable(str(path)).version()
    for each in (path / "_delta_log").glob("*.json"):
        if int(each.stem) < newest:
            each.unlink()
    plan = writer_of(path).prepare(WriteContext("again", txn=("nightly", 1)), numbers().schema)
    assert plan.published_at is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly=true"),
        ({"delta.enableChangeDataFeed": "true"}, "delta.enableChangeDataFeed=true"),
    ],
)
def test_tables_that_may_only_grow(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    path = tmp_path / "t"
    DeltaTable.create(str(path), Schema.from_arrow(numbers().schema), configuration=settings)
    write(path, numbers(1))
    with pytest.raises(UnsupportedError, match=message):
        write(path, numbers(2), overwrite=True)
    with pytest.raises(UnsupportedError, match=message):
        write(path, numbers(1), writeMode="upsert", keyColumns="id")
    assert _rows(path) == [(1,)]


def test_a_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    DeltaTable(str(path)).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(UnsupportedError, match=r"delta.constraints.positive"):
        write(path, numbers(-1))


def _log(path: Path, *actions: dict[str, Any]) -> None:
    """A table that another writer made: its first commit."""
    (path / "_delta_log").mkdir(parents=True)
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [],
        "configuration": {},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "createdTime": 0,
    }
    first = [
        {"metaData": {**metadata, **each["metaData"]}} if "metaData" in each else each
        for each in actions
    ]
    (path / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, first)))


def _protocol(*features: str) -> dict[str, Any]:
    both = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _log(
        path,
        _protocol("columnMapping"),
        {"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}},
    )
    with pytest.raises((UnsupportedError, TargetError), match="olumnMapping"):
        write(path, numbers(1))


def test_deletion_vectors_are_refused_by_readers_and_replacing_writers(tmp_path: Path) -> None:
    path = tmp_path / "t"
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    add = {
        "path": "x.parquet",
        "partitionValues": {},
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords": 10}',
        "deletionVector": vector,
    }
    _log(path, _protocol("deletionVectors"), {"metaData": {}}, {"add": add})
    with pytest.raises(UnsupportedError, match="deletion vectors"):
        read(path)
    with pytest.raises(UnsupportedError, match="deletion vectors"):
        write(path, numbers(1), overwrite=True)
    write(path, numbers(1))  # what is appended leaves the others' files alone
    assert DeltaTable(str(path)).version() == 1


def test_an_environment_that_switches_conditional_puts_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(OptionError, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        writer_of("s3://box/t?region=eu-west-1").exists()


def test_options_that_contradict(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for options, message in (
        ({"commit": "task"}, "one commit for all tasks"),
        ({"writeMode": "upsert"}, "go together"),
        ({"keyColumns": "id"}, "go together"),
        ({"maxDirtyRows": "5"}, "'maxDirtyRows' is not supported"),
        ({"mergeSchema": "true"}, "onSchemaChange=evolve"),
        ({"storageOptions": '{"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}'}, "lose each other's rows"),
        ({"storageOptions": "s3cret"}, "takes a JSON object"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            writer_of(path, **options)
        assert "s3cret" not in str(caught.value)
    write(path, _shop((1, "a", "mon")), partitionBy="day")
    with pytest.raises(
        OptionError, match=r"'partitionBy' got 'name', and .* is partitioned by day"
    ):
        write(path, _shop((1, "a", "mon")), partitionBy="name")


def test_a_path_that_holds_no_table(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    from spark_channel.errors import SourceError

    with pytest.raises(SourceError, match="is not a Delta table"):
        read(tmp_path / "plain")
    assert writer_of(tmp_path / "plain").exists() is False


@pytest.mark.parametrize(
    "named",
    [
        "../private/",
        "a/../../private/",
        "%2E%2E/private/",
        "{private}/",
        "%2F",
        "file://{private}/",
    ],
)
def test_a_log_that_names_files_elsewhere_has_none_of_them_read(tmp_path: Path, named: str) -> None:
    """Whoever may write the log would have read what only the user of the next job may read."""
    private, shared = tmp_path / "private", tmp_path / "shared"
    write(private, numbers(42))
    write(shared, numbers(0))
    write(shared, numbers(1))
    (secret,) = list(private.rglob("*.parquet"))
    last = max((shared / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    begin = (
        quote(str(private)).replace("/", "%2F", 1)
        if named == "%2F"
        else named.format(private=private).rstrip("/")
    )
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"{begin}/{secret.relative_to(private)}"
            action["add"]["size"] = secret.stat().st_size
    last.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(UnsupportedError, match="outside its directory"):
        read(shared)
    feed = reader_of(shared).feed(FeedOptions())
    with pytest.raises(UnsupportedError, match="outside its directory"):
        feed.changes({"version": 0}, {"version": int(last.stem)})
    trusting = reader_of(shared, externalAccess="true")
    feed = trusting.feed(FeedOptions())
    splits = feed.changes({"version": 0}, {"version": int(last.stem)})
    assert [b.column("id").to_pylist() for each in splits for b in feed.read(each)] == [[42]]
    assert sorted(read(shared, externalAccess="true").column("id").to_pylist()) == [0, 42]


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [
        ("", "s3://b/x.parquet", None),
        ("", "file://host/x.parquet", None),
        ("s3://a?region=eu-west-1", "s3a://b/x%20y.parquet", "b/x y.parquet"),
        ("s3://a", "/etc/x.parquet", None),
        ("s3://a", "file:///etc/x.parquet", None),
        ("gs://a", "s3://b/x.parquet", None),
        ("abfs://c@a", "abfs://d@b/x.parquet", None),
    ],
)
def test_a_file_of_another_store_is_refused_also_where_the_table_is_trusted(
    root: str, path: str, found: str | None
) -> None:
    place = Location(LocalFileSystem(), "a/t", root)
    if found is not None:
        assert file_path("a/t", path, "t", place) == found
    else:
        with pytest.raises(UnsupportedError, match="its store is another one"):
            file_path("a/t", path, "t", place)


def test_row_groups_have_about_the_bytes_asked_for(tmp_path: Path) -> None:
    batches = [numbers(*range(n, n + 1_000)).to_batches()[0] for n in range(0, 10_000, 1_000)]
    write(tmp_path / "t", pa.Table.from_batches(batches), rowGroupBytes="16kB")
    (file,) = (tmp_path / "t").rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 5
