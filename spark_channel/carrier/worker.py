"""One thread's part of a carrier: its channels, its consumer, and the queue that says which of them are ready."""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from spark_channel.carrier.consumer import Consumer
from spark_channel.carrier.lifecycle import Lifecycle
from spark_channel.carrier.ready_queue import ReadyQueue
from spark_channel.channel import MemoryChannel
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import EndOfChannel

__all__ = ["Idle", "Worker"]

_SHORTEST_LULL, _LONGEST_LULL = 0.01, 1.0
_LONGEST_AUTO = 0.2


@dataclass(frozen=True, slots=True)
class Idle:
    """The key of a worker that may have nothing left to consume."""

    worker: "Worker"


class Worker:
    """Takes what its channels have and hands it to the consumer.

    One thread at a time runs `enter`, `serve` and `leave`. `peers` is how many workers, itself
    included, share one channel and its ready queue; alone it takes all that is there.

    Args:
        fail: told of an error that ends the carrier.
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
        self._gap = _SHORTEST_LULL
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
        """Use another thread's ready queue from now on. What was published before is consumed there."""
        ready.prefer(self.key, self._priority)
        self._ready = ready
        self.hurry()
        if self._dirty:
            ready.put(Idle(self), self._lull())

    def open(self, ready: ReadyQueue[Hashable]) -> None:
        """Listen to the channels, and look at once for what they have."""
        self._ready = ready
        if self._peers == 1:
            ready.prefer(self.key, self._priority)
        for channel in self.channels:
            channel.add_listener(self._mark_due)
            if self._linger or self._auto:
                channel.add_block_listener(self.hurry)
        self.hurry()

    def hurry(self) -> None:
        """Have the channels looked at now, lingering or not."""
        assert self._ready is not None
        self._ready.put(self.key)

    def stop(self) -> None:
        """Take once more what is there, then be over."""
        with self._lock:
            self._stopping = True
        self.hurry()

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
            self._ready.forget(Idle(self))  # the lull begins again
            self._ready.put(Idle(self), self._lull())
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
            channel.remove_block_listener(self.hurry)
        if self._peers == 1:
            self._ready.forget(self)
            self._ready.forget(Idle(self))
        else:
            self.hurry()
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
            self.hurry()
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

    def _lull(self) -> float:
        return min(_LONGEST_LULL, max(_SHORTEST_LULL, 2 * self._gap))

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
