"""Speed over a sliding window, and the samples of it that a report keeps and plots."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "SIDES",
    "Drawable",
    "LimitChange",
    "Sample",
    "SlidingRates",
    "SpeedSamples",
    "by_the_second",
    "draw",
    "svg",
]

SIDES = ("limit", "source", "target")
"""The sides that a job may wait for."""

_TOTALS = 4
"""Rows and bytes, and rows and bytes written."""
_MOST_STEPS = 600


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
            for index, value in enumerate(growth):
                sums[index] += share * value

    @property
    def every(self) -> float:
        """Seconds of one sample."""
        return self._every

    def samples(self, since: float = 0.0, *, over: bool = False) -> tuple[Sample, ...]:
        """All samples, or those that end after `since` seconds. `over`: the job's; one ends with its last row."""
        launched = self._launched or 0.0
        samples = [Sample(round(launched, 3), 0.0, 0.0)] if 0 < launched < self._last else []
        skipped = min(int(since / self._every), len(self._sums))
        for number, sums in enumerate(self._sums[skipped:], skipped):
            begin = max(number * self._every, launched if samples else 0.0)
            end = min((number + 1) * self._every, self._last)
            last = self._moved if over and begin < self._moved < end else end
            if end > begin:
                speeds = (round(max(0.0, total) / (last - begin), 3) for total in sums)
                samples.append(Sample(round(last, 3), *speeds))
            if last < end:  # a task closes its attempt, and moves nothing
                samples.append(Sample(round(end, 3), 0.0, 0.0))
        if not launched and len(samples) > 1 and not samples[0].rows_per_second:
            # Tasks ran from the start, and the source gave nothing yet.
            samples.insert(0, Sample(0.0, 0.0, 0.0))
        return tuple(sample for sample in samples if since <= 0 or sample.seconds > since)

    def _bucket(self, seconds: float, *, closing: bool = False) -> int:
        """The sample that an instant lies in; one on an edge closes the sample before it."""
        number = seconds / self._every
        return max(0, math.ceil(number) - 1) if closing else int(number)

    def _merge(self) -> None:
        self._every *= 2
        pairs = zip(self._sums[::2], [*self._sums[1::2], [0.0] * _TOTALS], strict=False)
        self._sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]


class Drawable(Protocol):
    """What a picture is made of; `TransferReport` is one."""

    @property
    def rows_per_second_limit(self) -> float | None: ...
    @property
    def bytes_per_second_limit(self) -> float | None: ...
    @property
    def last_row_seconds(self) -> float: ...
    @property
    def samples(self) -> Sequence[Sample]: ...
    @property
    def changes(self) -> Sequence[LimitChange]: ...


def draw(report: Drawable, ax: "Axes") -> None:
    """Draw `report` on `ax`, in rows, or in bytes when only those are limited."""
    by_bytes = report.rows_per_second_limit is None and report.bytes_per_second_limit is not None
    scale = 1e6 if by_bytes else 1.0
    drawn = False
    for label, field, width in (("source", "", 1.8), ("target", "written_", 1.0)):
        edges, speeds = by_the_second(
            report.samples, f"{'bytes' if by_bytes else 'rows'}_{field}per_second"
        )
        if any(speeds) or (label == "source" and speeds):
            ax.stairs(
                [speed / scale for speed in speeds],
                edges,
                baseline=0.0,
                label=label,
                linewidth=width,
            )
            drawn = True
    times, limits = _limits(report, by_bytes)
    if times:
        ax.step(
            times,
            [math.nan if limit is None else limit / scale for limit in limits],
            where="post",
            color="tab:red",
            linestyle="--",
            linewidth=1,
            label="limit",
        )
        drawn = True
    for start, stop, note in _holds(report):
        ax.axvspan(start, stop, color="tab:gray", alpha=0.2, linewidth=0)
        ax.annotate(
            note, (start, 1), xycoords=("data", "axes fraction"), va="top", fontsize="small"
        )
    ax.set_xlabel("seconds")
    ax.set_ylabel(f"{'MB' if by_bytes else 'rows'} per second")
    ax.set_ylim(bottom=0)
    if drawn:
        ax.legend(loc="lower right")


def svg(report: Drawable) -> str:
    """The picture as an SVG element; empty where matplotlib is missing or nothing was moved."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    if not report.samples:
        return ""
    from io import StringIO

    figure = Figure(figsize=(8, 3), layout="constrained")
    draw(report, figure.subplots())
    text = StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def by_the_second(samples: Sequence[Sample], field: str) -> tuple[list[float], list[float]]:
    """Edges and mean speeds of whole seconds (longer ones in a long run), the last one perhaps shorter.

    Tasks report at their own times, so single samples are too uneven to show.
    """
    if not samples:
        return [], []
    ends, totals = [0.0], [0.0]
    for sample in samples:
        totals.append(totals[-1] + getattr(sample, field) * (sample.seconds - ends[-1]))
        ends.append(sample.seconds)
    width = max(1.0, math.ceil(ends[-1] / _MOST_STEPS))
    edges = [number * width for number in range(math.ceil(ends[-1] / width))]
    if len(edges) > 1 and ends[-1] - edges[-1] < width / 2:
        edges.pop()  # a sliver at the end would show a speed by itself
    edges.append(ends[-1])
    reached = [_interpolate(edge, ends, totals) for edge in edges]
    growth = zip(pairwise(reached), pairwise(edges), strict=True)
    speeds = [(b - a) / (end - start) for (a, b), (start, end) in growth]
    return edges, speeds


def _limits(report: Drawable, by_bytes: bool) -> tuple[list[float], list[float | None]]:
    """Times and the limit from each on; empty when there never was one."""
    last = report.bytes_per_second_limit if by_bytes else report.rows_per_second_limit
    steps: list[tuple[float, float | None]] = [
        (change.seconds, change.bytes_per_second if by_bytes else change.rows_per_second)
        for change in report.changes
    ]
    if not steps:
        steps = [(0.0, last)]
    if all(value is None for _, value in steps):
        return [], []
    steps.append((max(report.last_row_seconds, steps[-1][0]), steps[-1][1]))
    return [at for at, _ in steps], [value for _, value in steps]


def _holds(report: Drawable) -> list[tuple[float, float, str]]:
    """(from, to, why) of each pause."""
    ends = [*(change.seconds for change in report.changes[1:]), report.last_row_seconds]
    return [
        (change.seconds, max(change.seconds, end), change.note)
        for change, end in zip(report.changes, ends, strict=False)
        if change.note
    ]


def _interpolate(at: float, xs: list[float], ys: list[float]) -> float:
    """The value at `at` on the line through points with growing `xs`, which begin at 0."""
    right = min(bisect_left(xs, at), len(xs) - 1)
    if right == 0 or xs[right] == xs[right - 1]:
        return ys[right]
    share = (at - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
