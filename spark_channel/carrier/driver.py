"""Runs the consumer threads of a carrier, and assigns channels to them."""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from spark_channel.carrier.consumer import (
    Consumer,
    ConsumerThread,
    IdleCheck,
    Lifecycle,
    ReadyQueue,
)
from spark_channel.carrier.pool import BulkConsumePool
from spark_channel.channel import MemoryChannel
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_text import log_of

__all__ = ["ConsumerDriver"]

logger = log_of("spark_channel")


class ConsumerDriver:
    """Runs a consumer over channels: in its own threads, or in one of a pool's.

    `DataCarrier.consume` makes and begins one; by itself it serves any `MemoryChannel`s.

    - threads = channels: one to one.
    - fewer threads: each has several channels, as even a deal as can be; a `consume` call gets what all
      of them have.
    - more threads: each channel has several, which split its backlog in whole batches. Batches of that
      channel are then consumed at the same time, so only what one thread sees is in order.

    Threads sleep until one of their channels has a batch or ends; they do not poll. They are daemons:
    end them with `close`, or by closing the channels.

    Args:
        channels: what to consume.
        consumer: one object for all threads, or a callable that makes one for each. See `Consumer`.
        threads: how many; with `pool` always one, the pool's.
        linger: seconds that a batch may wait for more, so that `consume` gets fewer and longer lists; "auto":
            as long as the last `consume` took, 0.2 s at most, so that a cheap call is made at once.
            Ends early when a producer waits for room, or the channels end.
        priority: in a pool, carriers with a higher one are served first; one that waited for 1 s is next.
        pool: whose thread to use, see there.
        fail: called with errors that the consumer does not handle. Without it, or when it raises, the channels fail.
        clock: for `linger` and `timeout`; a pool lingers by its own.
    """

    def __init__(
        self,
        channels: Sequence[MemoryChannel],
        consumer: Consumer | Callable[[], Consumer],
        *,
        threads: int = 1,
        linger: float | Literal["auto"] = 0.0,
        priority: int = 0,
        pool: BulkConsumePool | None = None,
        fail: Callable[[BaseException], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not channels:
            raise ValueError("a consumer needs one channel or more")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads={threads!r} is not a whole number, 1 or more")
        if pool is not None and threads != 1:
            raise ValueError(
                f"threads={threads} and a pool: a pool serves a consumer in its own threads"
            )
        if linger != "auto" and not linger >= 0:
            raise ValueError(f'linger={linger!r} is not a number of seconds, 0 or more, or "auto"')
        if not isinstance(consumer, Consumer) and not callable(consumer):
            raise TypeError(
                f"a consumer is a Consumer or a callable that makes one, not {consumer!r}"
            )
        self._channels = tuple(channels)
        self._clock = clock or SYSTEM_CLOCK
        self._pool = pool
        self._told = fail
        self._ended = threading.Condition(threading.Lock())
        self._begun = False
        self._workers = _distribute(
            self._channels,
            consumer,
            threads,
            linger,
            priority,
            self._fail,
            self._worker_over,
            self._clock,
        )
        self._left = len(self._workers)
        self._ready_queues: tuple[ReadyQueue[Hashable], ...] = ()
        self._threads: tuple[threading.Thread, ...] = ()

    def begin(self) -> None:
        """Start to consume, stored batches first. A second call has no effect.

        Raises:
            FlowError: the pool is closed.
        """
        with self._ended:
            if self._begun:
                return
            if self._pool is not None:
                self._pool.add(self._workers[0])
                self._begun = True
                return
            self._begun = True
            ready_queues: dict[Hashable, ReadyQueue[Hashable]] = {}
            for number, worker in enumerate(self._workers):
                ready = ready_queues.setdefault(worker.key, ReadyQueue(self._clock))
                worker.open(ready)
                self._threads += (
                    threading.Thread(
                        target=_run,
                        args=(worker, ready),
                        name=f"spark-channel-consume-{number}",
                        daemon=True,
                    ),
                )
            self._ready_queues = tuple(ready_queues.values())
            threads = self._threads
        started = 0
        try:
            for thread in threads:
                thread.start()
                started += 1
        finally:  # the machine may have no thread left to give: then none of this driver's consumes
            for worker in self._workers[started:]:
                worker.leave()
            if started < len(threads):
                self._stop()

    def is_running(self) -> bool:
        """Whether it has begun and at least one thread may still consume."""
        with self._ended:
            return self._begun and self._left > 0

    def close(self, timeout: float | None = None) -> bool:
        """Consume the stored batches, then stop; the channels stay open. Waits as `wait` does.

        For a rest that must not be consumed, `fail` the carrier instead.
        """
        with self._ended:
            if not self._begun:
                self._begun = True
                self._left = 0
                return True
        self._stop()
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every thread has ended: after the end of the channels, `close` or an error.

        False after `timeout` seconds (None: as long as the consumer takes), and at once in a thread
        that itself consumes here, since it would wait for itself.
        """
        if self.is_here():
            return False
        deadline = None if timeout is None else self._clock.now() + timeout
        with self._ended:
            while self._left:
                remaining = None if deadline is None else deadline - self._clock.now()
                if remaining is not None and remaining <= 0:
                    return False
                self._clock.wait(self._ended, remaining)
            threads = self._threads
        for thread in threads:
            if thread.ident is not None:
                thread.join()  # nothing is left for it to do
        return True

    def is_here(self) -> bool:
        """Is the calling thread one that consumes here?"""
        if self._pool is not None:
            return self._pool.serves_here(self._workers[0])
        with self._ended:
            return threading.current_thread() in self._threads

    def consume_now(self) -> None:
        """Consume now what lingers."""
        if self.is_running():
            for worker in self._workers:
                worker.consume_now()

    @property
    def backlog(self) -> int:
        """Rows in the channels, and those that threads are busy with."""
        return sum(worker.rows_in_hand for worker in self._workers) + sum(
            channel.backlog for channel in self._channels
        )

    def waited_seconds(self) -> float:
        """How long its own threads had nothing to consume; 0.0 in a pool, whose threads serve others."""
        with self._ended:
            ready_queues = self._ready_queues
        return sum(ready.waited_seconds() for ready in ready_queues)

    def metrics(self) -> tuple[int, int, float]:
        """Calls of `consume`, their rows, and the seconds that they took, over all threads."""
        totals = [worker.metrics() for worker in self._workers]
        return sum(m[0] for m in totals), sum(m[1] for m in totals), sum(m[2] for m in totals)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _worker_over(self) -> None:
        with self._ended:
            self._left -= 1
            if not self._left:
                self._ended.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Without a `fail` callback, or when it raises, the channels fail: a thread must outlive that."""
        if self._told is not None:
            try:
                self._told(error)
            except BaseException:
                logger.exception(
                    "the fail= callback of a consumer raised; its channels fail with %r", error
                )
            else:
                return
        for channel in self._channels:
            channel.fail(error)


def _run(worker: ConsumerThread, ready: ReadyQueue[Hashable]) -> None:
    try:
        if worker.enter():
            while (key := ready.get()) is not None:
                if not (worker.idle() if isinstance(key, IdleCheck) else worker.serve()):
                    break
    finally:
        worker.leave()


def _distribute(
    channels: Sequence[MemoryChannel],
    consumer: Consumer | Callable[[], Consumer],
    threads: int,
    linger: float | Literal["auto"],
    priority: int,
    fail: Callable[[BaseException], None],
    over: Callable[[], None],
    clock: Clock,
) -> list[ConsumerThread]:
    """One worker per thread: channels in turn to the threads, or threads in turn to the channels."""
    if isinstance(consumer, Consumer):
        shared = Lifecycle(lambda: consumer, threads, shared=True)
        lifecycles = [shared] * threads
    else:
        lifecycles = [Lifecycle(consumer, 1) for _ in range(threads)]
    workers: list[ConsumerThread] = []
    for number, lifecycle in enumerate(lifecycles):
        if threads <= len(channels):
            mine, peers = channels[number::threads], 1
        else:
            index = number % len(channels)
            mine, peers = [channels[index]], len(range(index, threads, len(channels)))
        workers.append(
            ConsumerThread(
                mine,
                lifecycle,
                peers=peers,
                linger=linger,
                priority=priority,
                fail=fail,
                over=over,
                clock=clock,
            )
        )
    return workers
