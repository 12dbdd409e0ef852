"""Runs many channels on a few threads: each gets a turn, and says when it wants the next."""

import heapq
import itertools
import threading
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["Repeated", "Turns"]


class Turns:
    """`threads` workers. A turn is a call that returns the seconds until its next one, or None for the end.

    An exception of a turn ends them all: `failed` is told, once.
    """

    def __init__(
        self, threads: int, failed: Callable[[BaseException], None], *, clock: Clock | None = None
    ) -> None:
        self._failed = failed
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, str, Callable[[], float | None]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"spark-channel-turn-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, key: str, turn: Callable[[], float | None], wait: float = 0.0) -> None:
        """Give `turn` its first turn in `wait` seconds."""
        with self._changed:
            heapq.heappush(self._waiting, (self._clock.now() + wait, next(self._numbers), key, turn))
            self._changed.notify()

    def hurry(self, key: str) -> None:
        """Whatever waits under `key` gets its turn now."""
        with self._changed:
            self._waiting = [
                (0.0 if name == key else due, number, name, turn) for due, number, name, turn in self._waiting
            ]
            heapq.heapify(self._waiting)
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> bool:
        """No turn begins any more; waits for those that run. False after `timeout` seconds. Safe twice."""
        until = None if timeout is None else self._clock.now() + timeout
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - self._clock.now()))
        return not any(
            thread.is_alive() for thread in self._threads if thread is not threading.current_thread()
        )

    def _work(self) -> None:
        while (found := self._next()) is not None:
            key, turn = found
            try:
                wait = turn()
            except BaseException as error:
                with self._changed:
                    first, self._closed = not self._closed, True
                    self._changed.notify_all()
                if first:
                    self._failed(error)
                return
            if wait is not None:
                self.add(key, turn, wait)

    def _next(self) -> tuple[str, Callable[[], float | None]] | None:
        with self._changed:
            while not self._closed:
                wait = None
                if self._waiting:
                    wait = self._waiting[0][0] - self._clock.now()
                    if wait <= 0:
                        _, _, key, turn = heapq.heappop(self._waiting)
                        return key, turn
                self._clock.wait(self._changed, wait)
            return None


class Repeated:
    """Work that is asked for any number of times, and done by one thread at a time.

    `work` returns the seconds until it is done again, or None for "when it is asked for". What was asked for
    while it was done is done once more: nothing that was asked for is lost.
    """

    def __init__(self, turns: Turns, key: str, work: Callable[[], float | None]) -> None:
        self._turns = turns
        self._key = key
        self._work = work
        self._lock = threading.Lock()
        self._waiting = self._running = self._again = False

    def ask(self) -> None:
        """Have it done soon."""
        with self._lock:
            if self._running:
                self._again = True
                return
            waits, self._waiting = self._waiting, True
        if waits:
            self._turns.hurry(self._key)
        else:
            self._turns.add(self._key, self._turn)

    def _turn(self) -> float | None:
        with self._lock:
            self._running, self._again = True, False
        wait: float | None = None
        try:
            wait = self._work()
        finally:
            with self._lock:
                self._running = False
                if self._again:
                    wait = 0.0
                self._waiting = wait is not None
        return wait
