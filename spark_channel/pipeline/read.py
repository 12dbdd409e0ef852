"""Reads one task group: reader threads push into a carrier, the caller's thread takes from it.

Under a limit each reader thread has a paying thread beside it, see `PrefetchingPayer`: batches are fetched while
others are paid. So a copy reaches its limit, and the source is ahead by three fetches at most, which `fetch_size`
keeps to about a second and a half of the limit.
Without a limit there is nothing to pay, and the reader thread pushes itself.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import cast

import pyarrow as pa

from spark_channel.arrow_schema import conform
from spark_channel.channel import ChannelStatistics, Limiter
from spark_channel.channel.batches import arrow_bytes
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors import SplitReader
from spark_channel.errors import FlowError
from spark_channel.pipeline.threads import HeldBack, Pay, join, pushing
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters, Phase
from spark_channel.progress.counters import PhaseTimes

__all__ = [
    "BatchRateLimiter",
    "GroupRead",
    "ReadCancelledError",
]


class ReadCancelledError(FlowError):
    """The consumer of this read has ended."""


class GroupRead:
    """One attempt of one task group.

    `batches()` is iterated once, by one thread. The group's tasks are taken from one queue, largest
    first as the planner ordered them, so no thread idles while a task waits. An error in any
    reader thread is raised to the caller at once, with its own traceback; the others stop.
    `check` raises for a batch with a value that its type in Spark does not allow, though `schema` does.
    """

    def __init__(
        self,
        reader: SplitReader,
        group: TaskGroup,
        schema: pa.Schema,
        *,
        check: Callable[[pa.RecordBatch], None] | None = None,
        limiter: Limiter | None = None,
        counters: Counters | None = None,
        capacity_rows: int,
        capacity_bytes: int,
    ) -> None:
        self._reader = reader
        self._schema = schema
        self._check = check
        self._tasks: deque[Task] = deque(group.tasks)
        self._threads = min(group.channels, len(group.tasks))
        self._running = self._threads
        self._lock = threading.Lock()
        self._limiter = limiter
        self._capacity_bytes = capacity_bytes
        # It imports threads and pools, which a transfer need not.
        from spark_channel.carrier import DataCarrier

        self._carrier = DataCarrier(
            max(1, self._threads),
            capacity_rows,
            capacity_bytes,
            partitioner="thread",
            limiter=limiter,
        )
        self._held_back = HeldBack()
        self._counters = counters
        self._trace = PhaseTimes() if counters is None else counters.trace

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The batches of all tasks, in the schema given. Closing the iterator ends the reader threads.

        Raises:
            ChannelError: whatever a reader thread met.
        """
        threads = [
            threading.Thread(target=self._produce, name=f"spark-channel-read-{number}", daemon=True)
            for number in range(self._threads)
        ]
        if not threads:
            self._enter(Phase.DONE)
            return
        if self._counters is not None:
            self._counters.follow(
                self._carrier.statistics,
                producers=len(threads),
                held_back=self._held_back.seconds,
            )
        try:
            for thread in threads:
                thread.start()
            yield from self._carrier
        except (ReadCancelledError, GeneratorExit):
            self._enter(Phase.ENDED)
            raise
        except Exception:
            self._enter(Phase.FAILED)
            raise
        finally:
            self._enter(Phase.DONE)
            self.cancel()
            join(threads, patient=False)

    def cancel(self) -> None:
        """End the read from any thread: a blocked reader thread, payer or caller wakes immediately."""
        self._carrier.fail(ReadCancelledError("the read was cancelled: its consumer has ended"))

    def statistics(self) -> ChannelStatistics:
        """Return the rows that passed so far, and how long each side waited."""
        return self._carrier.statistics()

    def _enter(self, phase: Phase) -> None:
        if self._counters is not None:
            self._counters.enter(phase)  # the first final phase stays

    def _produce(self) -> None:
        try:
            carrier, name = self._carrier, threading.current_thread().name.replace("read", "pay")
            with pushing(
                carrier.produce,
                carrier.fail,
                limiter=self._limiter,
                name=name,
                lanes=self._threads,
                capacity_bytes=self._capacity_bytes,
                held_back=self._held_back,
            ) as give:
                self._fetch(give)
        except BaseException as error:
            self._carrier.fail(error)
        else:
            with self._lock:
                self._running -= 1
                last = self._running == 0
            if last:
                self._carrier.close()

    def _fetch(self, give: Pay) -> None:
        """All batches of the tasks that this thread gets hold of."""
        with self._reader.reading() as read:
            while (task := self._next_task()) is not None:
                batches = read(task.split)
                with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                    for batch in self._trace.reading(batches):
                        fitting = conform(batch, self._schema)
                        if self._check is not None:
                            self._check(fitting)
                        give(fitting, arrow_bytes(fitting))

    def _next_task(self) -> Task | None:
        with self._lock:
            return self._tasks.popleft() if self._tasks else None


class BatchRateLimiter:
    """Pays `limiter` for each batch before it passes on. `cancel` ends a wait from another thread."""

    def __init__(
        self, limiter: Limiter, *, counters: Counters | None = None, clock: Clock | None = None
    ) -> None:
        self._limiter = limiter
        self._counters = counters
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._cancelled = False

    def pace(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """`batches`, cut to the limiter's slices (zero copy), each when it is paid.

        Raises:
            LimitError: the limit can no longer be kept.
            ReadCancelledError: it was cancelled with rows left. To whoever listens still, an end would say that these
                were all.
        """
        for batch in batches:
            nbytes = arrow_bytes(batch)
            if self._counters is not None:
                self._counters.read(batch.num_rows, nbytes)
            for piece, size in self._slices(batch, nbytes):
                if not self._pay(piece.num_rows, size):
                    raise ReadCancelledError("the consumer of the rows has ended")
                if self._counters is not None:
                    self._counters.pushed(piece.num_rows, size)
                yield piece

    def cancel(self) -> None:
        """Wake a payer, which gives back what it has not spent, and end `pace`."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def _slices(self, batch: pa.RecordBatch, nbytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        rows, start = batch.num_rows, 0
        while start < rows:
            most_rows, most_bytes = self._limiter.slice_size()
            length = rows - start
            if most_rows is not None:
                length = min(length, most_rows)
            if most_bytes is not None and nbytes:
                length = min(length, most_bytes * rows // nbytes)
            stop = start + max(1, length)
            size = nbytes * stop // rows - nbytes * start // rows
            yield batch.slice(start, stop - start), size
            start = stop
        if rows == 0:
            yield batch, 0

    def _pay(self, rows: int, nbytes: int) -> bool:
        payment = self._limiter.pay(rows, nbytes, self._wake)
        try:
            with self._changed:
                while not self._cancelled:
                    wait = payment.remaining()
                    if wait.seconds == 0.0:
                        return True
                    since = self._clock.now()
                    self._clock.wait(self._changed, wait.seconds)
                    if self._counters is not None:
                        self._counters.waited(f"limit:{wait.reason}", self._clock.now() - since)
                return False
        finally:
            payment.cancel()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
