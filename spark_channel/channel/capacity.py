"""The capacity of a channel, the requests that wait for it, and the interface of a limiter.

Used under the channel's lock. Requests are served first come, first served, and looked at only when they
are the oldest: a large one is never starved by small ones.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from spark_channel.channel.batches import (
    BatchQueue,
    Counters,
    Sized,
    SizedBatch,
    bytes_between,
    rows_within,
)

__all__ = [
    "AllOrNothingReservation",
    "Capacity",
    "CapacityRequest",
    "CommitReservation",
    "Limiter",
    "Overflow",
    "Payment",
    "PushReservation",
    "Reservation",
    "ResizeRequest",
    "TransactionBuffer",
    "Wait",
]


class Capacity:
    """Rows and bytes: in queue, held by open transactions, reserved by those who still pay.

    `evicting`: the oldest queue may be dropped to make room.
    """

    __slots__ = (
        "capacity_bytes",
        "capacity_rows",
        "evicting",
        "held_bytes",
        "held_rows",
        "queue",
        "reserved_bytes",
        "reserved_rows",
    )

    def __init__(self, capacity_rows: int, capacity_bytes: int, *, evicting: bool) -> None:
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes
        self.evicting = evicting
        self.queue = BatchQueue()
        self.held_rows = self.held_bytes = 0
        self.reserved_rows = self.reserved_bytes = 0

    @property
    def used_rows(self) -> int:
        return self.queue.rows + self.held_rows + self.reserved_rows

    @property
    def used_bytes(self) -> int:
        return self.queue.nbytes + self.held_bytes + self.reserved_bytes

    def fits(self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0) -> bool:
        """Is there room, once `freed_*` is given back? One row larger than the channel needs it empty."""
        queue = self.queue  # sums spelled out: this is on the path of every push
        used_rows = queue.rows + self.held_rows + self.reserved_rows - freed_rows
        used_bytes = queue.nbytes + self.held_bytes + self.reserved_bytes - freed_bytes
        if used_rows + rows <= self.capacity_rows and used_bytes + nbytes <= self.capacity_bytes:
            return True
        return rows == 1 and used_rows == 0

    def make(
        self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0
    ) -> tuple[int, int] | None:
        """Like `fits`, dropping the oldest queue if need be and `evicting`.

        Rows and bytes that were dropped; None = the channel is full, and nothing was dropped.
        """
        if self.fits(rows, nbytes, freed_rows, freed_bytes):
            return 0, 0
        queue = self.queue
        if not (
            self.evicting
            and self.fits(rows, nbytes, freed_rows + queue.rows, freed_bytes + queue.nbytes)
        ):
            return None
        if nbytes > self.capacity_bytes:
            return queue.evict(queue.rows, queue.nbytes)
        return queue.evict(
            self.used_rows - freed_rows + rows - self.capacity_rows,
            self.used_bytes - freed_bytes + nbytes - self.capacity_bytes,
        )


class TransactionBuffer:
    """The lists of a transaction with their sums.

    The transaction's thread alone uses it; while that thread waits for room, whoever makes the room
    commits it, under the channel's lock.
    """

    __slots__ = (
        "committed",
        "empty_puts",
        "paid_bytes",
        "paid_rows",
        "put_bytes",
        "put_rows",
        "puts",
        "taken_bytes",
        "taken_rows",
        "takes",
    )

    def __init__(self) -> None:
        self.puts: list[Sized] = []
        self.put_rows = self.put_bytes = self.empty_puts = 0
        self.takes: list[SizedBatch] = []
        self.taken_rows = self.taken_bytes = 0
        self.paid_rows = self.paid_bytes = 0
        self.committed = False

    def add_put(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        if not rows:
            self.empty_puts += 1  # it carries nothing, and succeeds with the others
            return
        self.puts.append((batch, rows, nbytes))
        self.put_rows += rows
        self.put_bytes += nbytes

    def add_take(self, entry: SizedBatch) -> None:
        self.takes.append(entry)
        self.taken_rows += entry.rows
        self.taken_bytes += entry.nbytes

    def owed(self) -> tuple[int, int]:
        """Rows and bytes of the puts that the limiter was not paid yet: a commit may be tried again."""
        return self.put_rows - self.paid_rows, self.put_bytes - self.paid_bytes

    def mark_paid(self) -> None:
        self.paid_rows, self.paid_bytes = self.put_rows, self.put_bytes

    def commit(self, room: Capacity, counters: Counters) -> list[Sized]:
        """The takes leave for good; returns the puts, which enter now. Under the lock."""
        puts = self.puts
        room.held_rows -= self.taken_rows
        room.held_bytes -= self.taken_bytes
        counters.rows_pulled += self.taken_rows
        counters.bytes_pulled += self.taken_bytes
        counters.take_successes += len(self.takes)
        counters.put_successes += len(puts) + self.empty_puts
        self._clear()
        self.committed = True
        return puts

    def roll_back(self, room: Capacity) -> None:
        """The takes return to the head; the puts were never in the channel. Under the lock."""
        room.held_rows -= self.taken_rows
        room.held_bytes -= self.taken_bytes
        room.queue.restore(self.takes)
        self._clear()

    def _clear(self) -> None:
        self.puts, self.takes = [], []
        self.put_rows = self.put_bytes = self.empty_puts = 0
        self.taken_rows = self.taken_bytes = 0
        self.paid_rows = self.paid_bytes = 0


class CapacityRequest:
    """One thread's wait for room; `granted` ends it."""

    __slots__ = ("condition", "dropped", "granted", "notified", "since")

    produces = True
    """Whether the request adds rows: it then ends when the channel is closed, and counts as a wait of the writers."""

    def __init__(self) -> None:
        self.condition: threading.Condition | None = None
        self.since: float | None = None
        self.granted = False
        self.notified = False
        self.dropped = (0, 0)

    def admit(self, room: Capacity) -> bool:
        """Take the room if it is there; `dropped` says what was evicted for it."""
        raise NotImplementedError


