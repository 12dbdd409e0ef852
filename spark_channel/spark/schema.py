"""Between Arrow's types and Spark's: exactly what Spark accepts, or refused by column name.

From 4.2 on, Spark compares the first batch of a read with its own schema to the letter; before, a batch
that differs passes silently or dies in the JVM. So every batch is cast here, checked, never truncated.
"""

import inspect
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt
import pyspark
import pyspark.sql.types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_channel.arrow_schema import TEXT_LENGTH, is_list, length_in, plain_type, text_lengths
from spark_channel.errors import SchemaError

__all__ = [
    "TIME_SUPPORTED",
    "as_arrow",
    "as_spark",
    "has_times",
    "spark_text_lengths",
    "types_inside",
]

TIME_SUPPORTED = hasattr(pyspark.sql.types, "TimeType")  # since 4.1
_NANOSECOND_TIMES = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)
"""Spark 4.1 and 4.2 have TIME(6) at most."""
_DECIMAL_DIGITS = 38
_WITHOUT_ARROW = {
    "VariantType": "write to_json({0}), which parse_json reads back",
    "GeometryType": "write st_asbinary({0})",
    "GeographyType": "write st_asbinary({0})",
    "YearMonthIntervalType": "write it as a number of months, or cast it to string",
    "CalendarIntervalType": "cast it to string, or use an interval day to second",
}
"""Types of Spark (by name, since 4.0 lacks some) -> what to do instead."""


def as_spark(schema: pa.Schema, *, times: bool = True) -> StructType:
    """The Spark schema that a source with this Arrow schema is read with.

    `times`: whether the session takes times of day (`spark.sql.timeType.enabled`); else they are text.
    Unsigned integers widen to the next signed type, as Spark's own Parquet source does; large, view and
    dictionary types become their plain form.

    Raises:
        SchemaError: a type that Spark cannot hold, or a column name that occurs twice.
    """
    names: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in names:
            raise SchemaError(
                f"columns {names[name.lower()]!r} and {name!r} differ only in case, which Spark does not distinguish: "
                "omit one with option 'columns', or rename it in the source"
            )
        names[name.lower()] = name
    if not times:
        schema = pa.schema([field.with_type(_times_as_text(field.type)) for field in schema])
    plain = pa.schema([_plain_field(field, field.name) for field in schema])
    spark: StructType = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    for field, arrow_field in zip(spark.fields, schema, strict=True):
        field.dataType = _with_nanoseconds(field.dataType, arrow_field.type)
    for name, length in text_lengths(schema).items():
        spark[name].metadata = {TEXT_LENGTH: length}
    for field in schema:
        if comment := (field.metadata or {}).get(b"comment"):
            metadata = spark[field.name].metadata or {}
            spark[field.name].metadata = {**metadata, "comment": comment.decode(errors="replace")}
    return spark


def as_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark takes and gives batches of `schema`; zoned timestamps in UTC.

    Raises:
        SchemaError: a type that Arrow batches only carry as Spark's internal bytes, such as VARIANT; names the column.
    """
    for field in schema.fields:
        _refuse_without_arrow(field.dataType, field.name)
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arrow_schema = to_arrow_schema(schema, timezone="UTC")
    else:
        arrow_schema = to_arrow_schema(schema)  # before 4.2 it always used UTC
    return pa.schema([field.remove_metadata() for field in arrow_schema])


def spark_text_lengths(schema: StructType) -> dict[str, str]:
    """Return the text lengths in the columns' metadata, which Spark keeps for columns that are selected unchanged."""
    lengths = {field.name: length_in(field.metadata) for field in schema.fields}
    return {name: length for name, length in lengths.items() if length is not None}


