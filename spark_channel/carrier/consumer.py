"""The `Consumer` interface, and the threads that run consumers: life cycle, queue of ready channels, metrics."""

import heapq
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import pyarrow as pa

from spark_channel.channel import ChannelStatistics, MemoryChannel
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import EndOfChannel

__all__ = [
    "CarrierMetrics",
    "Consumer",
    "ConsumerThread",
    "IdleCheck",
    "Lifecycle",
    "PoolThreadMetrics",
    "ReadyQueue",
]

T = TypeVar("T")
_STARVING_SECONDS = 1.0
_SHORTEST_LINGER, _LONGEST_LINGER = 0.01, 1.0
_LONGEST_AUTO = 0.2


class Consumer(ABC):
    """Takes batches from a carrier, in a thread that the carrier or a pool provides.

    Handed to `DataCarrier.consume` as an object, it is shared by the threads: `init` and `on_exit` run
    once, `consume` in all of them at the same time. Handed over as a class (or any callable that makes one),
    each thread has its own, made and used in that thread alone - as a database connection wants it.

    An exception that is not an `Exception` (`SystemExit`) fails the carrier, from whichever method.
    """

    def init(self) -> None:  # noqa: B027 - optional: most consumers have nothing to set up
        """Called once, before the first `consume`, in a consumer thread.

        If it raises, the carrier fails with that error: producers raise it, nothing is consumed, and
        `on_exit` is not called.
        """

    @abstractmethod
    def consume(self, batches: list[pa.RecordBatch]) -> None:
        """Process `batches`, never empty, in the order of their channel. You may keep the list."""

    def on_idle(self) -> None:  # noqa: B027 - optional: for one that buffers
        """Flush the buffered rows, since no more rows wait. Called once after a `consume`, in its thread.

        Not at each short gap: a lull of twice the usual time between two calls is waited for, from 10 ms up to
        1 s. Where several threads share a channel, it is called as soon as the channel is empty. If it raises,
        the carrier fails.
        """

    def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
        """`consume` raised `error` over these very `batches`, which no one else will see.

        Return, and the thread continues with the next batches. Raise, and the carrier fails with what
        was raised. The default raises `error`, since rows must not be lost in silence.
        """
        raise error

    def on_exit(self) -> None:  # noqa: B027 - optional, as `init`
        """Called once, after the last `consume`, if `init` had returned; also when the carrier failed.

        If it raises, the carrier fails with that error, so that `shutdown` raises when the last flush was lost.
        """


class Lifecycle:
    """`init` before any thread consumes, `on_exit` after the last of `threads` has left.

    Each of the threads calls `enter` once and, whatever came of it, `leave` once. A consumer that is not
    `shared` belongs to the thread that made it: another thread may go on with another one, after `hand_over`.
    """

    def __init__(self, make: Callable[[], Consumer], threads: int, *, shared: bool = False) -> None:
        self._make = make
        self.shared = shared
        self._lock = threading.Lock()
        self._threads = threads
        self._consumer: Consumer | None = None
        self._error: BaseException | None = None

    def enter(self) -> Consumer:
        """The consumer, set up. Raises what making it or its `init` raised, in every thread."""
        with self._lock:
            # Held during init: the other threads have nothing to do before it is through.
            if self._error is not None:
                raise self._error
            if self._consumer is None:
                try:
                    consumer = self._make()
                    if not isinstance(consumer, Consumer):
                        raise TypeError(f"the callable that makes consumers gave {consumer!r}")
                    consumer.init()
                except BaseException as error:
                    self._error = error
                    raise
                self._consumer = consumer
            return self._consumer

    def leave(self) -> None:
        """Raises what `on_exit` raised, in the last thread."""
        with self._lock:
            self._threads -= 1
            last = self._threads == 0
            consumer = self._consumer
        if last and consumer is not None:
            consumer.on_exit()

    def hand_over(self) -> None:
        """The end of this thread's own consumer: `enter` makes another. Raises what `on_exit` raised."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.on_exit()


@dataclass(frozen=True, slots=True)
class CarrierMetrics:
    """A carrier at one moment. `queues` are its channels by the partitioner's index, each at its own instant."""

    queues: tuple[ChannelStatistics, ...]
    backlog_rows: int
    """Rows that wait to be consumed."""
    consume_calls: int
    """Calls of the present consumer's `consume`."""
    consumed_rows: int
    """Their rows."""
    consume_seconds: float
    """The time that they took."""