class Reservation(CapacityRequest):
    """A request that reserves room, and later fills it. `rows` and `nbytes`: what it has reserved."""

    __slots__ = ("nbytes", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.nbytes = 0

    def is_paid(self) -> bool:
        """Whether the reserved rows are paid for, so that the admitting thread may publish them."""
        raise NotImplementedError

    def is_served(self) -> bool:
        """Its thread is to be woken; if not, it queues for its next turn."""
        return True

    def fill(self, room: Capacity, counters: Counters) -> Sequence[Sized]:
        """Spend the reservation: the batches that enter the channel now."""
        raise NotImplementedError

    def release(self, room: Capacity) -> None:
        """End the reservation."""
        room.reserved_rows -= self.rows
        room.reserved_bytes -= self.nbytes
        self.rows = self.nbytes = 0

    def _reserve(
        self, room: Capacity, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0
    ) -> bool:
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

    __slots__ = (
        "batch",
        "batch_bytes",
        "batch_rows",
        "free",
        "max_bytes",
        "max_rows",
        "paid",
        "start",
    )

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

    def slice_size(self, room: Capacity) -> tuple[int, int]:
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

    def admit(self, room: Capacity) -> bool:
        return self._reserve(room, *self.slice_size(room))

    def is_paid(self) -> bool:
        return self.free or self.start + self.rows <= self.paid

    def is_served(self) -> bool:
        return not self.free or self.start == self.batch_rows

    def fill(self, room: Capacity, counters: Counters) -> Sequence[Sized]:
        rows, nbytes, start = self.rows, self.nbytes, self.start
        piece = self.batch if rows == self.batch_rows else self.batch.slice(start, rows)
        self.release(room)
        self.start += rows
        if self.start == self.batch_rows:
            counters.put_successes += 1
        return ((piece, rows, nbytes),)


class AllOrNothingReservation(Reservation):
    """Room for some batches together, now or never."""

    __slots__ = ("batch_bytes", "batch_rows", "batches", "free", "published")

    def __init__(self, batches: Sequence[Sized], rows: int, nbytes: int, *, free: bool) -> None:
        super().__init__()
        self.batches = batches
        self.batch_rows = rows
        self.batch_bytes = nbytes
        self.free = free
        self.published = False

    def admit(self, room: Capacity) -> bool:
        return self._reserve(room, self.batch_rows, self.batch_bytes)

    def is_paid(self) -> bool:
        return self.free

    def fill(self, room: Capacity, counters: Counters) -> Sequence[Sized]:
        self.release(room)
        self.published = True
        counters.put_successes += len(self.batches)
        return [sized for sized in self.batches if sized[1]]


class CommitReservation(Reservation):
    """Room for all puts of a transaction, less what its takes free."""

    __slots__ = ("staged",)

    def __init__(self, staged: TransactionBuffer) -> None:
        super().__init__()
        self.staged = staged

    def admit(self, room: Capacity) -> bool:
        staged = self.staged
        return self._reserve(
            room, staged.put_rows, staged.put_bytes, staged.taken_rows, staged.taken_bytes
        )

    def is_paid(self) -> bool:
        return self.staged.owed() == (0, 0)

    def fill(self, room: Capacity, counters: Counters) -> Sequence[Sized]:
        self.release(room)
        return self.staged.commit(room, counters)


class ResizeRequest(CapacityRequest):
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

    def target(self, room: Capacity) -> tuple[int, int]:
        """Rows and bytes, once granted."""
        rows, nbytes = self.capacity_rows, self.capacity_bytes
        return (
            room.capacity_rows if rows is None else rows,
            room.capacity_bytes if nbytes is None else nbytes,
        )

    def admit(self, room: Capacity) -> bool:
        rows, nbytes = self.target(room)
        if (rows < room.capacity_rows and room.used_rows > rows) or (
            nbytes < room.capacity_bytes and room.used_bytes > nbytes
        ):
            return False
        room.capacity_rows, room.capacity_bytes = rows, nbytes
        self.settle()
        return True


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a payment still has to wait.

    `seconds`: 0.0 = paid, go; None = unknown, until the limiter calls `wake`. `reason` names the
    dimension that makes it wait: "rows", "bytes", "grant", "share", "paused", ...
    """

    seconds: float | None
    reason: str = ""


class Payment(Protocol):
    """One amount on its way to being paid."""

    def remaining(self) -> Wait:
        """The wait from now. Once it has answered 0.0, the amount is spent and it stays 0.0.

        Called by the waiting thread whenever its wait ends or `wake` was called. Raises
        `LimitError` when the limit can no longer be kept.
        """
        ...

    def cancel(self) -> None:
        """Return what was not spent; has no effect after it was paid, or when called twice."""
        ...


class Limiter(Protocol):
    """A limit in rows and bytes per second.

    A limiter never blocks: it returns how long to wait, and the channel waits on its own condition, so that `close()`
    and `fail()` wake a waiting payer immediately. `spark_channel.limits.RateLimiter` is one. The smallest one:

    ```python
    import pyarrow as pa
    from spark_channel.channel import MemoryChannel, Wait

    class Free:
        rows = 0                                # counts, and never makes a thread wait

        def slice_size(self):
            return 100, None

        def pay(self, rows, nbytes, wake):
            self.rows += rows
            return self                         # also the payment

        def remaining(self):
            return Wait(0.0)

        def cancel(self):
            pass

    limiter = Free()
    channel = MemoryChannel(limiter=limiter)
    channel.push(pa.record_batch({"id": range(250)}))
    assert limiter.rows == 250
    assert [batch.num_rows for batch in channel.drain()] == [100, 100, 50]
    ```
    """

    def slice_size(self) -> tuple[int | None, int | None]:
        """The largest (rows, bytes) that one payment should carry, about 20 ms of the limit.

        None = unbounded in that dimension. At least 1. A hint: the channel slices larger batches
        so that the flow is even, and a payment above it is still honoured.
        """
        ...

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Begin to pay. First come, first served.

        `wake` may be called from any thread, with none of the limiter's locks held, when
        `remaining()` may have changed (a rate was set, a grant arrived, a pause ended). `remaining()`
        and `cancel()` may be called with the channel's lock held, so they must not call `wake`
        in the same call chain.
        """
        ...


class Overflow(StrEnum):
    """The behaviour of `MemoryChannel.push` when the channel is full.

    - `BLOCK`: wait, first come, first served. This delays the producer's next fetch.
    - `REJECT`: return False at once, publish nothing, pay nothing. It never waits, not for the limit
      either.
    - `OVERWRITE`: drop the oldest rows that no transaction holds, and count them. Nothing is dropped before
      the limit is paid.

    ```python
    import pyarrow as pa
    from spark_channel.channel import MemoryChannel

    latest = MemoryChannel(capacity_rows=4, overflow="overwrite")
    latest.push_all([pa.record_batch({"id": [0, 1, 2]}), pa.record_batch({"id": [3, 4, 5]})])
    assert [n for batch in latest.drain() for n in batch["id"].to_pylist()] == [2, 3, 4, 5]
    assert latest.statistics().rows_dropped == 2
    ```
    """

    BLOCK = "block"
    REJECT = "reject"
    OVERWRITE = "overwrite"