def _with_nanoseconds(kind: DataType, arrow_type: pa.DataType) -> DataType:
    """`kind`, made of the Arrow type `arrow_type`, with TIME(9) for nanoseconds, for which pyspark has TIME(6)."""
    arrow_type = plain_type(arrow_type)
    if pt.is_time64(arrow_type) and arrow_type.unit == "ns" and _NANOSECOND_TIMES:
        return pyspark.sql.types.TimeType(9)
    if isinstance(kind, ArrayType):
        return ArrayType(
            _with_nanoseconds(kind.elementType, arrow_type.value_type), kind.containsNull
        )
    if isinstance(kind, MapType):
        key = _with_nanoseconds(kind.keyType, arrow_type.key_type)
        value = _with_nanoseconds(kind.valueType, arrow_type.item_type)
        return MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        for field, inner in zip(kind.fields, arrow_type, strict=True):
            field.dataType = _with_nanoseconds(field.dataType, inner.type)
    return kind


def has_times(kind: pa.DataType) -> bool:
    """Whether the type contains a time of day."""
    has_time: bool = not _times_as_text(kind).equals(kind)
    return has_time


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if pt.is_time(kind):
        return pa.string()
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in fields])
    if pt.is_map(kind):
        return pa.map_(
            _times_as_text(kind.key_type), kind.item_field.with_type(_times_as_text(kind.item_type))
        )
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_text(kind.value_type)))
    return kind


def _refuse_without_arrow(kind: DataType, path: str) -> None:
    """Spark hands over VARIANT and GEOMETRY as structs of bytes, which a target would keep as that."""
    for column, inner in types_inside(kind, path):
        name = type(inner).__name__
        if name in (
            "CharType",
            "VarcharType",
        ):  # a session keeps them by spark.sql.preserveCharVarcharTypeInfo
            raise SchemaError(
                f"column {column!r} is of type {inner.simpleString().upper()}, which Spark passes to no Python source: "
                "declare STRING in the schema of a read, or cast it to string before a write"
            )
        if name in _WITHOUT_ARROW:
            raise SchemaError(
                f"column {column!r} is of type {inner.simpleString().upper()}, which would arrive as Spark's internal "
                f"bytes, and which this format cannot carry: {_WITHOUT_ARROW[name].format(column)}"
            )


def types_inside(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    """This type and those inside it, each with its place, such as `a.element.b`."""
    yield path, kind
    if isinstance(kind, StructType):
        inside = [(field.name, field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inside = [("element", kind.elementType)]
    elif isinstance(kind, MapType):
        inside = [("key", kind.keyType), ("value", kind.valueType)]
    else:
        inside = []
    for name, inner in inside:
        yield from types_inside(inner, f"{path}.{name}")


def _plain_field(field: pa.Field, path: str) -> pa.Field:
    return pa.field(field.name, _plain(field.type, path), field.nullable)


def _plain(kind: pa.DataType, path: str) -> pa.DataType:
    if isinstance(kind, pa.ExtensionType | pa.BaseExtensionType):
        return _plain(kind.storage_type, path)
    if pt.is_dictionary(kind):
        return _plain(kind.value_type, path)
    if pt.is_unsigned_integer(kind):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[kind.bit_width]
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_date64(kind):
        return pa.date32()
    if pt.is_duration(kind):
        return pa.duration("us")
    if pt.is_time(kind) and TIME_SUPPORTED:
        return pa.time64("ns")
    if pt.is_null(kind):
        return kind
    if (
        pt.is_decimal(kind)
        and kind.precision <= _DECIMAL_DIGITS
        and 0 <= kind.scale <= kind.precision
    ):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_map(kind):
        key, item = (
            _plain(kind.key_type, f"{path}.key"),
            _plain_field(kind.item_field, f"{path}.value"),
        )
        return pa.map_(key, item)
    if is_list(kind):
        return pa.list_(_plain_field(kind.value_field, f"{path}.element"))
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([_plain_field(inner, f"{path}.{inner.name}") for inner in fields])
    if (
        pt.is_signed_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_floating(kind)
        or pt.is_string(kind)
        or pt.is_binary(kind)
        or pt.is_date32(kind)
    ):
        return kind
    raise SchemaError(
        f"column {path!r} is of type {kind}, which Spark cannot hold: "
        "omit it with option 'columns', or convert it in the source"
    )
