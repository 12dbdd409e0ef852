"""The progress of a replication's tables while they run, and what became of each."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_text
from spark_channel.plain_text import log_of
from spark_channel.progress import JobProgress, TransferReport
from spark_channel.progress.report import clock_time, many, short

__all__ = ["PARKED", "ReplicationReport", "State", "TableOutcome", "TablesProgress"]

PARKED = 3
"""The exit code of a run in which a table was parked."""

State = Literal["done", "unchanged", "parked", "not run"]
_log = log_of("spark_channel.progress")
_SECONDS = 10.0


@dataclass
class TableOutcome:
    """One table. `unchanged`: it has no new rows. `parked`: it failed, and `why` says what to do."""

    stream: str
    object: str
    mode: str
    state: State = "not run"
    rows: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    why: str = ""
    error_type: str = ""
    position: int | None = None
    report: TransferReport | None = None

    def add_why(self, reason: str) -> None:
        """Say this, too."""
        self.why = f"{self.why}; {reason}" if self.why else reason

    def to_plain(self) -> dict[str, Any]:
        """JSON's types; `transfer` is the whole report of the copy."""
        return {
            "stream": self.stream,
            "object": self.object,
            "mode": self.mode,
            "state": self.state,
            "rows": self.rows,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 3),
            "why": self.why,
            "error_type": self.error_type,
            "position": self.position,
            "transfer": None if self.report is None else json.loads(self.report.to_json()),
        }


@dataclass
class ReplicationReport:
    """All tables of one run, in the order in which they were begun. `notes`: what the file says in vain.

    `windows`: the limits that held, with the time from which each did. `failed`: the error that ended the run, which is
    of no table, and its exit code.
    """

    run_id: str
    started_at: datetime
    seconds: float = 0.0
    tables: list[TableOutcome] = field(default_factory=list)
    notes: Sequence[str] = ()
    windows: Sequence[tuple[datetime, str, str]] = ()
    failed: tuple[BaseException, int] | None = None

    @property
    def rows(self) -> int:
        """Rows that were written to all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def parked(self) -> list[TableOutcome]:
        """The tables that failed."""
        return [table for table in self.tables if table.state == "parked"]

    @property
    def exit_code(self) -> int:
        """0, or 3 when a table was parked; that of the error that ended the run."""
        if self.failed is not None:
            return self.failed[1]
        return PARKED if any(table.state in ("parked", "not run") for table in self.tables) else 0

    def to_json(self) -> str:
        """The report as JSON text."""
        error = None if self.failed is None else self.failed[0]
        return json.dumps(
            {
                "version": 1,
                "run_id": self.run_id,
                "started_at": utc_text(self.started_at, "milliseconds"),
                "seconds": round(self.seconds, 3),
                "exit_code": self.exit_code,
                "error": "" if error is None else str(error) or type(error).__name__,
                "error_type": "" if error is None else type(error).__name__,
                "rows": self.rows,
                "bytes": sum(table.nbytes for table in self.tables),
                "notes": list(self.notes),
                "windows": [
                    {"at": utc_text(at), "window": window, "limit": limit}
                    for at, window, limit in self.windows
                ],
                "tables": [table.to_plain() for table in self.tables],
            },
            ensure_ascii=False,
            indent=1,
        )

    def __str__(self) -> str:
        states = dict.fromkeys(("done", "unchanged", "parked", "not run"), 0)
        for table in self.tables:
            states[table.state] += 1
        counts = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        return (
            f"{many(len(self.tables), 'table')}: {counts or 'none'}; {many(self.rows, 'row')} in "
            f"{self.seconds:.1f} s"
        )


class TablesProgress:
    """A `JobListener` that adds up what the tables' jobs count. In a `with` block, a separate thread logs the sums."""

    def __init__(
        self, say: Callable[[str], object] = _log.info, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._say, self._clock = say, clock
        self._wake = threading.Condition()
        self._running: dict[str, JobProgress] = {}
        self._ended = 0
        self._tables = 0
        self._rows = 0
        self._rows_expected: int | None = None
        self._began = clock.now()
        self._over = False
        self._thread: threading.Thread | None = None

    def job_opened(self, progress: JobProgress) -> None:
        with self._wake:
            self._running[progress.job] = progress

    def job_closed(self, progress: JobProgress) -> None:
        with self._wake:
            self._running.pop(progress.job, None)

    def table_ended(self, outcome: TableOutcome, number: int, tables: int) -> None:
        """For `RunSettings.ended`."""
        with self._wake:
            self._ended, self._tables = max(self._ended, number), tables
            self._rows += outcome.rows
        amount = f"{outcome.rows} rows" if outcome.state == "done" else outcome.state
        target = f" -> {outcome.object}" if outcome.object else ""
        self._say(
            f"{number}/{tables} {outcome.stream}{target}: {amount} in {outcome.seconds:.1f} s"
        )

    def table_compared(self, rows: int) -> None:
        """Count a table that `verify` has compared; its rows are those of both sides."""
        with self._wake:
            self._ended += 1
            self._rows += rows

    def planned(self, tables: int, rows: int | None) -> None:
        """For `RunSettings.planned`."""
        with self._wake:
            self._tables, self._rows_expected, self._began = tables, rows, self._clock.now()

    def following(self, tables: int) -> None:
        """For `RunSettings.following`."""
        self._say(f"following {many(tables, 'table')}; Ctrl-C stops, the next run continues")

    def line(self) -> str:
        """The run at this moment; "" when no table is copied."""
        with self._wake:
            running = [progress.status() for progress in self._running.values()]
            ended, tables, rows = self._ended, self._tables, self._rows
            expected, seconds = self._rows_expected, self._clock.now() - self._began
        if not running:
            return ""
        speed = sum(status.rows_per_second for status in running)
        all_rows = rows + sum(status.rows for status in running)
        of = f" of {tables}" if tables else ""
        of_rows = f" of about {short(expected)}" if expected and expected >= all_rows else ""
        eta = ""
        if of_rows and all_rows and seconds > 0:
            eta = f", ETA {clock_time((expected or 0) / all_rows * seconds - seconds)}"
        tables_done = f"{ended}{of} tables" if tables else many(ended, "table")
        still = not any(status.moves_rows for status in running)
        pace = running[0].note if still else f"{short(speed)} rows/s{eta}"
        return (
            f"{tables_done} done, {len(running)} running: {short(all_rows)} rows{of_rows}, {pace}"
        )

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="spark-channel-tables", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._wake:
            self._over = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._over:
                    self._clock.wait(self._wake, _SECONDS)
                if self._over:
                    return
            if line := self.line():
                self._say(line)
