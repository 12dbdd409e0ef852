"""`TransferReport`: the results of a job, which users can store, compare and plot; and its summary in lines of text."""

import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict

from spark_channel.errors import UnsupportedError
from spark_channel.plain_text import one_line
from spark_channel.progress.counters import PHASES, Phase, TaskTrace, added, as_frame
from spark_channel.progress.speed import SIDES, LimitChange, Sample
from spark_channel.serialization import Strict, from_plain, to_plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "WORTH_WAITING",
    "TransferReport",
    "begin_cell",
    "claim",
    "clock_time",
    "combined_report",
    "duration",
    "grouped",
    "many",
    "over",
    "plain_end",
    "shares",
    "short",
    "summary_lines",
    "told_reasons",
    "waits_of",
]

_WHERE_ANY = (
    "targets",
    "traces",
    "rows_dropped",
    "held",
    "aim",
    "behind",
    "lag",
    "path",
    "left_out",
    "dirty_reasons",
    "renamed",
)
"""Fields that are kept where they hold something: other programs read reports that have none."""
_VERBS = {
    "read": "read",
    "write": "wrote",
    "throttle": "passed on",
    "stream": "streamed",
    "verify": "compared",
}
WORTH_WAITING = 0.02
"""The share of a job's time from which on a wait counts: a limit's first grant takes some milliseconds."""
_WORTH_A_LINE = 0.02
_TOLD_REASONS = 5
_LONGEST_REASON = 160
_ENOUGH_USED = 0.8
"""The share of a limit above which only a verbose summary says what was not used of it."""
_WORTH_NAMING = 0.01
"""Seconds."""
_SERVERS = {
    "clickhouse": "ClickHouse",
    "mongodb": "MongoDB",
    "mysql": "MySQL",
    "postgresql": "PostgreSQL",
}
_OF_SERVER = re.compile(r"(?:jdbc:)?[\w+.-]+://(?P<host>[^/?#@\s]+)/(?P<database>[^/?#\s]+)")


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
        waits: seconds by reason, "side:reason", summed over the pushing threads of all tasks; "start" is the wait for a
            share of a limit that then let the rows pass.
        changes: the limits in force, each from its `seconds` on; empty if the limit never changed.
        retries: attempts beyond one per task, including speculative ones.
        path: how the rows got from one system to another of its kind, and why not faster; empty where there is one way.
        where: where the rows are; `rerun`: how to run the job again.
        dirty_rows_path: where the `rows_dirty` refused rows are kept.
        dirty_reasons: how many were refused by each kind of reason, by the first of its kind; the most frequent first.
        rows_dropped: rows that transformers dropped, by transformer.
        started_at: the start, ISO 8601 in UTC.
        targets: of a transfer to several targets, a report for each; `rows` and `bytes` are those of the target with
            the fewest.
        traces: the time of each task by phase, for at most 1 000 tasks.
        aim: what option `protect` aimed at, and what was seen of it; empty without that option.
        behind: of a stream's batch: how far it was behind its source when it was planned, what its source keeps for it,
            and how much of the existing rows was read beside the changes.
        left_out: what the table that the job made lacks of its source's definition, and why.
        renamed: what of that table has another name than in its source, and which.
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
    path: str = ""
    left_out: tuple[str, ...] = ()
    dirty_reasons: Mapping[str, int] = field(default_factory=dict)
    renamed: tuple[str, ...] = ()

    @property
    def moving_seconds(self) -> float:
        """Seconds from the start of the first task to the last row: the base of the achieved speed."""
        first = self.samples[0] if len(self.samples) > 1 else None
        launching = 0.0 if first is None or first.rows_per_second else first.seconds
        return (self.last_row_seconds - launching) or self.seconds

    @property
    def last_row_seconds(self) -> float:
        """Seconds from the start to the last row."""
        moved = (sample.seconds for sample in reversed(self.samples) if sample.moves)
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
        for part in (*plain["targets"], plain):
            for name in _WHERE_ANY:
                if not part[name]:
                    del part[name]
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

        columns = [sample_field.name for sample_field in fields(Sample)]
        return pd.DataFrame([asdict(sample) for sample in self.samples], columns=columns)

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
        return "\n".join(
            line for report in self.targets or (self,) for line in summary_lines(report)
        )

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
            return "".join(target._repr_html_() for target in self.targets)
        first, *details = (escape(line) for line in summary_lines(self))
        lines = "".join(f"<br>{line}" for line in details)
        return f"<div><strong>{first}</strong>{lines}</div>{svg(self)}"


