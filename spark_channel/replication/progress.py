"""One progress for all tables of a run: a line every few seconds, and one for each table that ends."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.progress import JobProgress
from spark_channel.progress.report import short
from spark_channel.replication.report import TableOutcome

__all__ = ["TablesProgress"]

_log = logging.getLogger("spark_channel.progress")
_SECONDS = 10.0


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
        what = f"{outcome.rows} rows" if outcome.state == "done" else outcome.state
        place = f" -> {outcome.object}" if outcome.object else ""
        self._say(f"{number}/{tables} {outcome.stream}{place}: {what} in {outcome.seconds:.1f} s")

    def line(self) -> str:
        """The run at this moment; "" when no table is copied."""
        with self._wake:
            running = [each.status() for each in self._running.values()]
            ended, tables, rows = self._ended, self._tables, self._rows
        if not running:
            return ""
        speed = sum(each.rows_per_second for each in running)
        all_rows = rows + sum(each.rows for each in running)
        of = f" of {tables}" if tables else ""
        return f"{ended}{of} tables done, {len(running)} running: {short(all_rows)} rows, {short(speed)} rows/s"

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
