"""The plot of a report: the speed of source and target against the limit."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from spark_channel.progress.speed import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spark_channel.progress.report import TransferReport

__all__ = ["by_the_second", "draw", "svg"]

_MOST_STEPS = 600


def draw(report: "TransferReport", ax: "Axes") -> None:
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
                [each / scale for each in speeds], edges, baseline=0.0, label=label, linewidth=width
            )
            drawn = True
    times, limits = _limits(report, by_bytes)
    if times:
        ax.step(
            times,
            [math.nan if each is None else each / scale for each in limits],
            where="post",
            color="tab:red",
            linestyle="--",
            linewidth=1,
            label="limit",
        )
        drawn = True
    for start, stop, why in _holds(report):
        ax.axvspan(start, stop, color="tab:gray", alpha=0.2, linewidth=0)
        ax.annotate(why, (start, 1), xycoords=("data", "axes fraction"), va="top", fontsize="small")
    ax.set_xlabel("seconds")
    ax.set_ylabel(f"{'MB' if by_bytes else 'rows'} per second")
    ax.set_ylim(bottom=0)
    if drawn:
        ax.legend(loc="lower right")


def svg(report: "TransferReport") -> str:
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
    for each in samples:
        totals.append(totals[-1] + getattr(each, field) * (each.seconds - ends[-1]))
        ends.append(each.seconds)
    width = max(1.0, math.ceil(ends[-1] / _MOST_STEPS))
    edges = [number * width for number in range(math.ceil(ends[-1] / width))]
    if len(edges) > 1 and ends[-1] - edges[-1] < width / 2:
        edges.pop()  # a sliver at the end would show a speed by itself
    edges.append(ends[-1])
    reached = [_interpolate(edge, ends, totals) for edge in edges]
    growth = zip(pairwise(reached), pairwise(edges), strict=True)
    speeds = [(b - a) / (end - start) for (a, b), (start, end) in growth]
    return edges, speeds


def _limits(report: "TransferReport", by_bytes: bool) -> tuple[list[float], list[float | None]]:
    """Times and the limit from each on; empty when there never was one."""
    last = report.bytes_per_second_limit if by_bytes else report.rows_per_second_limit
    steps = [
        (each.seconds, each.bytes_per_second if by_bytes else each.rows_per_second)
        for each in report.changes
    ]
    if not steps:
        steps = [(0.0, last)]
    if all(value is None for _, value in steps):
        return [], []
    steps.append((max(report.last_row_seconds, steps[-1][0]), steps[-1][1]))
    return [at for at, _ in steps], [value for _, value in steps]


def _holds(report: "TransferReport") -> list[tuple[float, float, str]]:
    """(from, to, why) of each pause."""
    ends = [*(each.seconds for each in report.changes[1:]), report.last_row_seconds]
    return [
        (each.seconds, max(each.seconds, end), each.note)
        for each, end in zip(report.changes, ends, strict=False)
        if each.note
    ]


def _interpolate(at: float, xs: list[float], ys: list[float]) -> float:
    """The value at `at` on the line through points with growing `xs`, which begin at 0."""
    right = min(bisect_left(xs, at), len(xs) - 1)
    if right == 0 or xs[right] == xs[right - 1]:
        return ys[right]
    share = (at - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
