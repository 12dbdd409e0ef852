"""The lock manager: one lock, three kinds of waiters, and every state change of a channel.

- Room: `Room.claims`, first come, first served; whoever frees room grants it and wakes exactly those
  that got it.
- Data: `_readers`, first come, first served; the oldest is woken when there is a batch, and wakes the
  next when it leaves some.
- The limit: `_payers`; each is woken by the limiter, by `close` and by `fail`.

Every shared field is read and written under `_lock`. Never under it: measuring a batch, `Limiter.pay`,
callbacks. The order of locks is channel, then limiter; a limiter calls `wake` with none of its own held.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import pyarrow as pa

from spark_channel.channel.limiter import Limiter, Payment, Wait
from spark_channel.channel.overflow import Overflow
from spark_channel.channel.parcel import Parcel, bytes_between
from spark_channel.channel.room import Claim, CommitClaim, PushClaim, Reservation, ResizeClaim, Room
from spark_channel.channel.staged import Sized, Staged
from spark_channel.channel.statistics import ChannelStatistics
from spark_channel.clock import Clock
from spark_channel.errors import ChannelClosedError, ChannelFullError, EndOfChannel

__all__ = ["Callback", "Core"]

logger = logging.getLogger("spark_channel")

Callback = Callable[[], None]


class _Reader:
    """One thread's wait for a batch."""

    __slots__ = ("condition", "since")

    def __init__(self, condition: threading.Condition, since: float) -> None:
        self.condition = condition
        self.since = since


class _Payer:
    """One thread's wait for the limit."""

    __slots__ = ("_lock", "condition", "reason", "since")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.condition = threading.Condition(lock)
        self.since: float | None = None
        self.reason = ""

    def wake(self) -> None:
        with self._lock:
            self.condition.notify_all()


