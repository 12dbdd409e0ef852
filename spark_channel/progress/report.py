"""`TransferReport`: the results of a job, which users can store, compare and plot."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict

from spark_channel.errors import UnsupportedError
from spark_channel.progress.counters import PHASES, TaskTrace, added, as_frame
from spark_channel.progress.speed import LimitChange, Sample
from spark_channel.progress.summary import summary_lines
from spark_channel.serialization import Strict, from_plain, to_plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "TransferReport",
    "begin_cell",
    "claim",
    "combined_report",
]


_WHERE_ANY = ("targets", "traces", "rows_dropped", "held", "aim", "behind", "lag")
"""Fields that are kept where they hold something: other programs read reports that have none."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """The results of a job. Plain data, with a plot of its speed against the limit.

    Attributes:
        rows: rows that arrived; each task counts once.
        bytes: Arrow bytes that arrived; each task counts once.
        rows_moved: rows of all attempts, as source and target saw them; `samples` and the achieved speed use them.
        bytes_moved: Arrow bytes of all attempts.
        seconds: the whole run; `publish_seconds` of it is the commit.
        phase: "done", "failed" (see `error`), or "ended": a read of which Spark needed no more rows.
        waits: seconds by reason, "side:reason", summed over the pushing threads of all tasks.
        changes: the limits in force, each from its `seconds` on; empty if the limit never changed.
        retries: attempts beyond one per task, including speculative ones.
        where: where the rows are; `rerun`: how to run the job again.
        dirty_rows_path: where the `rows_dirty` refused rows are kept.
        rows_dropped: rows that transformers dropped, by transformer.
        started_at: the start, ISO 8601 in UTC.
        targets: of a transfer to several targets, a report for each; `rows` and `bytes` are those of the target with
            the fewest.
        traces: the time of each task by phase, for at most 1 000 tasks.
        aim: what option `protect` aimed at, and what was seen of it; empty without that option.
        behind: of a stream's batch: how far it was behind its source when it was planned, what its source keeps for it,
            and how much of the existing rows was read beside the changes.
        lag: the same as numbers: `rows`, `bytes` and `seconds` behind, `wal_kept_bytes`, `base_rows_read`, `base_rows`,
            `base_chunks_read`, `base_chunks`, and `seconds_ago`, the measurement's age. Unknown numbers are missing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict

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
    rows_dirty: int = 0
    dirty_rows_path: str = ""
    tasks: int = 0
    attempts: int = 0
    retries: int = 0
    rows_per_second_limit: int | None = None
    bytes_per_second_limit: int | None = None
    limit_scope: str = ""
    waits: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    changes: tuple[LimitChange, ...] = ()
    error: str = ""
    rerun: str = ""
    targets: tuple["TransferReport", ...] = ()
    traces: tuple[TaskTrace, ...] = ()
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    aim: str = ""
    behind: str = ""
    lag: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def moving_seconds(self) -> float:
        """Seconds from the start of the first task to the last row: the base of the achieved speed."""
        first = self.samples[0] if len(self.samples) > 1 else None
        launching = 0.0 if first is None or first.rows_per_second else first.seconds
        return (self.last_row_seconds - launching) or self.seconds

    @property
    def last_row_seconds(self) -> float:
        """Seconds from the start to the last row."""
        moved = (each.seconds for each in reversed(self.samples) if each.moves)
        last = next(moved, self.samples[-1].seconds if self.samples else 0.0)
        return last or self.seconds

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
        """Seconds of waiting for the limit, the source and the target, over all tasks."""
        sides: dict[str, float] = {}
        for reason, spent in self.waits.items():
            side = reason.partition(":")[0]
            sides[side] = sides.get(side, 0.0) + spent
        return sides

    def to_json(self) -> str:
        """One JSON object, for a file or a log."""
        plain = to_plain(self)
        for each in (*plain["targets"], plain):
            for name in _WHERE_ANY:
                if not each[name]:
                    del each[name]
        return json.dumps(plain, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not such a text.
        """
        return from_plain(cls, text, "a report", text=True)

    def to_pandas(self) -> "pd.DataFrame":
        """The samples: a column for each field of `Sample`."""
        import pandas as pd

        columns = [each.name for each in fields(Sample)]
        return pd.DataFrame([asdict(each) for each in self.samples], columns=columns)

    def trace(self) -> "pd.DataFrame":
        """A row for each task: attempts, rows, bytes, and the seconds of each phase.

        Phases: `connect`, `first_row`, `read`, `wait`, `transform`, `write`, `publish`; reading and writing overlap.
        """
        return as_frame(self.traces)

    def dirty_rows(self, spark: Any) -> Any:
        """The rows that the target refused, as a DataFrame of the session `spark`.

        Columns: `job`, `task`, `target`, `reason`, `row` (JSON), `refused_at`.

        Raises:
            UnsupportedError: they were not kept, because `dirtyRowsPath` was not set.
        """
        if not self.dirty_rows_path:
            raise UnsupportedError("refused rows are kept when `dirtyRowsPath` says where")
        return spark.read.parquet(self.dirty_rows_path).where(f"job = '{self.job}'")

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the speed at source and target against the limit, with its changes and pauses.

        In rows, or in bytes when only those are limited. Needs matplotlib (extra `notebook`).
        """
        from spark_channel.progress.speed import draw

        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(8, 3))
        draw(self, ax)
        return ax

    def __str__(self) -> str:
        return "\n".join(line for each in self.targets or (self,) for line in summary_lines(each))

    def _ipython_display_(self) -> None:
        """Once in a cell, though the live display shows it and the cell's value may be it, too."""
        from IPython.display import display

        if claim(self.job):
            show: Any = display
            show({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """The plain text for IPython."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from html import escape

        from spark_channel.progress.speed import svg

        if self.targets:
            return "".join(each._repr_html_() for each in self.targets)
        first, *rest = (escape(line) for line in summary_lines(self))
        lines = "".join(f"<br>{line}" for line in rest)
        return f"<div><strong>{first}</strong>{lines}</div>{svg(self)}"


def combined_report(job: str, targets: Sequence[TransferReport]) -> TransferReport:
    """A report with `targets`; its own figures are of the target that got the fewest rows, of those that arrived.

    The source is read, and shared steps run, once: the first target's counters have them. So the phases of a task, and
    the rows that steps dropped, are the sums over all targets.
    """
    arrived = [each for each in targets if each.phase == "done"] or targets
    least = min(arrived, key=lambda each: each.rows)
    return replace(
        least,
        job=job,
        target=", ".join(each.target for each in targets),
        where=", ".join(each.where for each in arrived if each.where),
        rows_dirty=sum(each.rows_dirty for each in targets),
        seconds=max(each.seconds for each in targets),
        targets=tuple(targets),
        traces=tuple(_with_all(trace, targets) for trace in least.traces),
        rows_dropped=added(each.rows_dropped for each in targets),
    )


def _with_all(trace: TaskTrace, targets: Sequence[TransferReport]) -> TaskTrace:
    same = [each for target in targets for each in target.traces if each.task == trace.task]
    phases = {
        phase: round(sum(each.phases.get(phase, 0.0) for each in same), 3)
        for phase in PHASES
        if any(phase in each.phases for each in same)
    }
    return replace(trace, phases=phases, rows_dropped=added(each.rows_dropped for each in same))


_lock = threading.Lock()
_cells: list[set[str]] = []
"""The reports that the last cell has shown; empty without notebook cells: then each display shows them."""


def begin_cell() -> None:
    """Begin another cell, which shows each report once."""
    with _lock:
        _cells[:] = [set()]


def claim(job: str) -> bool:
    """Whether the report of `job` is still to be shown in this cell; from now on it is not."""
    with _lock:
        new = not _cells or job not in _cells[0]
        for shown in _cells:
            shown.add(job)
        return new
