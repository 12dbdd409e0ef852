"""Speed over a sliding window, and the samples of it that a report keeps."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["LimitChange", "Sample", "SlidingRates", "SpeedSamples"]


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
    """The mean speed, rows and bytes per second, in the time that ends `seconds` after the start.

    What left the source, and what the target took (`written`, 0 on a read).
    """

    seconds: float
    rows_per_second: float
    bytes_per_second: float
    rows_written_per_second: float = 0.0
    bytes_written_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The limit from `seconds` after the start on. `note` is why it holds the job ("paused"), if it does."""

    seconds: float
    rows_per_second: int | None
    bytes_per_second: int | None
    note: str = ""


class SpeedSamples:
    """Speed over the whole job in at most `most` samples: when they run out, pairs are merged.

    Not thread-safe.
    """

    def __init__(self, start: float, every: float = 0.5, most: int = 1200) -> None:
        self._start = start
        self._every = every
        self._most = most
        self._points: list[tuple[float, tuple[int, int, int, int]]] = [(0.0, (0, 0, 0, 0))]
        self._launched: float | None = None

    def launched(self, at: float) -> None:
        """A task began then: the time before the first of them is a sample of its own."""
        seconds = at - self._start
        self._launched = seconds if self._launched is None else min(self._launched, seconds)

    def add(self, now: float, rows: int, nbytes: int, rows_written: int = 0, bytes_written: int = 0) -> None:
        """The totals at `now`, since the start."""
        seconds = now - self._start
        points = self._points
        if len(points) > 1 and points[-1][0] - points[-2][0] < self._every:
            points.pop()
        points.append((seconds, (rows, nbytes, rows_written, bytes_written)))
        if len(points) > self._most:
            self._every *= 2
            self._points = [points[0], *points[2::2]]
            if len(points) % 2 == 0:
                self._points.append(points[-1])

    def samples(self) -> tuple[Sample, ...]:
        found = []
        points = self._points
        if len(points) > 1 and self._launched is not None and 0 < self._launched < points[1][0]:
            points = [points[0], (self._launched, points[0][1]), *points[1:]]
        for (before, totals_before), (seconds, totals) in pairwise(points):
            if (elapsed := seconds - before) > 0:
                growth = zip(totals_before, totals, strict=True)
                found.append(
                    Sample(round(seconds, 3), *(round(max(0, b - a) / elapsed, 3) for a, b in growth))
                )
        return tuple(found)
