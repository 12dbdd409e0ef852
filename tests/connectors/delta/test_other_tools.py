"""What other tools do to a Delta table, also between a write's `prepare` and its `commit`."""

import datetime as dt
import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.delta.lake_table import DeltaLake
from spark_channel.connectors.delta.options import DeltaWriteOptions
from spark_channel.connectors.lake.table import Change
from spark_channel.errors import CommitError, SourceError, TargetError, UnsupportedError
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

_UTC = pa.timestamp("us", "UTC")


def _ids(path: Path) -> list[int]:
    return sorted(rows_by_deltalake(path)["id"].to_pylist())


def test_rows_that_a_tool_removed_and_added_while_an_upsert_ran(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1, 2, 3))
    out = writer_of(path, writeMode="upsert", keyColumns="id")
    staged = stage(out, [numbers(2, 9)], WriteContext("job"))
    DeltaTable(str(path)).delete("id = 1")
    write_deltalake(str(path), numbers(9, 10), mode="append")
    out.commit(*staged)
    assert _ids(path) == [2, 3, 9, 10]
    assert leftovers(path) == []


@pytest.mark.parametrize("columns", ["same", "new"])
def test_a_constraint_that_was_added_meanwhile(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    rows = pa.table({"id": [-5], "note": ["x"]}) if columns == "new" else numbers(-5)
    out = writer_of(path, onSchemaChange="evolve")
    staged = stage(out, [rows], WriteContext("job"))
    DeltaTable(str(path)).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(UnsupportedError, match=r"delta\.constraints\.positive"):
        out.commit(*staged)
    assert rows_by_deltalake(path).to_pydict() == {"id": [1]}


def test_a_table_that_became_append_only_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    out = writer_of(path)
    staged = stage(out, [numbers(5)], WriteContext("job", overwrite=True))
    DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedError, match=r"delta\.appendOnly"):
        out.commit(*staged)
    assert _ids(path) == [1]


def test_a_vacuum_that_removed_staged_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    out = writer_of(path)
    plan, receipts = stage(out, [numbers(5)], WriteContext("job"))
    gone = DeltaTable(str(path)).vacuum(
        0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert gone
    with pytest.raises(CommitError, match="are missing or incomplete"):
        out.commit(plan, receipts)
    out.abort(plan, receipts)
    assert _ids(path) == [1]
    assert leftovers(path) == []


def test_a_log_that_was_cleaned_and_files_that_were_compacted_while_a_write_ran(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    for number in (1, 2, 3):
        write(path, numbers(number))
    out = writer_of(path, writeMode="upsert", keyColumns="id")
    staged = stage(out, [numbers(2, 9)], WriteContext("job", txn=("nightly", 1)))
    table = DeltaTable(str(path))
    table.optimize.compact()
    table.create_checkpoint()
    for commit in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    out.commit(*staged)
    assert _ids(path) == [1, 2, 3, 9]
    assert (
        out.prepare(WriteContext("again", txn=("nightly", 1)), numbers().schema).published_at
        is not None
    )


def test_a_transaction_id_stays_published_in_a_table_that_was_restored(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    before = DeltaTable(str(path)).version()
    out, context = writer_of(path), WriteContext("job", txn=("nightly", 1))
    out.commit(*stage(out, [numbers(2)], context))
    DeltaTable(str(path)).restore(before)
    assert _ids(path) == [1]
    assert (
        out.prepare(WriteContext("again", txn=("nightly", 1)), numbers().schema).published_at
        is not None
    )


def test_a_version_whose_files_were_vacuumed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, numbers(1))
    write(path, numbers(2), overwrite=True)
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceError, match="does not exist, or was removed"):
        read(path, version=0)
    assert read(path).to_pydict() == {"id": [2]}


def test_a_time_before_the_oldest_version(tmp_path: Path) -> None:
    """deltalake gives the oldest version there is, which has rows that the table did not have then."""
    path = tmp_path / "t"
    write(path, numbers(1))
    write(path, numbers(2))
    for number, commit in enumerate(sorted((path / "_delta_log").glob("*.json"))):
        os.utime(commit, (1e9 + number * 3600, 1e9 + number * 3600))
    with pytest.raises(SourceError, match=r"no version as old as 2001-09-09T01:46:39.*'timestamp'"):
        read(path, timestamp="2001-09-09 01:46:39")
    assert read(path, timestamp="2001-09-09 01:46:40").to_pydict() == {"id": [1]}
    assert read(path, timestamp="2100-01-01").num_rows == 2
    with pytest.raises(
        SourceError, match=r"has no version 77, its newest one is 1; check option 'version'"
    ):
        read(path, version=77)


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 23, reason="it writes such times before 1970 as others"
)
def test_times_of_96_bits_of_any_year(tmp_path: Path) -> None:
    """As Spark writes them by default. In nanoseconds they would end in the year 2262."""
    path = tmp_path / "t"
    times = [dt.datetime(year, 1, 1, 0, 0, 0, 123456, dt.UTC) for year in (1, 1600, 2024, 9999)]
    table = pa.table({"id": range(4), "at": pa.array(times, _UTC)})
    write_deltalake(str(path), table)
    (file,), log = list(path.glob("*.parquet")), path / "_delta_log" / f"{0:020d}.json"
    was = file.stat().st_size
    pq.write_table(table, file, use_deprecated_int96_timestamps=True)
    log.write_text(log.read_text().replace(f'"size":{was}', f'"size":{file.stat().st_size}'))
    assert read(path).to_pydict() == table.to_pydict()
    assert read(path, where="at > TIMESTAMP '9000-01-01 00:00:00'", columns="id").to_pydict() == {
        "id": [3]
    }
    # Writes the other rows again.
    write(path, table.slice(2, 1), writeMode="upsert", keyColumns="id")
    assert read(path).sort_by("id").to_pydict() == table.to_pydict()


