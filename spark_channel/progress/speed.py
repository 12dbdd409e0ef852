"""Speed over a sliding window, and the samples of it that a report keeps."""

import math
from collections import deque
from dataclasses import dataclass

__all__ = ["SIDES", "LimitChange", "Sample", "SlidingRates", "SpeedSamples"]

SIDES = ("limit", "source", "target")
"""The sides that a job may wait for."""

_TOTALS = 4
"""Rows and bytes, and rows and bytes written."""


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

    @property
    def moves(self) -> bool:
        """Whether anything was moved in it."""
        return any((self.rows_per_second, self.bytes_per_second, self.rows_written_per_second))


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The limit from `seconds` after the start on. `note` is why it holds the job ("paused"), if it does."""

    seconds: float
    rows_per_second: int | None
    bytes_per_second: int | None
    note: str = ""


class SpeedSamples:
    """Speed over the whole job in at most `most` samples: when they run out, pairs are merged.

    What a task reports is laid over the time in which it was moved, so that no sample is faster than the rows were.
    Not thread-safe.
    """

    def __init__(self, start: float, every: float = 0.5, most: int = 1200) -> None:
        self._start = start
        self._every = every
        self._most = most
        self._sums: list[list[float]] = []
        self._last = self._moved = 0.0
        self._launched: float | None = None

    def launched(self, at: float) -> None:
        """A task began then: the time before the first of them is a separate sample."""
        seconds = max(0.0, at - self._start)
        self._launched = seconds if self._launched is None else min(self._launched, seconds)

    def add(self, now: float, elapsed: float, *growth: float) -> None:
        """Rows and bytes, and those written, that were moved in the `elapsed` seconds before `now`."""
        end = now - self._start
        begin = max(0.0, end - elapsed, self._launched or 0.0) if elapsed > 0 else end
        self._last = max(self._last, end)
        if any(growth):
            self._moved = max(self._moved, end)
        while math.ceil(self._last / self._every) > self._most:
            self._merge()
        first, last = self._bucket(begin), self._bucket(end, closing=True)
        while len(self._sums) <= last:
            self._sums.append([0.0] * _TOTALS)
        for number in range(first, last + 1):
            lower, upper = number * self._every, (number + 1) * self._every
            share = (min(end, upper) - max(begin, lower)) / (end - begin) if end > begin else 1.0
            sums = self._sums[number]
            for place, value in enumerate(growth):
                sums[place] += share * value

    @property
    def every(self) -> float:
        """Seconds of one sample."""
        return self._every

    def samples(self, since: float = 0.0, *, over: bool = False) -> tuple[Sample, ...]:
        """All samples, or those that end after `since` seconds. `over`: the job's; one ends with its last row."""
        launched = self._launched or 0.0
        found = [Sample(round(launched, 3), 0.0, 0.0)] if 0 < launched < self._last else []
        skipped = min(int(since / self._every), len(self._sums))
        for number, sums in enumerate(self._sums[skipped:], skipped):
            begin = max(number * self._every, launched if found else 0.0)
            end = min((number + 1) * self._every, self._last)
            last = self._moved if over and begin < self._moved < end else end
            if end > begin:
                speeds = (round(max(0.0, each) / (last - begin), 3) for each in sums)
                found.append(Sample(round(last, 3), *speeds))
            if last < end:  # a task closes its attempt, and moves nothing
                found.append(Sample(round(end, 3), 0.0, 0.0))
        if not launched and len(found) > 1 and not found[0].rows_per_second:
            found.insert(
                0, Sample(0.0, 0.0, 0.0)
            )  # tasks ran from the start, and the source gave nothing yet
        return tuple(each for each in found if since <= 0 or each.seconds > since)

    def _bucket(self, seconds: float, *, closing: bool = False) -> int:
        """The sample that an instant lies in; one on an edge closes the sample before it."""
        number = seconds / self._every
        return max(0, math.ceil(number) - 1) if closing else int(number)

    def _merge(self) -> None:
        self._every *= 2
        pairs = zip(self._sums[::2], [*self._sums[1::2], [0.0] * _TOTALS], strict=False)
        self._sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
