"""Spark 4.0's rows as Arrow: what its streaming writers are given, where later versions give batches."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

__all__ = ["batch_of"]


def batch_of(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """`rows`, tuples in the order of `schema`, as one batch.

    Spark gives a timestamp with zone as a naive datetime of the worker's own zone.
    """
    columns = [
        pa.array([_value(row[place], field.type) for row in rows], field.type)
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC) if kind.tz is not None else value
    if pa.types.is_struct(kind):
        return {
            kind.field(place).name: _value(value[place], kind.field(place).type)
            for place in range(kind.num_fields)
        }
    if pa.types.is_list(kind):
        return [_value(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in value.items()]
    return value
