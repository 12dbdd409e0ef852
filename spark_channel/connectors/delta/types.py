"""Arrow's types to Delta's: only where every value is kept."""

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = ["check_partition_column", "planned"]

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def planned(schema: pa.Schema) -> pa.Schema:
    """The columns of a new table for rows of `schema`.

    Raises:
        SchemaError: Delta has no type for a column.
    """
    return pa.schema(
        [pa.field(field.name, _type(field.type, field.name), field.nullable) for field in schema]
    )


def _type(kind: pa.DataType, column: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _type(kind.value_type, column)
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if kind == pa.float16():
        return pa.float32()
    if (
        types.is_boolean(kind)
        or types.is_signed_integer(kind)
        or types.is_floating(kind)
        or types.is_date32(kind)
    ):
        return kind
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    if any(each(kind) for each in binary) or kind == pa.binary_view():
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _type(kind.value_type, column), kind.value_field.nullable))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _type(f.type, column), f.nullable) for f in fields])
    if types.is_map(kind):
        return pa.map_(_type(kind.key_type, column), _type(kind.item_type, column))
    raise SchemaError(f"column {column!r} of type {kind} has no exact counterpart in Delta; cast it first")


def check_partition_column(field: pa.Field, shown: str) -> None:
    """
    Raises:
        SchemaError: its values have no text that every reader reads alike.
    """
    kind, types = field.type, pa.types
    if types.is_integer(kind) or types.is_string(kind) or types.is_date32(kind) or types.is_boolean(kind):
        return
    raise SchemaError(
        f"partition column {field.name!r} of {shown} is {kind}; "
        "whole numbers, texts, dates and booleans can be partition columns here"
    )
