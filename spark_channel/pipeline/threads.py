"""Helper threads of a pipeline: pay for a batch during the next fetch, hand over objects, watch for stalls."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from spark_channel.channel import Limiter
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import StalledError
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters
from spark_channel.progress.tasks import LastProgress

__all__ = [
    "HandoffSlot",
    "HeldBack",
    "PrefetchingPayer",
    "StallWatch",
    "join",
    "pushing",
]


_log = log_of(__name__)
_JOIN_SECONDS = 2.0
"""Less than a program has that SIGTERM ends: after it, what the job staged is removed."""
_AHEAD_SLICES = 20
"""Rows that may wait to be paid, in all lanes together: 0.4 s of the limit, in slices of 20 ms; with what is paid and
what is fetched, half a second of it each, a source is less than 1.5 s ahead."""
_T = TypeVar("_T")


def join(threads: Iterable[threading.Thread], *, patient: bool) -> None:
    """Wait for the threads that were started; unless `patient`, leave those behind that are still blocked after 2 s."""
    until = SYSTEM_CLOCK.now() + _JOIN_SECONDS
    for thread in threads:
        if thread.ident is not None:
            thread.join(None if patient else max(0.0, until - SYSTEM_CLOCK.now()))
            if thread.is_alive():
                _log.warning(
                    "%s is still blocked in its source or target and is left behind", thread.name
                )


class HeldBack:
    """For how many seconds fetching threads had to wait for what takes their batches. Any thread may use it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds, self._threads, self._at = 0.0, 0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A thread waits while the block runs."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def seconds(self) -> float:
        """So far, waits under way included."""
        return self._add(0)

    def _add(self, threads: int) -> float:
        with self._lock:
            now = self._clock.now()
            self._seconds += self._threads * max(0.0, now - self._at)
            self._at, self._threads = now, self._threads + threads
            return self._seconds


Pay = Callable[[pa.RecordBatch, int], object]


class PrefetchingPayer:
    """Passes batches from the thread that fetches to its own thread, which pays for them, in order.

    A limit saves up 20 ms and no more: where one thread fetches and pays in turn, what a longer fetch
    leaves unused is lost, and a copy falls short of its limit. Here up to 0.4 s of the limit waits while
    a batch is paid and the next one is fetched: a source that is late by less than that costs nothing. A larger
    batch waits alone, so that two are held at most: one that is paid, and one that is fetched.

    Used in a `with` block by the fetching thread. Its end waits until all is paid; an exception in it is
    handed to `fail`, and drops what is not paid.

    Args:
        fail: called once with the exception that a payment raised, or that ends the block. It must end the wait of
            a payment.
        limiter: says what 0.4 s of the limit is. None: no limit, and each batch is passed on by the
            fetching thread itself.
        name: of the paying thread.
        lanes: how many fetching threads spend `limiter`, each with its own payer.
        capacity_bytes: the most bytes that wait, whatever the limit allows: it may count rows, which may be wide.
        held_back: counts how long the fetching thread waits.
    """

    def __init__(
        self,
        fail: Callable[[BaseException], None],
        *,
        limiter: Limiter | None,
        name: str,
        lanes: int = 1,
        capacity_bytes: float = math.inf,
        held_back: HeldBack | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._held_back = held_back or HeldBack(clock)
        self._fail = fail
        self._clock = clock
        self._limiter = limiter
        self._slices = _AHEAD_SLICES / lanes
        self._sizes: tuple[int | None, int | None] | None = None
        self._capacity_bytes = capacity_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], object], int, int]] = deque()
        self._waiting_rows = self._waiting_bytes = 0
        self._over = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, pay: Pay, batch: pa.RecordBatch, nbytes: int) -> None:
        """Hand over a batch for `pay(batch, nbytes)`, and wait until it is time to fetch the next one.

        Raises:
            ChannelError: what was raised for this batch or one before it.
        """
        if self._limiter is None:
            pay(batch, nbytes)
            return
        most_rows, most_bytes = self._ahead(self._limiter)
        with self._changed:
            self._add(partial(pay, batch, nbytes), batch.num_rows, nbytes)
            while self._error is None and (
                self._waiting_rows > most_rows or self._waiting_bytes > most_bytes
            ):
                with self._held_back.waiting():
                    self._clock.wait(self._changed)
            self._raise_if_failed()

    def then(self, callback: Callable[[], None]) -> None:
        """Have `callback` called by the paying thread when all batches so far are paid; does not wait for that."""
        if self._limiter is None:
            callback()
            return
        with self._changed:
            self._raise_if_failed()
            self._add(callback, 0, 0)

    def __enter__(self) -> Self:
        if self._limiter is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and error is not self._error:
            self._fail(error)
        if self._limiter is None:
            return
        with self._changed:
            self._over = True
            if error is not None:
                self._waiting.clear()
            self._changed.notify_all()
            while not self._ended:
                with self._held_back.waiting():
                    self._clock.wait(self._changed)
        self._thread.join()
        if error is None:
            self._raise_if_failed()

    def _ahead(self, limiter: Limiter) -> tuple[float, float]:
        """The most rows and bytes that may wait, by what was known last: without a grant, a slice is a single unit."""
        sizes = limiter.slice_size()
        if any(size is not None and size > 1 for size in sizes):
            self._sizes = sizes
        elif sizes == (None, None) or self._sizes is None:
            return 0, 0
        rows, nbytes = (
            math.inf if size is None else self._slices * size if size > 1 else 0
            for size in self._sizes
        )
        return rows, min(nbytes, self._capacity_bytes)

    def _add(self, step: Callable[[], object], rows: int, nbytes: int) -> None:
        self._waiting.append((step, rows, nbytes))
        self._waiting_rows += rows
        self._waiting_bytes += nbytes
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (step := self._take()) is not None:
                step()
                del step  # while it waits for the next one, its batch may go
        except BaseException as error:
            with self._changed:
                self._error = error
                self._waiting.clear()
                self._changed.notify_all()
            self._fail(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self) -> Callable[[], object] | None:
        """The next step; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._over:
                    return None
                self._clock.wait(self._changed)
            step, rows, nbytes = self._waiting.popleft()
            self._waiting_rows -= rows
            self._waiting_bytes -= nbytes
            self._changed.notify_all()
            return step

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error


class _Push(Protocol):
    def __call__(self, batch: pa.RecordBatch, *, nbytes: int) -> object: ...


@contextmanager
def pushing(
    push: _Push,
    fail: Callable[[BaseException], None],
    *,
    limiter: Limiter | None,
    name: str,
    lanes: int,
    capacity_bytes: int,
    held_back: HeldBack,
) -> Iterator[Pay]:
    """Yield the function that takes a fetching thread's batches: `push`, under a limit through a `PrefetchingPayer`."""

    def pay(batch: pa.RecordBatch, nbytes: int) -> None:
        push(batch, nbytes=nbytes)

    with PrefetchingPayer(
        fail,
        limiter=limiter,
        name=name,
        lanes=lanes,
        capacity_bytes=capacity_bytes,
        held_back=held_back,
    ) as ahead:
        yield partial(ahead.put, pay)


