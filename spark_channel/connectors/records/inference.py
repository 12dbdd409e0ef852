"""The columns of records, from some of them."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.types import SMALL_INT, merge_numbers

__all__ = ["inferred_schema"]

_EXACT_IN_A_DOUBLE = 2**53
_LARGEST = 2**63


def inferred_schema(records: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """One column for each name at the top, in order of appearance; values of several types are read as text."""
    kinds: dict[str, pa.DataType | None] = {}
    for record in records:
        for name, value in record.items():
            kinds[name] = _wider(kinds.get(name), _kind(value))
    return pa.schema([(name, _read_as(kind)) for name, kind in kinds.items()])


def _read_as(kind: pa.DataType | None) -> pa.DataType:
    if kind is None:
        return pa.string()
    return pa.int64() if kind == SMALL_INT else kind


def _kind(value: object) -> pa.DataType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if -_EXACT_IN_A_DOUBLE <= value <= _EXACT_IN_A_DOUBLE:
            return SMALL_INT
        return pa.int64() if -_LARGEST <= value < _LARGEST else pa.string()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, bytes):
        return pa.binary()
    if isinstance(value, datetime):
        return pa.timestamp("us", None if value.tzinfo is None else "UTC")
    return pa.date32() if isinstance(value, date) else pa.string()


def _wider(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    if one is None or one == other:
        return other if one is None else one
    if other is None:
        return one
    return merge_numbers(one, other) or pa.string()
