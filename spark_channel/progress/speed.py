"""Speed over a sliding window, and the samples of it that a report keeps."""

from collections import deque
from dataclasses import dataclass

__all__ = ["Sample", "SlidingRates", "SpeedSamples"]


class SlidingRates:
    """The mean growth per second of several totals over the last `seconds`.

    Not thread-safe. The start counts as zeros, so that a young window is not too fast.
    """

    def __init__(self, start: float, seconds: float, width: int) -> None:
        self._seconds = seconds
        self._points: deque[tuple[float, tuple[float, ...]]] = deque([(start, (0.0,) * width)])

    def add(self, now: float, *totals: float) -> None:
        """The totals at `now`. Points closer than a 50th of the window are one."""
        if len(self._points) > 1 and now - self._points[-2][0] < self._seconds / 50:
            self._points.pop()
        self._points.append((now, totals))
        self._trim(now)

    def rates(self, now: float) -> tuple[float, ...]:
        """Growth per second up to `now`, 0 or more; falls to 0 when nothing is added for a window."""
        self._trim(now)
        start, first = self._points[0]
        begin = now - self._seconds
        if start < begin:
            if len(self._points) > 1:
                after, following = self._points[1]
                share = (begin - start) / (after - start)
                first = tuple(a + (b - a) * share for a, b in zip(first, following, strict=True))
            start = begin
        elapsed = now - start
        if elapsed <= 0:
            return (0.0,) * len(first)
        last = self._points[-1][1]
        return tuple(max(0.0, (b - a) / elapsed) for a, b in zip(first, last, strict=True))

    def _trim(self, now: float) -> None:
        while len(self._points) > 1 and self._points[1][0] <= now - self._seconds:
            self._points.popleft()


@dataclass(frozen=True, slots=True)
class Sample:
    """The mean speed, rows and bytes per second, in the time that ends `seconds` after the start."""

    seconds: float
    rows_per_second: float
    bytes_per_second: float


class SpeedSamples:
    """Speed over the whole job in at most `most` samples: when they run out, pairs are merged.

    Not thread-safe.
    """

    def __init__(self, start: float, every: float = 0.5, most: int = 1200) -> None:
        self._start = start
        self._every = every
        self._most = most
        self._totals: list[tuple[float, int, int]] = [(0.0, 0, 0)]

    def add(self, now: float, rows: int, nbytes: int) -> None:
        """The totals at `now`, rows and bytes since the start."""
        seconds = now - self._start
        totals = self._totals
        if len(totals) > 1 and seconds - totals[-2][0] < self._every:
            totals.pop()
        totals.append((seconds, rows, nbytes))
        if len(totals) > self._most:
            self._every *= 2
            self._totals = [totals[0], *totals[2::2]]
            if len(totals) % 2 == 0:
                self._totals.append(totals[-1])

    def samples(self) -> tuple[Sample, ...]:
        found = []
        before, rows_before, bytes_before = self._totals[0]
        for seconds, rows, nbytes in self._totals[1:]:
            if (elapsed := seconds - before) <= 0:
                continue
            found.append(
                Sample(
                    round(seconds, 3),
                    round(max(0, rows - rows_before) / elapsed, 3),
                    round(max(0, nbytes - bytes_before) / elapsed, 3),
                )
            )
            before, rows_before, bytes_before = seconds, rows, nbytes
        return tuple(found)
