"""The queue that consumer threads wait on: which of their channels have something to consume."""

import heapq
import threading
from typing import Generic, TypeVar

from spark_channel.clock import Clock

__all__ = ["ReadyQueue"]

T = TypeVar("T")

_STARVING_SECONDS = 1.0


class ReadyQueue(Generic[T]):
    """A queue of keys, each in it at most once, returned when due.

    It serves one waiting thread with many keys, or many threads with one key. `put` costs one short lock and
    wakes one thread; an empty queue costs nothing. Among keys that are due, the highest priority is returned
    first, but one that has been due for a second comes before all: none starves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._due: dict[T, float] = {}
        self._order: list[tuple[float, int, T]] = []
        self._priorities: dict[T, int] = {}
        self._puts = 0
        self._stopped = False
        self._waited_seconds = 0.0
        self._waiting = 0
        self._waiting_since = 0.0  # the sum of when each began to wait

    def put(self, key: T, linger: float = 0.0) -> None:
        """Have `key` returned in `linger` seconds. Of a key that is in the queue already, the earlier time counts."""
        due = self._clock.now() + linger
        with self._changed:
            earlier = self._due.get(key)
            if earlier is None or due < earlier:
                self._puts += 1
                self._due[key] = due
                heapq.heappush(self._order, (due, self._puts, key))
                self._changed.notify()

    def has_due(self) -> bool:
        """Whether a key is due now."""
        with self._changed:
            wait = self._next_due()
            return wait is not None and wait <= 0

    def overdue(self, key: T) -> float | None:
        """For how many seconds `key` has been due; None when it is not in the queue, or lingers."""
        with self._changed:
            due = self._due.get(key)
            late = None if due is None else self._clock.now() - due
            return None if late is None or late < 0 else late

    def prefer(self, key: T, priority: int) -> None:
        """Return `key` before those with a lower priority; 0 without."""
        with self._changed:
            if priority:
                self._priorities[key] = priority
            else:
                self._priorities.pop(key, None)

    def forget(self, key: T) -> None:
        """Remove `key` from the queue."""
        with self._changed:
            self._due.pop(key, None)
            self._priorities.pop(key, None)

    def stop(self) -> None:
        """Wake all threads: from now on `get` returns None."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def get(self) -> T | None:
        """Wait until a key is due, and remove it from the queue. None: the queue was stopped."""
        with self._changed:
            while not self._stopped:
                wait = self._next_due()
                if wait is None:
                    self._sleep()
                elif wait > 0:
                    self._clock.wait(self._changed, wait)
                else:
                    key = self._first()
                    del self._due[key]
                    return key
            return None

    def waited_seconds(self) -> float:
        """How long threads waited for an empty queue, waits under way included; lingering is not."""
        with self._changed:
            under_way = self._waiting * self._clock.now() - self._waiting_since
            return self._waited_seconds + under_way

    def _first(self) -> T:
        """The key to return; one is due."""
        now = self._clock.now()
        if not self._priorities:
            return heapq.heappop(self._order)[2]
        oldest = self._order[0]
        if now - oldest[0] >= _STARVING_SECONDS:
            return heapq.heappop(self._order)[2]
        places = [
            place
            for place, (due, _, key) in enumerate(self._order)
            if due <= now and self._due.get(key) == due
        ]
        place = min(
            places, key=lambda each: (-self._priorities.get(self._order[each][2], 0), self._order[each][:2])
        )
        key = self._order[place][2]
        self._order[place] = self._order[-1]
        self._order.pop()
        heapq.heapify(self._order)
        return key

    def _next_due(self) -> float | None:
        while self._order:
            due, _, key = self._order[0]
            if self._due.get(key) == due:
                return due - self._clock.now()
            heapq.heappop(self._order)
        return None

    def _sleep(self) -> None:
        since = self._clock.now()
        self._waiting += 1
        self._waiting_since += since
        try:
            self._clock.wait(self._changed)
        finally:
            self._waiting -= 1
            self._waiting_since -= since
            self._waited_seconds += self._clock.now() - since
