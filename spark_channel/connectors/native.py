"""Rows in their system's own format: a writer of the same system accepts them, and no step in between decodes them."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["NATIVE", "NativeRows", "native_batch", "native_data"]

NATIVE = pa.schema([pa.field("row", pa.large_binary(), nullable=False)])
"""The schema of batches of such rows. Each value is a whole row: they are counted, limited and sliced as any."""


@dataclass(frozen=True, slots=True)
class NativeRows:
    """The format of a reader's native rows, on which source and target must agree before a row moves.

    `schema` is what the reader would give of the same rows in Arrow. `types` are the columns' types in the words of
    `system`.
    """

    system: str
    schema: pa.Schema
    types: tuple[Any, ...]


def native_batch(data: bytes, bounds: Any) -> pa.RecordBatch:
    """The rows that lie in `data` between each two neighbours of `bounds` (int64); copies nothing."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    rows = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers, null_count=0)
    return pa.RecordBatch.from_arrays([rows], schema=NATIVE)


def native_data(batch: pa.RecordBatch) -> memoryview:
    """The bytes of all rows of a batch, one behind the other; copies nothing."""
    rows = batch.column(0)
    if not len(rows):
        return memoryview(b"")
    _, bounds, data = rows.buffers()
    ends = memoryview(bounds).cast("q")
    return memoryview(data)[ends[rows.offset] : ends[rows.offset + len(rows)]]
