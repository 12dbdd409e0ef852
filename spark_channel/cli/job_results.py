"""The results of a command's jobs: as a table, as JSON, and as DataX's closing lines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import typer

from spark_channel.cli.exit_codes import DONE, FAILED
from spark_channel.cli.text import cell, print_table
from spark_channel.clock import utc_text
from spark_channel.progress import Phase, TransferReport
from spark_channel.progress.report import many

__all__ = ["JobOutcome", "RunOutcome", "closing_table", "print_summary"]


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
_COLORS = {"done": "green", "failed": "red", "not run": "yellow"}
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
