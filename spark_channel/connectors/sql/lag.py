"""The lag of a replica in seconds, from positions in the log. Pure; clocks of two hosts are never compared."""

from collections import deque

__all__ = ["Lag"]

_MOST = 20_000
"""Positions that are kept: more than an hour of four a second. What is older is that old at least."""


class Lag:
    """Remembers when the log was how long."""

    def __init__(self) -> None:
        self._written: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def seconds(self, now: float, written: float, replayed: float) -> float:
        """The log is `written` long now, and the replica has `replayed` so much of it."""
        if not self._written or written > self._written[-1][1]:
            self._written.append((now, written))
        while self._written and self._written[0][1] <= replayed:
            self._written.popleft()
        return now - self._written[0][0] if self._written else 0.0
