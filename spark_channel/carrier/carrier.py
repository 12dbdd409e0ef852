"""`DataCarrier`: several channels as one, with a partitioner and metrics; modelled on Apache SkyWalking's."""

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Literal, Protocol, Self

import pyarrow as pa

from spark_channel.carrier.consumer import CarrierMetrics, Consumer, ReadyQueue
from spark_channel.carrier.driver import ConsumerDriver
from spark_channel.carrier.pool import BulkConsumePool
from spark_channel.channel import ChannelStatistics, Limiter, MemoryChannel, Overflow
from spark_channel.channel.batches import measure
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelClosedError, EndOfChannel, FlowError
from spark_channel.plain_text import log_of

__all__ = [
    "DataCarrier",
    "Partitioner",
    "PartitionerName",
    "RollingPartitioner",
    "ThreadPartitioner",
]


PartitionerName = Literal["rolling", "thread"]
_LEAVE_SECONDS = 5.0
"""How long a `with` block that raised waits for its consumers, which may hang in a target."""


class Partitioner(Protocol):
    """Any callable that gives the index of a batch's channel.

    It is called by producer threads, several at the same time, without a lock. What it raises reaches that
    producer, and nothing was published. A partitioner whose choice is a preference and not a promise
    has a true attribute `may_try_others`: under `overflow="reject"` the carrier then offers a refused
    batch once to each other channel.
    """

    def __call__(self, batch: pa.RecordBatch, channels: int, /) -> int:
        """An index from 0 to `channels - 1`."""
        ...


class RollingPartitioner:
    """Each channel in turn, over all producers."""

    may_try_others = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = -1

    def __call__(self, batch: pa.RecordBatch, channels: int) -> int:
        with self._lock:
            self._turn = (self._turn + 1) % channels
            return self._turn


class ThreadPartitioner:
    """One channel for all batches of one producer thread, so that their order is kept.

    Threads get the channels in turn as they first produce: identities modulo the number of channels
    would not do, since they are addresses with a common factor.
    """

    may_try_others = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._mine = threading.local()

    def __call__(self, batch: pa.RecordBatch, channels: int) -> int:
        channel_number: int | None = getattr(self._mine, "place", None)
        if channel_number is None:
            with self._lock:
                channel_number = self._threads
                self._threads += 1
            self._mine.place = channel_number
        return channel_number % channels


def named_partitioner(partitioner: PartitionerName | Partitioner) -> Partitioner:
    """The partitioner of that name, or the callable itself.

    Raises:
        ValueError: neither a known name nor a callable.
    """
    if partitioner == "rolling":
        return RollingPartitioner()
    if partitioner == "thread":
        return ThreadPartitioner()
    if callable(partitioner):
        return partitioner
    raise ValueError(
        f'partitioner={partitioner!r} is not "rolling", "thread", or a callable of (batch, channels)'
    )


def sum_statistics(parts: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """Every field summed, waits by reason too. `parts` has one or more."""
    parts = list(parts)
    totals = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(ChannelStatistics)
        if field.name != "throttled_seconds"
    }
    throttled: dict[str, float] = {}
    for part in parts:
        for reason, seconds in part.throttled_seconds.items():
            throttled[reason] = throttled.get(reason, 0.0) + seconds
    return ChannelStatistics(**totals, throttled_seconds=throttled)


logger = log_of("spark_channel")