_FOREIGN: list[tuple[pa.DataType, list[Any]]] = [
    (pa.timestamp("us"), [dt.datetime(2024, 1, 2, 3, 4, 5, 678901), dt.datetime(2024, 1, 2)]),
    (_UTC, [dt.datetime(2024, 1, 2, 3, 4, 5, 678901, dt.UTC), None]),
    (pa.decimal128(10, 2), [Decimal("100.00"), Decimal("0.10")]),
    (pa.decimal128(38, 18), [Decimal("0E-18"), Decimal("0.000000000000000001")]),
    (pa.float64(), [1.5, -2.0]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.string(), ["__HIVE_DEFAULT_PARTITION__", " 007 / a=b % é"]),
]


@pytest.mark.parametrize(("kind", "values"), _FOREIGN, ids=str)
def test_tables_that_were_partitioned_by_another_tool(
    tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    path = tmp_path / "t"
    table = pa.table({"id": [0, 1], "p": pa.array(values, kind)})
    write_deltalake(str(path), table, partition_by=["p"])
    write(path, pa.table({"id": [2, 3], "p": pa.array(values, kind)}))
    for found in (read(path), pa.table(rows_by_deltalake(path))):
        assert dict(zip(found["id"].to_pylist(), found["p"].to_pylist(), strict=True)) == dict(
            enumerate(values * 2)
        )
    assert reader_of(path).schema().field("p").type.equals(kind)


def test_a_partition_column_of_bytes_is_refused(tmp_path: Path) -> None:
    """deltalake gives them as the log spells them, `\\u0061`."""
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [1], "p": [b"a\xff"]}), partition_by=["p"])
    with pytest.raises(UnsupportedError, match="is partitioned by 'p', which is binary"):
        read(path)
    with pytest.raises(UnsupportedError, match="is partitioned by 'p', which is binary"):
        write(path, pa.table({"id": [1], "p": [b"a"]}))


def _spark_log(
    path: Path,
    column: dict[str, Any],
    partition_by: list[str],
    *adds: Any,
    protocol: dict[str, Any] | None = None,
) -> None:
    """A table's log as Delta for Spark spells it."""
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}, column]
    about = {
        "id": "11111111-1111-1111-1111-111111111111",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": partition_by,
        "configuration": {},
        "createdTime": 1,
    }
    protocol = protocol or {"minReaderVersion": 1, "minWriterVersion": 2}
    actions = [{"protocol": protocol}, {"metaData": about}]
    (path / "_delta_log").mkdir(parents=True)
    lines = [json.dumps(each, ensure_ascii=False) for each in [*actions, *adds]]
    (path / "_delta_log" / f"{0:020d}.json").write_text("\n".join(lines), encoding="utf-8")


_ODD = ["ü", "日本", "a+b", "#?", "100%"]


