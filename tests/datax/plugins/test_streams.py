from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.datax import LoadedJob, load_job
from spark_channel.errors import JobFileError, SchemaError
from spark_channel.transform import prepare

IDS = pa.record_batch({"id": range(3)})


def stream(
    make_job: Any, *columns: dict[str, Any], rows: Any = 3, channels: int | None = 2, **more: Any
) -> LoadedJob:
    setting = {"speed": {"channel": channels}} if channels else {}
    reads = {"column": list(columns), "sliceRecordCount": rows}
    return load_job(make_job(reads=reads, setting=setting, **more))


def rows_of(loaded: LoadedJob) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        prepare(loaded.spec.transformers, IDS.schema).run(IDS).batch.to_pylist()
    )
    return rows


def test_constants_have_their_types(make_job: Any) -> None:
    loaded = stream(
        make_job,
        {"value": "a", "type": "string"},
        {"value": 5, "type": "LONG"},
        {"value": 2.5, "type": "double"},
        {"value": True, "type": "bool"},
        {"value": "2024-01-31 08:30:00", "type": "date"},
        {"value": "31.01.2024", "type": "date", "dateFormat": "dd.MM.yyyy"},
        {"value": "raw", "type": "bytes"},
        {"value": "untyped"},
    )
    row = {
        "c0": "a",
        "c1": 5,
        "c2": 2.5,
        "c3": True,
        "c4": datetime(2024, 1, 31, 8, 30),
        "c5": datetime(2024, 1, 31),
        "c6": b"raw",
        "c7": "untyped",
    }
    assert rows_of(loaded) == [row] * 3


def test_every_channel_makes_its_rows(make_job: Any) -> None:
    loaded = stream(make_job, {"value": "a"}, rows="100", channels=4)
    assert (loaded.spec.reader.name, dict(loaded.spec.reader.options)) == (
        "generator",
        {"rows": "400", "schema": "id BIGINT"},
    )
    alone = stream(make_job, {"value": "a"}, rows=100, channels=None)
    assert alone.spec.reader.options["rows"] == "100"
    assert any("it makes them once" in text for text in alone.warnings)


