"""`BulkConsumePool`: a few threads that consume many carriers; `ConsumerPools`: pools by name."""

import os
import threading
from collections.abc import Hashable
from types import TracebackType
from typing import Self

from spark_channel.carrier.consumer import ConsumerThread, IdleCheck, PoolThreadMetrics, ReadyQueue
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import FlowError

__all__ = [
    "BulkConsumePool",
    "ConsumerPools",
    "consumer_pools",
]


_HELP_SECONDS = 0.1
"""How long a carrier waits for its busy thread before an idle one takes it: a move for less is not worth it."""


_HELP = "help"
"""The key with which a thread reminds itself to look for carriers that wait for others."""


class BulkConsumePool:
    """Threads for `DataCarrier.consume(consumer, pool=...)`.

    Each carrier is served by one thread at a time, chosen when it comes: the one with the fewest rows
    waiting, those being consumed included; among equals the one that serves fewer carriers. A thread goes
    from carrier to carrier in the order in which they have something, whatever their number, and takes all
    that one has. A carrier that has waited for 0.1 s while its thread is busy with another one goes to a
    thread that is idle, the one with the most rows first. A consumer object goes along; of a consumer that is made per
    thread, the old one gets `on_exit` in its thread, between two of its calls, and the new thread makes
    another. A carrier that ends or fails leaves the others running. A thread starts with its first carrier,
    and is a daemon.

    Args:
        threads: how many.
        name: shows in the names of the threads.
        clock: for `linger` of the consumers, and `timeout` of `close`.
    """

    def __init__(self, threads: int = 1, *, name: str = "pool", clock: Clock | None = None) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads={threads!r} is not a whole number, 1 or more")
        self.name = name
        self._clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._closed = False
        self._members = [
            _PoolThread(f"spark-channel-{name}-{number}", self._clock, self)
            for number in range(threads)
        ]

    @property
    def threads(self) -> int:
        return len(self._members)

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    def carriers(self) -> list[int]:
        """How many carriers each thread serves."""
        with self._lock:
            return [member.load()[1] for member in self._members]

    def metrics(self) -> list[PoolThreadMetrics]:
        """Figures of each thread: the carriers that it serves, their backlog, and how busy it was."""
        with self._lock:  # a carrier that moves is counted once
            return [member.metrics() for member in self._members]

    def add(self, worker: ConsumerThread) -> None:
        """Serve `worker` from now on. Raises `FlowError` when the pool is closed."""
        with self._lock:  # one at a time, so that each sees what the one before has brought
            if self._closed:
                raise FlowError(f"the pool {self.name!r} is closed")
            min(self._members, key=_PoolThread.load).add(worker)

    def help(self, busy: "_PoolThread") -> None:
        """A carrier of a busy thread has something to consume: an idle thread takes it, if it still waits then."""
        for member in self._members:
            if member is not busy and member.look_round():
                return

    def take_from_busy(self, taker: "_PoolThread") -> None:
        """Give `taker`, which is idle, the carrier with the most rows that waits for a busy thread."""
        with self._lock:
            if self._closed:
                return
            candidates = [
                (worker.backlog, number, member, worker)
                for number, member in enumerate(self._members)
                if member is not taker
                for worker in member.waiting()
            ]
            candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
            taken_worker = next(
                (candidate for candidate in candidates if candidate[2].give(candidate[3])), None
            )
            if taken_worker is not None:
                taker.take(taken_worker[3])

    def pass_on(self, worker: ConsumerThread, busy: "_PoolThread") -> None:
        """Give a carrier of `busy`, which calls this, to a thread that is idle."""
        with self._lock:
            idle = next(
                (member for member in self._members if member is not busy and member.is_idle()),
                None,
            )
            if not self._closed and idle is not None and busy.give(worker):
                idle.take(worker)

    def has_idle(self, busy: "_PoolThread") -> bool:
        """Whether another thread than `busy` has nothing to do."""
        return any(member is not busy and member.is_idle() for member in self._members)

    def has_waiting(self, but: "_PoolThread") -> bool:
        """Whether a carrier waits for a thread that is busy with another one."""
        return any(member is not but and member.is_behind() for member in self._members)

    def serves_here(self, worker: ConsumerThread) -> bool:
        """Is the calling thread the one that serves `worker`?"""
        return any(member.is_here() and member.serves(worker) for member in self._members)

    def close(self, timeout: float | None = None) -> bool:
        """Consume the stored batches of every carrier, then end the threads; the carriers stay open.

        False after `timeout` seconds (None: as long as the consumers take), and at once in one of the
        pool's own threads; they end all the same.
        """
        with self._lock:
            self._closed = True
        for member in self._members:
            member.close()
        if any(member.is_here() for member in self._members):
            return False
        deadline = None if timeout is None else self._clock.now() + timeout
        return all(member.wait(deadline) for member in self._members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _PoolQueue(ReadyQueue[Hashable]):
    """A pool thread's ready queue: a key that finds the thread busy wakes an idle one, too."""

    def __init__(self, clock: Clock, member: "_PoolThread") -> None:
        super().__init__(clock)
        self._member = member

    def put(self, key: Hashable, linger: float = 0.0) -> None:
        super().put(key, linger)
        if key is not _HELP:
            self._member.ask_for_help()


class _PoolThread:
    """One thread with its ready queue and the workers that it serves."""

    def __init__(self, name: str, clock: Clock, pool: BulkConsumePool) -> None:
        self._name = name
        self._clock = clock
        self._pool = pool
        self._ready = _PoolQueue(clock, self)
        self._changed = threading.Condition(threading.Lock())
        self._workers: dict[Hashable, ConsumerThread] = {}
        self._current: ConsumerThread | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._looks_round = False
        self._busy_seconds = 0.0
        self._taken = 0

    def load(self) -> tuple[int, int]:
        """Rows of backlog, and workers."""
        with self._changed:
            workers = list(self._workers.values())
        return sum(worker.backlog for worker in workers), len(workers)

    def add(self, worker: ConsumerThread) -> None:
        self._welcome(worker)
        worker.open(self._ready)

    def take(self, worker: ConsumerThread) -> None:
        """Serve a worker that was another thread's."""
        with self._changed:
            self._taken += 1
        self._welcome(worker)
        worker.move(self._ready)

    def give(self, worker: ConsumerThread) -> bool:
        """Let another thread have it, unless it is served at this moment, or this thread ends."""
        with self._changed:
            if (
                self._current is worker
                or self._closing
                or self._workers.get(worker.key) is not worker
            ):
                return False
            del self._workers[worker.key]
        self._ready.forget(worker)
        self._ready.forget(IdleCheck(worker))
        return True

    def metrics(self) -> PoolThreadMetrics:
        rows, workers = self.load()
        with self._changed:
            return PoolThreadMetrics(self._name, workers, rows, self._busy_seconds, self._taken)

    def waiting(self) -> list[ConsumerThread]:
        """The workers that have waited for a while, since this thread is busy with another one."""
        with self._changed:
            if self._current is None or self._closing:
                return []
            waiting_workers = [
                worker
                for worker in self._workers.values()
                if worker is not self._current and worker.is_free
            ]
        return [
            worker
            for worker in waiting_workers
            if (self._ready.overdue(worker) or 0.0) >= _HELP_SECONDS
        ]

    def is_idle(self) -> bool:
        with self._changed:
            if self._current is not None or self._closing:
                return False
        return not self._ready.has_due()

    def is_behind(self) -> bool:
        with self._changed:
            if self._current is None or len(self._workers) < 2:
                return False
        return self._ready.has_due()

    def ask_for_help(self) -> None:
        with self._changed:
            behind = self._current is not None and len(self._workers) > 1
        if behind:
            self._pool.help(self)

    def look_round(self) -> bool:
        """Look for carriers that wait for a busy thread, in a while. False: this one is not idle."""
        with self._changed:
            if self._current is not None or self._closing or self._ready.has_due():
                return False
            self._looks_round = True
            self._begin()
        self._ready.put(_HELP, _HELP_SECONDS)
        return True

    def serves(self, worker: ConsumerThread) -> bool:
        with self._changed:
            return worker.key in self._workers

    def is_here(self) -> bool:
        with self._changed:
            return self._thread is threading.current_thread()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.stop()
        if not workers:
            self._ready.stop()

    def wait(self, deadline: float | None) -> bool:
        with self._changed:
            while self._workers:
                remaining = None if deadline is None else deadline - self._clock.now()
                if remaining is not None and remaining <= 0:
                    return False
                self._clock.wait(self._changed, remaining)
            thread = self._thread
        if thread is not None:
            thread.join()  # nothing is left for it to do
        return True

    def _welcome(self, worker: ConsumerThread) -> None:
        with self._changed:
            self._workers[worker.key] = worker
            self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (key := self._ready.get()) is not None:
            if key is _HELP:
                with self._changed:
                    self._looks_round = False
                self._pool.take_from_busy(self)
                self._check_later()
                continue
            idle = isinstance(key, IdleCheck)
            with self._changed:
                worker = self._current = self._workers.get(
                    key.worker.key if isinstance(key, IdleCheck) else key
                )
                looks_round = self._looks_round and worker is not None
                self._looks_round = self._looks_round and worker is None
            if worker is None:
                self._check_later()
                continue
            # This thread looked idle while it waited: its due key asked no other thread for help, and others may have
            # asked this one.
            if looks_round:
                self._pool.help(self)
            elif self._ready.has_due():
                self.ask_for_help()
            began = self._clock.now()
            goes_on = worker.idle() if idle else worker.enter() and worker.serve()
            with self._changed:
                self._busy_seconds += self._clock.now() - began
            if not goes_on:
                self._part(worker)
            elif self._clock.now() - began >= _HELP_SECONDS:
                self._pass_on(worker)
            with self._changed:
                self._current = None
            self._check_later()

    def _check_later(self) -> None:
        if not self._ready.has_due() and self._pool.has_waiting(self):
            self._ready.put(_HELP, _HELP_SECONDS)

    def _pass_on(self, worker: ConsumerThread) -> None:
        """Others wait while this one took long: where its consumer is bound to this thread, only this thread can
        end that, and let an idle thread continue with another consumer."""
        if worker.is_free or not self._ready.has_due() or not self._pool.has_idle(self):
            return
        if not worker.release():
            self._part(worker)
            return
        with self._changed:
            self._current = None
        self._pool.pass_on(worker, self)

    def _part(self, worker: ConsumerThread) -> None:
        def gone() -> None:
            with self._changed:
                del self._workers[worker.key]
                is_over = self._closing and not self._workers
                self._changed.notify_all()
            if is_over:
                self._ready.stop()

        worker.leave(gone)


class ConsumerPools:
    """Pools that parts of a program share by name. A forked child starts without any."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def create(self, name: str, threads: int = 1) -> BulkConsumePool:
        """The pool of that name, made if there is none yet.

        Raises:
            FlowError: it is there, with another number of threads.
        """
        with self._lock:
            pool = self._pools.get(name)
            if pool is None or pool.closed:
                pool = self._pools[name] = BulkConsumePool(threads, name=name)
            elif pool.threads != threads:
                raise FlowError(
                    f"the pool {name!r} has {pool.threads} threads, not {threads}; see get()"
                )
            return pool

    def get(self, name: str) -> BulkConsumePool:
        """The pool of that name.

        Raises:
            FlowError: there is none; the message names those that are.
        """
        with self._lock:
            pool = self._pools.get(name)
            if pool is None or pool.closed:
                pool_names = ", ".join(
                    sorted(name for name, pool in self._pools.items() if not pool.closed)
                )
                raise FlowError(
                    f"pool {name!r} does not exist; create it first. Pools: {pool_names or 'none'}"
                )
            return pool

    def close(self, name: str, timeout: float | None = None) -> bool:
        """Close the pool of that name and forget it; True when there is none. See `BulkConsumePool`."""
        with self._lock:
            pool = self._pools.pop(name, None)
        return pool is None or pool.close(timeout)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, BulkConsumePool] = {}


consumer_pools = ConsumerPools()
"""The pools of this process."""
