"""Arrow's types to Iceberg's and back: only where every value is kept."""

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.errors import SchemaError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["arrow_columns", "planned", "without_ids"]

_WIDER = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.float16(): pa.float32(),
}  # fmt: skip


def planned(schema: pa.Schema) -> pa.Schema:
    """The columns of a new table for rows of `schema`, without ids.

    Raises:
        SchemaError: Iceberg has no type for a column.
    """
    return pa.schema(
        [pa.field(field.name, _type(field.type, field.name), field.nullable) for field in schema]
    )


def _type(kind: pa.DataType, column: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _type(kind.value_type, column)
    if kind in _WIDER:
        return _WIDER[kind]
    same = (
        types.is_boolean,
        types.is_int32,
        types.is_int64,
        types.is_float32,
        types.is_float64,
        types.is_date32,
    )
    if any(each(kind) for each in same) or types.is_fixed_size_binary(kind):
        return kind
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _type(kind.value_type, column), kind.value_field.nullable))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _type(f.type, column), f.nullable) for f in fields])
    if types.is_map(kind):
        return pa.map_(_type(kind.key_type, column), _type(kind.item_type, column))
    raise SchemaError(f"column {column!r} of type {kind} has no exact counterpart in Iceberg; cast it first")


def arrow_columns(schema: "Schema", shown: str) -> pa.Schema:
    """The table's columns. Their metadata are the ids by which files know them.

    Raises:
        SchemaError: a type that this connector does not carry.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    try:
        found = schema_to_pyarrow(schema)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise SchemaError(f"{shown} has a column that Arrow has no type for: {error}") from error
    return pa.schema([_plain(field) for field in found])


def _plain(field: pa.Field) -> pa.Field:
    """With types of 32-bit offsets, as Spark's are."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_plain(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    return kind


def without_ids(schema: pa.Schema) -> pa.Schema:
    """As readers give it: the same columns without their ids."""
    return pa.schema([_bare(field) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare_type(field.type), field.nullable)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_bare(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return kind
