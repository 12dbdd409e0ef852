"""A row of parameters as Arrow, without pandas.

pyarrow imports pandas, where that is installed, with the first Python value that `pa.array` is given: 0.4 s of
every process that asks a database one question.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

__all__ = ["one_row"]


def one_row(parameters: Sequence[Any]) -> pa.RecordBatch | None:
    """`parameters` of a statement that runs once, for `Cursor.execute`; None when there are none."""
    if not parameters:
        return None
    names = [str(place) for place in range(len(parameters))]
    return pa.RecordBatch.from_arrays([_one(value) for value in parameters], names)


def _one(value: object) -> pa.Array:
    """Equals `pa.array([value])`."""
    if value is None:
        return pa.nulls(1)
    if type(value) is int and -(2**63) <= value < 2**63:
        return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("=q", value))])
    if type(value) is float:
        return pa.Array.from_buffers(
            pa.float64(), 1, [None, pa.py_buffer(struct.pack("=d", value))]
        )
    if type(value) is str:
        return _one_text(pa.string(), value.encode())
    if type(value) is bytes:
        return _one_text(pa.binary(), value)
    return pa.array([value])


def _one_text(kind: pa.DataType, data: bytes) -> pa.Array:
    places = struct.pack("=ii", 0, len(data))
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(places), pa.py_buffer(data)])
