"""Progress lines and streams' log lines as plain text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spark_channel.plain_text import one_line
from spark_channel.progress.counters import Phase
from spark_channel.progress.job import JobProgress, JobStatus
from spark_channel.progress.report import (
    TransferReport,
    clock_time,
    duration,
    grouped,
    many,
    over,
    plain_end,
    shares,
    short,
    waits_of,
)
from spark_channel.progress.spec import JobSpec
from spark_channel.progress.speed import SIDES

__all__ = [
    "StreamLog",
    "before_lines",
    "is_batch",
    "lag_text",
    "progress_line",
]


_COMMITS = {
    "job": "commit=job: all rows or none, visible in one step",
    "task": "commit=task: each task's rows once, as they come",
}

_AT_LEAST_ONCE = {
    "job": "commit=job: at least once, hidden until the end, then file by file",
    "task": "commit=task: at least once, a retried task can add its rows twice",
}
_SILENT_SECONDS = 60.0
"""A stream whose last batch ended this long ago is not shown until its next one."""
_MOST_STREAMS = 1000


def progress_line(status: JobStatus) -> str:
    """A job in one line.

    `37 % 12.4M rows 99.8k/s of 100k/s - waits: limit 71 % source 3 % target 26 % - dirty 0 - ETA 3:20`.
    Without a known total the line has neither percentage nor ETA; without a limit, no "of".
    """
    head = []
    if status.phase is not Phase.RUNNING:
        head.append(str(status.phase))
    speed = f" {_speed(status)}" if status.moves_rows else ""
    amount = f"{short(status.rows)} rows{speed}"
    all_read = (
        status.phase is Phase.RUNNING and status.spec.kind == "read" and status.percent == 100.0
    )
    if all_read:  # what takes the rows may be far behind
        amount = f"all read, {amount}"
    elif status.percent is not None and status.phase in (Phase.RUNNING, Phase.FAILED):
        amount = f"{math.floor(status.percent)} % {amount}"
    parts = [*head, amount]
    if status.wait_shares:
        parts.append("waits: " + shares(status.wait_shares))
    if status.note:
        parts.append(status.note)
    if status.dirty_rows:
        parts.append(f"dirty {short(status.dirty_rows)}")
    if status.eta_seconds is not None and status.phase is Phase.RUNNING and not all_read:
        parts.append(f"ETA {clock_time(status.eta_seconds)}")
    return one_line(" - ".join(parts))


def before_lines(job: str, spec: JobSpec, *, verbose: bool = True) -> list[str]:
    """Three lines before a job: source and target; splits and commit mode; the limit and its scope.

    Without `verbose` the limit and the commit mode share a line, and how the rows are split is not said.
    """
    without = "the program" if spec.kind == "stream" and spec.batch is None else "Spark"
    ends = " -> ".join(plain_end(end.strip()) or without for end in (spec.source, spec.target))
    cut = []
    if spec.channels is not None:
        cut.append(many(spec.channels, "channel"))
    splits = spec.tasks if spec.splits is None else spec.splits
    if splits is not None:
        cut.append(("over " if cut else "") + many(splits, "split"))
    plan = [" ".join(cut)] if cut else []
    if spec.rows_expected is not None:
        plan.append(f"about {short(spec.rows_expected)} rows")
    elif spec.bytes_expected is not None:
        plan.append(f"about {short(spec.bytes_expected)}B")
    if spec.commit:
        promises = _AT_LEAST_ONCE if spec.at_least_once else _COMMITS
        plan.append(promises.get(spec.commit, f"commit={spec.commit}"))
    limit = _limit(*spec.speeds)
    name = (
        f"stream {spec.name}".rstrip()
        if spec.batch is not None
        else f"{spec.kind} {spec.name or job}"
    )
    limited = _protected(_limit_line(limit, spec.limit_scope), spec)
    lines = [f"{name}: {ends}", ", ".join(plan) or "size unknown before it runs", limited]
    if not verbose:
        lines = [lines[0], ", ".join([limited, *(plan[1:] if cut else plan)])]
    return [one_line(line) for line in lines]


def batch_line(reports: Sequence[TransferReport], spec: JobSpec, batches: int, rows: int) -> str:
    """A stream's last micro-batch in one line, and what came in all: `rows` in `batches`.

    `batch 12: 4 980 rows (1.2MB) in 1.1 s, 4.53k/s of 5k/s - waits: limit 90 % source 6 % target 4 % -
    behind 12.4k rows (398kB), 3 s - 59 760 rows in 13 batches`, after the stream's name. `reports` are of the jobs
    of the batch: several, where each range of a tunnel is published by itself.
    """
    seconds = max(report.seconds for report in reports)
    moving = max(report.moving_seconds for report in reports)
    size = f"{grouped(sum(report.rows for report in reports))} rows ({short(sum(report.bytes for report in reports))}B)"
    speeds = []
    if spec.rows_per_second is not None or spec.bytes_per_second is None:
        moved = sum(report.rows_moved for report in reports)
        speeds.append(_against(moved / moving if moving > 0 else 0.0, spec.rows_per_second, ""))
    if spec.bytes_per_second is not None:
        moved = sum(report.bytes_moved for report in reports)
        speeds.append(_against(moved / moving if moving > 0 else 0.0, spec.bytes_per_second, "B"))
    stretch = over(moving, seconds, sum(report.rows_moved for report in reports))
    parts = [f"batch {spec.batch}: {size} in {duration(seconds)}, {' '.join(speeds)}{stretch}"]
    waits = {side: sum(report.waits_by_side.get(side, 0.0) for report in reports) for side in SIDES}
    if waited := waits_of(waits, moving):
        parts.append(waited)
    errors = [report.error for report in reports if report.phase == Phase.FAILED]
    if errors:
        parts.append(f"failed: {errors[0]}" if errors[0] else "failed")
    if spec.behind:
        parts.append(spec.behind)
    parts.append(
        f"{grouped(rows)} rows in {grouped(batches)} batch" + ("" if batches == 1 else "es")
    )
    name = spec.name or spec.source or spec.target
    return one_line(" - ".join([name, *parts] if name else parts))


def lag_text(rows: int | None, nbytes: int | None, seconds: float | None) -> str:
    """The lag of a reader: `behind 12.4k rows (398kB), 3 s`; empty if it is unknown."""
    if rows == 0 and not nbytes:
        return "up to date"
    amount = "" if rows is None else f"{short(rows)} rows"
    if nbytes:
        amount = f"{amount} ({short(nbytes)}B)" if amount else f"{short(nbytes)}B"
    age = "" if not seconds else f"{seconds:.0f} s" if seconds < 100 else clock_time(seconds)
    lag = ", ".join(part for part in (amount, age) if part)
    return f"behind {lag}" if lag else ""


def _speed(status: JobStatus) -> str:
    spec = status.spec
    texts = []
    if spec.rows_per_second is not None or spec.bytes_per_second is None:
        texts.append(_against(status.rows_per_second, spec.rows_per_second, ""))
    if spec.bytes_per_second is not None:
        texts.append(_against(status.bytes_per_second, spec.bytes_per_second, "B"))
    return " ".join(texts)


def _against(speed: float, limit: int | None, unit: str) -> str:
    now = f"{short(speed)}{unit}/s"
    return now if limit is None else f"{now} of {short(limit)}{unit}/s"


def _limit(rows: int | None, nbytes: int | None) -> str:
    texts = []
    if rows is not None:
        texts.append(f"{short(rows)} rows/s")
    if nbytes is not None:
        texts.append(f"{short(nbytes)}B/s")
    return " and ".join(texts)


def _limit_line(limit: str, scope: str) -> str:
    """A limit kept elsewhere that did not answer has no figure."""
    if limit:
        return f"limit {limit} for {scope}"
    return "no limit" if scope.endswith("the whole job") else f"limit: {scope}"


def _protected(line: str, spec: JobSpec) -> str:
    """Return `line` with the other limits of the speed."""
    watched = [
        f"others' p99 at most {most:g} times the usual"
        if name == "p99" and spec.protect
        else f"{name} at most {most:g}"
        for name, most in sorted(spec.pressure.items())
    ]
    if spec.protect:
        watched.insert(0, "as the health of source and target allows")
    return "; ".join([line, *watched])


_Key = tuple[str, str, str, str]


def is_batch(progress: JobProgress) -> bool:
    """Whether the job is (a part of) a stream's micro-batch."""
    return progress.spec.batch is not None


