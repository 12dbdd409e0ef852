"""Columns of a new Delta table, and the local times that one may not have."""

import pyarrow as pa

from spark_channel.connectors.lake.new_columns import exact_columns
from spark_channel.errors import SchemaError

__all__ = ["check_local_times", "planned"]

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def _own_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind if pa.types.is_signed_integer(kind) else _UNSIGNED.get(kind)


def planned(schema: pa.Schema) -> pa.Schema:
    """The columns of a new Delta table for rows of `schema`.

    Raises:
        SchemaError: Delta has no type for a column.
    """
    return exact_columns(schema, _own_type, "Delta")


def check_local_times(columns: pa.Schema, label: str) -> None:
    """Check that new columns of a table without the feature timestampNtz have no timestamp without a zone inside maps
    alone: deltalake does not note the feature then, and the table could not be read
    (findings/delta-local-time-in-a-map.sh).

    Raises:
        SchemaError: names the column.
    """
    if any(_has_local_times(field.type, in_maps=False) for field in columns):
        return
    for field in columns:
        if _has_local_times(field.type, in_maps=True):
            raise SchemaError(
                f"column {field.name!r} is {field.type}: deltalake does not note the table feature timestampNtz for "
                f"timestamps without a zone inside a map, and nothing could read {label} then. Add the column with "
                "Spark first, or cast them to timestamps with a zone"
            )


def _has_local_times(kind: pa.DataType, *, in_maps: bool) -> bool:
    """Whether there are timestamps without a zone in it, at any depth; `in_maps`: also inside maps."""
    types = pa.types
    if types.is_map(kind):
        inner = [kind.key_type, kind.item_type] if in_maps else []
    elif types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
    elif types.is_list(kind):
        inner = [kind.value_type]
    else:
        return bool(types.is_timestamp(kind) and kind.tz is None)
    return any(_has_local_times(kind_inside, in_maps=in_maps) for kind_inside in inner)