class DataCarrier:
    """Channels, a partitioner that picks one for each batch, and consumers that are woken by any of them.

    Batches of one channel are consumed in the order in which they were published to it; channels are
    independent of one another. Nothing is lost or doubled: each accepted batch is consumed once, or
    dropped and counted under `overflow="overwrite"`.

    As a context manager it ends with `shutdown()`; with an exception in the block it fails instead, so
    that producers and consumers stop immediately.

    Args:
        channels: how many.
        capacity_rows: the most rows in each channel.
        capacity_bytes: the most bytes in each channel.
        partitioner: "rolling" (each channel in turn), "thread" (a producer thread keeps to one channel,
            so its batches stay in order), or a callable; see `Partitioner`.
        overflow: what `produce` does without room: "block", "reject" or "overwrite"; see `Overflow`.
        limiter: what all channels pay together; None = unlimited. Or a list, with one or None for each channel.
        clock: where time comes from; the machine's when None.

    Raises `ValueError` for what these do not take.
    """

    def __init__(
        self,
        channels: int = 1,
        capacity_rows: int = 1_048_576,
        capacity_bytes: int = 64 << 20,
        *,
        partitioner: PartitionerName | Partitioner = "rolling",
        overflow: Overflow | str = Overflow.BLOCK,
        limiter: Limiter | Sequence[Limiter | None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
            raise ValueError(f"channels={channels!r} is not a whole number, 1 or more")
        limiters = list(limiter) if isinstance(limiter, Sequence) else [limiter] * channels
        if len(limiters) != channels:
            raise ValueError(f"limiter={limiter!r} has {len(limiters)} for {channels} channels")
        self._clock = clock or SYSTEM_CLOCK
        self._channels = tuple(
            MemoryChannel(
                capacity_rows,
                capacity_bytes,
                overflow=overflow,
                limiter=channel_limiter,
                clock=clock,
            )
            for channel_limiter in limiters
        )
        self._lock = threading.Lock()
        self._partitioner = named_partitioner(partitioner)
        self._overflow = Overflow(overflow)
        self._driver: ConsumerDriver | None = None
        self._iterating: set[ReadyQueue[MemoryChannel]] = set()
        self._waited_seconds = 0.0
        self._retried_rows = self._retried_bytes = self._retried_batches = 0
        self._error: BaseException | None = None
        self._error_traceback: TracebackType | None = None

    # ---- producing

    def produce(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> bool:
        """Publish `batch` in the channel that the partitioner picks. False when it was rejected.

        Waits for room and for the limit as `MemoryChannel.push` does, and raises what that raises:
        `ChannelClosedError` after `close` and `shutdown`, and what `fail` was given. Under "reject", the
        rolling partitioner (any with a true `may_try_others`) offers the batch once to each other
        channel before it gives up; the others keep their promise.

        `nbytes`: the batch's bytes, where they are known. `ValueError` when the partitioner gives no
        channel of this carrier; what it raises passes through.
        """
        rows, nbytes = measure(batch, nbytes)
        with self._lock:
            partitioner = self._partitioner
        total = len(self._channels)
        first = operator.index(partitioner(batch, total))
        if not 0 <= first < total:
            raise ValueError(f"the partitioner gave channel {first}; there are 0 to {total - 1}")
        if self._channels[first].push(batch, nbytes=nbytes):
            return True
        if getattr(partitioner, "may_try_others", False):
            for step in range(1, total):
                with self._lock:
                    self._retried_rows += rows
                    self._retried_bytes += nbytes
                    self._retried_batches += 1
                if self._channels[(first + step) % total].push(batch, nbytes=nbytes):
                    return True
        self._hurry()
        return False

    @property
    def partitioner(self) -> Partitioner:
        """The partitioner, which picks the channel of a batch; may be set at any time, to a name or a callable.

        A batch whose `produce` has begun still goes to the channel that the former one picked, so one producer's
        batches before and after the change may be in different channels.
        """
        with self._lock:
            return self._partitioner

    @partitioner.setter
    def partitioner(self, partitioner: PartitionerName | Partitioner) -> None:
        chosen = named_partitioner(partitioner)
        with self._lock:
            self._partitioner = chosen

    @property
    def overflow(self) -> Overflow:
        """The behaviour of `produce` when its channel is full; may be set at any time, as `MemoryChannel.overflow`."""
        with self._lock:
            return self._overflow

    @overflow.setter
    def overflow(self, overflow: Overflow | str) -> None:
        chosen = Overflow(overflow)
        with self._lock:  # two setters at the same time must not leave the channels divided
            self._overflow = chosen
            for channel in self._channels:
                channel.overflow = chosen

    def add_block_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when a `produce` begins to wait for capacity, once per call, in its thread."""
        for channel in self._channels:
            channel.add_block_listener(callback)

    def remove_block_listener(self, callback: Callable[[], None]) -> None:
        """Remove a listener; one that was never added is ignored."""
        for channel in self._channels:
            channel.remove_block_listener(callback)

    # ---- consuming

    def consume(
        self,
        consumer: Consumer | Callable[[], Consumer],
        threads: int = 1,
        linger: float | Literal["auto"] = 0.0,
        *,
        pool: BulkConsumePool | None = None,
        priority: int = 0,
    ) -> ConsumerDriver:
        """Start `consumer`: it is called with stored and new batches, in its own threads or in those of `pool`.

        See `Consumer` and `ConsumerDriver`, which is returned running. One consumer at a time: after
        its `close`, another may follow.

        Raises:
            FlowError: a consumer is running, or the pool is closed. What the carrier failed with.
        """
        with self._lock:
            self._raise_if_failed()
            if self._driver is not None:
                if self._driver.is_running():
                    raise FlowError("the carrier has a running consumer; close it first")
                self._waited_seconds += self._driver.waited_seconds()
                self._driver = None
            driver = ConsumerDriver(
                self._channels,
                consumer,
                threads=threads,
                linger=linger,
                priority=priority,
                pool=pool,
                fail=self.fail,
                clock=self._clock,
            )
            driver.begin()
            self._driver = driver
        return driver

    def drain(self) -> list[pa.RecordBatch]:
        """The stored batches, channel by channel, without waiting; an empty list if there are none.

        Raises what the carrier failed with.
        """
        return [batch for channel in self._channels for batch in channel.drain()]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches from all channels as they come, until all are closed and drained.

        Raises what the carrier failed with. Channels that have batches take turns. Several threads may
        iterate at the same time, beside a consumer too: each batch goes to one of them. A loop that is left
        early takes no batch with it.
        """
        ready: ReadyQueue[MemoryChannel] = ReadyQueue(self._clock)
        listeners = [(channel, _marker(ready, channel)) for channel in self._channels]
        with self._lock:
            self._iterating.add(ready)
        try:
            for channel, mark_due in listeners:
                channel.add_listener(mark_due)
                mark_due()
            open_channels = set(self._channels)
            while open_channels:
                due = ready.get()
                assert due is not None  # this queue is never stopped
                try:
                    batch = due.pull(0)
                except EndOfChannel:
                    open_channels.discard(due)
                    continue
                except BaseException as error:
                    self.fail(error)
                    raise
                if batch is not None:
                    ready.put(due)
                    yield batch
        finally:
            for channel, mark_due in listeners:
                channel.remove_listener(mark_due)
            with self._lock:
                self._iterating.discard(ready)
                self._waited_seconds += ready.waited_seconds()

    # ---- the end

    def close(self) -> None:
        """Accept no more batches: `produce` raises `ChannelClosedError`, also while it waits. Stored batches can
        still be consumed. Returns immediately; may be called again.
        """
        for channel in self._channels:
            channel.close()
        self._hurry()

    def fail(self, error: BaseException) -> None:
        """Make producers and consumers of all channels raise `error` immediately, also those that wait.

        The first error counts; stored batches are dropped. Consumer threads call `on_exit` and end.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, not {error!r}")
        with self._lock:
            if self._error is None:
                self._error = error
                self._error_traceback = error.__traceback__
            error = self._error
        for channel in self._channels:
            channel.fail(error)

    def shutdown(self, timeout: float | None = None) -> bool:
        """`close`, then wait until the consumer has received every batch and its threads have ended.

        True: nothing is stored and nothing runs. False: `timeout` seconds passed (None: as long as the
        consumer takes), or what is stored has no consumer; call again, `drain()`, or
        `fail(...)`. May be called any number of times. In a thread that itself consumes this carrier it
        closes and returns False, since it would wait for itself; the carrier then ends by itself.

        Raises what the carrier failed with, each time, once its threads have ended.
        """
        self.close()
        with self._lock:
            driver = self._driver
        through = driver is None or driver.wait(timeout)
        if through or (driver is not None and driver.is_here()):
            with self._lock:
                self._raise_if_failed()
        return through and self.ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.shutdown()
            return
        if not isinstance(error, Exception):
            # GeneratorExit, KeyboardInterrupt: not a producer's to raise.
            error = ChannelClosedError(f"the carrier was left by {type(error).__name__}")
        self.fail(error)
        with self._lock:
            driver = self._driver
        if driver is not None and not driver.wait(_LEAVE_SECONDS) and not driver.is_here():
            logger.warning("a consumer is still busy after %g s and is left behind", _LEAVE_SECONDS)

    # ---- looking

    @property
    def channels(self) -> tuple[MemoryChannel, ...]:
        """The channels themselves, by the partitioner's index.

        To end them all, use the carrier's `close` and `fail`. One that is closed alone leaves the others
        running; one that failed alone fails the carrier as soon as a consumer or iterator meets it.
        """
        return self._channels

    @property
    def backlog(self) -> int:
        """Stored rows: those that are not consumed yet."""
        return sum(channel.backlog for channel in self._channels)

    @property
    def closed(self) -> bool:
        """Whether `close` was called; there may be stored batches."""
        return all(channel.closed for channel in self._channels)

    @property
    def ended(self) -> bool:
        """Whether no more batches can arrive: closed and drained, or failed."""
        return all(channel.ended for channel in self._channels)

    @property
    def error(self) -> BaseException | None:
        """The error with which the carrier failed; None if it did not."""
        with self._lock:
            return self._error

    def statistics(self) -> ChannelStatistics:
        """The sum over the channels, each at its own instant.

        `rows_rejected` and `put_attempts` count a batch once, however many channels it was offered to.
        `wait_reader_seconds` holds the waits of iterators and of the consumer's own threads; a pool's
        threads serve others too, and are not in it.
        """
        with self._lock:
            retried = self._retried_rows, self._retried_bytes, self._retried_batches
            waited = self._waited_seconds + sum(ready.waited_seconds() for ready in self._iterating)
            if self._driver is not None:
                waited += self._driver.waited_seconds()
        total = sum_statistics(channel.statistics() for channel in self._channels)
        return replace(
            total,
            rows_rejected=total.rows_rejected - retried[0],
            bytes_rejected=total.bytes_rejected - retried[1],
            put_attempts=total.put_attempts - retried[2],
            wait_reader_seconds=total.wait_reader_seconds + waited,
        )

    def metrics(self) -> CarrierMetrics:
        """Figures of every queue, and of the present consumer."""
        with self._lock:
            driver = self._driver
        calls, rows, seconds = (0, 0, 0.0) if driver is None else driver.metrics()
        queues = tuple(channel.statistics() for channel in self._channels)
        return CarrierMetrics(queues, self.backlog, calls, rows, seconds)

    def resize(
        self,
        *,
        capacity_rows: int | None = None,
        capacity_bytes: int | None = None,
        transaction_rows: int | None = None,
        keep_alive: float | None = None,
    ) -> None:
        """`MemoryChannel.resize` of each channel, in turn. Raises what that raises, for the first that cannot;
        those before it have changed.
        """
        for channel in self._channels:
            channel.resize(
                capacity_rows=capacity_rows,
                capacity_bytes=capacity_bytes,
                transaction_rows=transaction_rows,
                keep_alive=keep_alive,
            )

    def __repr__(self) -> str:
        state = (
            "failed"
            if self.error
            else "ended"
            if self.ended
            else "closed"
            if self.closed
            else "open"
        )
        s = self.statistics()
        return (
            f"<DataCarrier {state}: {len(self._channels)} channels, {s.rows_stored} of {s.capacity_rows} "
            f"rows, {s.bytes_stored} of {s.capacity_bytes} bytes>"
        )

    def _hurry(self) -> None:
        with self._lock:
            driver = self._driver
        if driver is not None:
            driver.consume_now()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(self._error_traceback)


def _marker(ready: ReadyQueue[MemoryChannel], channel: MemoryChannel) -> Callable[[], None]:
    return lambda: ready.put(channel)
