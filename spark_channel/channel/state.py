"""The lock manager: one lock, three kinds of waiters, and who wakes whom.

- Room: `_claims`, first come, first served. Whoever changes something grants what fits, and
  publishes for a waiter that owes nothing: one wake-up for a whole batch, however often it is sliced.
- Data: `_readers`, first come, first served. The oldest is woken when there is a batch, and wakes the
  next when it leaves some; an end wakes all.
- The limit: `_payers`. Each is woken by the limiter, by `close` and by `fail`.

Every shared field is read and written under `_lock`. Never under it: measuring a batch,
`Limiter.pay`, callbacks. Locks are taken in the order channel, then limiter; a limiter calls `wake`
while it holds none of its own.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from spark_channel.channel.claims import Claim, Reservation
from spark_channel.channel.counters import Counters
from spark_channel.channel.limiter import Limiter, Payment, Wait
from spark_channel.channel.overflow import Overflow
from spark_channel.channel.parcel import Parcel
from spark_channel.channel.room import Room
from spark_channel.clock import Clock
from spark_channel.errors import ChannelClosedError, EndOfChannel

__all__ = ["Callback", "Payer", "State", "is_paid"]

logger = logging.getLogger("spark_channel")

Callback = Callable[[], None]
T = TypeVar("T")


class _Reader:
    """One thread's wait for a batch."""

    __slots__ = ("condition", "since")

    def __init__(self, condition: threading.Condition, since: float) -> None:
        self.condition = condition
        self.since = since


class Payer:
    """One thread's wait for the limit. `wake` is what the limiter calls."""

    __slots__ = ("_lock", "condition", "reason", "since")

    def __init__(self, lock: threading.Lock, condition: threading.Condition) -> None:
        self._lock = lock
        self.condition = condition
        self.since: float | None = None
        self.reason = ""

    def wake(self) -> None:
        with self._lock:
            self.condition.notify()