class HandoffSlot(Generic[_T]):
    """Hands objects from one thread to another, in order. The giving one waits while what is held weighs 1.0 or more.

    Args:
        weight: of an object that is held, asked each time. By default one object fills the slot.
    """

    def __init__(
        self, weight: Callable[[_T], float] = lambda _: 1.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._weight, self._clock = weight, clock
        self._is_giving = False
        self._changed = threading.Condition()
        self._held: deque[_T] = deque()
        self._closed = False
        self._cancelled = False

    def give(self, thing: _T) -> bool:
        """Wait for the place to be free. False: cancelled, and `thing` was not taken."""
        with self._changed:
            if not self._has_room and not self._cancelled:
                self._is_giving = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_room or self._cancelled)
                self._is_giving = False
            if self._cancelled:
                return False
            self._held.append(thing)
            self._changed.notify_all()
            return True

    def take(self) -> _T | None:
        """Wait for the next thing; None when it was closed and is empty, or cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._held) or self._closed or self._cancelled)
            if self._cancelled or not self._held:
                return None
            thing = self._held.popleft()
            self._changed.notify_all()
            return thing

    @property
    def _has_room(self) -> bool:
        return sum(self._weight(batch) for batch in self._held) < 1.0

    @property
    def holds(self) -> bool:
        """Whether the giver is ahead, by what the taker takes next."""
        with self._changed:
            return bool(self._held)

    def rest(self, seconds: float) -> bool:
        """Wait for so long; or, True, until the giving one waits for room. It ends when the slot is cancelled."""
        until = self._clock.now() + seconds
        with self._changed:
            while not self._is_blocked and not self._cancelled:
                if (left := until - self._clock.now()) <= 0:
                    break
                self._clock.wait(self._changed, left)
            return self._is_blocked

    @property
    def _is_blocked(self) -> bool:
        return self._is_giving and not self._has_room

    def close(self) -> None:
        """End the giving side after the last object."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """End both sides immediately."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()


class StallWatch:
    """Looks at counters when the first of them could have stalled, from another thread, in a `with` block.

    Args:
        seconds: without a row moved, waits for the limit left out, after which `stalled` is called, once.
        stalled: called with the error, in the watch's thread.
    """

    def __init__(
        self,
        seconds: float,
        stalled: Callable[[BaseException], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._seconds = seconds
        self._stalled = stalled
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._watched: dict[Counters, LastProgress] = {}
        self._over = False
        self._thread = threading.Thread(target=self._run, name="spark-channel-stall", daemon=True)

    def add(self, counters: Counters) -> Counters:
        """Watch these, too; returns them."""
        with self._changed:
            growth = self._watched[counters] = LastProgress()
            growth.see(counters.snapshot(), self._clock.now())
            self._changed.notify_all()
        return counters

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (error := self._next()) is not None:
            self._stalled(error)
            return

    def _next(self) -> StalledError | None:
        """Wait for the first that stalls; None at the end."""
        with self._changed:
            while not self._over:
                now, wait = self._clock.now(), None
                for counters, growth in list(self._watched.items()):
                    snapshot = counters.snapshot()
                    if snapshot.phase.final:
                        del self._watched[counters]
                        continue
                    if counters.waits_for_target:
                        growth = self._watched[counters] = LastProgress(since=now)
                    else:
                        growth.see(snapshot, now)
                    idle = growth.idle(snapshot, now)
                    if idle >= self._seconds:
                        return StalledError(
                            f"task {snapshot.task} has read {snapshot.rows_read} rows and written "
                            f"{snapshot.rows_written}, and none for {idle:.0f} s (options 'stallTimeout' "
                            "and 'onStall=fail'): its source or its target does not answer. Look for locks "
                            "and full disks there; Spark tries the task again, spark.task.maxFailures times"
                        )
                    remaining = self._seconds - idle
                    wait = remaining if wait is None else min(wait, remaining)
                self._clock.wait(self._changed, wait)
            return None
