"""The channel's monitor: its lock, its waiting threads and how they are woken, and how it ends.

One lock, and three kinds of waiters:

- Room: `_requests`, first come, first served. Whoever changes something grants what fits, and
  publishes for a waiter that owes nothing: one wake-up for a whole batch, however often it is sliced.
- Data: `_readers`, first come, first served. The oldest is woken when there is a batch, and wakes the
  next when it leaves some; an end wakes all.
- The limit: `_payers`. Each is woken by the limiter, by `close` and by `fail`.

Every shared field is read and written under `_lock`. Never under it: measuring a batch,
`Limiter.pay`, callbacks. Locks are taken in the order channel, then limiter; a limiter calls `wake`
while it holds none itself.
"""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from spark_channel.channel.batches import Counters, SizedBatch
from spark_channel.channel.capacity import Capacity, CapacityRequest, Payment, Reservation, Wait
from spark_channel.clock import Clock
from spark_channel.errors import ChannelClosedError, ChannelError, EndOfChannel
from spark_channel.plain_text import log_of

__all__ = ["Callback", "ChannelMonitor", "WaitingPayment", "is_paid"]

logger = log_of("spark_channel")

Callback = Callable[[], None]
T = TypeVar("T")
_CUT = (
    "an interrupt ended a change of the channel, and another one what followed: it is unknown how much was changed. "
    "Make a new channel"
)


class WaitingConsumer:
    """One thread's wait for a batch."""

    __slots__ = ("condition", "since")

    def __init__(self, condition: threading.Condition, since: float) -> None:
        self.condition = condition
        self.since = since


class WaitingPayment:
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


def is_paid(wait: Wait) -> bool:
    """Whether nothing is left to wait for."""
    return wait.seconds is not None and wait.seconds <= 0


