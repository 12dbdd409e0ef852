"""The channel: a bounded, rate-limited, transactional queue of Arrow batches between threads.

A thread's transaction has private puts, and takes that keep their capacity; one commit ends both.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from enum import StrEnum
from threading import get_ident
from types import TracebackType
from typing import overload

import pyarrow as pa

from spark_channel.channel.batches import ChannelStatistics, measure
from spark_channel.channel.bounded_queue import BoundedQueue
from spark_channel.channel.capacity import Capacity, Limiter, Overflow, TransactionBuffer
from spark_channel.channel.monitor import Callback
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import EndOfChannel, TransactionStateError

__all__ = ["MemoryChannel", "ThreadTransaction", "Transaction", "TransactionState"]


class MemoryChannel:
    """A queue of `pyarrow.RecordBatch` between any number of producer and consumer threads.

    Args:
        capacity_rows: the most rows in the channel.
        capacity_bytes: the most bytes in the channel, `RecordBatch.nbytes`. One row that is larger
            passes alone, through an empty channel.
        transaction_rows: the most rows that one transaction may put, and may take; `capacity_rows`
            when None.
        overflow: what a push does without room: "block", "reject" or "overwrite".
        keep_alive: seconds that `take`, `commit` and `resize` wait at most.
        limiter: the rate limit that every published row and byte is charged to; None = unlimited.
        clock: where time comes from; the machine's when None.

    Raises `ValueError` for a capacity below 1, a `transaction_rows` that is below 1 or above
    `capacity_rows`, a negative `keep_alive`, and an unknown `overflow`.

    Batches leave in the order in which they were published; batches of one producer are published in
    the order of its pushes. Waiting is first come, first served, on both sides. All methods may be
    called from any thread, but not from a signal handler. An interrupt (`KeyboardInterrupt`) of a wait
    leaves the channel as it was; one that hits the middle of a change fails it, for both sides.
    """

    def __init__(
        self,
        capacity_rows: int = 1_048_576,
        capacity_bytes: int = 64 << 20,
        *,
        transaction_rows: int | None = None,
        overflow: Overflow | str = Overflow.BLOCK,
        keep_alive: float = 3.0,
        limiter: Limiter | None = None,
        clock: Clock | None = None,
    ) -> None:
        _require_positive("capacity_rows", capacity_rows)
        _require_positive("capacity_bytes", capacity_bytes)
        if transaction_rows is not None:
            _require_positive("transaction_rows", transaction_rows)
            if transaction_rows > capacity_rows:
                raise ValueError(
                    f"transaction_rows={transaction_rows} is above capacity_rows={capacity_rows}: "
                    "such a transaction could never commit"
                )
        if not keep_alive >= 0:
            raise ValueError(f"keep_alive={keep_alive} is not a number of seconds, 0 or more")
        overflow = Overflow(overflow)
        self._queue = BoundedQueue(
            Capacity(capacity_rows, capacity_bytes, evicting=overflow is Overflow.OVERWRITE),
            overflow=overflow,
            keep_alive=keep_alive,
            transaction_rows=transaction_rows,
            limiter=limiter,
            clock=clock or SYSTEM_CLOCK,
        )
        self._threads = threading.local()

    # ---- producing

    def push(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> bool:
        """Reserve capacity, pay the limiter, publish; wait for both. False if it was rejected.

        A batch larger than the channel, or than what the limiter takes at once, is published slice by
        slice (no copy; the bytes of the slices sum exactly); under "reject" it is published whole or
        not at all. A batch of 0 rows is accepted and carries nothing.

        ```python
        import threading
        import pyarrow as pa
        from spark_channel.channel import MemoryChannel

        small = MemoryChannel(capacity_rows=4)
        batch = pa.record_batch({"id": range(10)})
        producer = threading.Thread(target=small.push, args=[batch])
        producer.start()
        assert [small.pull().num_rows for _ in range(3)] == [4, 4, 2]
        producer.join()
        ```

        A thread must not push while its own open transaction holds the capacity that the push needs: no other
        thread can free it. A slice of a dictionary column counts the whole dictionary.

        `nbytes`: the batch's bytes, where they are known; measured (4 to 17 us for five columns) otherwise. Raises
        `ChannelClosedError` after `close`, what `fail` was given after `fail`, `LimitError` when the
        limiter gives up, `TypeError` for anything but a batch. A push that raises has published the
        slices before the one it waited for; room and payment of the rest are given back.
        """
        return self._queue.push(batch, *measure(batch, nbytes))

    def push_all(self, batches: Iterable[pa.RecordBatch]) -> bool:
        """`push` each in turn; another producer's may come between. False when they were rejected.

        What `overflow` is at the call counts for all of it. Under "reject" the batches are published all
        together or not at all; else each waits for its room, also if "reject" is set meanwhile. A list or
        tuple is checked before anything is published, so that one with a wrong item publishes nothing;
        another iterable is consumed as room allows, so it may be endless.
        """
        if self._queue.overflow is Overflow.REJECT:
            return self._queue.push_together([(batch, *measure(batch)) for batch in batches])
        sized = ((batch, *measure(batch)) for batch in batches)
        for sized_batch in list(sized) if isinstance(batches, list | tuple) else sized:
            self._queue.push_waiting(*sized_batch)
        return True

    # ---- consuming

    @overload
    def pull(self, timeout: None = None) -> pa.RecordBatch: ...
    @overload
    def pull(self, timeout: float | None) -> pa.RecordBatch | None: ...
    def pull(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The oldest batch; waits for one. None if `timeout` seconds passed without a batch.

        Raises `EndOfChannel` when the channel is closed and drained, and what `fail` was given after
        `fail`.
        """
        return self._queue.pull(timeout, self._own_rows)

    def pull_all(
        self, max_rows: int | None = None, timeout: float | None = None
    ) -> list[pa.RecordBatch]:
        """All stored batches, at least one, at most `max_rows` rows; waits for the first.

        The last batch is cut where `max_rows` ends, without a copy. Empty when `timeout` seconds
        passed without a batch. With `timeout=0` it does not queue behind waiting consumers. Raises as `pull` does.

        ```python
        import pyarrow as pa
        from spark_channel.channel import MemoryChannel

        channel = MemoryChannel()
        channel.push_all([pa.record_batch({"id": range(300)})] * 2)
        assert [batch.num_rows for batch in channel.pull_all(max_rows=400)] == [300, 100]
        assert [batch.num_rows for batch in channel.drain()] == [200]
        ```
        """
        if max_rows is not None:
            _require_positive("max_rows", max_rows)
        return self._queue.pull_all(timeout, max_rows, self._own_rows)

    def drain(self, max_rows: int | None = None) -> list[pa.RecordBatch]:
        """All stored batches, at most `max_rows` rows, without waiting; an empty list if there are none.

        Raises what `fail` was given after `fail`. At the end it stays empty: see `ended`.
        """
        if max_rows is not None:
            _require_positive("max_rows", max_rows)
        return self._queue.drain(max_rows)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Pull until the end."""
        while True:
            try:
                yield self.pull()
            except EndOfChannel:
                return

    # ---- transactions

    def transaction(self) -> "Transaction":
        """This thread's transaction: the one it has not closed yet, else a new one.

        `with channel.transaction() as t:` begins, commits on success and rolls back on an exception.
        When a thread ends with an open transaction, it is rolled back.
        """
        slot = getattr(self._threads, "slot", None)
        if slot is None:
            slot = self._threads.slot = ThreadTransaction(self)
        transaction: Transaction | None = slot.transaction
        if transaction is None or transaction.closed:
            transaction = slot.transaction = Transaction(self._queue)
        return transaction

    def put(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """`Transaction.put` of this thread's transaction; `TransactionStateError` without one."""
        self._current("put").put(batch, nbytes=nbytes)

    def take(self) -> pa.RecordBatch | None:
        """`Transaction.take` of this thread's transaction; `TransactionStateError` without one."""
        return self._current("take").take()

    def _current(self, method: str) -> "Transaction":
        slot = getattr(self._threads, "slot", None)
        if slot is None or slot.transaction is None or slot.transaction.closed:
            raise TransactionStateError(
                f"{method}() needs a transaction in this thread; it has none"
            )
        transaction: Transaction = slot.transaction
        return transaction

    def _own_rows(self) -> int:
        """The rows that this thread's own transaction holds."""
        slot = getattr(self._threads, "slot", None)
        return 0 if slot is None or slot.transaction is None else slot.transaction.taken_rows

    # ---- the end, and changes while it runs

    def close(self) -> None:
        """Accept no more batches: producers get `ChannelClosedError`, also those that wait; consumers drain,
        then get `EndOfChannel`. Returns immediately; may be called again.
        """
        self._queue.close()

    def fail(self, error: BaseException) -> None:
        """Make both sides raise `error` immediately, also those that wait. The first error counts."""
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, not {error!r}")
        self._queue.fail(error)

    def resize(
        self,
        *,
        capacity_rows: int | None = None,
        capacity_bytes: int | None = None,
        transaction_rows: int | None = None,
        keep_alive: float | None = None,
    ) -> None:
        """Change the capacity; None keeps a dimension.

        Growing wakes waiting producers. Shrinking waits until what is in the channel fits, at most
        `keep_alive` seconds (the new one, if it is given), then raises `ChannelFullError`; nothing is lost,
        and no bound has changed. A transaction that is open keeps what it has put and taken; the new
        `transaction_rows` counts from its next `put` or `take` on. A wait under way keeps its `keep_alive`.
        `ValueError` below 1, for a negative `keep_alive`, and for a `capacity_rows` below a
        `transaction_rows` that was given.
        """
        for name, bound in (
            ("capacity_rows", capacity_rows),
            ("capacity_bytes", capacity_bytes),
            ("transaction_rows", transaction_rows),
        ):
            if bound is not None:
                _require_positive(name, bound)
        if keep_alive is not None and not keep_alive >= 0:
            raise ValueError(f"keep_alive={keep_alive} is not a number of seconds, 0 or more")
        self._queue.resize(capacity_rows, capacity_bytes, transaction_rows, keep_alive)

    @property
    def overflow(self) -> Overflow:
        """The behaviour of a push into a full channel; may be set at any time.

        Setting "overwrite" lets waiting producers go on. A push that already waits does not become
        rejected.
        """
        return self._queue.overflow

    @overflow.setter
    def overflow(self, overflow: Overflow | str) -> None:
        self._queue.set_overflow(Overflow(overflow))

    def add_listener(self, callback: Callback) -> None:
        """Call `callback()` whenever batches become available and when the channel ends.

        It runs without the channel's lock, in the thread that pushed, rolled back, closed or failed
        (or took the last of a closed channel), so it must be short: set a flag, notify a condition.
        An exception in it is logged. Several notices may stand for one batch, never none.
        """
        self._queue.add_listener(callback)

    def remove_listener(self, callback: Callback) -> None:
        """Remove a listener; calls in progress may still finish. One that was never added is ignored."""
        self._queue.remove_listener(callback)

    def add_block_listener(self, callback: Callback) -> None:
        """Call `callback()` when a push or commit begins to wait for capacity: once per push or commit.

        It runs without the channel's lock, in the producer's thread; an exception in it is logged.
        """
        self._queue.add_block_listener(callback)

    def remove_block_listener(self, callback: Callback) -> None:
        """Remove a listener; one that was never added is ignored."""
        self._queue.remove_block_listener(callback)

    # ---- looking

    @property
    def capacity_rows(self) -> int:
        return self._queue.capacity_rows

    @property
    def capacity_bytes(self) -> int:
        return self._queue.capacity_bytes

    @property
    def transaction_rows(self) -> int:
        """The most rows that one transaction may put, and may take."""
        return self._queue.transaction_rows

    @property
    def keep_alive(self) -> float:
        """Seconds that `take`, `commit` and `resize` wait at most."""
        return self._queue.keep_alive

    @property
    def backlog(self) -> int:
        """Rows that a consumer could take now; those held by transactions are not among them."""
        return self._queue.backlog

    @property
    def closed(self) -> bool:
        """Whether `close` was called; there may be stored batches."""
        return self._queue.closed

    @property
    def ended(self) -> bool:
        """Whether no more batches can arrive: closed, drained and nothing held by a transaction, or failed."""
        return self._queue.ended

    def statistics(self) -> ChannelStatistics:
        """All counters at one instant."""
        return self._queue.statistics()

    def __repr__(self) -> str:
        s = self.statistics()
        state = "ended" if self.ended else "closed" if self.closed else "open"
        return (
            f"<MemoryChannel {state}: {s.rows_stored} of {s.capacity_rows} rows, "
            f"{s.bytes_stored} of {s.capacity_bytes} bytes>"
        )


