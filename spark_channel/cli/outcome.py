"""The results of a command's jobs as tables and JSON, and the exit codes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

from spark_channel.cli.text import cell, print_table, say
from spark_channel.clock import utc_text
from spark_channel.errors import (
    BatchRefusedError,
    ChannelError,
    DirtyRowsError,
)
from spark_channel.final_errors import is_of_rights
from spark_channel.progress import Phase, TransferReport
from spark_channel.progress.report import many
from spark_channel.progress.speed import svg
from spark_channel.signals import TERMINATED

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "JobOutcome",
    "RunOutcome",
    "closing_table",
    "exit_code",
    "print_summary",
    "show_report",
]


DONE, FAILED, BAD_INPUT, REFUSED_ROWS = 0, 1, 2, 3
INTERRUPTED = 130
"""Typer's exit code for Ctrl-C."""


def exit_code(error: BaseException) -> int:
    """1 failed, 2 bad input, 3 more rows were refused than allowed, 130 interrupted, 143 ended by SIGTERM."""
    if isinstance(error, (DirtyRowsError, BatchRefusedError)):
        return REFUSED_ROWS
    causes = list(_causes(error))
    # A commit that fails says what the target contains, and why it failed.
    if any(isinstance(cause, ChannelError) and cause.is_of_input for cause in causes[:2]):
        return BAD_INPUT
    if any(map(is_of_rights, causes)):
        return BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    return FAILED


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


_VERSION = 1


@dataclass
class _Counted:
    """Figures over one duration: the rates are the amounts divided by exactly `seconds`."""

    started_at: datetime
    seconds: float

    @property
    def ended_at(self) -> datetime:
        return self.started_at + timedelta(seconds=self.seconds)

    @property
    def rows_read(self) -> int:
        raise NotImplementedError

    @property
    def rows_written(self) -> int:
        raise NotImplementedError

    @property
    def rows_refused(self) -> int:
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        raise NotImplementedError

    @property
    def rows_per_second(self) -> float:
        return self.rows_written / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def figures(self) -> dict[str, Any]:
        return {
            "started_at": utc_text(self.started_at, "milliseconds"),
            "ended_at": utc_text(self.ended_at, "milliseconds"),
            "seconds": round(self.seconds, 3),
            "rows_read": self.rows_read,
            "rows_written": self.rows_written,
            "rows_refused": self.rows_refused,
            "bytes": self.bytes,
            "rows_per_second": round(self.rows_per_second, 1),
            "bytes_per_second": round(self.bytes_per_second, 1),
        }


@dataclass
class JobOutcome(_Counted):
    """One job file. `reports`: one for each content that ran; `state` is "done", "failed" or "not run"."""

    file: str
    name: str
    state: str = "done"
    code: int = DONE
    error: str = ""
    error_type: str = ""
    warnings: Sequence[str] = ()
    reports: Sequence[TransferReport] = ()

    @property
    def rows_read(self) -> int:
        """Rows that the readers gave: those written, refused, and dropped by transformers.

        Of a job that failed, those that moved, though the target may have none of them.
        """
        return sum(
            max(
                report.rows + report.rows_dirty + sum(report.rows_dropped.values()),
                report.rows_moved if report.phase == Phase.FAILED else 0,
            )
            for report in self.reports
        )

    @property
    def rows_written(self) -> int:
        return sum(report.rows for report in self.reports)

    @property
    def rows_refused(self) -> int:
        return sum(report.rows_dirty for report in self.reports)

    @property
    def bytes(self) -> int:
        return sum(report.bytes for report in self.reports)

    def to_plain(self) -> dict[str, Any]:
        import json

        return {
            "file": self.file,
            "job": self.name,
            "state": self.state,
            "exit_code": self.code,
            "error": self.error,
            "error_type": self.error_type,
            **self.figures(),
            "warnings": list(self.warnings),
            "transfers": [json.loads(report.to_json()) for report in self.reports],
        }


@dataclass
class RunOutcome(_Counted):
    """All jobs of one command. `ended`: the code of the signal that ended it."""

    jobs: list[JobOutcome] = field(default_factory=list)
    ended: int | None = None

    @property
    def rows_read(self) -> int:
        return sum(job.rows_read for job in self.jobs)

    @property
    def rows_written(self) -> int:
        return sum(job.rows_written for job in self.jobs)

    @property
    def rows_refused(self) -> int:
        return sum(job.rows_refused for job in self.jobs)

    @property
    def bytes(self) -> int:
        return sum(job.bytes for job in self.jobs)

    @property
    def code(self) -> int:
        """0 when all are done; the code of those that are not, or 1 where these differ."""
        if self.ended is not None:
            return self.ended
        codes = {job.code for job in self.jobs if job.code != DONE}
        return codes.pop() if len(codes) == 1 else FAILED if codes else DONE

    def to_plain(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "exit_code": self.code,
            "jobs_done": sum(job.state == "done" for job in self.jobs),
            "jobs_failed": sum(job.state != "done" for job in self.jobs),
            **self.figures(),
            "jobs": [job.to_plain() for job in self.jobs],
        }


