"""A thread's transaction: private puts, takes that keep their capacity, one commit for both."""

import weakref
from enum import StrEnum
from threading import get_ident
from types import TracebackType

import pyarrow as pa

from spark_channel.channel.batches import measure
from spark_channel.channel.capacity import TransactionBuffer
from spark_channel.channel.core import ChannelCore
from spark_channel.errors import TransactionStateError

__all__ = ["ThreadTransaction", "Transaction", "TransactionState"]


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

    __slots__ = ("_core", "_owner", "_staged", "_state")

    def __init__(self, core: ChannelCore) -> None:
        self._core = core
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
        """NEW -> OPEN."""
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
        self._core.put(self._staged, batch, rows, nbytes)

    def take(self) -> pa.RecordBatch | None:
        """Return the oldest batch, cut to what the transaction may still take; None after `keep_alive` without one.

        The batch occupies the channel's capacity until `commit`. When the channel is closed and no more rows can
        arrive, the call returns None immediately if the transaction has taken rows (commit it), else it raises
        `EndOfChannel`. It waits while other transactions hold rows, since they may roll back. Raises
        `TransactionFullError` when `transaction_rows` were taken.
        """
        self._require("take", _OPEN)
        return self._core.take(self._staged)

    def commit(self) -> None:
        """OPEN -> COMPLETED: publish the puts and free the takes, together.

        Waits for room, at most `keep_alive` seconds, then for the limit. Raises `ChannelFullError`,
        `ChannelClosedError` (there are puts and the channel is closed), `LimitError`, or what the
        channel failed with; then nothing has happened and the transaction is still OPEN.
        """
        self._require("commit", _OPEN)
        try:
            self._core.commit(self._staged)
        finally:
            if self._staged.committed:  # also when an interrupt comes right after it
                self._state = _COMPLETED

    def rollback(self) -> None:
        """OPEN -> COMPLETED: forget the puts, return the takes to the head in the channel's order."""
        self._require("rollback", _OPEN)
        self._core.rollback(self._staged)
        self._state = _COMPLETED

    def close(self) -> None:
        """NEW or COMPLETED -> CLOSED: the thread's next `transaction()` makes a new one."""
        new = self._state is _NEW
        self._require("close", _NEW if new else _COMPLETED)
        self._state = _CLOSED

    def abandon(self) -> None:
        """Roll back and close, whatever the state: the owning thread has ended."""
        if self._state is _OPEN:
            self._core.abandon(self._staged)
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

    def _require(self, what: str, state: TransactionState) -> None:
        if self._owner != get_ident():
            raise TransactionStateError(f"{what}() from another thread than the transaction's own")
        if self._state is not state:
            raise TransactionStateError(
                f"{what}() needs a transaction that is {state}; it is {self._state}"
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
        transaction: Transaction | None = getattr(
            self, "transaction", None
        )  # an interrupt may have cut __init__
        if transaction is not None and self._channel() is not None:
            transaction.abandon()