def _written_by_spark(path: Path) -> pa.Table:
    """A row of each of the partitions `_ODD`, whose paths Spark does not encode as deltalake does."""
    adds = []
    for number, value in enumerate(_ODD):
        escaped = value.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        file = path / f"s={escaped}" / f"part-{number}.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), file)
        add = {
            "path": f"{file.parent.name.replace('%', '%25')}/{file.name}",
            "partitionValues": {"s": value},
            "size": file.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
        }
        adds.append({"add": add})
    column = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
    _spark_log(path, column, ["s"], *adds)
    return pa.table({"id": range(len(_ODD)), "s": _ODD})


def _both(path: Path) -> list[dict[str, Any]]:
    """The rows that the connector reads, which are those that deltalake reads."""
    rows: list[dict[str, Any]] = read(path).sort_by("id").to_pylist()
    found = rows_by_deltalake(path).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == rows
    return rows


def test_rows_of_partitions_outside_ascii_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = _written_by_spark(path)
    assert _both(path) == rows.to_pylist()

    row = pa.table({"id": [10], "s": ["ü"]})
    write(path, row, overwrite=True, replaceWhere="s = 'ü'")
    assert _both(path) == [*rows.to_pylist()[1:], *row.to_pylist()]
    row = pa.table({"id": [11], "s": ["日本"]})
    write(path, row, writeMode="upsert", keyColumns="s")
    assert _both(path)[-2:] == [{"id": 10, "s": "ü"}, {"id": 11, "s": "日本"}]
    out = writer_of(path)
    for number in (20, 21):
        context = WriteContext(f"run-{number}", overwrite=True, txn=("nightly", 1))
        plan, receipts = stage(out, [pa.table({"id": [number], "s": ["x"]})], context)
        out.commit(plan, receipts)
        assert _both(path) == [{"id": 20, "s": "x"}]
    assert leftovers(path) == []


def test_an_overwrite_of_partitions_outside_ascii_that_meets_another_commit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = _written_by_spark(path)
    lake = DeltaLake(DeltaWriteOptions(path=str(path)))
    state = lake.open()
    assert state is not None
    write_deltalake(str(path), pa.table({"id": [9], "s": ["new"]}), mode="append")
    claim = Claim(Identity("t", "job", "j"), "j", 1)
    (path / "_spark_channel").mkdir()  # which a run has
    assert not state.commit(Change("j", claim, (), removed=state.files(), operation="overwrite"))
    assert _both(path) == [*rows.to_pylist(), {"id": 9, "s": "new"}]


def _of_length(kind: str) -> dict[str, Any]:
    notes = {"__CHAR_VARCHAR_TYPE_STRING": kind}
    return {"name": "v", "type": "string", "nullable": True, "metadata": notes}


@pytest.mark.parametrize(
    ("kind", "longer"), [("varchar(4)", "fünf!"), ("varchar(4)", "four "), ("char(4)", "fünf!")]
)
def test_a_text_that_is_longer_than_its_column_is_refused(
    tmp_path: Path, kind: str, longer: str
) -> None:
    _spark_log(tmp_path / "t", _of_length(kind), [])
    write(tmp_path / "t", pa.table({"id": [1], "v": ["fünf"]}))

    with pytest.raises(TargetError, match=f"column 'v' is {re.escape(kind)} .* 5 .*'{longer}'"):
        write(tmp_path / "t", pa.table({"id": [2, 3], "v": ["a", longer]}), job="next")

    assert read(tmp_path / "t").to_pylist() == [{"id": 1, "v": "fünf"}]


def test_a_delete_by_a_char_key_finds_the_row_that_has_blanks(tmp_path: Path) -> None:
    _spark_log(tmp_path / "t", _of_length("char(4)"), [])
    write(tmp_path / "t", pa.table({"id": [1, 2], "v": ["a", "b"]}))
    rows = pa.table({"id": pa.array([3]), "v": ["c"]})
    out = writer_of(tmp_path / "t", writeMode="upsert", keyColumns="v")
    out.gone = pa.table({"key": ["a"]})  # type: ignore[attr-defined] # as `replicate` sets it
    plan, receipts = stage(out, [rows], WriteContext("next"))
    out.commit(plan, receipts)

    assert sorted(read(tmp_path / "t").column("v").to_pylist()) == ["b   ", "c   "]


def test_an_overwrite_keeps_what_the_log_notes_of_columns(tmp_path: Path) -> None:
    column = _of_length("varchar(4)")
    column["metadata"]["comment"] = "of a person"
    _spark_log(tmp_path / "t", column, [])
    write(tmp_path / "t", pa.table({"id": [1], "v": ["a"]}))

    write(tmp_path / "t", pa.table({"id": [2], "v": ["b"]}), overwrite=True)

    assert read(tmp_path / "t").to_pylist() == [{"id": 2, "v": "b"}]
    fields = json.loads(DeltaTable(str(tmp_path / "t")).schema().to_json())["fields"]
    assert fields[1]["metadata"] == column["metadata"]


