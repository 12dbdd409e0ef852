"""Rows' columns to those of a new table: only where every value is kept."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.arrow_schema import is_list
from spark_channel.errors import SchemaError

__all__ = ["exact_columns"]

_KEPT = frozenset({pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()})


def exact_columns(
    schema: pa.Schema, own_type: Callable[[pa.DataType], pa.DataType | None], product: str
) -> pa.Schema:
    """The columns of a new table for rows of `schema`.

    `own_type`: the type for one that `product` keeps in its own way; None = as all products do.

    Raises:
        SchemaError: the product has no type for a column.
    """
    types = pa.types

    def exact(kind: pa.DataType, column: str) -> pa.DataType:
        if types.is_dictionary(kind):
            return exact(kind.value_type, column)
        if (exact_kind := own_type(kind)) is not None:
            return exact_kind
        if kind in _KEPT or (types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
            return kind
        if kind == pa.float16():
            return pa.float32()
        if types.is_timestamp(kind):
            return pa.timestamp("us", "UTC" if kind.tz else None)
        if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
            return pa.string()
        if types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view():
            return pa.binary()
        if is_list(kind):
            item = exact(kind.value_type, column)
            return pa.list_(pa.field("element", item, kind.value_field.nullable))
        if types.is_struct(kind) and kind.num_fields:
            fields = [kind.field(i) for i in range(kind.num_fields)]
            return pa.struct([pa.field(f.name, exact(f.type, column), f.nullable) for f in fields])
        if types.is_map(kind):
            return pa.map_(exact(kind.key_type, column), exact(kind.item_type, column))
        raise SchemaError(
            f"column {column!r} of type {kind} has no exact counterpart in {product}; cast it first"
        )

    return pa.schema([pa.field(f.name, exact(f.type, f.name), f.nullable) for f in schema])