@dataclass(slots=True)
class _Stream:
    spec: JobSpec
    seen: float
    reports: dict[str, TransferReport] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    said_at: float | None = None
    unsaid: bool = False
    shown: bool = True

    def line(self) -> str:
        return batch_line(list(self.reports.values()), self.spec, self.batches, self.rows)


class StreamLog:
    """Joins the jobs of a stream's batches by what they are of, and says what to print of them, and when.

    Times are seconds of one clock, the caller's. Used by one thread.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        self._verbose = verbose
        self._streams: dict[_Key, _Stream] = {}

    def opened(self, progress: JobProgress, now: float) -> list[str]:
        """Open a batch. Returns the lines before its stream, if it is the first one."""
        stream = self._streams.get(_key(progress.spec))
        if stream is not None:
            stream.seen = now
            return []
        while len(self._streams) >= _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]
        self._streams[_key(progress.spec)] = _Stream(progress.spec, now)
        return before_lines(progress.job, progress.spec, verbose=self._verbose)

    def closed(self, progress: JobProgress, now: float) -> None:
        """Close a batch, or a part of one."""
        stream = self._streams.setdefault(_key(progress.spec), _Stream(progress.spec, now))
        report = progress.report()
        if not stream.reports or stream.spec.batch != progress.spec.batch:
            stream.reports = {}
            stream.batches += 1
        before = stream.reports.get(report.job)  # one that was closed too early comes again
        stream.rows += report.rows - (0 if before is None else before.rows)
        stream.reports[report.job] = report
        stream.spec = progress.status().spec
        stream.seen, stream.unsaid, stream.shown = now, True, True

    def has_ended_one(self, progress: JobProgress) -> bool:
        """Whether a batch of this job's stream has ended before."""
        stream = self._streams.get(_key(progress.spec))
        return stream is not None and bool(stream.reports)

    def last(self) -> list[str]:
        """The last batch of each stream that is shown."""
        return [stream.line() for stream in self._shown() if stream.reports]

    def due(self, now: float, every: float) -> list[str]:
        """The lines for a log: of the first batch of a stream, then of one per `every` seconds."""
        return [
            _said(stream, now)
            for stream in self._shown()
            if stream.unsaid and (stream.said_at is None or now - stream.said_at >= every)
        ]

    def silent(self, now: float, *, all_of_them: bool = False) -> list[str]:
        """Remove the streams without news. Returns the last lines that they had not shown."""
        lines = []
        for stream in self._shown():
            if all_of_them or now - stream.seen >= _SILENT_SECONDS:
                stream.shown = False
                if stream.unsaid:
                    lines.append(_said(stream, now))
        return lines

    def is_empty(self) -> bool:
        """Whether no stream is shown."""
        return not any(self._shown())

    def _shown(self) -> Iterator[_Stream]:
        return (stream for stream in self._streams.values() if stream.shown)


def _said(stream: _Stream, now: float) -> str:
    stream.said_at, stream.unsaid = now, False
    return stream.line()


def _key(spec: JobSpec) -> _Key:
    return spec.kind, spec.name, spec.source, spec.target