def test_random_columns_stay_between_their_bounds(make_job: Any) -> None:
    loaded = stream(
        make_job,
        {"random": "3, 5", "type": "long"},
        {"random": "random 2,4", "type": "string"},
        {"random": "2024-01-01 00:00:00, 2024-01-02 00:00:00", "type": "date"},
        {"random": "1,9", "value": "wins"},
    )
    for row in rows_of(loaded):
        assert 3 <= row["c0"] <= 5
        assert 2 <= len(row["c1"]) <= 4
        assert datetime(2024, 1, 1) <= row["c2"] <= datetime(2024, 1, 2)
        assert row["c3"] == "wins"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"type": "long"}, r"column\[0\] got neither value nor random"),
        (
            {"value": "x", "type": "long"},
            r"column\[0\]: column value 'x' is not a value of type int64",
        ),
        ({"value": "x", "type": "uuid"}, r"column\[0\]\.type got 'uuid'"),
        ({"random": "5", "type": "long"}, r"column\[0\]\.random got '5'; it takes two values"),
        (
            {"random": "9, 5", "type": "long"},
            r"column\[0\]\.random: random got 9, 5; it takes the smaller",
        ),
        ({"random": "-1, 5", "type": "long"}, "two whole numbers of 0 or more"),
        ({"random": "a, b", "type": "long"}, "two whole numbers, such as 0, 10"),
        ({"random": "a, b", "type": "date"}, "two times, such as"),
        ({"random": "0, 999999999", "type": "string"}, "numbers up to 100000"),
    ],
)
def test_a_column_that_makes_no_sense_is_refused(
    make_job: Any, column: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        stream(make_job, column)


@pytest.mark.parametrize("rows", [0, -5, "many", 2**62])
def test_a_count_that_makes_no_sense_is_refused(make_job: Any, rows: Any) -> None:
    with pytest.raises(JobFileError, match="sliceRecordCount got"):
        stream(make_job, {"value": 1}, rows=rows)


def step(name: str, column: Any, *paras: Any) -> dict[str, Any]:
    return {"name": name, "parameter": {"columnIndex": column, "paras": list(paras)}}


def test_transformers_run_in_order(make_job: Any) -> None:
    loaded = stream(
        make_job,
        {"value": "dataxTest"},
        {"value": "dataxTest"},
        {"value": "xyz"},
        {"value": "xyzzzzz"},
        {"value": 7, "type": "long"},
        transformer=[
            step("dx_substr", 0, "2", "5"),
            step("dx_replace", "1", "2", 4, "****"),
            step("dx_pad", 2, "L", "4", "A"),
            step("dx_digest", 3, "MD5", "toUpperCase"),
            step("dx_filter", 4, "==", 8),
            step("dx_filter", 4, "NOT  LIKE", "[5-9]"),
            step("dx_map", 4, "/", 2),
        ],
    )
    (row, _, _) = rows_of(loaded)
    assert list(row.values()) == [
        "taxTe",
        "da****est",
        "Axyz",
        "9CDFFC4FA4E45A99DB8BBCD762ACFFA2",
        "3.50",
    ]


def test_a_transformer_on_a_column_that_is_not_there_names_its_place(make_job: Any) -> None:
    loaded = stream(make_job, {"value": "a"}, transformer=[step("dx_substr", 5, "0", "1")])
    with pytest.raises(
        SchemaError, match=r"^job\.content\[0\]\.transformer\[0\] \(dx_substr\): .*no column 5"
    ):
        prepare(loaded.spec.transformers, IDS.schema)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"name": "dx_groovy", "parameter": {"code": "x"}},
            r"transformer\[0\]: dx_groovy is not supported: .*Python",
        ),
        ({"name": "dx_upper"}, r"transformer\[0\]\.name got 'dx_upper'; it takes one of dx_substr"),
        ({"name": "dx_pad", "parameter": {"paras": []}}, r"parameter\.columnIndex is missing"),
        (step("dx_pad", -1, "l", "4", "A"), r"columnIndex got -1"),
        (step("dx_pad", 0, "l", "4"), r"paras got 2 values; it takes 3: l or r, length, fill"),
        (step("dx_pad", 0, "x", "4", "A"), r"transformer\[0\]: pad got side 'x'"),
        (step("dx_substr", 0, "a", "4"), r"paras got 'a'; it takes a whole number"),
        (step("dx_substr", 0, "-1", "4"), r"transformer\[0\]: substr got start -1"),
        (step("dx_filter", 0, "~", "4"), r"drop_rows got operator '~'"),
        (step("dx_filter", 0, "like", "("), r"a regular expression of RE2"),
        (step("dx_digest", 0, "crc", "toUpperCase"), r"digest got algorithm 'crc'"),
        (step("dx_digest", 0, "md5", "upper"), r"it takes 'toUpperCase' or 'toLowerCase'"),
        (step("dx_map", 0, "&", "1"), r"transformer\[0\]: calculate got operation '&'"),
        (step("dx_map", 0, "/", "0"), r"calculate got number '0'; it takes a number other than 0"),
        ("dx_pad", r"transformer\[0\] got 'dx_pad'; it takes an object"),
    ],
)
def test_a_transformer_that_makes_no_sense_is_refused(
    make_job: Any, given: Any, message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        load_job(make_job(transformer=[given]))


def test_hive_goes_through_spark(make_job: Any) -> None:
    reads = {"sqls": ["select 1;"], "jdbcUrl": "jdbc:hive2://h", "user": "u", "password": ""}
    writes = {
        "databaseName": "d",
        "tableName": "t",
        "column": [{"name": "a"}, "b"],
        "partition": ["b"],
        "writeMode": "overwrite",
    }
    spec = load_job(make_job("hivereader", reads, "hivewriter", writes)).spec
    assert (spec.reader.name, spec.reader.spark_format, dict(spec.reader.options)) == (
        "hive",
        True,
        {"query": "select 1"},
    )
    assert dict(spec.writer.options) == {"dbtable": "d.t", "partitionBy": "b"}
    assert spec.save_mode == "overwrite"


@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        ({}, {"tableName": "t", "column": ["a"]}, "sqls is missing"),
        ({"sqls": "x"}, {"tableName": "a.b.c", "column": ["a"]}, "tableName got 'a.b.c'"),
        ({"sqls": "x"}, {"tableName": "t", "column": ["a", "a"]}, "each name once"),
        ({"sqls": "x"}, {"tableName": "t", "column": ["a"], "partition": "p"}, "partition got 'p'"),
        ({"sqls": "x"}, {"tableName": "t", "column": ["a"], "writeMode": "x"}, "writeMode got 'x'"),
        ({"sqls": "x"}, {"tableName": "t", "column": [{"type": "int"}]}, "column got"),
    ],
)
def test_a_hive_job_that_makes_no_sense_is_refused(
    make_job: Any, reads: Any, writes: Any, message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        load_job(make_job("hivereader", reads, "hivewriter", writes))