_DATAX = (
    "任务启动时刻",
    "任务结束时刻",
    "任务总计耗时",
    "任务平均流量",
    "记录写入速度",
    "读出记录总数",
    "读写失败总数",
)
_UNITS = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def closing_table(run: RunOutcome) -> str:
    """Seven lines, as DataX prints them. Times are local ones, bytes are Arrow bytes."""
    values = (
        f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{run.ended_at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{run.seconds:.0f}s",
        f"{_bytes(int(run.bytes_per_second))}/s",
        f"{int(run.rows_per_second)}rec/s",
        f"{run.rows_read}",
        f"{run.rows_refused}",
    )
    lines = [
        f"{label:<26}: {value:<18}" if number < 2 else f"{label:<26}: {value:>19}"
        for number, (label, value) in enumerate(zip(_DATAX, values, strict=True))
    ]
    return "\n".join(lines)


def _bytes(number: int) -> str:
    """As DataX writes a number of bytes."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.2f}{name}"
    return f"{number}B"


_BAD_INPUT = 2
_T = TypeVar("_T")


def show_report(file: Path, picture: Path | None) -> None:
    """Print what `file` says of each job or table; draw its last transfer into `picture` (SVG) when one is named."""
    try:
        entries = list(_entries(file.read_text(encoding="utf-8")))
    except OSError as error:
        _refuse(f"{file} cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(f"{file} holds no report of copy, run, replicate or a transfer: {error}")
    for line in (line for text, _ in entries for line in text.split("\n")):
        say(line)
    if picture is None:
        return
    reports = [report for _, report in entries if report is not None]
    drawn = svg(reports[-1]) if reports else ""
    if not drawn:
        _refuse(
            "no picture can be drawn: no row was moved, or matplotlib is missing (extra `notebook`)"
        )
    picture.write_text(drawn, encoding="utf-8")
    say(f"the picture is in {picture}")


def _entries(text: str) -> Iterator[tuple[str, TransferReport | None]]:
    """The lines of each job or table in what `TransferReport.to_json` or `--report` wrote, and its transfer, if any.

    Raises:
        ValueError: it holds none.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or not ("jobs" in document or "tables" in document):
        report = TransferReport.from_json(text)
        yield str(report), report
        return
    jobs, tables = (
        _field(document, name, list) if name in document else [] for name in ("jobs", "tables")
    )
    if not jobs and not tables:
        raise ValueError("it names no job and no table")
    for job in jobs:
        reports = [_transfer(transfer) for transfer in _field(job, "transfers", list)]
        file, state = _field(job, "file", str), _field(job, "state", str)
        if len(jobs) > 1:
            yield f"{file}: {state}", None
        yield from ((str(report), report) for report in reports)
        if state != "done" and not any(report.phase == Phase.FAILED for report in reports):
            code, error = _field(job, "exit_code", int), _field(job, "error", str)
            yield f"{file}: {state}, exit code {code}: {error}", None
    for table in tables:
        if isinstance(table, dict) and "stream" not in table and "outcome" in table:
            raise ValueError("it is of verify, which prints its own")
        stream, state, reason = (_field(table, name, str) for name in ("stream", "state", "why"))
        rows = many(_field(table, "rows", int), "row")
        yield f"{stream}: {state}, {rows}{f': {reason}' if reason else ''}", None
        if table.get("transfer"):
            report = _transfer(table["transfer"])
            yield str(report), report


def _field(plain: object, name: str, kind: type[_T]) -> _T:
    value = plain.get(name) if isinstance(plain, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"field {name!r} is missing, or of another kind than {kind.__name__}")
    return value


def _transfer(plain: object) -> TransferReport:
    return TransferReport.from_json(json.dumps(plain))


def _refuse(reason: str) -> NoReturn:
    say(f"spark-channel: {reason}", error=True)
    raise typer.Exit(_BAD_INPUT)


_COLORS = {"done": "green", "failed": "red", "not run": "yellow"}


def print_summary(run: RunOutcome) -> None:
    from rich.table import Table

    table = Table()
    for name in ("job", "state", "rows", "refused", "seconds", "why"):
        is_number = name in ("rows", "refused", "seconds")
        table.add_column(name, justify="right" if is_number else "left")
    for job in run.jobs:
        table.add_row(
            cell(job.file),
            f"[{_COLORS[job.state]}]{job.state}[/]",
            str(job.rows_written),
            str(job.rows_refused),
            f"{job.seconds:.1f}",
            cell(job.error),
        )
    print_table(table)
    jobs_done = sum(job.state == "done" for job in run.jobs)
    typer.echo(f"{jobs_done} of {many(len(run.jobs), 'job')} done")