@dataclass(frozen=True, slots=True)
class PoolThreadMetrics:
    """One thread of a pool at one moment."""

    name: str
    carriers: int
    """Carriers that it serves."""
    backlog_rows: int
    """Rows that wait for it, those it is busy with included."""
    busy_seconds: float
    """Time in consumers."""
    carriers_taken: int
    """Carriers that it took from threads that were busy."""


class ReadyQueue(Generic[T]):
    """A queue of keys, each in it at most once, returned when due.

    It serves one waiting thread with many keys, or many threads with one key. `put` costs one short lock and
    wakes one thread; an empty queue costs nothing. Among keys that are due, the highest priority is returned
    first, but one that has been due for a second comes before all: none starves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._due: dict[T, float] = {}
        self._order: list[tuple[float, int, T]] = []
        self._priorities: dict[T, int] = {}
        self._puts = 0
        self._stopped = False
        self._waited_seconds = 0.0
        self._waiting = 0
        self._waiting_since = 0.0  # the sum of when each began to wait

    def put(self, key: T, linger: float = 0.0) -> None:
        """Return `key` in `linger` seconds. If the queue has the key already, the earlier time counts."""
        due = self._clock.now() + linger
        with self._changed:
            earlier = self._due.get(key)
            if earlier is None or due < earlier:
                self._puts += 1
                self._due[key] = due
                heapq.heappush(self._order, (due, self._puts, key))
                self._changed.notify()

    def has_due(self) -> bool:
        """Whether a key is due now."""
        with self._changed:
            wait = self._next_due()
            return wait is not None and wait <= 0

    def overdue(self, key: T) -> float | None:
        """For how many seconds `key` has been due; None when it is not in the queue, or lingers."""
        with self._changed:
            due = self._due.get(key)
            late = None if due is None else self._clock.now() - due
            return None if late is None or late < 0 else late

    def prefer(self, key: T, priority: int) -> None:
        """Return `key` before those with a lower priority; 0 without."""
        with self._changed:
            if priority:
                self._priorities[key] = priority
            else:
                self._priorities.pop(key, None)

    def forget(self, key: T) -> None:
        """Remove `key` from the queue."""
        with self._changed:
            self._due.pop(key, None)
            self._priorities.pop(key, None)

    def stop(self) -> None:
        """Wake all threads: from now on `get` returns None."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def get(self) -> T | None:
        """Wait until a key is due, and remove it from the queue. None: the queue was stopped."""
        with self._changed:
            while not self._stopped:
                wait = self._next_due()
                if wait is None:
                    self._sleep()
                elif wait > 0:
                    self._clock.wait(self._changed, wait)
                else:
                    key = self._first()
                    del self._due[key]
                    return key
            return None

    def waited_seconds(self) -> float:
        """How long threads waited for an empty queue, waits under way included; lingering is not."""
        with self._changed:
            under_way = self._waiting * self._clock.now() - self._waiting_since
            return self._waited_seconds + under_way

    def _first(self) -> T:
        """The key to return; one is due."""
        now = self._clock.now()
        if not self._priorities:
            return heapq.heappop(self._order)[2]
        oldest = self._order[0]
        if now - oldest[0] >= _STARVING_SECONDS:
            return heapq.heappop(self._order)[2]
        places = [
            index
            for index, (due, _, key) in enumerate(self._order)
            if due <= now and self._due.get(key) == due
        ]
        index = min(
            places,
            key=lambda candidate: (
                -self._priorities.get(self._order[candidate][2], 0),
                self._order[candidate][:2],
            ),
        )
        key = self._order[index][2]
        self._order[index] = self._order[-1]
        self._order.pop()
        heapq.heapify(self._order)
        return key

    def _next_due(self) -> float | None:
        while self._order:
            due, _, key = self._order[0]
            if self._due.get(key) == due:
                return due - self._clock.now()
            heapq.heappop(self._order)
        return None

    def _sleep(self) -> None:
        since = self._clock.now()
        self._waiting += 1
        self._waiting_since += since
        try:
            self._clock.wait(self._changed)
        finally:
            self._waiting -= 1
            self._waiting_since -= since
            self._waited_seconds += self._clock.now() - since


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """The key of a worker that may have nothing left to consume."""

    worker: "ConsumerThread"


