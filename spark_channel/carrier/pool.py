"""A few threads that serve many carriers."""

import threading
from collections.abc import Hashable
from types import TracebackType
from typing import Self

from spark_channel.carrier.doorbell import Doorbell
from spark_channel.carrier.metrics import PoolThreadMetrics
from spark_channel.carrier.station import Idle, Station
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import FlowError

__all__ = ["BulkConsumePool"]

_HELP_SECONDS = 0.1
"""How long a carrier waits for its busy thread before an idle one takes it: a move for less is not worth it."""


_HELP = "help"
"""What a thread rings itself with, to look for carriers that wait for others."""


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
        self._workers = [
            _Worker(f"spark-channel-{name}-{number}", self._clock, self) for number in range(threads)
        ]

    @property
    def threads(self) -> int:
        return len(self._workers)

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    def backlogs(self) -> list[int]:
        """Rows that wait for each thread, those it is busy with included."""
        with self._lock:  # a carrier that moves is counted once
            return [worker.load()[0] for worker in self._workers]

    def carriers(self) -> list[int]:
        """How many carriers each thread serves."""
        with self._lock:
            return [worker.load()[1] for worker in self._workers]

    def metrics(self) -> list[PoolThreadMetrics]:
        """Of each thread: what it serves, what waits for it, and how busy it was."""
        with self._lock:
            return [worker.metrics() for worker in self._workers]

    def add(self, station: Station) -> None:
        """Serve `station` from now on. Raises `FlowError` when the pool is closed."""
        with self._lock:  # one at a time, so that each sees what the one before has brought
            if self._closed:
                raise FlowError(f"the pool {self.name!r} is closed")
            min(self._workers, key=_Worker.load).add(station)

    def help(self, busy: "_Worker") -> None:
        """A carrier rang for a thread that is busy: an idle one looks after it, if it still waits then."""
        for worker in self._workers:
            if worker is not busy and worker.look_round():
                return

    def take_from_busy(self, taker: "_Worker") -> None:
        """Give `taker`, which is idle, the carrier with the most rows that waits for a busy thread."""
        with self._lock:
            if self._closed:
                return
            found = [
                (station.backlog, number, worker, station)
                for number, worker in enumerate(self._workers)
                if worker is not taker
                for station in worker.waiting()
            ]
            found.sort(key=lambda each: each[:2], reverse=True)
            taken = next((each for each in found if each[2].give(each[3])), None)
            if taken is not None:
                taker.take(taken[3])

    def pass_on(self, station: Station, busy: "_Worker") -> None:
        """Give a carrier of `busy`, which calls this, to a thread that is idle."""
        with self._lock:
            idle = next((each for each in self._workers if each is not busy and each.is_idle()), None)
            if not self._closed and idle is not None and busy.give(station):
                idle.take(station)

    def has_idle(self, busy: "_Worker") -> bool:
        """Whether another thread than `busy` has nothing to do."""
        return any(worker is not busy and worker.is_idle() for worker in self._workers)

    def has_waiting(self, but: "_Worker") -> bool:
        """Whether a carrier waits for a thread that is busy with another one."""
        return any(worker is not but and worker.is_behind() for worker in self._workers)

    def serves_here(self, station: Station) -> bool:
        """Is the calling thread the one that serves `station`?"""
        return any(worker.is_here() and worker.serves(station) for worker in self._workers)

    def close(self, timeout: float | None = None) -> bool:
        """Consume what every carrier has now, then end the threads; the carriers stay open.

        False after `timeout` seconds (None: as long as the consumers take), and at once in one of the
        pool's own threads; they end all the same.
        """
        with self._lock:
            self._closed = True
        for worker in self._workers:
            worker.close()
        if any(worker.is_here() for worker in self._workers):
            return False
        deadline = None if timeout is None else self._clock.now() + timeout
        return all(worker.wait(deadline) for worker in self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _PoolBell(Doorbell[Hashable]):
    """A worker's bell: a ring that finds it busy is heard by an idle one too."""

    def __init__(self, clock: Clock, worker: "_Worker") -> None:
        super().__init__(clock)
        self._worker = worker

    def ring(self, caller: Hashable, linger: float = 0.0) -> None:
        super().ring(caller, linger)
        if caller is not _HELP:
            self._worker.ask_for_help()


class _Worker:
    """One thread with its bell and the stations that ring it."""

    def __init__(self, name: str, clock: Clock, pool: BulkConsumePool) -> None:
        self._name = name
        self._clock = clock
        self._pool = pool
        self._bell = _PoolBell(clock, self)
        self._changed = threading.Condition(threading.Lock())
        self._stations: dict[Hashable, Station] = {}
        self._current: Station | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._looks_round = False
        self._busy_seconds = 0.0
        self._taken = 0

    def load(self) -> tuple[int, int]:
        """Rows of backlog, and stations."""
        with self._changed:
            stations = list(self._stations.values())
        return sum(station.backlog for station in stations), len(stations)

    def add(self, station: Station) -> None:
        self._welcome(station)
        station.open(self._bell)

    def take(self, station: Station) -> None:
        """Serve a station that was another worker's."""
        with self._changed:
            self._taken += 1
        self._welcome(station)
        station.move(self._bell)

    def give(self, station: Station) -> bool:
        """Let another worker have it, unless it is served at this moment, or this worker ends."""
        with self._changed:
            if self._current is station or self._closing or self._stations.get(station.key) is not station:
                return False
            del self._stations[station.key]
        self._bell.forget(station)
        self._bell.forget(Idle(station))
        return True

    def metrics(self) -> PoolThreadMetrics:
        rows, stations = self.load()
        with self._changed:
            return PoolThreadMetrics(self._name, stations, rows, self._busy_seconds, self._taken)

    def waiting(self) -> list[Station]:
        """The stations that have waited for a while, since this worker is busy with another one."""
        with self._changed:
            if self._current is None or self._closing:
                return []
            found = [each for each in self._stations.values() if each is not self._current and each.is_free]
        return [station for station in found if (self._bell.overdue(station) or 0.0) >= _HELP_SECONDS]

    def is_idle(self) -> bool:
        with self._changed:
            if self._current is not None or self._closing:
                return False
        return not self._bell.is_rung()

    def is_behind(self) -> bool:
        with self._changed:
            if self._current is None or len(self._stations) < 2:
                return False
        return self._bell.is_rung()

    def ask_for_help(self) -> None:
        with self._changed:
            behind = self._current is not None and len(self._stations) > 1
        if behind:
            self._pool.help(self)

    def look_round(self) -> bool:
        """Look for carriers that wait for a busy worker, in a while. False: this one is not idle."""
        with self._changed:
            if self._current is not None or self._closing or self._bell.is_rung():
                return False
            self._looks_round = True
            self._begin()
        self._bell.ring(_HELP, _HELP_SECONDS)
        return True

    def serves(self, station: Station) -> bool:
        with self._changed:
            return station.key in self._stations

    def is_here(self) -> bool:
        with self._changed:
            return self._thread is threading.current_thread()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            stations = list(self._stations.values())
        for station in stations:
            station.stop()
        if not stations:
            self._bell.stop()

    def wait(self, deadline: float | None) -> bool:
        with self._changed:
            while self._stations:
                left = None if deadline is None else deadline - self._clock.now()
                if left is not None and left <= 0:
                    return False
                self._clock.wait(self._changed, left)
            thread = self._thread
        if thread is not None:
            thread.join()  # nothing is left for it to do
        return True

    def _welcome(self, station: Station) -> None:
        with self._changed:
            self._stations[station.key] = station
            self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (key := self._bell.answer()) is not None:
            if key is _HELP:
                with self._changed:
                    self._looks_round = False
                self._pool.take_from_busy(self)
                self._look_on()
                continue
            idle = isinstance(key, Idle)
            with self._changed:
                station = self._current = self._stations.get(
                    key.station.key if isinstance(key, Idle) else key
                )
                looks_round = self._looks_round and station is not None
                self._looks_round = self._looks_round and station is None
            if station is None:
                self._look_on()
                continue
            # Until now this worker looked idle: a ring asked nobody for help, and others may have asked this one.
            if looks_round:
                self._pool.help(self)
            elif self._bell.is_rung():
                self.ask_for_help()
            began = self._clock.now()
            goes_on = station.idle() if idle else station.enter() and station.serve()
            with self._changed:
                self._busy_seconds += self._clock.now() - began
            if not goes_on:
                self._part(station)
            elif self._clock.now() - began >= _HELP_SECONDS:
                self._pass_on(station)
            with self._changed:
                self._current = None
            self._look_on()

    def _look_on(self) -> None:
        if not self._bell.is_rung() and self._pool.has_waiting(self):
            self._bell.ring(_HELP, _HELP_SECONDS)

    def _pass_on(self, station: Station) -> None:
        """Others wait while this one took long: where its consumer is bound to this thread, only this thread can
        end that, and let an idle worker go on with another consumer."""
        if station.is_free or not self._bell.is_rung() or not self._pool.has_idle(self):
            return
        if not station.release():
            self._part(station)
            return
        with self._changed:
            self._current = None
        self._pool.pass_on(station, self)

    def _part(self, station: Station) -> None:
        def gone() -> None:
            with self._changed:
                del self._stations[station.key]
                done = self._closing and not self._stations
                self._changed.notify_all()
            if done:
                self._bell.stop()

        station.leave(gone)
