"""Batches with sizes, their queue, counters and statistics."""

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

__all__ = [
    "BatchQueue",
    "ChannelStatistics",
    "Counters",
    "Sized",
    "SizedBatch",
    "arrow_bytes",
    "bytes_between",
    "measure",
    "rows_within",
]


_FEW_TEXTS = 4

_Offset = Callable[[Any, int], tuple[int]]
_OFFSET_32: _Offset = struct.Struct("=i").unpack_from
_OFFSET_64: _Offset = struct.Struct("=q").unpack_from


class _Column(NamedTuple):
    """One column's data buffer in a batch that is not a slice."""

    number: int
    buffer: int
    """Where its data, or its offsets, are among all buffers; the bitmap of its nulls comes before them."""
    size: int
    """Bytes of that buffer."""
    last: int
    """Text and bytes: where in it the last offset is."""
    offset: _Offset | None
    """Text and bytes: the reader of an offset."""


class _Layout(NamedTuple):
    """The buffer layout that all batches of one schema and length share."""

    schema: pa.Schema
    rows: int
    least: int
    """Bytes without text and bitmaps."""
    fixed: int
    """Bytes of the buffers of columns whose values have one size."""
    texts: tuple[_Column, ...]
    columns: tuple[_Column, ...] | None
    """None = ask `nbytes`."""


class _Recent(threading.local):
    """The last measurement of this thread: most threads see one schema, and batches of one length."""

    layout = _Layout(pa.schema([]), 0, 0, 0, (), None)
    has_nulls = False
    """Or was a slice: the next one is expected to be alike."""


_recent = _Recent()


def arrow_bytes(batch: pa.RecordBatch) -> int:
    """Return exactly `batch.nbytes`; the size of whole buffers where pyarrow 18 cannot (slices of view types).

    Bitmaps are left out of a batch that has one buffer in two columns, and others too long by just as much.

    `RecordBatch.nbytes` takes 3 us a column. For a batch of plain columns that is not a slice, the sizes of its buffers
    give the same number at a fifth of the cost: a buffer of exactly as many bytes as its column's rows take leaves no
    offset open. Without nulls, the total size of all buffers is enough (0.4 us a column, 1.5 us for text), and the call
    keeps the GIL; otherwise one call returns all buffers (0.6 us a column). Slices and nested or dictionary columns
    fall back to `nbytes`.
    """
    layout = _recent.layout
    if layout.rows != batch.num_rows or not batch.schema.equals(layout.schema):
        layout = _recent.layout = _layout(batch.schema, batch.num_rows)
        _recent.has_nulls = len(layout.texts) > _FEW_TEXTS
    if layout.columns is None:
        return _nbytes(batch)
    if not _recent.has_nulls:
        nbytes = _without_nulls(batch, layout)
        if nbytes is not None:
            return nbytes
        _recent.has_nulls = True
    return _by_buffers(batch, layout)


def _without_nulls(batch: pa.RecordBatch, layout: _Layout) -> int | None:
    """By the sum of all buffers. None: there are nulls, or it is a slice."""
    total, whole = layout.least, layout.fixed
    for column in layout.texts:
        nulls, offsets, data = batch.column(column.number).buffers()
        if nulls is not None or offsets is None or offsets.size != column.size:
            return None
        assert column.offset is not None
        total += column.offset(offsets, column.last)[0] - column.offset(offsets, 0)[0]
        whole += column.size + (0 if data is None else data.size)
    return total if batch.get_total_buffer_size() == whole else None


def _by_buffers(batch: pa.RecordBatch, layout: _Layout) -> int:
    total = layout.least
    buffers = batch.to_struct_array().buffers()
    assert layout.columns is not None
    for _, at, size, last, offset in layout.columns:
        data = buffers[at]
        if data is None or data.size != size:
            return _nbytes(batch)
        if buffers[at - 1] is not None:
            total += (layout.rows + 7) >> 3
        if offset is not None:
            total += offset(data, last)[0] - offset(data, 0)[0]
    return total


def _layout(schema: pa.Schema, rows: int) -> _Layout:
    ask = _Layout(schema, rows, 0, 0, (), None)
    if not rows:
        return ask
    least, at = 0, 2  # buffer 0 is the struct's own, 1 the bitmap of the first column
    columns: list[_Column] = []
    for number, kind in enumerate(schema.types):
        bits, offset = _width(kind)
        if not bits:
            return ask
        last = (rows * bits + 7) >> 3
        least += last  # nbytes leaves out the last offset itself
        columns.append(
            _Column(number, at, last if offset is None else last + (bits >> 3), last, offset)
        )
        at += 2 if offset is None else 3
    texts = tuple(column for column in columns if column.offset is not None)
    fixed = sum(column.size for column in columns if column.offset is None)
    return _Layout(schema, rows, least, fixed, texts, tuple(columns))


