"""`TransferReport`: what a job did, to keep, compare and plot."""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from spark_channel.progress import plain
from spark_channel.progress.speed import Sample

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["TransferReport"]

_MOST_STEPS = 600


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a job did. Plain data, with a plot of its speed against the limit.

    `rows` and `bytes` (Arrow bytes) arrived, each task counted once; `rows_moved` and `bytes_moved` hold
    every attempt: they are what the two ends felt, and what `samples` and the achieved speed are made of.
    `seconds` is the whole run, of which `publish_seconds` went into the commit. `waits`: seconds by
    reason, "side:reason", summed over all tasks' pushing threads. `retries` are attempts beyond one per
    task, speculative ones included. `phase` is "done" or "failed", then with `error`. `where` says where
    the rows are, `rerun` how to run it again. `started_at` is ISO 8601 in UTC.
    """

    job: str
    kind: str
    phase: str
    started_at: str
    seconds: float
    rows: int
    bytes: int
    rows_moved: int
    bytes_moved: int
    source: str = ""
    target: str = ""
    where: str = ""
    commit: str = ""
    publish_seconds: float = 0.0
    dirty_rows: int = 0
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    rows_per_second_limit: int | None = None
    bytes_per_second_limit: int | None = None
    limit_scope: str = ""
    waits: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    error: str = ""
    rerun: str = ""

    @property
    def moving_seconds(self) -> float:
        """From the start to the last row: what the achieved speed is measured over."""
        return (self.samples[-1].seconds if self.samples else 0.0) or self.seconds

    @property
    def rows_per_second(self) -> float:
        """Achieved, over `moving_seconds`; 0.0 for a job that moved nothing."""
        return self.rows_moved / self.moving_seconds if self.moving_seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Achieved, over `moving_seconds`; 0.0 for a job that moved nothing."""
        return self.bytes_moved / self.moving_seconds if self.moving_seconds > 0 else 0.0

    @property
    def waits_by_side(self) -> dict[str, float]:
        """Seconds waited for the limit, the source and the target, over all tasks."""
        sides: dict[str, float] = {}
        for reason, spent in self.waits.items():
            side = reason.partition(":")[0]
            sides[side] = sides.get(side, 0.0) + spent
        return sides

    def to_json(self) -> str:
        """One JSON object, for a file or a log."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not such a text.
        """
        data = dict(
            plain.refuse_unknown(json.loads(text), frozenset(f.name for f in fields(cls)), "a report")
        )
        try:
            data["samples"] = tuple(Sample(**each) for each in data.get("samples", ()))
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"not a report: {error}") from None

    def to_pandas(self) -> "pd.DataFrame":
        """The samples: columns `seconds`, `rows_per_second`, `bytes_per_second`."""
        import pandas as pd

        columns = [each.name for each in fields(Sample)]
        return pd.DataFrame([asdict(each) for each in self.samples], columns=columns)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the speed against the limit, in rows, or in bytes when only those are limited."""
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(8, 3))
        by_bytes = self.rows_per_second_limit is None and self.bytes_per_second_limit is not None
        unit = "MB" if by_bytes else "rows"
        scale = 1e6 if by_bytes else 1.0
        edges, speeds = self._by_the_second(by_bytes)
        if speeds:
            ax.stairs([speed / scale for speed in speeds], edges, baseline=0.0, label="speed", linewidth=1.5)
        limit = self.bytes_per_second_limit if by_bytes else self.rows_per_second_limit
        if limit is not None:
            ax.axhline(limit / scale, color="tab:red", linestyle="--", linewidth=1, label="limit")
        ax.set_xlabel("seconds")
        ax.set_ylabel(f"{unit} per second")
        ax.set_ylim(bottom=0)
        if speeds or limit is not None:
            ax.legend(loc="lower right")
        return ax

    def _by_the_second(self, by_bytes: bool) -> tuple[list[float], list[float]]:
        """Edges and mean speeds of whole seconds (longer ones in a long run), the last one perhaps shorter.

        Tasks report at their own times, so what stands between two samples is too uneven to show.
        """
        if not self.samples:
            return [], []
        ends, totals = [0.0], [0.0]
        for each in self.samples:
            speed = each.bytes_per_second if by_bytes else each.rows_per_second
            totals.append(totals[-1] + speed * (each.seconds - ends[-1]))
            ends.append(each.seconds)
        width = max(1.0, math.ceil(ends[-1] / _MOST_STEPS))
        edges = [number * width for number in range(math.ceil(ends[-1] / width))]
        if len(edges) > 1 and ends[-1] - edges[-1] < width / 2:
            edges.pop()  # a sliver at the end would show a speed of its own
        edges.append(ends[-1])
        reached = [_interpolate(edge, ends, totals) for edge in edges]
        growth = zip(pairwise(reached), pairwise(edges), strict=True)
        speeds = [(b - a) / (end - start) for (a, b), (start, end) in growth]
        return edges, speeds

    def __str__(self) -> str:
        from spark_channel.progress.render import summary_lines

        return "\n".join(summary_lines(self))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython shows as plain text."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from html import escape

        from spark_channel.progress.render import summary_lines

        first, *rest = (escape(line) for line in summary_lines(self))
        return f"<div><strong>{first}</strong>" + "".join(f"<br>{line}" for line in rest) + "</div>"


def _interpolate(at: float, xs: list[float], ys: list[float]) -> float:
    """The value at `at` on the line through points with growing `xs`, which begin at 0."""
    right = min(bisect_left(xs, at), len(xs) - 1)
    if right == 0 or xs[right] == xs[right - 1]:
        return ys[right]
    share = (at - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