def test_a_length_inside_another_type_is_refused(tmp_path: Path) -> None:
    column = _of_length("array<varchar(4)>")
    column["type"] = {"type": "array", "elementType": "string", "containsNull": True}
    _spark_log(tmp_path / "t", column, [])
    with pytest.raises(UnsupportedError, match=r"column 'v' .* has a length"):
        write(tmp_path / "t", pa.table({"id": [1], "v": [["longer"]]}))


_OF_READERS = (
    "catalogManaged",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
)
_OF_WRITERS = (
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",
    "clustering",
    "collations-preview",
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "rowTracking",
)


_TAKEN = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
"""As long as a table does not use them."""


@pytest.mark.parametrize("feature", [*_OF_READERS, *_OF_WRITERS])
def test_a_feature_is_written_or_refused_by_name_before_a_row_moves(
    tmp_path: Path, feature: str
) -> None:
    """deltalake looks at some of them when it commits."""
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [feature] if feature in _OF_READERS else [],
        "writerFeatures": [feature],
    }
    column = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
    _spark_log(tmp_path / "t", column, [], protocol=protocol)
    rows = pa.table({"id": [1], "s": ["a"]})
    for overwrite in (False, True):
        out, context = (
            writer_of(tmp_path / "t"),
            WriteContext(f"job-{overwrite}", overwrite=overwrite),
        )
        if feature not in _TAKEN:
            with pytest.raises(UnsupportedError, match=f"'{feature}'"):
                stage(out, [rows], context)
            continue
        out.commit(*stage(out, [rows], context))
        assert read(tmp_path / "t").to_pylist() == rows.to_pylist()


def test_the_writer_version_that_demands_identity_columns(tmp_path: Path) -> None:
    column = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
    for writer in (3, 4, 5, 6):
        path = tmp_path / str(writer)
        protocol = {"minReaderVersion": 2, "minWriterVersion": writer}
        _spark_log(path, column, [], protocol=protocol)
        if writer < 6:
            write(path, pa.table({"id": [1], "s": ["a"]}))
            continue
        with pytest.raises(UnsupportedError, match="needs the writer feature 'identityColumns'"):
            write(path, pa.table({"id": [1], "s": ["a"]}))


@pytest.mark.parametrize("inside", [True, False])
def test_a_date_that_became_a_timestamp_is_refused(tmp_path: Path, *, inside: bool) -> None:
    """The dates of older files are not timestamps."""
    change = {"delta.typeChanges": [{"fromType": "date", "toType": "timestamp_ntz"}]}
    column = {"name": "d", "type": "timestamp_ntz", "nullable": True, "metadata": change}
    if inside:
        kind = {"type": "struct", "fields": [column]}
        column = {"name": "s", "type": kind, "nullable": True, "metadata": {}}
    features = ["timestampNtz", "typeWidening"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    _spark_log(tmp_path / "t", column, [], protocol=protocol)
    with pytest.raises(UnsupportedError, match=f"column '{column['name']}' .* was a date"):
        reader_of(tmp_path / "t").schema()


def test_a_partition_column_that_became_a_decimal_is_refused_by_name(tmp_path: Path) -> None:
    """deltalake does not open such a table."""
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [1, 2], "p": [5, None]}), partition_by=["p"])
    log = path / "_delta_log"
    lines = (log / f"{0:020d}.json").read_text("utf-8").splitlines()
    metadata = next(line for line in map(json.loads, lines) if "metaData" in line)
    schema = json.loads(metadata["metaData"]["schemaString"])
    change = {"fromType": "long", "toType": "decimal(22,2)"}
    schema["fields"][1] |= {"type": "decimal(22,2)", "metadata": {"delta.typeChanges": [change]}}
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    features = ["typeWidening"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    actions = ({"commitInfo": {"timestamp": 1}}, {"protocol": protocol}, metadata)
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, actions)), "utf-8")
    for use in (lambda: reader_of(path).schema(), lambda: write(path, pa.table({"id": [3]}))):
        with pytest.raises(UnsupportedError, match=r"value '5', .* not read as decimal\(22,2\)"):
            use()


