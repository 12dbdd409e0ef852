"""The parcels that are ready to be taken, in order. Used under the channel's lock."""

from collections import deque
from collections.abc import Iterable

from spark_channel.channel.parcel import Parcel

__all__ = ["Stock"]


class Stock:
    """A queue of parcels, always sorted by position, with exact sums: no rows, no parcels."""

    __slots__ = ("_parcels", "nbytes", "rows")

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self.rows = 0
        self.nbytes = 0

    def append(self, parcel: Parcel) -> None:
        self._parcels.append(parcel)
        self.rows += parcel.rows
        self.nbytes += parcel.nbytes

    def pop(self, max_rows: int | None = None) -> Parcel:
        """The oldest parcel, cut to `max_rows`; the caller knows that there is one."""
        parcel = self._parcels.popleft()
        if max_rows is not None and parcel.rows > max_rows:
            parcel, rest = parcel.split(max_rows)
            self._parcels.appendleft(rest)
        self.rows -= parcel.rows
        self.nbytes -= parcel.nbytes
        return parcel

    def restore(self, parcels: Iterable[Parcel]) -> None:
        """Put taken parcels back where they came from: at the head, in the order of publishing.

        Two transactions may roll back in either order; what is ahead of a parcel stays ahead.
        """
        ahead: list[Parcel] = []
        for parcel in sorted(parcels, key=_position):
            while self._parcels and self._parcels[0].position < parcel.position:
                ahead.append(self._parcels.popleft())
            ahead.append(parcel)
            self.rows += parcel.rows
            self.nbytes += parcel.nbytes
        self._parcels.extendleft(reversed(ahead))

    def evict(self, rows: int, nbytes: int) -> tuple[int, int]:
        """Drop the fewest oldest rows that free `rows` and `nbytes`; what was dropped, rows and bytes."""
        dropped_rows = dropped_bytes = 0
        while self._parcels and (dropped_rows < rows or dropped_bytes < nbytes):
            head = self._parcels[0]
            parcel = self.pop(_rows_to_free(head, rows - dropped_rows, nbytes - dropped_bytes))
            dropped_rows += parcel.rows
            dropped_bytes += parcel.nbytes
        return dropped_rows, dropped_bytes


def _position(parcel: Parcel) -> int:
    return parcel.position


def _rows_to_free(parcel: Parcel, rows: int, nbytes: int) -> int:
    """The fewest leading rows of `parcel` that free both amounts, or all of them."""
    needed = max(1, rows)
    if nbytes > 0 and parcel.nbytes:
        needed = max(needed, -(-nbytes * parcel.rows // parcel.nbytes))
    return min(needed, parcel.rows)
