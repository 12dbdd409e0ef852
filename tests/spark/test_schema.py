"""Arrow to Spark and back: exactly, or refused by name."""

import datetime as dt

import pyarrow as pa
import pyspark.sql.types
import pytest
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, VariantType

from spark_channel.arrow_schema import conform
from spark_channel.errors import SchemaError, UnsupportedError
from spark_channel.spark.schema import as_arrow, as_spark
from spark_channel.spark.source import ChannelDataSource

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "tinyint"),
        (pa.int64(), "bigint"),
        (pa.uint8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.float64(), "double"),
        (pa.decimal128(38, 18), "decimal(38,18)"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.date32(), "date"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp"),
        (pa.duration("s"), "interval day to second"),
        (pa.list_(pa.uint16()), "array<int>"),
        (pa.map_(pa.string(), pa.int32()), "map<string,int>"),
        (pa.struct([("a", pa.large_string())]), "struct<a:string>"),
    ],
)
def test_every_arrow_type_has_its_spark_type(arrow: pa.DataType, spark: str) -> None:
    schema = pa.schema([pa.field("c", arrow)])
    found = as_spark(schema)
    assert found["c"].dataType.simpleString() == spark
    again = as_spark(as_arrow(found))
    assert again == found


@pytest.mark.parametrize(
    "arrow",
    [pa.decimal256(50, 2), pa.decimal128(5, -2), pa.month_day_nano_interval()],
)
def test_a_type_that_spark_cannot_hold_is_refused_by_column_name(arrow: pa.DataType) -> None:
    nested = pa.schema([pa.field("outer", pa.struct([pa.field("inner", arrow)]))])
    with pytest.raises(SchemaError, match=r"outer\.inner"):
        as_spark(nested)


def test_a_time_of_day_is_held_where_spark_has_the_type() -> None:
    schema = pa.schema([("t", pa.time32("s"))])
    if hasattr(pyspark.sql.types, "TimeType"):
        assert as_spark(schema)["t"].dataType.typeName().startswith("time")
    else:
        with pytest.raises(SchemaError, match="'t'"):
            as_spark(schema)


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_said_of_times_as_text_can_be_done(
    taken: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark 4.0 has no TIME, whatever a session sets: with the setting, a table with a time could not be read."""
    monkeypatch.setattr("spark_channel.spark.schema.TIME_SUPPORTED", taken)
    monkeypatch.setattr(ChannelDataSource, "times", not taken)
    schema = pa.schema([("t", pa.time64("us"))])
    assert ChannelDataSource({})._as_spark(schema)["t"].dataType.simpleString() == "string"
    said = (
        "call spark_channel.register(spark) again"
        if taken
        else "Spark has the type TIME from version 4.1 on"
    )
    assert said in caplog.text


def test_a_session_without_times_of_day_gets_them_as_text() -> None:
    time = pa.time64("us")
    kinds = [time, pa.list_(time), pa.struct([("t", time)]), pa.map_(pa.string(), time)]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    found = as_spark(schema, times=False)
    assert [field.dataType.simpleString() for field in found] == [
        "string",
        "array<string>",
        "struct<t:string>",
        "map<string,string>",
    ]
    batch = pa.record_batch(
        [[dt.time(10, 0, 0, 5)], [[dt.time(1)]], [{"t": None}], [[("k", dt.time(2))]]], schema
    )
    assert conform(batch, as_arrow(found)).column(0).to_pylist() == ["10:00:00.000005"]


VARIANT = VariantType()


@pytest.mark.parametrize(
    "kind",
    [VARIANT, StructType().add("v", VARIANT), ArrayType(VARIANT), MapType(StringType(), VARIANT)],
)
def test_what_arrow_carries_as_internal_bytes_is_refused_by_column(kind: DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'c.*of type VARIANT.*write to_json\(c"):
        as_arrow(StructType().add("c", kind))


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SchemaError, match="'id' and 'ID'"):
        as_spark(pa.schema([("id", pa.int32()), ("ID", pa.int32())]))


def test_nullability_survives() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())])
    assert [field.nullable for field in as_spark(schema)] == [False, True]
    assert as_arrow(as_spark(schema)).equals(schema)


def test_conform_casts_without_loss() -> None:
    target = pa.schema([("a", pa.int64()), ("b", pa.timestamp("us", "UTC"))])
    batch = pa.record_batch(
        {"a": pa.array([1], pa.int32()), "b": pa.array([10**9], pa.timestamp("ns", "Asia/Tokyo"))}
    )
    cast = conform(batch, target)
    assert cast.schema.equals(target)
    assert cast.column(1).cast(pa.int64()).to_pylist() == [10**6]


def test_conform_refuses_what_does_not_fit() -> None:
    batch = pa.record_batch({"a": pa.array([2**40])})
    with pytest.raises(SchemaError, match="column 'a' of type int64 does not fit int32"):
        conform(batch, pa.schema([("a", pa.int32())]))
    with pytest.raises(SchemaError, match="column 'a' holds a null"):
        conform(
            pa.record_batch({"a": pa.array([None], pa.int32())}),
            pa.schema([pa.field("a", pa.int32(), False)]),
        )
    with pytest.raises(SchemaError, match="promised were b"):
        conform(batch, pa.schema([("b", pa.int64())]))


def test_conform_returns_a_fitting_batch_itself() -> None:
    batch = pa.record_batch({"a": [1]})
    assert conform(batch, batch.schema) is batch


def test_an_empty_schema_is_carried() -> None:
    assert as_spark(pa.schema([])) == StructType([])


@pytest.mark.parametrize(
    ("name", "arguments", "hint"),
    [
        ("VariantType", (), "to_json"),
        ("GeometryType", (0,), "st_asbinary"),
        ("GeographyType", (4326,), "st_asbinary"),
        ("YearMonthIntervalType", (), "months"),
        ("CalendarIntervalType", (), "string"),
    ],
)
@pytest.mark.parametrize("place", ["c", "c.inner", "c.element", "c.value"])
def test_a_type_without_an_exact_form_is_refused_by_column(
    name: str, arguments: tuple[int, ...], hint: str, place: str
) -> None:
    if not hasattr(pyspark.sql.types, name):
        pytest.skip(f"this Spark has no {name}")
    kind = getattr(pyspark.sql.types, name)(*arguments)
    outer = {
        "c": kind,
        "c.inner": StructType().add("inner", kind),
        "c.element": ArrayType(kind),
        "c.value": MapType(StringType(), kind),
    }[place]
    with pytest.raises(SchemaError, match=hint) as refused:
        as_arrow(StructType().add("id", "long").add("c", outer))
    assert f"column '{place}'" in str(refused.value)


def test_an_engine_that_is_not_spark_is_named() -> None:
    """Sail gives a Python data source a schema of Arrow."""
    schema = pa.schema([("id", pa.int64())])
    source = ChannelDataSource({"reader": "generator", "writer": "discard", "rows": "1"})
    for made in (
        lambda: source.reader(schema),
        lambda: source.writer(schema, overwrite=False),
        lambda: source.streamReader(schema),
        lambda: source.streamWriter(schema, overwrite=False),
    ):
        with pytest.raises(
            UnsupportedError, match=r"not Apache Spark: it hands a pyarrow\.lib\.Schema"
        ):
            made()
