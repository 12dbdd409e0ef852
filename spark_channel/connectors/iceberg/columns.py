"""Arrow's types to Iceberg's and back: only where every value is kept."""

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.connectors.files.formats.types import map_leaves
from spark_channel.connectors.lake.new_columns import exact_columns
from spark_channel.errors import SchemaError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["arrow_columns", "planned", "without_ids"]

_WIDER = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
}


def _own_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_fixed_size_binary(kind):
        return kind
    return pa.time64("us") if pa.types.is_time(kind) else _WIDER.get(kind)


def planned(schema: pa.Schema) -> pa.Schema:
    """The columns of a new Iceberg table for rows of `schema`, without ids.

    Raises:
        SchemaError: Iceberg has no type for a column.
    """
    return exact_columns(schema, _own_type, "Iceberg")


def arrow_columns(schema: "Schema", label: str) -> pa.Schema:
    """The table's columns. Their metadata are the ids by which files know them.

    Raises:
        SchemaError: a type that this connector does not carry.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    try:
        arrow_schema = schema_to_pyarrow(schema)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise SchemaError(f"{label} has a column that Arrow has no type for: {error}") from error
    return pa.schema([_plain(field) for field in arrow_schema])


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
    return pa.schema([map_leaves(field, lambda kind, _ids: kind) for field in schema])
