"""What consumer threads sleep on: one bell, rung by any of their channels."""

import heapq
import threading
from typing import Generic, TypeVar

from spark_channel.clock import Clock

__all__ = ["Doorbell"]

T = TypeVar("T")


class Doorbell(Generic[T]):
    """A queue of callers, each in it at most once, to be answered when due.

    It serves one sleeper with many callers, or many sleepers with one caller. Ringing costs one short
    lock and wakes one sleeper; a bell that nobody rings costs nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = threading.Condition(threading.Lock())
        self._due: dict[T, float] = {}
        self._order: list[tuple[float, int, T]] = []
        self._rings = 0
        self._stopped = False
        self._waited_seconds = 0.0
        self._sleepers = 0
        self._sleepers_since = 0.0  # the sum of when each fell asleep

    def ring(self, caller: T, linger: float = 0.0) -> None:
        """Have `caller` answered in `linger` seconds. If it rang before, the earlier time counts."""
        due = self._clock.now() + linger
        with self._rung:
            earlier = self._due.get(caller)
            if earlier is None or due < earlier:
                self._rings += 1
                self._due[caller] = due
                heapq.heappush(self._order, (due, self._rings, caller))
                self._rung.notify()

    def is_rung(self) -> bool:
        """Whether a caller is due now, and waits for an answer."""
        with self._rung:
            wait = self._next_due()
            return wait is not None and wait <= 0

    def overdue(self, caller: T) -> float | None:
        """For how many seconds `caller` has waited for an answer; None when it does not ring, or lingers."""
        with self._rung:
            due = self._due.get(caller)
            late = None if due is None else self._clock.now() - due
            return None if late is None or late < 0 else late

    def forget(self, caller: T) -> None:
        """Leave `caller`'s ring unanswered."""
        with self._rung:
            self._due.pop(caller, None)

    def stop(self) -> None:
        """Wake everybody: from now on `answer` gives None."""
        with self._rung:
            self._stopped = True
            self._rung.notify_all()

    def answer(self) -> T | None:
        """Sleep until a caller is due, and take it off the queue. None: the bell was stopped."""
        with self._rung:
            while not self._stopped:
                wait = self._next_due()
                if wait is None:
                    self._sleep()
                elif wait > 0:
                    self._clock.wait(self._rung, wait)
                else:
                    _, _, caller = heapq.heappop(self._order)
                    del self._due[caller]
                    return caller
            return None

    def waited_seconds(self) -> float:
        """How long sleepers waited without any caller, sleeps under way included; lingering is not."""
        with self._rung:
            under_way = self._sleepers * self._clock.now() - self._sleepers_since
            return self._waited_seconds + under_way

    def _next_due(self) -> float | None:
        while self._order:
            due, _, caller = self._order[0]
            if self._due.get(caller) == due:
                return due - self._clock.now()
            heapq.heappop(self._order)
        return None

    def _sleep(self) -> None:
        since = self._clock.now()
        self._sleepers += 1
        self._sleepers_since += since
        try:
            self._clock.wait(self._rung)
        finally:
            self._sleepers -= 1
            self._sleepers_since -= since
            self._waited_seconds += self._clock.now() - since