def combined_report(job: str, targets: Sequence[TransferReport]) -> TransferReport:
    """A report with `targets`; its own figures are of the target that got the fewest rows, of those that arrived.

    The source is read, and shared steps run, once: the first target's counters have them. So the phases of a task, and
    the rows that steps dropped, are the sums over all targets.
    """
    arrived = [target for target in targets if target.phase == "done"] or targets
    least = min(arrived, key=lambda target: target.rows)
    reasons = added(target.dirty_reasons for target in targets)
    return replace(
        least,
        job=job,
        target=", ".join(target.target for target in targets),
        where=", ".join(target.where for target in arrived if target.where),
        rows_dirty=sum(target.rows_dirty for target in targets),
        dirty_reasons=dict(sorted(reasons.items(), key=lambda reason: -reason[1])),
        seconds=max(target.seconds for target in targets),
        targets=tuple(targets),
        traces=tuple(_with_all(trace, targets) for trace in least.traces),
        rows_dropped=added(target.rows_dropped for target in targets),
    )


def _with_all(trace: TaskTrace, targets: Sequence[TransferReport]) -> TaskTrace:
    same = [
        target_trace
        for target in targets
        for target_trace in target.traces
        if target_trace.task == trace.task
    ]
    phases = {
        phase: round(sum(target_trace.phases.get(phase, 0.0) for target_trace in same), 3)
        for phase in PHASES
        if any(phase in target_trace.phases for target_trace in same)
    }
    return replace(
        trace, phases=phases, rows_dropped=added(target_trace.rows_dropped for target_trace in same)
    )


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
        for names_shown in _cells:
            names_shown.add(job)
        return new


def plain_end(text: str) -> str:
    """A source or target in plain words: `shop.crm.orders (PostgreSQL db:5432)`, `ap.db orders`, `/data/x.csv`.

    `text` is the connector's name and the place; anything else is returned as it is.
    """
    name, _, location = text.partition(" ")
    location, _, table = location.partition("#")
    if not location or " " in location or ";" in table:
        return text
    table = table if re.search(r'"[^"]*\W[^"]*"', table) else table.replace('"', "")
    server = _OF_SERVER.fullmatch(location)
    if server is not None and name in _SERVERS and table:
        return f"{server['database']}.{table} ({_SERVERS[name]} {server['host']})"
    if name in ("sqlite", "duckdb"):
        file = location.removeprefix("jdbc:").removeprefix(f"{name}:")
        return f"{file} {table}".rstrip()
    if table or "://" in location:
        return text
    return (
        location if location.startswith(name) or f".{name}" in location else f"{location} ({name})"
    )


def summary_lines(report: TransferReport, *, verbose: bool = True) -> list[str]:
    """Return the summary of a job in three to five lines; without `verbose` what a user acts on: its result.

    The work of tasks is in the report either way, and said where something went wrong.
    """
    verb = _VERBS.get(report.kind, "copied")
    seconds = duration(report.seconds)
    if report.phase == Phase.FAILED:
        reason = f": {report.error}" if report.error else ""
        moved = f"{grouped(report.rows_moved)} rows ({short(report.bytes_moved)}B) moved"
        lines = [f"failed after {moved} in {seconds}{reason}"]
        if report.commit == "task" and report.where and report.rows:
            lines.append(f"{grouped(report.rows)} rows are in {report.where} (commit=task)")
    else:
        size = many(report.rows, "row")
        if report.bytes or not report.rows:
            size += f" ({short(report.bytes)}B)"
        enough = "; Spark wanted no more, as with a LIMIT" if report.phase == Phase.ENDED else ""
        achieved = (
            f": {_achieved(report)}" if report.moving_seconds or not report.rows_moved else ""
        )
        lines = [f"{verb} {size} in {seconds}{achieved}{enough}"]
    if report.phase != Phase.FAILED and (report.where or report.publish_seconds):
        parts = [f"the rows are in {plain_end(report.where)}"] if report.where else []
        if report.publish_seconds and verbose:
            published = f"published in {duration(report.publish_seconds)}"
            parts.append(f"{published} (commit={report.commit or 'job'})")
        lines.append(", ".join(parts))
    details = []
    if verbose or report.retries:
        details.append(
            f"{many(report.tasks, 'task')}, {many(report.attempts, 'attempt')} ({report.retries} retried)"
        )
    waits = waits_of(report.waits_by_side, report.moving_seconds or report.seconds)
    if waits and verbose:
        details.append(waits)
    if verbose and not report.rows_dirty:
        details.append("dirty 0")
    if details:
        lines.append("; ".join(details))
    if report.rows_dirty:
        kept_in = f", kept in {report.dirty_rows_path}" if report.dirty_rows_path else ""
        reason = told_reasons(report.dirty_reasons, report.rows_dirty)
        be = "was" if report.rows_dirty == 1 else "were"
        lines.append(
            f"{many(report.rows_dirty, 'row')} {be} refused{kept_in}{f': {reason}' if reason else ''}"
        )
    if (unused := _unused(report)) and (verbose or _share(report) < _ENOUGH_USED):
        lines.append(unused)
    if report.retries and report.rows_moved > report.rows:
        lines.append(f"{grouped(report.rows_moved)} rows moved, retries and speculation included")
    if report.left_out:
        lines.append(f"the new table lacks {'; '.join(report.left_out)}")
    if report.renamed:
        lines.append(f"other names than in the source: {'; '.join(report.renamed)}")
    if report.path and verbose:
        lines.append(report.path)
    if report.aim and verbose:
        lines.append(report.aim)
    if report.held:
        slowed = ", ".join(
            f"{name} for {duration(seconds)}" for name, seconds in report.held.items()
        )
        lines.append(f"slowed down by the {slowed}")
    if report.behind:
        lines.append(f"at its end: {report.behind}")
    if report.rerun:
        lines.append(f"run it again: {report.rerun}")
    return [one_line(line) for line in lines]


