"""Digits and fields that Spark's types promise and Arrow's do not say: held for each value, or refused with it."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pyspark.sql.types
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructType,
)

from spark_channel import throttle
from spark_channel.errors import SchemaError
from spark_channel.spark.precision import DeclaredPrecision
from spark_channel.spark.schema import as_arrow, as_spark

pytestmark = pytest.mark.spark

NANOSECONDS = 45_296_123_456_789  # 12:34:56.123456789
needs_time = pytest.mark.skipif(
    not hasattr(pyspark.sql.types, "TimeType"), reason="Spark has TIME from version 4.1 on"
)
has_nine = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)


def time(digits: int) -> DataType:
    kind: DataType = pyspark.sql.types.TimeType(digits)
    return kind


def checked(kind: DataType, value: object) -> None:
    schema = StructType().add("before", "integer").add("x", kind)
    wanted = as_arrow(schema)
    values = pa.array([None, value], wanted.field("x").type)
    # a slice: what lies before it in the buffers is no value of the batch
    hidden = pa.concat_arrays([pa.array([value], values.type), pa.nulls(2, values.type)])
    precision = DeclaredPrecision.from_schema(schema)
    assert precision is not None
    precision.check(pa.record_batch([pa.nulls(2, pa.int32()), hidden.slice(1)], ["before", "x"]))
    precision.check(pa.record_batch([pa.nulls(2, pa.int32()), values], ["before", "x"]))


@needs_time
@pytest.mark.parametrize("digits", [0, 3, 6, 8])
@pytest.mark.parametrize("outer", ["x", "x.inner", "x.element", "x.key", "x.value"])
def test_a_time_with_more_digits_than_its_type_is_refused_with_its_value(
    digits: int, outer: str
) -> None:
    kind = time(digits)
    right = NANOSECONDS // 10 ** (9 - digits) * 10 ** (9 - digits)
    wrapped: dict[str, tuple[DataType, object, object]] = {
        "x": (kind, NANOSECONDS, right),
        "x.inner": (StructType().add("inner", kind), {"inner": NANOSECONDS}, {"inner": right}),
        "x.element": (ArrayType(kind), [right, NANOSECONDS], [right]),
        "x.key": (MapType(kind, StringType()), [(NANOSECONDS, "a")], [(right, "a")]),
        "x.value": (MapType(StringType(), kind), [("a", NANOSECONDS)], [("a", right)]),
    }
    outer_kind, wrong_value, right_value = wrapped[outer]
    checked(outer_kind, right_value)
    with pytest.raises(SchemaError) as refused:
        checked(outer_kind, wrong_value)
    assert str(refused.value).startswith(
        f"column '{outer}' holds 12:34:56.123456789, which is not a value of TIME({digits})"
    )


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        (DayTimeIntervalType.DAY, dt.timedelta(days=-3), dt.timedelta(days=3, hours=1)),
        (DayTimeIntervalType.HOUR, dt.timedelta(days=3, hours=1), dt.timedelta(minutes=-1)),
        (DayTimeIntervalType.MINUTE, dt.timedelta(minutes=-1), dt.timedelta(seconds=1)),
    ],
)
def test_an_interval_with_finer_fields_than_its_type_is_refused(
    field: int, right: dt.timedelta, wrong: dt.timedelta
) -> None:
    kind = DayTimeIntervalType(DayTimeIntervalType.DAY, field)
    checked(kind, right)
    with pytest.raises(
        SchemaError, match=f"an interval of {wrong}, which is not a value of INTERVAL DAY"
    ):
        checked(kind, wrong)


def test_types_that_arrow_knows_whole_are_not_looked_through() -> None:
    schema = (
        StructType().add("a", "decimal(10,2)").add("b", DayTimeIntervalType()).add("c", "string")
    )
    assert DeclaredPrecision.from_schema(schema) is None


@needs_time
def test_nanoseconds_of_a_source_are_declared_where_spark_has_them() -> None:
    nested = [
        pa.time64("ns"),
        pa.large_list(pa.time64("ns")),
        pa.struct([("t", pa.time64("ns")), ("u", pa.time64("us"))]),
        pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.time64("ns"))),
        pa.time32("s"),
    ]
    found = as_spark(pa.schema([(f"c{number}", kind) for number, kind in enumerate(nested)]))
    nine = "time(9)" if has_nine else "time(6)"
    assert [field.dataType.simpleString() for field in found] == [
        nine,
        f"array<{nine}>",
        f"struct<t:{nine},u:time(6)>",
        f"map<string,{nine}>",
        "time(6)",
    ]


@pytest.mark.parametrize("name", ["CharType", "VarcharType"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_char_and_varchar_are_refused_by_column(name: str, is_nested: bool) -> None:
    kind = getattr(pyspark.sql.types, name)(3)
    schema = StructType().add("c", ArrayType(kind) if is_nested else kind)
    with pytest.raises(
        SchemaError, match=r"column 'c(\.element)?' is of type (VAR)?CHAR\(3\).*STRING"
    ):
        as_arrow(schema)


def test_text_with_a_collation_arrives_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """A collation says how texts compare; a target gets the texts, also those that Spark takes for equal."""
    texts = ["a", "A", "a ", "\u0131", "e\u0301", "\u00e9", None]
    c = "c collate UNICODE_CI_AI"
    frame = spark.createDataFrame([(text,) for text in texts], "c STRING").selectExpr(
        f"{c} AS c",
        f"array({c}) AS a",
        f"named_struct('s', {c}) AS s",
        f"map(coalesce({c}, ''), {c}) AS m",
    )
    wanted = [(text, [text], {"s": text}, [(text or "", text)]) for text in texts]
    folder = str(tmp_path / "out")
    writer = throttle(frame, 1_000).write.format("channel").option("writer", "parquet")
    writer.mode("append").save(folder)
    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    assert schema.count("collate UNICODE_CI_AI") == 5
    reader = spark.read.format("channel").option("reader", "parquet").schema(schema)
    # collect() of such columns is empty on Spark 4.0.0, of Spark's own DataFrames, too
    for found in (pq.read_table(folder), reader.load(folder).toArrow()):
        rows = zip(*found.to_pydict().values(), strict=True)
        assert sorted(rows, key=repr) == sorted(wanted, key=repr)
    assert reader.load(folder).where("c = 'A'").count() == 2


@needs_time
@pytest.mark.newest
def test_what_spark_reads_is_what_it_keeps(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By batches and by streams."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timeType.enabled"))
    times = [45_296_123_456_000, 45_296_123_456_001, NANOSECONDS]
    values = {"x": pa.array(times, pa.time64("ns")), "d": pa.array([10**6] * 3, pa.duration("us"))}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(values), tmp_path / "in" / "times.parquet")
    given = spark.read.format("channel").option("reader", "parquet").schema("x STRING")
    assert len({row.x for row in given.load(str(tmp_path / "in")).collect()}) == 3
    for schema, shown in (
        ("x TIME(3)", "column 'x' holds 12:34:56.123456000, which is not a value of TIME(3)"),
        ("d INTERVAL MINUTE", "column 'd' holds an interval of 0:00:01"),
    ):
        plain = spark.read.format("channel").option("reader", "parquet").schema(schema)
        with pytest.raises(Exception, match="spark_channel") as refused:
            plain.load(str(tmp_path / "in")).collect()
        assert shown in str(refused.value), str(refused.value)
        stream = spark.readStream.format("channel").option("reader", "parquet").schema(schema)
        query = (
            stream.load(str(tmp_path / "in"))
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / schema.split()[1]))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(Exception, match="STREAM_FAILED") as refused:
            query.awaitTermination(200)
        assert shown in str(refused.value), str(refused.value)