def _require_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} is not a whole number, 1 or more")


class TransactionState(StrEnum):
    """NEW -> OPEN (begin) -> COMPLETED (commit or rollback) -> CLOSED (close)."""

    NEW = "new"
    OPEN = "open"
    COMPLETED = "completed"
    CLOSED = "closed"


# An enum looks its members up at each access, which takes as long as a call.
_NEW, _OPEN, _COMPLETED, _CLOSED = TransactionState


class Transaction:
    """The rows that one thread puts and takes, published together or not at all.

    Made by `MemoryChannel.transaction()`, used by that thread alone. Every method raises
    `TransactionStateError` in a state, or from a thread, that does not allow it. As a context
    manager it begins, commits on success, rolls back on an exception, and closes.

    ```python
    import pyarrow as pa
    from spark_channel.channel import MemoryChannel

    channel = MemoryChannel(keep_alive=0.1)
    with channel.transaction() as transaction:
        transaction.put(pa.record_batch({"id": [1, 2, 3]}))
        assert channel.backlog == 0             # others see it after the block
    assert channel.backlog == 3

    try:
        with channel.transaction() as transaction:
            transaction.take()
            raise ConnectionError("the target is gone")
    except ConnectionError:
        pass
    assert channel.backlog == 3                 # the batch is back, at the head
    ```
    """

    __slots__ = ("_owner", "_queue", "_staged", "_state")

    def __init__(self, queue: BoundedQueue) -> None:
        self._queue = queue
        self._owner = get_ident()
        self._state = _NEW
        self._staged = TransactionBuffer()

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def closed(self) -> bool:
        """The thread's next `transaction()` is another one."""
        return self._state is _CLOSED

    @property
    def put_rows(self) -> int:
        """Rows put and not yet committed."""
        return self._staged.put_rows

    @property
    def taken_rows(self) -> int:
        """Rows taken and not yet committed; they keep their capacity."""
        return self._staged.taken_rows

    def begin(self) -> None:
        """NEW -> OPEN.

        An interrupt between this call and the `try` behind it leaves the transaction open, until the thread ends or
        calls `channel.transaction().rollback()` and `close()`. The `with` block has no such moment.
        """
        self._require("begin", _NEW)
        self._state = _OPEN

    def put(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """Stage a batch; consumers do not see it, and nothing is reserved or paid, before `commit`.

        `nbytes`: the batch's bytes, where they are known. Raises `TransactionFullError` when the
        transaction would put more than `transaction_rows`, or more bytes than the channel holds
        (one row alone may be larger); `ChannelClosedError` after `close`. The transaction stays open.
        """
        self._require("put", _OPEN)
        rows, nbytes = measure(batch, nbytes)
        self._queue.put(self._staged, batch, rows, nbytes)

    def take(self) -> pa.RecordBatch | None:
        """Return the oldest batch, cut to what the transaction may still take; None after `keep_alive` without one.

        The batch occupies the channel's capacity until `commit`. When the channel is closed and no more rows can
        arrive, the call returns None immediately if the transaction has taken rows (commit it), else it raises
        `EndOfChannel`. It waits while other transactions hold rows, since they may roll back. Raises
        `TransactionFullError` when `transaction_rows` were taken.
        """
        self._require("take", _OPEN)
        return self._queue.take(self._staged)

    def commit(self) -> None:
        """OPEN -> COMPLETED: publish the puts and free the takes, together.

        Waits for room, at most `keep_alive` seconds, then for the limit. Raises `ChannelFullError`,
        `ChannelClosedError` (there are puts and the channel is closed), `LimitError`, or what the
        channel failed with; then nothing has happened and the transaction is still OPEN.
        """
        self._require("commit", _OPEN)
        try:
            self._queue.commit(self._staged)
        finally:
            if self._staged.committed:  # also when an interrupt comes right after it
                self._state = _COMPLETED

    def rollback(self) -> None:
        """OPEN -> COMPLETED: forget the puts, return the takes to the head in the channel's order."""
        self._require("rollback", _OPEN)
        self._queue.rollback(self._staged)
        self._state = _COMPLETED

    def close(self) -> None:
        """NEW or COMPLETED -> CLOSED: the thread's next `transaction()` makes a new one."""
        new = self._state is _NEW
        self._require("close", _NEW if new else _COMPLETED)
        self._state = _CLOSED

    def abandon(self) -> None:
        """Roll back and close, whatever the state: the owning thread has ended."""
        if self._state is _OPEN:
            self._queue.abandon(self._staged)
        self._state = _CLOSED

    def __enter__(self) -> "Transaction":
        self._require("begin", _NEW)
        # No call follows: an interrupt comes before, or inside the `with` block, whose end rolls back.
        self._state = _OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._state is _OPEN:
                self.commit()
        finally:
            if self._state is _OPEN:
                self.rollback()
            if self._state is _COMPLETED:
                self._state = _CLOSED

    def __repr__(self) -> str:
        staged = self._staged
        return f"<Transaction {self._state}: {staged.put_rows} rows put, {staged.taken_rows} taken>"

    def _require(self, method: str, state: TransactionState) -> None:
        if self._owner != get_ident():
            raise TransactionStateError(
                f"{method}() from another thread than the transaction's own"
            )
        if self._state is not state:
            raise TransactionStateError(
                f"{method}() needs a transaction that is {state}; it is {self._state}"
            )


class ThreadTransaction:
    """Where a thread keeps its transaction.

    It ends with the thread. A transaction that was left open is rolled back then, so that what it took
    is there for others and what it held does not block the channel forever.
    """

    __slots__ = ("_channel", "transaction")

    def __init__(self, channel: object) -> None:
        self._channel = weakref.ref(channel)
        self.transaction: Transaction | None = None

    def __del__(self) -> None:
        # When the channel itself goes, there is nothing to return to, and no listener may be called.
        # An interrupt may have cut __init__.
        transaction: Transaction | None = getattr(self, "transaction", None)
        if transaction is not None and self._channel() is not None:
            transaction.abandon()
