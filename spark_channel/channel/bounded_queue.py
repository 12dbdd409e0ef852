"""The queue of a channel, as its threads use it: produce, consume, commit, change, inspect."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_channel.channel.batches import ChannelStatistics, Sized
from spark_channel.channel.capacity import (
    AllOrNothingReservation,
    Capacity,
    CommitReservation,
    Limiter,
    Overflow,
    Payment,
    PushReservation,
    Reservation,
    ResizeRequest,
    TransactionBuffer,
)
from spark_channel.channel.monitor import Callback, ChannelMonitor, WaitingPayment, is_paid
from spark_channel.clock import Clock
from spark_channel.errors import (
    ChannelFullError,
    EndOfChannel,
    TransactionFullError,
)

__all__ = ["BoundedQueue"]


class BoundedQueue(ChannelMonitor):
    """The queue behind `MemoryChannel` and its transactions."""

    def __init__(
        self,
        room: Capacity,
        *,
        overflow: Overflow,
        keep_alive: float,
        transaction_rows: int | None,
        limiter: Limiter | None,
        clock: Clock,
    ) -> None:
        super().__init__(room, clock)
        self.keep_alive = keep_alive
        self.limiter = limiter
        self._overflow = overflow
        self._transaction_rows = transaction_rows

    # ---- produce: reserve, pay, publish

    def push(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> bool:
        """False when it was rejected."""
        overflow = self._atomic(self._push_at_once, batch, rows, nbytes)
        if overflow is None:
            return True
        if overflow is Overflow.REJECT:
            return self._push_or_reject([(batch, rows, nbytes)], rows, nbytes)
        self._push_and_wait(batch, rows, nbytes)
        return True

    def push_waiting(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        """Never rejected, whatever `overflow` is: for one of several that began under another."""
        if self._atomic(self._push_at_once, batch, rows, nbytes) is not None:
            self._push_and_wait(batch, rows, nbytes)

    def push_together(self, batches: Sequence[Sized]) -> bool:
        """All of them together and without waiting, or none of them and False."""
        rows = sum(sized[1] for sized in batches)
        nbytes = sum(sized[2] for sized in batches)
        with self._lock:
            self._begin_push(len(batches), rows, nbytes)
            if not rows:
                self._counters.put_successes += len(batches)
                return True
        return self._push_or_reject(batches, rows, nbytes)

    def _begin_push(self, batches: int, rows: int, nbytes: int) -> None:
        self._counters.put_attempts += batches
        if self._closed or self._error is not None:
            self._counters.failed(rows, nbytes)
            self._raise_if_ended()

    def _push_at_once(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> Overflow | None:
        """None = published; else what to do without."""
        self._begin_push(1, rows, nbytes)
        if rows:
            if self.limiter is not None or self._requests or not self._room.fits(rows, nbytes):
                return self._overflow
            self._publish(batch, rows, nbytes)
        self._counters.put_successes += 1
        return None

    # -- without waiting

    def _push_or_reject(self, batches: Sequence[Sized], rows: int, nbytes: int) -> bool:
        request = AllOrNothingReservation(batches, rows, nbytes, free=self.limiter is None)
        payment: Payment | None = None
        try:
            admitted = self._atomic(self._claim_now, request)
            if admitted and self.limiter is not None:
                payment = self.limiter.pay(rows, nbytes, _nobody_waits)
                self._atomic(self._publish_if_paid, request, payment)
        except BaseException:
            self._count_failed(*((0, 0) if request.published else (rows, nbytes)))
            raise
        finally:
            if not request.published:
                self._give_back(request, payment)
        if not request.published:
            with self._lock:
                self._counters.rejected(rows, nbytes)
        return request.published

    def _claim_now(self, request: AllOrNothingReservation) -> bool:
        self._raise_if_ended()
        return not self._requests and self._admit(request)

    def _publish_if_paid(self, request: AllOrNothingReservation, payment: Payment) -> None:
        self._raise_if_ended()
        if is_paid(payment.remaining()):
            self._publish_claim(request)

    # -- waiting

    def _push_and_wait(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        limiter = self.limiter
        request = PushReservation(batch, rows, nbytes, free=limiter is None)
        try:
            while request.start < rows:
                if limiter is None:
                    self._atomic(self._wait_for_room, request)
                else:
                    self._push_slice(request, limiter)
        except BaseException:
            self._count_failed(*request.left())
            raise

    def _push_slice(self, request: PushReservation, limiter: Limiter) -> None:
        """Push one slice, as large as capacity and limiter accept.

        A channel that overwrites pays before it makes room: while the limit is waited for, a consumer
        may still take the rows that would be dropped.
        """
        request.max_rows, request.max_bytes = limiter.slice_size()
        payer = WaitingPayment(self._lock, self._own_condition())
        payment: Payment | None = None
        try:
            pay_first, owed = self._atomic(self._reserve_slice, request)
            if owed[0]:
                payment = limiter.pay(*owed, payer.wake)
            if owed[0] or pay_first:
                self._atomic(self._publish_slice, request, payment, payer)
        except BaseException:
            self._give_back(request, payment)
            raise

    def _reserve_slice(self, request: PushReservation) -> tuple[bool, tuple[int, int]]:
        """Whether the room comes after the payment, and the rows and bytes to pay."""
        self._raise_if_ended()
        if self._room.evicting:
            request.max_rows, _ = request.slice_size(self._room)
            return True, request.owe(request.max_rows)
        self._wait_for_room(request)
        return False, request.owe(request.rows)

    def _publish_slice(
        self, request: PushReservation, payment: Payment | None, payer: WaitingPayment
    ) -> None:
        if payment is not None:
            self._wait_for_limit(payment, payer)
        if request.rows:
            self._publish_claim(request)
        else:
            self._wait_for_room(request)

    # -- what did not get through

    def _give_back(self, request: Reservation, payment: Payment | None) -> None:
        """Payment and room of a push or commit. Outside the lock."""
        if payment is not None:
            payment.cancel()
        if request.rows or request.nbytes:
            self._atomic(request.release, self._room)

    def _count_failed(self, rows: int, nbytes: int) -> None:
        with self._lock:
            self._counters.failed(rows, nbytes)

    # ---- consume: take from the head, and leave the room to waiting producers

    def pull(self, timeout: float | None, own_rows: Callable[[], int]) -> pa.RecordBatch | None:
        return self._atomic(self._pull, timeout, own_rows)

    def pull_all(
        self, timeout: float | None, max_rows: int | None, own_rows: Callable[[], int]
    ) -> list[pa.RecordBatch]:
        return self._atomic(self._pull_all, timeout, max_rows, own_rows)

    def drain(self, max_rows: int | None) -> list[pa.RecordBatch]:
        return self._atomic(self._drain, max_rows)

    def _pull(self, timeout: float | None, own_rows: Callable[[], int]) -> pa.RecordBatch | None:
        self._counters.take_attempts += 1
        if not self._wait_for_data(timeout, own_rows):
            return None
        self._counters.take_successes += 1
        return self._pop(None)[0]

    def _pull_all(
        self, timeout: float | None, max_rows: int | None, own_rows: Callable[[], int]
    ) -> list[pa.RecordBatch]:
        self._counters.take_attempts += 1
        return self._pop_many(max_rows) if self._wait_for_data(timeout, own_rows) else []

    def _drain(self, max_rows: int | None) -> list[pa.RecordBatch]:
        self._counters.take_attempts += 1
        self._raise_if_failed()
        return self._pop_many(max_rows) if self._queue.rows else []

    def _pop(self, max_rows: int | None) -> tuple[pa.RecordBatch, int]:
        """One batch and its rows."""
        entry = self._queue.pop(max_rows)
        counters = self._counters
        counters.rows_pulled += entry.rows
        counters.bytes_pulled += entry.nbytes
        if self._closed and self._has_ended():
            self._news = True
        return entry.batch, entry.rows

    def _pop_many(self, max_rows: int | None) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        self._counters.take_successes += 1
        remaining = max_rows
        while self._queue.rows and remaining != 0:
            batch, rows = self._pop(remaining)
            batches.append(batch)
            if remaining is not None:
                remaining -= rows
        return batches

    # ---- commit: what a transaction put and took, `TransactionBuffer`, together or not at all

    def put(self, staged: TransactionBuffer, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        put_rows, put_bytes = staged.put_rows + rows, staged.put_bytes + nbytes
        with self._lock:  # no other thread is concerned yet
            self._begin_push(1, rows, nbytes)
            most_rows, most_bytes = self._most_transaction_rows(), self._room.capacity_bytes
        if put_rows > most_rows:
            raise TransactionFullError(
                f"{put_rows} rows put, transaction_rows is {most_rows}: commit smaller transactions"
            )
        if put_bytes > most_bytes and put_rows > 1:
            raise TransactionFullError(
                f"{put_bytes} bytes put, the channel holds {most_bytes}: commit smaller transactions"
            )
        staged.add_put(batch, rows, nbytes)

    def take(self, staged: TransactionBuffer) -> pa.RecordBatch | None:
        return self._atomic(self._take, staged)

    def _take(self, staged: TransactionBuffer) -> pa.RecordBatch | None:
        self._counters.take_attempts += 1
        most_rows = self._most_transaction_rows()
        if staged.taken_rows >= most_rows:
            raise TransactionFullError(
                f"{staged.taken_rows} rows taken, transaction_rows is {most_rows}: "
                "commit smaller transactions"
            )
        try:
            if not self._wait_for_data(self.keep_alive, lambda: staged.taken_rows):
                return None
        except EndOfChannel:
            if staged.takes:
                return (
                    None  # to be committed: raising would roll back the last rows, again and again
                )
            raise
        entry = self._queue.pop(most_rows - staged.taken_rows)
        self._room.held_rows += entry.rows
        self._room.held_bytes += entry.nbytes
        staged.add_take(entry)
        return entry.batch

    def commit(self, staged: TransactionBuffer) -> None:
        """Publish the puts and free the takes, together or not at all."""
        if self._atomic(self._commit_at_once, staged):
            return
        request = CommitReservation(staged)
        payment: Payment | None = None
        try:
            self._atomic(self._reserve_commit, request)
            if not staged.committed:
                assert self.limiter is not None
                payer = WaitingPayment(self._lock, self._own_condition())
                payment = self.limiter.pay(*staged.owed(), payer.wake)
                self._atomic(self._pay_and_publish, request, payment, payer)
        except BaseException:
            if not staged.committed:
                self._give_back(request, payment)
                self._count_failed(staged.put_rows, staged.put_bytes)
            raise

    def _commit_at_once(self, staged: TransactionBuffer) -> bool:
        if not staged.puts:
            if self._error is not None:
                self._raise_if_failed()
            staged.commit(self._room, self._counters)
            if self._closed and self._has_ended():
                self._news = True
            return True
        if self.limiter is not None or self._requests or self._closed or self._error is not None:
            return False
        room = self._room
        if not room.fits(staged.put_rows, staged.put_bytes, staged.taken_rows, staged.taken_bytes):
            return False
        self._publish_staged(staged)
        return True

    def _publish_staged(self, staged: TransactionBuffer) -> None:
        for batch, rows, nbytes in staged.commit(self._room, self._counters):
            self._publish(batch, rows, nbytes)

    def _reserve_commit(self, request: CommitReservation) -> None:
        """Room for it, and all of it where nothing is to be paid. A channel that overwrites pays first."""
        self._raise_if_ended()
        if self.limiter is None:
            request.staged.mark_paid()
        if request.is_paid() or not self._room.evicting:
            self._wait_for_commit_room(request)

    def _pay_and_publish(
        self, request: CommitReservation, payment: Payment, payer: WaitingPayment
    ) -> None:
        self._wait_for_limit(payment, payer)
        request.staged.mark_paid()
        if request.granted:
            self._publish_claim(request)
        else:
            self._wait_for_commit_room(request)

    def _wait_for_commit_room(self, request: CommitReservation) -> None:
        if not self._wait_for_room(request, self.keep_alive):
            room, staged = self._room, request.staged
            raise ChannelFullError(
                f"no room for {staged.put_rows} rows, {staged.put_bytes} bytes within {self.keep_alive:g} s: "
                f"{room.used_rows} of {room.capacity_rows} rows and {room.used_bytes} "
                f"of {room.capacity_bytes} bytes are in use. The transaction is open: "
                "commit again, or roll back"
            )

    def rollback(self, staged: TransactionBuffer) -> None:
        """Return the takes to the head; the puts were never in the channel."""
        self._atomic(self._roll_back, staged)

    def abandon(self, staged: TransactionBuffer) -> None:
        """Roll back for a thread that has ended; it is counted, for logging here would bring the thread
        back as a dummy that never ends.
        """
        with self._lock:
            self._counters.transactions_abandoned += 1
        self._atomic(self._roll_back, staged)

    def _roll_back(self, staged: TransactionBuffer) -> None:
        if staged.takes:
            self._news = True
        staged.roll_back(self._room)

    def _most_transaction_rows(self) -> int:
        return (
            self._room.capacity_rows if self._transaction_rows is None else self._transaction_rows
        )

    # ---- change a live channel

    def close(self) -> None:
        self._atomic(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake_all()

    def fail(self, error: BaseException) -> None:
        self._atomic(self._set_error, error)

    def resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> None:
        self._atomic(self._resize, capacity_rows, capacity_bytes, transaction_rows, keep_alive)

    def _resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> None:
        self._raise_if_failed()

        def settle() -> None:
            if transaction_rows is not None:
                self._transaction_rows = transaction_rows
            if keep_alive is not None:
                self.keep_alive = keep_alive

        room = self._room
        least = self._transaction_rows if transaction_rows is None else transaction_rows
        rows = room.capacity_rows if capacity_rows is None else capacity_rows
        if least is not None and rows < least:
            raise ValueError(f"capacity_rows={rows} is below transaction_rows={least}")
        for (
            other
        ) in self._requests:  # one that waits is granted later, whatever was changed meanwhile
            if isinstance(other, ResizeRequest):
                theirs = other.capacity_rows, other.transaction_rows
                if (least or 0) > (theirs[0] or rows) or (theirs[1] or 0) > rows:
                    raise ValueError(
                        f"capacity_rows={rows} and transaction_rows={least} contradict a resize that waits, "
                        f"to capacity_rows={theirs[0]} and transaction_rows={theirs[1]}"
                    )
        request = ResizeRequest(capacity_rows, capacity_bytes, transaction_rows, settle)
        timeout = self.keep_alive if keep_alive is None else keep_alive
        if not self._wait_for_room(request, timeout):
            rows, nbytes = request.target(room)
            raise ChannelFullError(
                f"cannot shrink to {rows} rows, {nbytes} bytes: after {timeout:g} s, "
                f"{room.used_rows} rows, {room.used_bytes} bytes are in use"
            )

    def set_overflow(self, overflow: Overflow) -> None:
        self._atomic(self._set_overflow, overflow)

    def _set_overflow(self, overflow: Overflow) -> None:
        self._overflow = overflow
        self._room.evicting = overflow is Overflow.OVERWRITE

    def add_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = (*self._listeners, callback)

    def remove_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = tuple(
                listener for listener in self._listeners if listener != callback
            )

    def add_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = (*self._block_listeners, callback)

    def remove_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = tuple(
                listener for listener in self._block_listeners if listener != callback
            )

    # ---- look

    @property
    def overflow(self) -> Overflow:
        with self._lock:
            return self._overflow

    @property
    def capacity_rows(self) -> int:
        with self._lock:
            return self._room.capacity_rows

    @property
    def capacity_bytes(self) -> int:
        with self._lock:
            return self._room.capacity_bytes

    @property
    def transaction_rows(self) -> int:
        with self._lock:
            return self._most_transaction_rows()

    @property
    def backlog(self) -> int:
        with self._lock:
            return self._queue.rows

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    @property
    def ended(self) -> bool:
        with self._lock:
            return self._has_failed() or self._has_ended()

    def statistics(self) -> ChannelStatistics:
        with self._lock:
            now = self._clock.now()
            room, counters = self._room, self._counters
            throttled = dict(counters.throttled_seconds)
            for payer in self._payers:
                if payer.since is not None:
                    throttled[payer.reason] = throttled.get(payer.reason, 0.0) + now - payer.since
            writers = (c.since for c in self._requests if c.produces and c.since is not None)
            return ChannelStatistics(
                rows_pushed=counters.rows_pushed,
                bytes_pushed=counters.bytes_pushed,
                rows_pulled=counters.rows_pulled,
                bytes_pulled=counters.bytes_pulled,
                rows_failed=counters.rows_failed,
                bytes_failed=counters.bytes_failed,
                rows_rejected=counters.rows_rejected,
                bytes_rejected=counters.bytes_rejected,
                rows_dropped=counters.rows_dropped,
                bytes_dropped=counters.bytes_dropped,
                put_attempts=counters.put_attempts,
                put_successes=counters.put_successes,
                take_attempts=counters.take_attempts,
                take_successes=counters.take_successes,
                transactions_abandoned=counters.transactions_abandoned,
                rows_stored=room.queue.rows + room.held_rows,
                bytes_stored=room.queue.nbytes + room.held_bytes,
                rows_held=room.held_rows,
                bytes_held=room.held_bytes,
                rows_reserved=room.reserved_rows,
                bytes_reserved=room.reserved_bytes,
                capacity_rows=room.capacity_rows,
                capacity_bytes=room.capacity_bytes,
                wait_reader_seconds=counters.wait_reader_seconds
                + sum(now - reader.since for reader in self._readers),
                wait_writer_seconds=counters.wait_writer_seconds
                + sum(now - since for since in writers),
                throttled_seconds=throttled,
            )


def _nobody_waits() -> None:
    """Wake no thread: a rejected push does not wait."""
