"""A few threads that serve many carriers."""

import threading
from collections.abc import Hashable
from types import TracebackType
from typing import Self

from spark_channel.carrier.doorbell import Doorbell
from spark_channel.carrier.station import Station
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import FlowError

__all__ = ["BulkConsumePool"]


class BulkConsumePool:
    """Threads for `DataCarrier.consume(consumer, pool=...)`.

    Each carrier is served by one thread, chosen when it comes: the one with the fewest rows waiting,
    those being consumed included; among equals the one that serves fewer carriers. A thread goes from
    carrier to carrier in the order in which they have something, whatever their number, and takes all
    that one has; so a slow consumer delays those that share its thread. A carrier that ends or fails
    leaves the others running. A thread starts with its first carrier, and is a daemon.

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
        self._workers = [_Worker(f"spark-channel-{name}-{number}", self._clock) for number in range(threads)]

    @property
    def threads(self) -> int:
        return len(self._workers)

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    def backlogs(self) -> list[int]:
        """Rows that wait for each thread, those it is busy with included."""
        return [worker.load()[0] for worker in self._workers]

    def carriers(self) -> list[int]:
        """How many carriers each thread serves."""
        return [worker.load()[1] for worker in self._workers]

    def add(self, station: Station) -> None:
        """Serve `station` from now on. Raises `FlowError` when the pool is closed."""
        with self._lock:  # one at a time, so that each sees what the one before has brought
            if self._closed:
                raise FlowError(f"the pool {self.name!r} is closed")
            min(self._workers, key=_Worker.load).add(station)

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


class _Worker:
    """One thread with its bell and the stations that ring it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._bell: Doorbell[Hashable] = Doorbell(clock)
        self._changed = threading.Condition(threading.Lock())
        self._stations: dict[Hashable, Station] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def load(self) -> tuple[int, int]:
        """Rows of backlog, and stations."""
        with self._changed:
            stations = list(self._stations.values())
        return sum(station.backlog for station in stations), len(stations)

    def add(self, station: Station) -> None:
        with self._changed:
            self._stations[station.key] = station
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        station.open(self._bell)

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

    def _run(self) -> None:
        while (key := self._bell.answer()) is not None:
            with self._changed:
                station = self._stations.get(key)
            if station is not None and not (station.enter() and station.serve()):
                self._part(station)

    def _part(self, station: Station) -> None:
        try:
            station.leave()
        finally:
            with self._changed:
                del self._stations[station.key]
                done = self._closing and not self._stations
                self._changed.notify_all()
            if done:
                self._bell.stop()