class ConsumerThread:
    """Takes what its channels have and hands it to the consumer.

    One thread at a time runs `enter`, `serve` and `leave`. `peers` is how many workers, itself
    included, share one channel and its ready queue; alone it takes all that is there.

    Args:
        fail: called with an error that ends the carrier.
        over: called once, when this worker is through.
    """

    def __init__(
        self,
        channels: Sequence[MemoryChannel],
        lifecycle: Lifecycle,
        *,
        peers: int = 1,
        linger: float | Literal["auto"] = 0.0,
        priority: int = 0,
        fail: Callable[[BaseException], None],
        over: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self.channels = tuple(channels)
        self._lifecycle = lifecycle
        self._peers = peers
        self._auto = linger == "auto"
        self._linger = 0.0 if linger == "auto" else linger
        self._priority = priority
        self._gap = _SHORTEST_LINGER
        self._last: float | None = None
        self._dirty = False
        self._fail = fail
        self._over = over
        self._clock = clock or SYSTEM_CLOCK
        self._consumer: Consumer | None = None
        self._ready: ReadyQueue[Hashable] | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._rows_in_hand = 0
        self._calls = self._rows = 0
        self._busy_seconds = 0.0

    @property
    def key(self) -> Hashable:
        """Its key in the ready queue: peers have the same one, so that whichever is free serves it."""
        return self if self._peers == 1 else self.channels[0]

    @property
    def rows_in_hand(self) -> int:
        """Rows that the consumer is busy with."""
        with self._lock:
            return self._rows_in_hand

    @property
    def backlog(self) -> int:
        """Rows that wait for this worker, and those it is busy with."""
        return self.rows_in_hand + sum(channel.backlog for channel in self.channels)

    @property
    def is_free(self) -> bool:
        """Whether another thread may serve it next: its consumer is shared, or not made yet."""
        return self._lifecycle.shared or self._consumer is None

    def release(self) -> bool:
        """Have a consumer that belongs to this thread end, so that another thread may go on with its own.

        False: it raised, and the carrier has failed.
        """
        self._consumer = None
        try:
            self._lifecycle.hand_over()
        except BaseException as error:  # a lost last flush ends the carrier
            self._fail(error)
            return False
        return True

    def move(self, ready: ReadyQueue[Hashable]) -> None:
        """Use another thread's ready queue from now on; that thread also consumes what was already published."""
        ready.prefer(self.key, self._priority)
        self._ready = ready
        self.consume_now()
        if self._dirty:
            ready.put(IdleCheck(self), self._linger_wait())

    def open(self, ready: ReadyQueue[Hashable]) -> None:
        """Listen to the channels, and look at once for what they have."""
        self._ready = ready
        if self._peers == 1:
            ready.prefer(self.key, self._priority)
        for channel in self.channels:
            channel.add_listener(self._mark_due)
            if self._linger or self._auto:
                channel.add_block_listener(self.consume_now)
        self.consume_now()

    def consume_now(self) -> None:
        """Have the channels looked at now, lingering or not."""
        assert self._ready is not None
        self._ready.put(self.key)

    def stop(self) -> None:
        """Take once more what is there, then be over."""
        with self._lock:
            self._stopping = True
        self.consume_now()

    def enter(self) -> bool:
        """Set the consumer up. False: it cannot be, the carrier has failed."""
        if self._consumer is None:
            try:
                self._consumer = self._lifecycle.enter()
            except BaseException as error:  # it ends the carrier, not the thread
                self._fail(error)
                return False
        return True

    def serve(self) -> bool:
        """Consume what is there now. False: the worker is through."""
        with self._lock:
            stopping = self._stopping
        try:
            ended = stopping or all(channel.ended for channel in self.channels)
            batches = self._take(everything=ended)
        except BaseException as error:  # one failed channel ends the carrier
            self._fail(error)
            return False
        if batches and not self._consume(batches):
            return False
        if batches and not ended and self._wants_idle():
            self._dirty = True
            if self._peers > 1:
                return bool(self.channels[0].backlog) or self.idle()
            assert self._ready is not None
            self._ready.forget(IdleCheck(self))  # the lull begins again
            self._ready.put(IdleCheck(self), self._linger_wait())
        return not ended

    def idle(self) -> bool:
        """Call the consumer if nothing has come since its last batches. False: it raised, the carrier has failed."""
        if not self._dirty or any(channel.backlog for channel in self.channels):
            return True  # those batches are in the queue, and the lull begins again after them
        self._dirty = False
        assert self._consumer is not None
        try:
            self._consumer.on_idle()
        except BaseException as error:
            self._fail(error)
            return False
        return True

    def metrics(self) -> tuple[int, int, float]:
        """Calls of `consume`, their rows, and the seconds that they took."""
        with self._lock:
            return self._calls, self._rows, self._busy_seconds

    def leave(self, gone: Callable[[], None] | None = None) -> None:
        """Part from channels and consumer; a peer that still sleeps is woken to see the end too.

        `gone` is called before anyone hears that it is over.
        """
        assert self._ready is not None
        for channel in self.channels:
            channel.remove_listener(self._mark_due)
            channel.remove_block_listener(self.consume_now)
        if self._peers == 1:
            self._ready.forget(self)
            self._ready.forget(IdleCheck(self))
        else:
            self.consume_now()
        try:
            self._lifecycle.leave()
        except BaseException as error:  # a lost last flush ends the carrier
            self._fail(error)
        finally:
            if gone is not None:
                gone()
            self._over()

    def _mark_due(self) -> None:
        assert self._ready is not None
        lingers = self._linger and not all(channel.ended for channel in self.channels)
        self._ready.put(self.key, self._linger if lingers else 0.0)

    def _take(self, *, everything: bool) -> list[pa.RecordBatch]:
        if self._peers == 1 or everything:
            return [batch for channel in self.channels for batch in channel.drain()]
        batches = _take_share(self.channels[0], self._peers)
        if self.channels[0].backlog:
            self.consume_now()
        return batches

    def _consume(self, batches: list[pa.RecordBatch]) -> bool:
        assert self._consumer is not None
        began = self._clock.now()
        rows = sum(batch.num_rows for batch in batches)
        if self._last is not None:
            self._gap = 0.7 * self._gap + 0.3 * (began - self._last)
        self._last = began
        with self._lock:
            self._rows_in_hand = rows
        try:
            self._consumer.consume(batches)
        except Exception as error:
            return self._tell(self._consumer, batches, error)
        except BaseException as error:  # SystemExit in a thread is lost otherwise
            self._fail(error)
            return False
        finally:
            took = self._clock.now() - began
            if self._auto:
                self._linger = min(took, _LONGEST_AUTO)
            with self._lock:
                self._rows_in_hand = 0
                self._calls += 1
                self._rows += rows
                self._busy_seconds += took
        return True

    def _wants_idle(self) -> bool:
        assert self._consumer is not None
        return type(self._consumer).on_idle is not Consumer.on_idle

    def _linger_wait(self) -> float:
        return min(_LONGEST_LINGER, max(_SHORTEST_LINGER, 2 * self._gap))

    def _tell(self, consumer: Consumer, batches: list[pa.RecordBatch], error: Exception) -> bool:
        try:
            consumer.on_error(batches, error)
        except BaseException as fatal:  # what on_error raises ends the carrier
            self._fail(fatal)
            return False
        return True


def _take_share(channel: MemoryChannel, peers: int) -> list[pa.RecordBatch]:
    """About one part in `peers` of the rows that are there, in whole batches, at least one batch."""
    share = -(-channel.backlog // peers)
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        while rows < share and (batch := channel.pull(0)) is not None:
            batches.append(batch)
            rows += batch.num_rows
    except EndOfChannel:
        pass
    return batches
