"""The rate of a counter over the last minute. Pure."""

from collections import deque

__all__ = ["PerMinute"]

_SECONDS = 60.0


class PerMinute:
    """Of a counter that only grows, but for a restart of the server."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def count(self, now: float, counter: float) -> float:
        if self._seen and counter < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, counter))
        while self._seen[0][0] < now - _SECONDS:
            self._seen.popleft()
        return counter - self._seen[0][1]