def _achieved(report: TransferReport) -> str:
    texts = []
    rows = _in_force(report, "rows_per_second")
    nbytes = _in_force(report, "bytes_per_second")
    if rows != {None} or nbytes == {None}:
        texts.append(_ratio(report.rows_per_second, rows, " rows"))
    if nbytes != {None}:
        texts.append(_ratio(report.bytes_per_second, nbytes, "B"))
    return ", ".join(texts) + over(report.moving_seconds, report.seconds, report.rows_moved)


def _in_force(report: TransferReport, which: str) -> set[int | None]:
    """Return the limits that the job had; None = no limit."""
    changed = {getattr(change, which) for change in report.changes if not change.note}
    return changed or {getattr(report, f"{which}_limit")}


def _unused(report: TransferReport) -> str:
    """Return when the limit was not used, and what the tasks waited for; empty where it was, or where it changed."""
    moving = report.moving_seconds
    limit = report.rows_per_second_limit or report.bytes_per_second_limit
    if limit is None or report.changes or report.phase == Phase.FAILED or not report.rows_moved:
        return ""
    share = 1 - _share(report)
    if share < _WORTH_A_LINE or not report.samples:
        return ""
    begin, end = report.last_row_seconds - moving, report.last_row_seconds
    edge = min(1.0, moving / 2)
    by_rows = report.rows_per_second_limit is not None
    times = [
        _lost_seconds(report, limit, by_rows, *part)
        for part in ((begin, begin + edge), (end - edge, end), (begin + edge, end - edge))
    ]
    reason = _why_lost(report)
    names = ("of the first second", "of the last one", f"between{f' ({reason})' if reason else ''}")
    parts = [
        f"{duration(seconds)} {name}"
        for seconds, name in zip(times, names, strict=True)
        if seconds >= _WORTH_NAMING
    ]
    return f"{100 * share:.1f} % of the limit was not used: {', '.join(parts)}" if parts else ""


def _share(report: TransferReport) -> float:
    """The used part of the limit, of that in rows if there are two."""
    if report.rows_per_second_limit is not None:
        return report.rows_per_second / report.rows_per_second_limit
    return report.bytes_per_second / (report.bytes_per_second_limit or math.inf)


def _lost_seconds(
    report: "TransferReport", limit: float, by_rows: bool, begin: float, end: float
) -> float:
    """Seconds of the limit that were not used from `begin` to `end`."""
    lost = since = 0.0
    for sample in report.samples:
        speed = sample.rows_per_second if by_rows else sample.bytes_per_second
        lost += max(0.0, min(end, sample.seconds) - max(begin, since)) * (1 - speed / limit)
        since = sample.seconds
    return max(0.0, lost)