class State:
    """What is in the channel, and who waits for what.

    Everything that changes it runs in `_atomic`. A thread that waits in there has changed nothing before, so
    an interrupt of a wait changes nothing; one of a change fails the channel.
    """

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
        self._counters = Counters()
        self._overflow = overflow
        self._transaction_rows = transaction_rows
        self._closed = False
        self._error: BaseException | None = None
        self._error_traceback: TracebackType | None = None
        self._claims: deque[Claim] = deque()
        self._readers: deque[_Reader] = deque()
        self._payers: set[Payer] = set()
        self._sleeping: set[threading.Condition] = set()
        self._listeners: tuple[Callback, ...] = ()
        self._block_listeners: tuple[Callback, ...] = ()
        self._news = False
        self._threads = threading.local()

    # ---- the critical section

    def _atomic(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` under the lock, then wake whomever its changes concern, then, without the lock, tell
        the listeners.

        The lock itself is the context manager: an interrupt can come between any two steps of one written
        in Python, and would leave the lock locked.
        """
        listeners: tuple[Callback, ...] = ()
        try:
            with self._lock:
                try:
                    try:
                        return work(*arguments)
                    finally:
                        if self._claims or self._readers or self._news:
                            listeners = self._settle()
                except BaseException as error:
                    if not isinstance(error, Exception) and not self._is_foreseen(error):
                        listeners = self._end_by(error)
                    raise
        finally:
            if listeners:
                self._tell(listeners)

    def _is_foreseen(self, error: BaseException) -> bool:
        """It is what the channel failed with, or came while this thread slept, with nothing half done."""
        slept_into = getattr(self._threads, "interrupt", None)
        self._threads.interrupt = None
        return error is self._error or error is slept_into

    def _end_by(self, error: BaseException) -> tuple[Callback, ...]:
        """An interrupt (`KeyboardInterrupt`) hit a change: nobody can tell what is half done, so the channel
        fails, and every sleeper is woken, whatever queue it was in or had just left.
        """
        self._set_error(error)
        for condition in self._sleeping:
            condition.notify()
        return self._settle()

    def _set_error(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self._error_traceback = error.__traceback__
            self._wake_all()

    def _tell(self, listeners: tuple[Callback, ...]) -> None:
        """A listener that an interrupt kept from hearing hears of the failure instead."""
        try:
            _call(listeners)
        except BaseException as error:
            self._atomic(self._set_error, error)
            raise

    def _settle(self) -> tuple[Callback, ...]:
        if self._claims:
            self._grant_claims()
        if self._readers:
            self._wake_readers()
        if not self._news:
            return ()
        self._news = False
        return self._listeners

    def _grant_claims(self) -> None:
        claims = self._claims
        while claims:
            claim = claims[0]
            if self._error is not None or (self._closed and claim.produces):
                claims.popleft()
            elif self._admit(claim):
                claims.popleft()
                if not claim.granted:  # there is more of the batch: its next turn comes after the others'
                    claims.append(claim)
                    continue
            else:
                return
            self._end_wait(claim)
            assert claim.condition is not None
            claim.condition.notify()

    def _admit(self, claim: Claim) -> bool:
        """Give the claim its room, and publish what it has paid for. False = it does not fit yet."""
        if not claim.admit(self._room):
            return False
        if claim.dropped[0]:
            self._counters.dropped(*claim.dropped)
        claim.granted = True
        if isinstance(claim, Reservation) and claim.is_paid():
            self._publish_claim(claim)
            claim.granted = claim.is_served()
        return True

    def _publish_claim(self, claim: Reservation) -> None:
        for batch, rows, nbytes in claim.fill(self._room, self._counters):
            self._publish(batch, rows, nbytes)

    def _publish(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        counters = self._counters
        self._stock.append(Parcel(batch, rows, nbytes, counters.rows_pushed))
        counters.rows_pushed += rows
        counters.bytes_pushed += nbytes
        self._news = True

    def _wake_readers(self) -> None:
        if self._error is not None or (self._closed and not self._stock.rows):
            for reader in self._readers:
                reader.condition.notify()
        elif self._stock.rows:
            self._readers[0].condition.notify()

    # ---- waiting; inside `_atomic`

    def _wait_for_room(self, claim: Claim, timeout: float | None = None) -> bool:
        """Until the claim is granted, or some slices of a push were published without a wait.

        False when `timeout` seconds passed; raises when the channel ends.
        """
        claims = self._claims
        claim.granted = False
        self._raise_if_over(claim)
        if (not claims or not claim.produces) and self._admit(claim):
            while not claim.granted and self._admit(claim):
                pass
            return True
        if timeout is not None and timeout <= 0:
            return False
        claim.condition = self._own_condition()
        claim.since = self._clock.now()
        deadline = None if timeout is None else claim.since + timeout
        claims.append(claim)
        try:
            self._tell_of_block(claim)
            while not claim.granted:
                self._raise_if_over(claim)
                left = None if deadline is None else deadline - self._clock.now()
                if left is not None and left <= 0:
                    return False
                self._sleep_on(claim.condition, left)
            return True
        finally:
            self._end_wait(claim)
            if claim in claims:
                claims.remove(claim)

    def _wait_for_data(self, timeout: float | None, own_rows: Callable[[], int]) -> bool:
        """Until this reader's turn. False when `timeout` seconds passed; raises at the end.

        `own_rows()`: what the caller's own transaction holds; nobody else will bring that back.
        A call that does not wait does not queue behind those that do.
        """
        if self._error is not None:
            self._raise_if_failed()
        hurried = timeout is not None and timeout <= 0
        if self._stock.rows and (hurried or not self._readers):
            return True
        self._raise_at_end(own_rows)
        if hurried:
            return False
        reader = _Reader(self._own_condition(), self._clock.now())
        deadline = None if timeout is None else reader.since + timeout
        readers = self._readers
        readers.append(reader)
        try:
            while not (self._stock.rows and readers[0] is reader):
                self._raise_at_end(own_rows)
                left = None if deadline is None else deadline - self._clock.now()
                if left is not None and left <= 0:
                    return False
                self._sleep_on(reader.condition, left)
                self._raise_if_failed()
            return True
        finally:
            readers.remove(reader)
            self._counters.wait_reader_seconds += self._clock.now() - reader.since

    def _wait_for_limit(self, payment: Payment, payer: Payer) -> None:
        """Until it is paid; raises when the channel ends, or the limiter gives up."""
        self._payers.add(payer)
        try:
            while True:
                self._raise_if_ended()
                wait = payment.remaining()
                if is_paid(wait):
                    return
                payer.reason = wait.reason
                payer.since = self._clock.now()
                try:
                    self._sleep_on(payer.condition, wait.seconds)
                finally:
                    self._counters.throttled(wait.reason, self._clock.now() - payer.since)
                    payer.since = None
        finally:
            self._payers.discard(payer)

    def _own_condition(self) -> threading.Condition:
        """This thread's, for whatever it waits for: one thing at a time. Making one takes as long as a push.

        A notice that comes late may end another wait early, so every wait checks what it waits for.
        """
        condition: threading.Condition | None = getattr(self._threads, "condition", None)
        if condition is None:
            condition = self._threads.condition = threading.Condition(self._lock)
        return condition

    def _sleep_on(self, condition: threading.Condition, seconds: float | None) -> None:
        if seconds is not None and seconds > threading.TIMEOUT_MAX:
            seconds = None
        self._sleeping.add(condition)
        try:
            self._clock.wait(condition, seconds)
        except BaseException as error:
            self._threads.interrupt = error
            raise
        finally:
            self._sleeping.discard(condition)

    def _end_wait(self, claim: Claim) -> None:
        """Whoever ends a wait counts it, so that the sum never goes back between two snapshots."""
        if claim.since is not None:
            if claim.produces:
                self._counters.wait_writer_seconds += self._clock.now() - claim.since
            claim.since = None

    def _tell_of_block(self, claim: Claim) -> None:
        """The claim keeps its place while the callbacks run without the lock."""
        if claim.told or not claim.produces or not self._block_listeners:
            return
        claim.told = True
        listeners = self._block_listeners
        try:
            self._lock.release()
            _call(listeners)
        finally:
            self._lock.acquire()

    # ---- the end; inside `_atomic`

    def _wake_all(self) -> None:
        """The channel ended: claims and readers are woken by `_atomic`, payers here."""
        self._news = True
        for payer in self._payers:
            payer.condition.notify()

    def _has_ended(self) -> bool:
        return self._closed and not self._stock.rows and not self._room.held_rows

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            # The traceback is set anew, or it would grow with every thread that raises it.
            raise self._error.with_traceback(self._error_traceback)

    def _raise_if_ended(self) -> None:
        self._raise_if_failed()
        if self._closed:
            raise ChannelClosedError("the channel is closed and takes no more batches")

    def _raise_if_over(self, claim: Claim) -> None:
        """A resize goes on in a closed channel; a push does not."""
        if claim.produces:
            self._raise_if_ended()
        else:
            self._raise_if_failed()

    def _raise_at_end(self, own_rows: Callable[[], int]) -> None:
        if self._closed and not self._stock.rows and self._room.held_rows == own_rows():
            raise EndOfChannel("the channel is closed and all of it was taken")


def is_paid(wait: Wait) -> bool:
    return wait.seconds is not None and wait.seconds <= 0


def _call(listeners: tuple[Callback, ...]) -> None:
    """What a listener raises is logged: it is not the producer's error, nor the consumer's."""
    for listener in listeners:
        try:
            listener()
        except Exception:
            logger.exception("a listener of a channel raised")
