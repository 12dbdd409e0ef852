"""Waits for room in the channel: what each needs, and what happens when it is its turn.

Used under the channel's lock. Requests are served first come, first served, and looked at only when they
are the oldest: a large one is never starved by small ones.
"""

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_channel.channel.counters import Counters
from spark_channel.channel.room import Room
from spark_channel.channel.sized_batch import Sized, bytes_between, rows_within
from spark_channel.channel.staged import Staged

__all__ = [
    "CommitReservation",
    "PushReservation",
    "Reservation",
    "ResizeRequest",
    "RoomRequest",
    "WholeReservation",
]


class RoomRequest:
    """One thread's wait for room; `granted` ends it."""

    __slots__ = ("condition", "dropped", "granted", "since", "told")

    produces = True
    """It brings rows: it ends when the channel is closed, and its wait is the writers'."""

    def __init__(self) -> None:
        self.condition: threading.Condition | None = None
        self.since: float | None = None
        self.granted = False
        self.told = False
        self.dropped = (0, 0)

    def admit(self, room: Room) -> bool:
        """Take the room if it is there; `dropped` says what was evicted for it."""
        raise NotImplementedError


class Reservation(RoomRequest):
    """A request that reserves room, and later fills it. `rows` and `nbytes`: what it has reserved."""

    __slots__ = ("nbytes", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.nbytes = 0

    def is_paid(self) -> bool:
        """What is reserved may be published now, by whoever admitted it."""
        raise NotImplementedError

    def is_served(self) -> bool:
        """Its thread is to be woken; if not, it queues for its next turn."""
        return True

    def fill(self, room: Room, counters: Counters) -> Sequence[Sized]:
        """Spend the reservation: the batches that enter the channel now."""
        raise NotImplementedError

    def release(self, room: Room) -> None:
        """End the reservation."""
        room.reserved_rows -= self.rows
        room.reserved_bytes -= self.nbytes
        self.rows = self.nbytes = 0

    def _reserve(self, room: Room, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0) -> bool:
        dropped = room.make(rows, nbytes, freed_rows, freed_bytes)
        if dropped is None:
            return False
        self.dropped = dropped
        self.rows, self.nbytes = max(0, rows - freed_rows), max(0, nbytes - freed_bytes)
        room.reserved_rows += self.rows
        room.reserved_bytes += self.nbytes
        return True


class PushReservation(Reservation):
    """Room for one batch, slice after slice; each slice takes its turn.

    A slice, from row `start`, is cut when it is admitted, so that a resize during the wait changes the
    slice and not its place in the queue. `free`: without a limiter. `paid`: rows that the limiter was
    asked for.
    """

    __slots__ = ("batch", "batch_bytes", "batch_rows", "free", "max_bytes", "max_rows", "paid", "start")

    def __init__(self, batch: pa.RecordBatch, rows: int, nbytes: int, *, free: bool) -> None:
        super().__init__()
        self.batch = batch
        self.batch_rows = rows
        self.batch_bytes = nbytes
        self.free = free
        self.start = 0
        self.paid = 0
        self.max_rows: int | None = None
        self.max_bytes: int | None = None

    def slice_size(self, room: Room) -> tuple[int, int]:
        """Rows and bytes of the slice that would be cut now."""
        max_rows, max_bytes = room.capacity_rows, room.capacity_bytes
        if self.max_rows is not None:
            max_rows = min(max_rows, self.max_rows)
        if self.max_bytes is not None:
            max_bytes = min(max_bytes, self.max_bytes)
        rows = rows_within(self.batch_bytes, self.batch_rows, self.start, max_rows, max_bytes)
        return rows, bytes_between(self.batch_bytes, self.batch_rows, self.start, self.start + rows)

    def owe(self, rows: int) -> tuple[int, int]:
        """Rows and bytes to pay before `rows` from `start` on may be published; asked once."""
        stop = self.start + rows
        if stop <= self.paid:
            return 0, 0
        owed = stop - self.paid, bytes_between(self.batch_bytes, self.batch_rows, self.paid, stop)
        self.paid = stop
        return owed

    def left(self) -> tuple[int, int]:
        """Rows and bytes that are not published."""
        rows = self.batch_rows - self.start
        return rows, bytes_between(self.batch_bytes, self.batch_rows, self.start, self.batch_rows)

    def admit(self, room: Room) -> bool:
        return self._reserve(room, *self.slice_size(room))

    def is_paid(self) -> bool:
        return self.free or self.start + self.rows <= self.paid

    def is_served(self) -> bool:
        return not self.free or self.start == self.batch_rows

    def fill(self, room: Room, counters: Counters) -> Sequence[Sized]:
        rows, nbytes, start = self.rows, self.nbytes, self.start
        piece = self.batch if rows == self.batch_rows else self.batch.slice(start, rows)
        self.release(room)
        self.start += rows
        if self.start == self.batch_rows:
            counters.put_successes += 1
        return ((piece, rows, nbytes),)


class WholeReservation(Reservation):
    """Room for some batches together, now or never."""

    __slots__ = ("batch_bytes", "batch_rows", "batches", "free", "published")

    def __init__(self, batches: Sequence[Sized], rows: int, nbytes: int, *, free: bool) -> None:
        super().__init__()
        self.batches = batches
        self.batch_rows = rows
        self.batch_bytes = nbytes
        self.free = free
        self.published = False

    def admit(self, room: Room) -> bool:
        return self._reserve(room, self.batch_rows, self.batch_bytes)

    def is_paid(self) -> bool:
        return self.free

    def fill(self, room: Room, counters: Counters) -> Sequence[Sized]:
        self.release(room)
        self.published = True
        counters.put_successes += len(self.batches)
        return [sized for sized in self.batches if sized[1]]


class CommitReservation(Reservation):
    """Room for all puts of a transaction, less what its takes free."""

    __slots__ = ("staged",)

    def __init__(self, staged: Staged) -> None:
        super().__init__()
        self.staged = staged

    def admit(self, room: Room) -> bool:
        staged = self.staged
        return self._reserve(room, staged.put_rows, staged.put_bytes, staged.taken_rows, staged.taken_bytes)

    def is_paid(self) -> bool:
        return self.staged.owed() == (0, 0)

    def fill(self, room: Room, counters: Counters) -> Sequence[Sized]:
        self.release(room)
        return self.staged.commit(room, counters)


class ResizeRequest(RoomRequest):
    """A new capacity; None keeps a dimension. `settle` is called once it is granted, for what changes with it:
    `transaction_rows` among them, which no capacity may be below.

    One that does not fit yet waits in the queue, so that later producers do not take what it waits for.
    """

    __slots__ = ("capacity_bytes", "capacity_rows", "settle", "transaction_rows")

    produces = False

    def __init__(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        settle: Callable[[], None],
    ) -> None:
        super().__init__()
        self.transaction_rows = transaction_rows
        self.settle = settle
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes

    def target(self, room: Room) -> tuple[int, int]:
        """Rows and bytes, once granted."""
        rows, nbytes = self.capacity_rows, self.capacity_bytes
        return (
            room.capacity_rows if rows is None else rows,
            room.capacity_bytes if nbytes is None else nbytes,
        )

    def admit(self, room: Room) -> bool:
        rows, nbytes = self.target(room)
        if (rows < room.capacity_rows and room.used_rows > rows) or (
            nbytes < room.capacity_bytes and room.used_bytes > nbytes
        ):
            return False
        room.capacity_rows, room.capacity_bytes = rows, nbytes
        self.settle()
        return True
