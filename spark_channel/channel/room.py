"""The channel's room in rows and bytes, and the queue of those who wait for it.

Used under the channel's lock. First come, first served: a claim is looked at only when it is the
oldest, so a large one is never starved by small ones, and it is granted by whoever frees the room,
so exactly those wake who can go on.
"""

import threading
from collections import deque

from spark_channel.channel.parcel import bytes_between, rows_within
from spark_channel.channel.stock import Stock

__all__ = ["Claim", "CommitClaim", "PushClaim", "Reservation", "ResizeClaim", "Room"]


class Room:
    """Who occupies what: rows in stock, held by open transactions, and reserved by payers."""

    __slots__ = (
        "capacity_bytes",
        "capacity_rows",
        "claims",
        "evicting",
        "held_bytes",
        "held_rows",
        "reserved_bytes",
        "reserved_rows",
        "stock",
    )

    def __init__(self, capacity_rows: int, capacity_bytes: int, *, evicting: bool) -> None:
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes
        self.evicting = evicting
        self.stock = Stock()
        self.held_rows = self.held_bytes = 0
        self.reserved_rows = self.reserved_bytes = 0
        self.claims: deque[Claim] = deque()

    @property
    def used_rows(self) -> int:
        return self.stock.rows + self.held_rows + self.reserved_rows

    @property
    def used_bytes(self) -> int:
        return self.stock.nbytes + self.held_bytes + self.reserved_bytes

    def fits(self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0) -> bool:
        """Is there room, once `freed_*` is given back? One row larger than the channel needs it empty."""
        stock = self.stock  # spelled out: this is on the path of every push
        used_rows = stock.rows + self.held_rows + self.reserved_rows - freed_rows
        used_bytes = stock.nbytes + self.held_bytes + self.reserved_bytes - freed_bytes
        if used_rows + rows <= self.capacity_rows and used_bytes + nbytes <= self.capacity_bytes:
            return True
        return rows == 1 and used_rows == 0

    def make_room(
        self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0
    ) -> tuple[int, int] | None:
        """Like `fits`, dropping the oldest stock when `evicting`: what was dropped, None = no room."""
        if self.fits(rows, nbytes, freed_rows, freed_bytes):
            return 0, 0
        stock = self.stock
        if not (
            self.evicting and self.fits(rows, nbytes, freed_rows + stock.rows, freed_bytes + stock.nbytes)
        ):
            return None
        if self.capacity_bytes < nbytes:
            return stock.evict(stock.rows, stock.nbytes)
        return stock.evict(
            self.used_rows - freed_rows + rows - self.capacity_rows,
            self.used_bytes - freed_bytes + nbytes - self.capacity_bytes,
        )


class Claim:
    """One thread's wait for room. Whoever admits it sets `granted`."""

    __slots__ = ("condition", "dropped", "granted", "since", "told")

    produces = True
    """It publishes rows: it ends with the channel, and its wait is the writer's."""

    def __init__(self) -> None:
        self.condition: threading.Condition | None = None
        self.since: float | None = None
        self.granted = False
        self.dropped = (0, 0)
        self.told = False

    def admit(self, room: Room) -> bool:
        """Take the room if it is there."""
        raise NotImplementedError


class Reservation(Claim):
    """A claim that reserves room; `rows` and `nbytes` say how much, while it is granted."""

    __slots__ = ("nbytes", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.nbytes = 0

    def spend(self, room: Room) -> None:
        """End the reservation: its room is given back, or the rows are in the channel now."""
        room.reserved_rows -= self.rows
        room.reserved_bytes -= self.nbytes
        self.rows = self.nbytes = 0
        self.granted = False

    def _reserve(self, room: Room, rows: int, nbytes: int) -> None:
        self.rows, self.nbytes = rows, nbytes
        room.reserved_rows += rows
        room.reserved_bytes += nbytes


class PushClaim(Reservation):
    """Room for one batch, slice after slice.

    The next slice, from row `start`, is cut when it is granted, so that a resize during the wait
    changes the slice and not its place in the queue. `paid` counts the rows that the limiter has
    been asked for.
    """

    __slots__ = ("batch_bytes", "batch_rows", "max_bytes", "max_rows", "paid", "start", "whole")

    def __init__(self, batch_rows: int, batch_bytes: int, *, whole: bool = False) -> None:
        super().__init__()
        self.batch_rows = batch_rows
        self.batch_bytes = batch_bytes
        self.whole = whole
        self.start = 0
        self.paid = 0
        self.max_rows: int | None = None
        self.max_bytes: int | None = None

    def slice_size(self, room: Room) -> tuple[int, int]:
        """Rows and bytes of the slice that would be cut now."""
        if self.whole:
            return self.batch_rows, self.batch_bytes
        max_rows, max_bytes = room.capacity_rows, room.capacity_bytes
        if self.max_rows is not None:
            max_rows = min(max_rows, self.max_rows)
        if self.max_bytes is not None:
            max_bytes = min(max_bytes, self.max_bytes)
        rows = rows_within(self.batch_bytes, self.batch_rows, self.start, max_rows, max_bytes)
        return rows, bytes_between(self.batch_bytes, self.batch_rows, self.start, self.start + rows)

    def owe(self, rows: int) -> tuple[int, int]:
        """Rows and bytes still to be paid before `rows` from `start` on are published."""
        stop = self.start + rows
        if stop <= self.paid:
            return 0, 0
        owed = stop - self.paid, bytes_between(self.batch_bytes, self.batch_rows, self.paid, stop)
        self.paid = stop
        return owed

    def admit(self, room: Room) -> bool:
        rows, nbytes = self.slice_size(room)
        dropped = room.make_room(rows, nbytes)
        if dropped is None:
            return False
        self.dropped = dropped
        self._reserve(room, rows, nbytes)
        return True


class CommitClaim(Reservation):
    """Room for all puts of a transaction, less what its takes free."""

    __slots__ = ("put_bytes", "put_rows", "taken_bytes", "taken_rows")

    def __init__(self, put_rows: int, put_bytes: int, taken_rows: int, taken_bytes: int) -> None:
        super().__init__()
        self.put_rows = put_rows
        self.put_bytes = put_bytes
        self.taken_rows = taken_rows
        self.taken_bytes = taken_bytes

    def admit(self, room: Room) -> bool:
        dropped = room.make_room(self.put_rows, self.put_bytes, self.taken_rows, self.taken_bytes)
        if dropped is None:
            return False
        self.dropped = dropped
        self._reserve(
            room, max(0, self.put_rows - self.taken_rows), max(0, self.put_bytes - self.taken_bytes)
        )
        return True


class ResizeClaim(Claim):
    """A new capacity; None keeps a dimension.

    One that does not fit yet waits in the same queue, so that later producers do not take the room
    it waits for.
    """

    __slots__ = ("capacity_bytes", "capacity_rows")

    produces = False

    def __init__(self, capacity_rows: int | None, capacity_bytes: int | None) -> None:
        super().__init__()
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes

    def admit(self, room: Room) -> bool:
        rows = room.capacity_rows if self.capacity_rows is None else self.capacity_rows
        nbytes = room.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes
        if (rows < room.capacity_rows and room.used_rows > rows) or (
            nbytes < room.capacity_bytes and room.used_bytes > nbytes
        ):
            return False
        room.capacity_rows, room.capacity_bytes = rows, nbytes
        return True
