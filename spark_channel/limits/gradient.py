"""How much slower something answers than it usually does. Pure."""

import math
from collections import deque
from collections.abc import Sequence

__all__ = ["Gradient"]

_WINDOW_SECONDS = 2.0
_LEAST_SAMPLES, _LEAST_TAIL = 8, 4
_TOWARDS_LESS = 0.2
"""How far the usual mean follows a lower one at a time: one quiet moment is not a new baseline."""
_SURE = 2.0
"""Standard errors by which a mean must be above its bound: delays are noisy."""


class Gradient:
    """Delays of the last two seconds against the usual ones: those when little was asked of the system.

    `tolerance` is how many times the usual mean is fine; `slack` seconds are fine in any case. `part`: the mean is that
    of the longest ones, such as a tenth. Applications suffer from these: a burst that holds a core for milliseconds a
    few times a second hardly moves the mean of all.
    """

    def __init__(self, tolerance: float, slack: float, part: float = 1.0) -> None:
        self._tolerance = tolerance
        self._slack = slack
        self._part = part
        self._recent: deque[tuple[float, float]] = deque()
        self.usual: float | None = None

    def add(self, delays: Sequence[float], now: float) -> None:
        self._recent.extend((now, delay) for delay in delays)
        while self._recent and self._recent[0][0] < now - _WINDOW_SECONDS:
            self._recent.popleft()
        mean = self.mean
        if mean is None:
            return
        if self.usual is None:
            self.usual = mean
        elif mean < self.usual:
            self.usual += _TOWARDS_LESS * (mean - self.usual)

    @property
    def mean(self) -> float | None:
        """Of the window's longest delays; None = too few were heard of."""
        longest = self._longest()
        return sum(longest) / len(longest) if longest else None

    def _longest(self) -> list[float]:
        if len(self._recent) < max(_LEAST_SAMPLES, _LEAST_TAIL / self._part):
            return []
        delays = sorted(delay for _, delay in self._recent)
        return delays[-math.ceil(self._part * len(delays)) :]

    @property
    def bound(self) -> float:
        """What the mean may be."""
        return (self.usual or 0.0) * self._tolerance + self._slack

    def is_over(self) -> bool:
        """Whether the mean is above its bound, and not by chance."""
        mean = self.mean
        if mean is None or self.usual is None:
            return False
        longest = self._longest()
        count = len(longest)
        spread = sum((delay - mean) ** 2 for delay in longest) / (count - 1)
        return mean > self.bound + _SURE * math.sqrt(spread / count)

    def forget(self) -> None:
        """The speed was changed: what was heard before says nothing of it."""
        self._recent.clear()

    def relearn(self) -> None:
        """What is seen now is usual: it is so without us."""
        mean = self.mean
        if mean is not None:
            self.usual = mean