class ChannelMonitor:
    """The contents of a channel, and the threads that wait in it.

    Everything that changes it runs in `_atomic`. A thread that waits in there has changed nothing before, so
    an interrupt of a wait changes nothing; one of a change fails the channel.
    """

    def __init__(self, room: Capacity, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._room = room
        self._queue = room.queue
        self._counters = Counters()
        self._closed = False
        self._error: BaseException | None = None
        self._error_traceback: TracebackType | None = None
        self._changes = False
        """Whether a thread changes the channel. One that gets the lock and finds it set knows that the change was cut,
        and so was its failure."""
        self._requests: deque[CapacityRequest] = deque()
        self._readers: deque[WaitingConsumer] = deque()
        self._payers: set[WaitingPayment] = set()
        self._sleeping: set[threading.Condition] = set()
        self._listeners: tuple[Callback, ...] = ()
        self._block_listeners: tuple[Callback, ...] = ()
        self._news = False
        self._threads = threading.local()

    def _atomic(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` under the lock, wake the threads that its changes concern, then call the listeners without
        the lock.

        The lock itself is the context manager: an interrupt can come between any two steps of one written
        in Python, and would leave the lock locked.
        """
        listeners: tuple[Callback, ...] = ()
        try:
            with self._lock:
                try:
                    if self._changes:
                        self._end_by(ChannelError(_CUT))
                    self._changes = True
                    try:
                        result = work(*arguments)
                    finally:
                        if self._requests or self._readers or self._news:
                            listeners = self._settle()
                except BaseException as error:
                    if not isinstance(error, Exception) and not self._is_foreseen(error):
                        listeners = self._end_by(error)
                    self._changes = False
                    raise
                self._changes = False
                return result
        finally:
            if listeners:
                self._tell(listeners)

    def _is_foreseen(self, error: BaseException) -> bool:
        """Whether `error` is the channel's own, or came while this thread slept: the state is consistent then."""
        slept_into = getattr(self._threads, "interrupt", None)
        self._threads.interrupt = None
        return error is self._error or error is slept_into

    def _end_by(self, error: BaseException) -> tuple[Callback, ...]:
        """An interrupt (`KeyboardInterrupt`) hit a change: it is unknown how much of it was made, so the channel
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
        if self._requests:
            self._grant_requests()
        if self._readers:
            self._wake_readers()
        if not self._news:
            return ()
        self._news = False
        return self._listeners

    def _grant_requests(self) -> None:
        requests = self._requests
        while requests:
            request = requests[0]
            if self._error is not None or (self._closed and request.produces):
                requests.popleft()
            elif self._admit(request):
                requests.popleft()
                if not request.granted:
                    # There is more of the batch: its next turn comes after the others'.
                    requests.append(request)
                    continue
            else:
                return
            self._end_wait(request)
            assert request.condition is not None
            request.condition.notify()

    def _admit(self, request: CapacityRequest) -> bool:
        """Give the request its room, and publish what it has paid for. False = it does not fit yet."""
        if not request.admit(self._room):
            return False
        if request.dropped[0]:
            self._counters.dropped(*request.dropped)
        request.granted = True
        if isinstance(request, Reservation) and request.is_paid():
            self._publish_claim(request)
            request.granted = request.is_served()
        return True

    def _publish_claim(self, request: Reservation) -> None:
        for batch, rows, nbytes in request.fill(self._room, self._counters):
            self._publish(batch, rows, nbytes)

    def _publish(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        counters = self._counters
        self._queue.append(SizedBatch(batch, rows, nbytes, counters.rows_pushed))
        counters.rows_pushed += rows
        counters.bytes_pushed += nbytes
        self._news = True

    def _wake_readers(self) -> None:
        if self._error is not None or (self._closed and not self._queue.rows):
            for reader in self._readers:
                reader.condition.notify()
        elif self._queue.rows:
            self._readers[0].condition.notify()

    # ---- waiting; inside `_atomic`

    def _wait_for_room(self, request: CapacityRequest, timeout: float | None = None) -> bool:
        """Until the request is granted, or some slices of a push were published without a wait.

        False when `timeout` seconds passed; raises when the channel ends.
        """
        requests = self._requests
        request.granted = False
        self._raise_if_over(request)
        if (not requests or not request.produces) and self._admit(request):
            while not request.granted and self._admit(request):
                pass
            return True
        if timeout is not None and timeout <= 0:
            return False
        request.condition = self._own_condition()
        request.since = self._clock.now()
        deadline = None if timeout is None else request.since + timeout
        requests.append(request)
        try:
            self._tell_of_block(request)
            while not request.granted:
                self._raise_if_over(request)
                remaining = None if deadline is None else deadline - self._clock.now()
                if remaining is not None and remaining <= 0:
                    return False
                self._sleep_on(request.condition, remaining)
            return True
        finally:
            self._end_wait(request)
            if request in requests:
                requests.remove(request)

    def _wait_for_data(self, timeout: float | None, own_rows: Callable[[], int]) -> bool:
        """Until this reader's turn. False when `timeout` seconds passed; raises at the end.

        `own_rows()`: what the caller's own transaction holds; no other thread will return that.
        A call that does not wait does not queue behind those that do.
        """
        if self._error is not None:
            self._raise_if_failed()
        hurried = timeout is not None and timeout <= 0
        if self._queue.rows and (hurried or not self._readers):
            return True
        self._raise_at_end(own_rows)
        if hurried:
            return False
        reader = WaitingConsumer(self._own_condition(), self._clock.now())
        deadline = None if timeout is None else reader.since + timeout
        readers = self._readers
        readers.append(reader)
        try:
            while not (self._queue.rows and readers[0] is reader):
                self._raise_at_end(own_rows)
                remaining = None if deadline is None else deadline - self._clock.now()
                if remaining is not None and remaining <= 0:
                    return False
                self._sleep_on(reader.condition, remaining)
                self._raise_if_failed()
            return True
        finally:
            readers.remove(reader)
            self._counters.wait_reader_seconds += self._clock.now() - reader.since

    def _wait_for_limit(self, payment: Payment, payer: WaitingPayment) -> None:
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
        self._changes = False
        try:
            self._clock.wait(condition, seconds)
        except BaseException as error:
            self._threads.interrupt = error
            raise
        finally:
            self._changes = True
            self._sleeping.discard(condition)

    def _end_wait(self, request: CapacityRequest) -> None:
        """Whoever ends a wait counts it, so that the sum never goes back between two snapshots."""
        if request.since is not None:
            if request.produces:
                self._counters.wait_writer_seconds += self._clock.now() - request.since
            request.since = None

    def _tell_of_block(self, request: CapacityRequest) -> None:
        """The request keeps its place while the callbacks run without the lock."""
        if request.notified or not request.produces or not self._block_listeners:
            return
        request.notified = True
        listeners = self._block_listeners
        self._changes = False
        try:
            self._lock.release()
            _call(listeners)
        finally:
            self._lock.acquire()
            self._changes = True

    # ---- the end; inside `_atomic`

    def _wake_all(self) -> None:
        """The channel ended: requests and readers are woken by `_atomic`, payers here."""
        self._news = True
        for payer in self._payers:
            payer.condition.notify()

    def _has_failed(self) -> bool:
        return self._error is not None or self._changes

    def _has_ended(self) -> bool:
        return self._closed and not self._queue.rows and not self._room.held_rows

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            # The traceback is reset, or it would grow with every thread that raises it.
            raise self._error.with_traceback(self._error_traceback)

    def _raise_if_ended(self) -> None:
        self._raise_if_failed()
        if self._closed:
            raise ChannelClosedError("the channel is closed and takes no more batches")

    def _raise_if_over(self, request: CapacityRequest) -> None:
        """A resize continues in a closed channel; a push does not."""
        if request.produces:
            self._raise_if_ended()
        else:
            self._raise_if_failed()

    def _raise_at_end(self, own_rows: Callable[[], int]) -> None:
        if self._closed and not self._queue.rows and self._room.held_rows == own_rows():
            raise EndOfChannel("the channel is closed and all of it was taken")


def _call(listeners: tuple[Callback, ...]) -> None:
    """Call the listeners, and log what they raise: it is neither the producer's error nor the consumer's."""
    for listener in listeners:
        try:
            listener()
        except Exception:
            logger.exception("a listener of a channel raised")