def _width(kind: pa.DataType) -> tuple[int, _Offset | None]:
    """Bits of a value; for text and bytes, of an offset, and its reader. 0 = not plain."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        return 32, _OFFSET_32
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return 64, _OFFSET_64
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return kind.bit_width, None
    return 0, None


def _nbytes(batch: pa.RecordBatch) -> int:
    try:
        nbytes: int = batch.nbytes
    except TypeError:
        nbytes = batch.get_total_buffer_size()
    return nbytes


Sized = tuple[pa.RecordBatch, int, int]
"""A batch, its rows, its bytes."""


class SizedBatch(NamedTuple):
    """A batch on its way through the channel.

    `nbytes` was measured once, or is the entry's share of what was. `position` is how many rows
    were published before its first one: it orders entries that come back from a rollback.
    """

    batch: pa.RecordBatch
    rows: int
    nbytes: int
    position: int

    def split(self, rows: int) -> tuple["SizedBatch", "SizedBatch"]:
        """The first `rows` (0 < rows < self.rows) and the rest; no copy, bytes sum exactly."""
        head_bytes = bytes_between(self.nbytes, self.rows, 0, rows)
        head = SizedBatch(self.batch.slice(0, rows), rows, head_bytes, self.position)
        tail = SizedBatch(
            self.batch.slice(rows), self.rows - rows, self.nbytes - head_bytes, self.position + rows
        )
        return head, tail


def measure(batch: object, nbytes: int | None = None) -> tuple[int, int]:
    """Rows and Arrow bytes of a batch; 4 to 17 us for five columns, so it is asked once per batch.

    A given `nbytes` is used as the size. Raises `TypeError` for anything that is
    not a `pyarrow.RecordBatch`, `ValueError` for a negative size.
    """
    if not isinstance(batch, pa.RecordBatch):
        hint = "; pass table.to_batches()" if isinstance(batch, pa.Table) else ""
        raise TypeError(f"a channel carries pyarrow.RecordBatch, not {type(batch).__name__}{hint}")
    if nbytes is None:
        return batch.num_rows, arrow_bytes(batch)
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes} is negative")
    return batch.num_rows, nbytes


def bytes_between(nbytes: int, rows: int, start: int, stop: int) -> int:
    """The share of rows [start, stop) in a batch of `rows` and `nbytes`; adjoining shares sum exactly."""
    return nbytes * stop // rows - nbytes * start // rows


def rows_within(nbytes: int, rows: int, start: int, max_rows: int, max_bytes: int) -> int:
    """The most rows from `start` on that stay within both bounds; at least 1, at most what is left."""
    fitting = min(max_rows, rows - start)
    if nbytes and bytes_between(nbytes, rows, start, start + fitting) > max_bytes:
        # the largest stop whose floor(nbytes * stop / rows) does not pass start's share + max_bytes
        bound = nbytes * start // rows + max_bytes
        fitting = ((bound + 1) * rows - 1) // nbytes - start
    return max(1, fitting)


class BatchQueue:
    """A queue of entries, always sorted by position, with exact sums: no rows, no entries."""

    __slots__ = ("_entries", "nbytes", "rows")

    def __init__(self) -> None:
        self._entries: deque[SizedBatch] = deque()
        self.rows = 0
        self.nbytes = 0

    def append(self, entry: SizedBatch) -> None:
        self._entries.append(entry)
        self.rows += entry.rows
        self.nbytes += entry.nbytes

    def pop(self, max_rows: int | None = None) -> SizedBatch:
        """The oldest entry, cut to `max_rows`; the caller knows that there is one."""
        entry = self._entries.popleft()
        if max_rows is not None and entry.rows > max_rows:
            entry, tail = entry.split(max_rows)
            self._entries.appendleft(tail)
        self.rows -= entry.rows
        self.nbytes -= entry.nbytes
        return entry

    def restore(self, entries: Iterable[SizedBatch]) -> None:
        """Put taken entries back where they came from: at the head, in the order of publishing.

        Two transactions may roll back in either order; what is ahead of a entry stays ahead.
        """
        ahead: list[SizedBatch] = []
        for entry in sorted(entries, key=_position):
            while self._entries and self._entries[0].position < entry.position:
                ahead.append(self._entries.popleft())
            ahead.append(entry)
            self.rows += entry.rows
            self.nbytes += entry.nbytes
        self._entries.extendleft(reversed(ahead))

    def evict(self, rows: int, nbytes: int) -> tuple[int, int]:
        """Drop the fewest oldest rows that free `rows` and `nbytes`; what was dropped, rows and bytes."""
        dropped_rows = dropped_bytes = 0
        while self._entries and (dropped_rows < rows or dropped_bytes < nbytes):
            head = self._entries[0]
            entry = self.pop(_rows_to_free(head, rows - dropped_rows, nbytes - dropped_bytes))
            dropped_rows += entry.rows
            dropped_bytes += entry.nbytes
        return dropped_rows, dropped_bytes


def _position(entry: SizedBatch) -> int:
    return entry.position


def _rows_to_free(entry: SizedBatch, rows: int, nbytes: int) -> int:
    """The fewest leading rows of `entry` that free both amounts, or all of them."""
    needed = max(1, rows)
    if nbytes > 0 and entry.nbytes:
        needed = max(needed, -(-nbytes * entry.rows // entry.nbytes))
    return min(needed, entry.rows)


class Counters:
    """Sums since the channel was made; `ChannelStatistics` says what each means."""

    __slots__ = (
        "bytes_dropped",
        "bytes_failed",
        "bytes_pulled",
        "bytes_pushed",
        "bytes_rejected",
        "put_attempts",
        "put_successes",
        "rows_dropped",
        "rows_failed",
        "rows_pulled",
        "rows_pushed",
        "rows_rejected",
        "take_attempts",
        "take_successes",
        "throttled_seconds",
        "transactions_abandoned",
        "wait_reader_seconds",
        "wait_writer_seconds",
    )

    def __init__(self) -> None:
        self.rows_pushed = self.bytes_pushed = 0
        self.rows_pulled = self.bytes_pulled = 0
        self.rows_failed = self.bytes_failed = 0
        self.rows_rejected = self.bytes_rejected = 0
        self.rows_dropped = self.bytes_dropped = 0
        self.put_attempts = self.put_successes = 0
        self.take_attempts = self.take_successes = 0
        self.transactions_abandoned = 0
        self.wait_reader_seconds = 0.0
        self.wait_writer_seconds = 0.0
        self.throttled_seconds: dict[str, float] = {}

    def failed(self, rows: int, nbytes: int) -> None:
        self.rows_failed += rows
        self.bytes_failed += nbytes

    def rejected(self, rows: int, nbytes: int) -> None:
        self.rows_rejected += rows
        self.bytes_rejected += nbytes

    def dropped(self, rows: int, nbytes: int) -> None:
        self.rows_dropped += rows
        self.bytes_dropped += nbytes

    def throttled(self, reason: str, seconds: float) -> None:
        self.throttled_seconds[reason] = self.throttled_seconds.get(reason, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """All counters of a channel at one instant, taken under its lock.

    Always true: `rows_pushed == rows_pulled + rows_dropped + rows_stored`, and the same in bytes.
    Bytes are Arrow bytes, `RecordBatch.nbytes`. Waits add up over threads: four consumers that wait one second
    each are four seconds.
    """

    rows_pushed: int
    """Rows published: pushed, or put and committed."""
    bytes_pushed: int
    """Bytes of `rows_pushed`."""
    rows_pulled: int
    """Rows that left for good: pulled, or taken and committed."""
    bytes_pulled: int
    """Bytes of `rows_pulled`."""
    rows_failed: int
    """Rows that a push or commit did not publish because it raised (closed, failed, no room, limit lost);
    a commit that is tried again counts each time."""
    bytes_failed: int
    """Bytes of `rows_failed`."""
    rows_rejected: int
    """Rows that `overflow="reject"` turned away."""
    bytes_rejected: int
    """Bytes of `rows_rejected`."""
    rows_dropped: int
    """Published rows that `overflow="overwrite"` dropped to make room."""
    bytes_dropped: int
    """Bytes of `rows_dropped`."""
    put_attempts: int
    """Batches handed to `push`, `push_all` or `put`."""
    put_successes: int
    """Batches published whole; those of a transaction count at its commit."""
    take_attempts: int
    """Calls of `pull`, `pull_all`, `drain` and `take`."""
    take_successes: int
    """Calls of `pull`, `pull_all` and `drain` that returned a batch, and of `take` once committed."""
    transactions_abandoned: int
    """Transactions that a thread left open when it ended; they were rolled back."""
    rows_stored: int
    """Rows in the channel, those that open transactions have taken included."""
    bytes_stored: int
    """Bytes of `rows_stored`."""
    rows_held: int
    """The part of `rows_stored` that open transactions have taken; a rollback returns it."""
    bytes_held: int
    """Bytes of `rows_held`."""
    rows_reserved: int
    """Room promised to producers that still wait for the limit."""
    bytes_reserved: int
    """Bytes of `rows_reserved`."""
    capacity_rows: int
    """The most rows stored and reserved."""
    capacity_bytes: int
    """The most bytes stored and reserved, except for one larger row that passes alone."""
    wait_reader_seconds: float
    """Time consumers waited for a batch (DataX's waitReaderTime), waits under way included."""
    wait_writer_seconds: float
    """Time producers waited for room (DataX's waitWriterTime), waits under way included."""
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time producers waited for the limit, by the limiter's reason, waits under way included. A copy."""