def _why_lost(report: TransferReport) -> str:
    """Return what the tasks waited for most, beside the limit; empty: nothing."""
    waited = report.waits_by_side
    seconds_by_cause = {
        f"waits for the {side}": waited.get(side, 0.0) for side in ("source", "target")
    }
    if report.kind == "verify":
        idle = _idle(report)  # between two looks it waits for no side
        seconds_by_cause["waits for the source"] = max(
            0.0, seconds_by_cause["waits for the source"] - idle
        )
        seconds_by_cause["pauses between looks"] = idle
    if report.limit_scope.startswith("shared limit"):
        seconds_by_cause["other jobs had it"] = report.waits.get("limit:turn", 0.0)
    reason = max(seconds_by_cause, key=lambda cause: seconds_by_cause[cause])
    return reason if seconds_by_cause[reason] >= _WORTH_NAMING else ""


def _idle(report: TransferReport) -> float:
    """Seconds of the samples in which no row moved."""
    idle = since = 0.0
    for sample in report.samples:
        idle += (sample.seconds - since) * (not sample.rows_per_second)
        since = sample.seconds
    return idle


def over(moving: float, seconds: float, rows: int) -> str:
    """The seconds that a speed is of, where the text beside it gives others."""
    if not rows or duration(moving) == duration(seconds):
        return ""
    return f" over the {duration(moving)} in which rows moved"


def _ratio(speed: float, limits: set[int | None], unit: str) -> str:
    now = f"{short(speed)}{unit}/s"
    limits_in_force = sorted(limit for limit in limits if limit is not None)
    if not limits_in_force:
        return now
    if len(limits) == 1:
        return f"{now} of {short(limits_in_force[0])}{unit}/s allowed ({100 * speed / limits_in_force[0]:.1f} %)"
    most = "no limit" if None in limits else f"{short(limits_in_force[-1])}{unit}/s"
    return f"{now}; the limit changed between {short(limits_in_force[0])}{unit}/s and {most}"


def short(value: float) -> str:
    """Three digits and a unit: 999, 99.8k, 12.4M, 3.05G. Whole numbers without a fraction."""
    if value < 999.5:
        return f"{value:.0f}" if value >= 99.95 or value == int(value) else f"{value:.1f}"
    for unit in ("k", "M", "G", "T", "P", "E"):
        value /= 1000
        if value < 999.5 or unit == "E":
            text = f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
            return f"{text}{unit}"
    raise AssertionError("the last unit takes all")


def waits_of(waited: Mapping[str, float], seconds: float) -> str:
    """The shares of what the tasks waited for; "" = it was too little of `seconds` to slow the job."""
    total = sum(waited.get(side, 0.0) for side in SIDES)
    if total <= WORTH_WAITING * seconds:
        return ""
    return "waits: " + shares({side: waited.get(side, 0.0) / total for side in SIDES})


def shares(shares: Mapping[str, float]) -> str:
    percents = _percents([shares.get(side, 0.0) for side in SIDES])
    return " ".join(f"{side} {percent} %" for side, percent in zip(SIDES, percents, strict=True))


def _percents(shares: list[float]) -> list[int]:
    """Whole percents that add up to 100: the largest remainders are rounded up."""
    floors = [math.floor(100 * share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda i: floors[i] - 100 * shares[i])
    for i in by_rest[: 100 - sum(floors)]:
        floors[i] += 1
    return floors


def grouped(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _cut(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def told_reasons(reasons: Mapping[str, int], rows: int) -> str:
    """Why `rows` were refused: the most frequent reasons, each with its number of rows."""
    first = list(reasons.items())[:_TOLD_REASONS]
    parts = [f"{_cut(reason)} ({many(count, 'row')})" for reason, count in first]
    others = rows - sum(count for _, count in first)
    if parts and others > 0:
        parts.append(f"other reasons ({many(others, 'row')})")
    return "; ".join(parts)


def many(count: int, noun: str) -> str:
    return f"{grouped(count)} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Three digits, as `short` has them: a reader who divides the rows by it finds the speed beside it."""
    if seconds >= 99.95:
        return clock_time(round(seconds))
    if seconds < 0.001:
        return "less than 1 ms"
    text = f"{round(seconds, 3):.3g}"
    return f"{text} s" if "." in text else f"{text}.0 s"


def clock_time(seconds: float) -> str:
    """`3:20`, or `1:03:20` from an hour on; more than 99 hours is `>99 h`."""
    whole = math.ceil(seconds)
    if whole >= 99 * 3600:
        return ">99 h"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