def test_an_overwrite_of_a_shallow_clone_is_refused_before_a_row_moves(tmp_path: Path) -> None:
    file = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"id": [1], "s": ["a"]}), file)
    add = {
        "path": f"file:{file}",
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    column = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
    _spark_log(tmp_path / "t", column, [], {"add": add})
    with pytest.raises(UnsupportedError, match="outside its directory"):
        writer_of(tmp_path / "t").prepare(
            WriteContext("job", overwrite=True), pa.table({"id": [2], "s": ["b"]}).schema
        )


def _stored_without_blanks(path: Path, *, partitioned: bool) -> None:
    """A CHAR(4) as Delta for Spark stores it, which fills it up when it reads."""
    file = path / "part-0.parquet"
    path.mkdir()
    rows = pa.table({"id": [1, 2], "v": ["a", None]})
    pq.write_table(rows.drop_columns("v").slice(0, 1) if partitioned else rows, file)
    add = {
        "path": file.name,
        "partitionValues": {"v": "a"} if partitioned else {},
        "size": file.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    _spark_log(path, _of_length("char(4)"), ["v"] if partitioned else [], {"add": add})


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_merge_keeps_a_char_as_it_is_stored(tmp_path: Path, *, partitioned: bool) -> None:
    path = tmp_path / "t"
    _stored_without_blanks(path, partitioned=partitioned)
    write_deltalake(str(path), pa.table({"id": [3], "v": ["a"]}), mode="append")
    before = DeltaTable(path).to_pyarrow_table().sort_by("id")

    assert writer_of(path).compact(1 << 20).made == 1

    after = DeltaTable(path).to_pyarrow_table().sort_by("id")
    assert after["v"].to_pylist() == before["v"].to_pylist()
    assert set(after["v"].to_pylist()) == ({"a"} if partitioned else {"a", None})


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_char_is_read_with_its_blanks(tmp_path: Path, *, partitioned: bool) -> None:
    path = tmp_path / "t"
    _stored_without_blanks(path, partitioned=partitioned)
    both: list[dict[str, Any]] = [{"id": 1, "v": "a   "}, {"id": 2, "v": None}]
    before = both[: 1 if partitioned else 2]

    assert read(path).to_pylist() == before
    assert read(path, columns="v").to_pylist() == [{"v": row["v"]} for row in before]
    assert read(path, where="id = 1").to_pylist() == before[:1]
    with pytest.raises(UnsupportedError, match="option 'where' names column 'v', which is a CHAR"):
        reader_of(path, where="v = 'a'").schema()
    with pytest.raises(UnsupportedError, match="option 'replaceWhere' names column 'v'"):
        write(path, pa.table({"id": [9], "v": ["a"]}), overwrite=True, replaceWhere="v = 'a'")

    row = pa.table({"id": [9], "v": ["a"]})
    write(path, row, writeMode="upsert", keyColumns="v")
    assert read(path).sort_by("id").to_pylist() == [*before[1:], {"id": 9, "v": "a   "}]


def test_a_char_inside_another_type_is_refused(tmp_path: Path) -> None:
    column = _of_length("array<char(4)>")
    column["type"] = {"type": "array", "elementType": "string", "containsNull": True}
    _spark_log(tmp_path / "t", column, [])
    with pytest.raises(
        UnsupportedError, match=r"column 'v' .* has a CHAR inside .* \(array<char\(4\)>\)"
    ):
        reader_of(tmp_path / "t").schema()


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["char(4)", "varchar(4)"])
def test_texts_with_a_length_are_stored_as_spark_stores_them(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    texts = ["ä", None, "", "a ", "four"]
    values = ", ".join("(NULL)" if text is None else f"('{text}')" for text in texts)
    spark.sql(f"CREATE TABLE lengths (v {kind}) USING parquet LOCATION '{tmp_path / 's'}'")
    try:
        spark.sql(f"INSERT INTO lengths SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    finally:
        spark.sql("DROP TABLE lengths")
    _spark_log(tmp_path / "t", _of_length(kind), [])
    write(tmp_path / "t", pa.table({"id": list(range(5)), "v": texts}))

    stored = pq.read_table(tmp_path / "s").column("v").to_pylist()

    assert sorted(read(tmp_path / "t").column("v").to_pylist(), key=str) == sorted(stored, key=str)
    key = pa.table({"id": [9], "v": ["ä"]})
    write(tmp_path / "t", key, job="next", writeMode="upsert", keyColumns="v")
    assert len(read(tmp_path / "t")) == 5