class Core:
    """The state of a `MemoryChannel`, shared with its transactions."""

    def __init__(
        self,
        room: Room,
        *,
        overflow: Overflow,
        keep_alive: float,
        transaction_rows: int | None,
        limiter: Limiter | None,
        clock: Clock,
    ) -> None:
        self.keep_alive = keep_alive
        self.limiter = limiter
        self._clock = clock
        self._lock = threading.Lock()
        self._room = room
        self._stock = room.stock
        self._overflow = overflow
        self._transaction_rows = transaction_rows
        self._readers: deque[_Reader] = deque()
        self._payers: set[_Payer] = set()
        self._listeners: tuple[Callback, ...] = ()
        self._block_listeners: tuple[Callback, ...] = ()
        self._closed = False
        self._error: BaseException | None = None
        self._error_traceback: TracebackType | None = None

        self._rows_pushed = self._bytes_pushed = 0
        self._rows_pulled = self._bytes_pulled = 0
        self._rows_failed = self._bytes_failed = 0
        self._rows_rejected = self._bytes_rejected = 0
        self._rows_dropped = self._bytes_dropped = 0
        self._put_attempts = self._put_successes = 0
        self._take_attempts = self._take_successes = 0
        self._wait_reader_seconds = 0.0
        self._wait_writer_seconds = 0.0
        self._throttled_seconds: dict[str, float] = {}

    # ---- producing

    def push(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> bool:
        """Reserve, pay, publish; False when it was rejected."""
        with self._lock:
            self._put_attempts += 1
            if self._closed or self._error is not None:
                self._count_failed(rows, nbytes)
                self._raise_if_ended()
            if rows == 0:
                self._put_successes += 1
                return True
            overflow = self._overflow
            published = self.limiter is None and not self._room.claims and self._room.fits(rows, nbytes)
            if published:
                self._publish(batch, rows, nbytes)
                self._put_successes += 1
                listeners = self._published()
        if published:
            call_all(listeners)
            return True
        if overflow is Overflow.REJECT:
            return self._push_or_reject([(batch, rows, nbytes)], rows, nbytes)
        self._push_in_slices(batch, rows, nbytes)
        return True

    def push_together(self, batches: Sequence[Sized]) -> bool:
        """All of them at once and without waiting, or none of them and False."""
        rows = sum(sized[1] for sized in batches)
        nbytes = sum(sized[2] for sized in batches)
        with self._lock:
            self._put_attempts += len(batches)
            if self._closed or self._error is not None:
                self._count_failed(rows, nbytes)
                self._raise_if_ended()
            if rows == 0:
                self._put_successes += len(batches)
                return True
        return self._push_or_reject(batches, rows, nbytes)

    def _push_or_reject(self, batches: Sequence[Sized], rows: int, nbytes: int) -> bool:
        claim = PushClaim(rows, nbytes, whole=True)
        payment: Payment | None = None
        try:
            with self._lock:
                self._raise_if_ended()
                if self._room.claims or not self._admit(claim):
                    self._count_rejected(rows, nbytes)
                    return False
            if self.limiter is not None:
                payment = self.limiter.pay(rows, nbytes, _nothing)
            with self._lock:
                self._raise_if_ended()
                if payment is not None and not _is_paid(payment.remaining()):
                    self._count_rejected(rows, nbytes)
                    return False
                payment = None
                claim.spend(self._room)
                for batch, batch_rows, batch_bytes in batches:
                    self._publish(batch, batch_rows, batch_bytes)
                self._put_successes += len(batches)
                listeners = self._published()
        except BaseException:
            with self._lock:
                self._count_failed(rows, nbytes)
            raise
        finally:
            self._give_back(claim, payment)
        call_all(listeners)
        return True

    def _push_in_slices(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        """Publish slice by slice what room and limiter take at once; wait for both."""
        claim = PushClaim(rows, nbytes)
        try:
            while claim.start < rows:
                self._push_slice(claim, batch)
        except BaseException:
            with self._lock:
                self._count_failed(rows - claim.start, bytes_between(nbytes, rows, claim.start, rows))
            raise

    def _push_slice(self, claim: PushClaim, batch: pa.RecordBatch) -> None:
        """Reserve, pay, publish one slice.

        A channel that evicts pays before it makes room: while the limit is waited for, a consumer may
        still take the rows that would be dropped.
        """
        limiter = self.limiter
        payment: Payment | None = None
        try:
            if limiter is None:
                with self._lock:
                    self._wait_for_room(claim)
                    listeners = self._publish_slice(claim, batch)
            else:
                claim.max_rows, claim.max_bytes = limiter.slice_size()
                payer = _Payer(self._lock)
                with self._lock:
                    self._raise_if_ended()
                    pay_first = self._room.evicting
                    if pay_first:
                        claim.max_rows, _ = claim.slice_size(self._room)
                        owed = claim.owe(claim.max_rows)
                    else:
                        self._wait_for_room(claim)
                        owed = claim.owe(claim.rows)
                if owed[0]:
                    payment = limiter.pay(*owed, payer.wake)
                with self._lock:
                    if payment is not None:
                        self._wait_for_limit(payment, payer)
                        payment = None
                    if pay_first:
                        self._wait_for_room(claim)
                    listeners = self._publish_slice(claim, batch)
        finally:
            self._give_back(claim, payment)
        call_all(listeners)

    def _publish_slice(self, claim: PushClaim, batch: pa.RecordBatch) -> tuple[Callback, ...]:
        self._raise_if_ended()
        rows, nbytes, start = claim.rows, claim.nbytes, claim.start
        piece = batch if rows == claim.batch_rows else batch.slice(start, rows)
        claim.spend(self._room)
        claim.start += rows
        self._publish(piece, rows, nbytes)
        if claim.start == claim.batch_rows:
            self._put_successes += 1
        return self._published()

    def _publish(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        self._stock.append(Parcel(batch, rows, nbytes, self._rows_pushed))
        self._rows_pushed += rows
        self._bytes_pushed += nbytes

    def _published(self) -> tuple[Callback, ...]:
        """Wake whom the new batches concern; returns whom to call without the lock."""
        self._wake_readers()
        return self._listeners

    # ---- consuming

    def pull(self, timeout: float | None, max_rows: int | None, own_rows: int) -> pa.RecordBatch | None:
        with self._lock:
            self._take_attempts += 1
            if not self._wait_for_data(timeout, own_rows):
                return None
            parcel = self._pull_one(max_rows)
            self._take_successes += 1
            listeners = self._pulled()
        call_all(listeners)
        return parcel.batch

    def pull_all(self, timeout: float | None, max_rows: int | None, own_rows: int) -> list[pa.RecordBatch]:
        with self._lock:
            self._take_attempts += 1
            if not self._wait_for_data(timeout, own_rows):
                return []
            batches = self._pull_many(max_rows)
            self._take_successes += 1
            listeners = self._pulled()
        call_all(listeners)
        return batches

    def drain(self, max_rows: int | None) -> list[pa.RecordBatch]:
        with self._lock:
            self._take_attempts += 1
            self._raise_if_failed()
            if not self._stock:
                return []
            batches = self._pull_many(max_rows)
            self._take_successes += 1
            listeners = self._pulled()
        call_all(listeners)
        return batches

    def _pull_one(self, max_rows: int | None) -> Parcel:
        parcel = self._stock.pop(max_rows)
        self._rows_pulled += parcel.rows
        self._bytes_pulled += parcel.nbytes
        return parcel

    def _pull_many(self, max_rows: int | None) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        left = max_rows
        while self._stock and left != 0:
            parcel = self._pull_one(left)
            batches.append(parcel.batch)
            if left is not None:
                left -= parcel.rows
        return batches

    def _pulled(self) -> tuple[Callback, ...]:
        """Hand on the room and what is left; returns whom to call without the lock."""
        self._admit_claims()
        self._wake_readers()
        return self._listeners if self._closed and self._has_ended() else ()

    # ---- transactions

    def count_put(self, rows: int, nbytes: int) -> None:
        """A put is attempted; raises when the channel takes no more."""
        with self._lock:
            self._put_attempts += 1
            if self._closed or self._error is not None:
                self._count_failed(rows, nbytes)
                self._raise_if_ended()

    def take(self, staged: Staged, max_rows: int) -> pa.RecordBatch | None:
        with self._lock:
            self._take_attempts += 1
            if not self._wait_for_data(self.keep_alive, staged.taken_rows):
                return None
            parcel = self._stock.pop(max_rows)
            self._room.held_rows += parcel.rows
            self._room.held_bytes += parcel.nbytes
            staged.add_take(parcel)
            self._wake_readers()
        return parcel.batch

    def commit(self, staged: Staged) -> None:
        """Publish the puts and free the takes, together or not at all."""
        if not staged.puts:
            with self._lock:
                self._raise_if_failed()
                self._free_takes(staged)
                listeners = self._pulled()
            call_all(listeners)
            return
        claim = CommitClaim(staged.put_rows, staged.put_bytes, staged.taken_rows, staged.taken_bytes)
        try:
            listeners = self._commit_puts(claim, staged)
        except BaseException:
            with self._lock:
                self._count_failed(staged.put_rows, staged.put_bytes)
            raise
        call_all(listeners)

    def _commit_puts(self, claim: CommitClaim, staged: Staged) -> tuple[Callback, ...]:
        payment: Payment | None = None
        try:
            with self._lock:
                self._raise_if_ended()
                owed_rows = staged.put_rows - staged.paid_rows
                owed_bytes = staged.put_bytes - staged.paid_bytes
                owes = self.limiter is not None and owed_rows > 0
                pay_first = owes and self._room.evicting
                if not pay_first:
                    self._wait_for_commit_room(claim)
                if not owes:
                    return self._publish_commit(claim, staged)
            assert self.limiter is not None
            payer = _Payer(self._lock)
            payment = self.limiter.pay(owed_rows, owed_bytes, payer.wake)
            with self._lock:
                self._wait_for_limit(payment, payer)
                payment = None
                staged.paid_rows, staged.paid_bytes = staged.put_rows, staged.put_bytes
                if pay_first:
                    self._wait_for_commit_room(claim)
                return self._publish_commit(claim, staged)
        finally:
            self._give_back(claim, payment)

    def _wait_for_commit_room(self, claim: CommitClaim) -> None:
        if not self._wait_for_room(claim, self.keep_alive):
            room = self._room
            raise ChannelFullError(
                f"no room for {claim.put_rows} rows, {claim.put_bytes} bytes within {self.keep_alive:g} s: "
                f"{room.used_rows} of {room.capacity_rows} rows, {room.used_bytes} of "
                f"{room.capacity_bytes} bytes are in use. The transaction is open: commit again or roll back"
            )

    def _publish_commit(self, claim: CommitClaim, staged: Staged) -> tuple[Callback, ...]:
        self._raise_if_ended()
        claim.spend(self._room)
        self._free_takes(staged)
        for batch, rows, nbytes in staged.puts:
            self._publish(batch, rows, nbytes)
        self._put_successes += len(staged.puts)
        self._admit_claims()
        return self._published()

    def _free_takes(self, staged: Staged) -> None:
        self._room.held_rows -= staged.taken_rows
        self._room.held_bytes -= staged.taken_bytes
        self._rows_pulled += staged.taken_rows
        self._bytes_pulled += staged.taken_bytes
        self._take_successes += len(staged.takes)

    def rollback(self, staged: Staged) -> None:
        """Return the takes to the head; the puts were never in the channel."""
        if not staged.takes:
            return
        with self._lock:
            self._room.held_rows -= staged.taken_rows
            self._room.held_bytes -= staged.taken_bytes
            self._stock.restore(staged.takes)
            self._admit_claims()
            listeners = self._published()
        call_all(listeners)

    # ---- the end, and changes while it runs

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            listeners = self._end()
        call_all(listeners)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            self._error_traceback = error.__traceback__
            listeners = self._end()
        call_all(listeners)

    def _end(self) -> tuple[Callback, ...]:
        self._admit_claims()
        self._wake_readers()
        for payer in self._payers:
            payer.condition.notify_all()
        return self._listeners if self._error is not None or self._has_ended() else ()

    def resize(self, capacity_rows: int | None, capacity_bytes: int | None) -> None:
        with self._lock:
            self._raise_if_failed()
            if (
                self._transaction_rows is not None
                and capacity_rows is not None
                and capacity_rows < self._transaction_rows
            ):
                raise ValueError(
                    f"capacity_rows={capacity_rows} is below transaction_rows={self._transaction_rows}"
                )
            room = self._room
            if not self._wait_for_room(ResizeClaim(capacity_rows, capacity_bytes), self.keep_alive):
                raise ChannelFullError(
                    f"cannot shrink to {capacity_rows or room.capacity_rows} rows and "
                    f"{capacity_bytes or room.capacity_bytes} bytes: after {self.keep_alive:g} s, "
                    f"{room.used_rows} rows and {room.used_bytes} bytes are in use"
                )
            self._admit_claims()

    def set_overflow(self, overflow: Overflow) -> None:
        with self._lock:
            self._overflow = overflow
            self._room.evicting = overflow is Overflow.OVERWRITE
            self._admit_claims()

    def add_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = (*self._listeners, callback)

    def remove_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != callback)

    def add_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = (*self._block_listeners, callback)

    def remove_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = tuple(known for known in self._block_listeners if known != callback)

    # ---- looking

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
            return self._transaction_rows or self._room.capacity_rows

    @property
    def backlog(self) -> int:
        with self._lock:
            return self._stock.rows

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    @property
    def ended(self) -> bool:
        with self._lock:
            return self._error is not None or self._has_ended()

    def statistics(self) -> ChannelStatistics:
        with self._lock:
            now = self._clock.now()
            room = self._room
            throttled = dict(self._throttled_seconds)
            for payer in self._payers:
                if payer.since is not None:
                    throttled[payer.reason] = throttled.get(payer.reason, 0.0) + now - payer.since
            return ChannelStatistics(
                rows_pushed=self._rows_pushed,
                bytes_pushed=self._bytes_pushed,
                rows_pulled=self._rows_pulled,
                bytes_pulled=self._bytes_pulled,
                rows_failed=self._rows_failed,
                bytes_failed=self._bytes_failed,
                rows_rejected=self._rows_rejected,
                bytes_rejected=self._bytes_rejected,
                rows_dropped=self._rows_dropped,
                bytes_dropped=self._bytes_dropped,
                put_attempts=self._put_attempts,
                put_successes=self._put_successes,
                take_attempts=self._take_attempts,
                take_successes=self._take_successes,
                rows_stored=room.stock.rows + room.held_rows,
                bytes_stored=room.stock.nbytes + room.held_bytes,
                rows_held=room.held_rows,
                bytes_held=room.held_bytes,
                rows_reserved=room.reserved_rows,
                bytes_reserved=room.reserved_bytes,
                capacity_rows=room.capacity_rows,
                capacity_bytes=room.capacity_bytes,
                wait_reader_seconds=self._wait_reader_seconds
                + sum(now - reader.since for reader in self._readers),
                wait_writer_seconds=self._wait_writer_seconds
                + sum(
                    now - claim.since for claim in room.claims if claim.produces and claim.since is not None
                ),
                throttled_seconds=throttled,
            )

    # ---- waiting and waking; the caller holds the lock

    def _admit(self, claim: Claim) -> bool:
        if not claim.admit(self._room):
            return False
        claim.granted = True
        dropped_rows, dropped_bytes = claim.dropped
        self._rows_dropped += dropped_rows
        self._bytes_dropped += dropped_bytes
        return True

    def _admit_claims(self) -> None:
        """Grant room in turn, until the oldest claim does not fit."""
        claims = self._room.claims
        while claims:
            claim = claims[0]
            over = self._error is not None or (self._closed and claim.produces)
            if not over and not self._admit(claim):
                return
            claims.popleft()
            self._end_wait(claim)
            assert claim.condition is not None
            claim.condition.notify_all()

    def _wait_for_room(self, claim: Claim, timeout: float | None = None) -> bool:
        """False when `timeout` seconds passed; raises when the channel ends meanwhile."""
        claims = self._room.claims
        if (not claims or not claim.produces) and self._admit(claim):
            return True
        if timeout is not None and timeout <= 0:
            return False
        claim.condition = threading.Condition(self._lock)
        claim.since = self._clock.now()
        deadline = None if timeout is None else claim.since + timeout
        claims.append(claim)
        try:
            self._tell_of_block(claim)
            while not claim.granted:
                if claim.produces:
                    self._raise_if_ended()
                else:
                    self._raise_if_failed()
                left = None if deadline is None else deadline - self._clock.now()
                if left is not None and left <= 0:
                    return False
                self._clock.wait(claim.condition, left)
            return True
        finally:
            if not claim.granted:
                self._end_wait(claim)
                if claim in claims:
                    claims.remove(claim)
                    self._admit_claims()

    def _end_wait(self, claim: Claim) -> None:
        if claim.produces and claim.since is not None:
            self._wait_writer_seconds += self._clock.now() - claim.since
            claim.since = None

    def _tell_of_block(self, claim: Claim) -> None:
        """The claim keeps its place while the callbacks run without the lock."""
        if claim.told or not claim.produces or not self._block_listeners:
            return
        claim.told = True
        listeners = self._block_listeners
        self._lock.release()
        try:
            call_all(listeners)
        finally:
            self._lock.acquire()

    def _give_back(self, claim: Reservation, payment: Payment | None) -> None:
        """What a push or commit that did not get through still has. Without the lock."""
        if payment is not None:
            payment.cancel()
        if claim.granted:
            with self._lock:
                claim.spend(self._room)
                self._admit_claims()

    def _wait_for_data(self, timeout: float | None, own_rows: int) -> bool:
        """False when `timeout` seconds passed; raises at the end. `own_rows`: taken by the caller itself."""
        self._raise_if_failed()
        if self._stock and (not self._readers or (timeout is not None and timeout <= 0)):
            return True
        self._raise_at_end(own_rows)
        if timeout is not None and timeout <= 0:
            return False
        reader = _Reader(threading.Condition(self._lock), self._clock.now())
        deadline = None if timeout is None else reader.since + timeout
        readers = self._readers
        readers.append(reader)
        served = False
        try:
            while True:
                self._raise_if_failed()
                if self._stock and readers[0] is reader:
                    served = True
                    return True
                self._raise_at_end(own_rows)
                left = None if deadline is None else deadline - self._clock.now()
                if left is not None and left <= 0:
                    return False
                self._clock.wait(reader.condition, left)
        finally:
            readers.remove(reader)
            self._wait_reader_seconds += self._clock.now() - reader.since
            if not served:
                self._wake_readers()

    def _wake_readers(self) -> None:
        """One batch wakes one reader, who wakes the next if some is left; an end wakes all."""
        readers = self._readers
        if not readers:
            return
        if self._error is not None or (self._closed and not self._stock):
            for reader in readers:
                reader.condition.notify_all()
        elif self._stock:
            readers[0].condition.notify_all()

    def _wait_for_limit(self, payment: Payment, payer: _Payer) -> None:
        self._payers.add(payer)
        try:
            while True:
                self._raise_if_ended()
                wait = payment.remaining()
                if _is_paid(wait):
                    return
                payer.since, payer.reason = self._clock.now(), wait.reason
                try:
                    self._clock.wait(payer.condition, wait.seconds)
                finally:
                    waited = self._clock.now() - payer.since
                    payer.since = None
                    self._throttled_seconds[wait.reason] = (
                        self._throttled_seconds.get(wait.reason, 0.0) + waited
                    )
        finally:
            self._payers.discard(payer)

    # ---- small rules; the caller holds the lock

    def _has_ended(self) -> bool:
        return self._closed and not self._stock and not self._room.held_rows

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            # The traceback is set anew, or it would grow with every thread that raises it.
            raise self._error.with_traceback(self._error_traceback)

    def _raise_if_ended(self) -> None:
        self._raise_if_failed()
        if self._closed:
            raise ChannelClosedError("the channel is closed and takes no more batches")

    def _raise_at_end(self, own_rows: int) -> None:
        if self._closed and not self._stock and self._room.held_rows == own_rows:
            raise EndOfChannel("the channel is closed and all of it was taken")

    def _count_failed(self, rows: int, nbytes: int) -> None:
        self._rows_failed += rows
        self._bytes_failed += nbytes

    def _count_rejected(self, rows: int, nbytes: int) -> None:
        self._rows_rejected += rows
        self._bytes_rejected += nbytes


def call_all(listeners: tuple[Callback, ...]) -> None:
    """Call them; what one raises is logged, since it is not the producer's or consumer's error."""
    for listener in listeners:
        try:
            listener()
        except Exception:
            logger.exception("a listener of a channel raised")


def _is_paid(wait: Wait) -> bool:
    return wait.seconds is not None and wait.seconds <= 0


def _nothing() -> None:
    """A rejected payer is not there any more to be woken."""
