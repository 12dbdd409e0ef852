"""What became of each job of a command, and of all of them: for people, and as the JSON that schedulers read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from spark_channel.cli.codes import DONE, FAILED
from spark_channel.progress import TransferReport

__all__ = ["JobOutcome", "RunOutcome"]

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
            "started_at": self.started_at.isoformat(timespec="milliseconds"),
            "ended_at": self.ended_at.isoformat(timespec="milliseconds"),
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
        """Rows that the readers gave: those written, refused, and dropped by transformers."""
        return sum(each.rows + each.rows_dirty + sum(each.rows_dropped.values()) for each in self.reports)

    @property
    def rows_written(self) -> int:
        return sum(each.rows for each in self.reports)

    @property
    def rows_refused(self) -> int:
        return sum(each.rows_dirty for each in self.reports)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.reports)

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
            "transfers": [json.loads(each.to_json()) for each in self.reports],
        }


@dataclass
class RunOutcome(_Counted):
    """All jobs of one command. `ended`: the code of the signal that ended it."""

    jobs: list[JobOutcome] = field(default_factory=list)
    ended: int | None = None

    @property
    def rows_read(self) -> int:
        return sum(each.rows_read for each in self.jobs)

    @property
    def rows_written(self) -> int:
        return sum(each.rows_written for each in self.jobs)

    @property
    def rows_refused(self) -> int:
        return sum(each.rows_refused for each in self.jobs)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.jobs)

    @property
    def code(self) -> int:
        """0 when all are done; the code of those that are not, or 1 where these differ."""
        if self.ended is not None:
            return self.ended
        codes = {each.code for each in self.jobs if each.code != DONE}
        return codes.pop() if len(codes) == 1 else FAILED if codes else DONE

    def to_plain(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "exit_code": self.code,
            "jobs_done": sum(each.state == "done" for each in self.jobs),
            "jobs_failed": sum(each.state != "done" for each in self.jobs),
            **self.figures(),
            "jobs": [each.to_plain() for each in self.jobs],
        }
