"""The entries that are ready to be taken, in order. Used under the channel's lock."""

from collections import deque
from collections.abc import Iterable

from spark_channel.channel.sized_batch import SizedBatch

__all__ = ["BatchQueue"]


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
            entry, rest = entry.split(max_rows)
            self._entries.appendleft(rest)
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
