"""Runs a replication: tables side by side, under one limit, each published in one step."""

import contextlib
import math
import os
import queue
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.connectors.base.session_pool import keeping_sessions, sessions
from spark_channel.errors import (
    ChannelError,
    JobCancelledError,
    LimitError,
    OptionError,
)
from spark_channel.plain_text import log_of
from spark_channel.planning import TransferSpec
from spark_channel.replication.builds import build_left
from spark_channel.replication.changes import Follower
from spark_channel.replication.config import Replication
from spark_channel.replication.foreign_keys import ForeignKeys
from spark_channel.replication.groups import (
    JoinedMove,
    copy_group,
    divided,
    first_increments,
    groups_of,
    looked_up,
)
from spark_channel.replication.reasons import park
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.table_run import (
    Move,
    RunSettings,
    TableRun,
    tables_at_once,
    why_of,
)
from spark_channel.replication.tables import (
    FoundTables,
    TableCopy,
    find_tables,
    options_but_names,
)
from spark_channel.service.shared_limit import MOST_JOBS
from spark_channel.service.windows import (
    Speeds,
    WindowKeeper,
    windowed_limit,
    zone_of,
)

__all__ = ["Move", "RunSettings", "TableRun", "limited", "replicate_on"]

_log = log_of(__name__)

_Planned = tuple[int, TableRun, TransferSpec | None]
"""A table that was looked at: its place, and its transfer; None = there is nothing to copy."""
_DEFAULTS = RunSettings()
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries of a table whose source or target is away."""
_LONG_TRIES = 3
"""A table has so many. A long one may have copied rows, or may have waited for answers that never came."""


@keeping_sessions()
def replicate_on(
    replication: Replication,
    move: Move,
    cancel: Callable[[], None],
    settings: RunSettings = _DEFAULTS,
    clock: Clock = SYSTEM_CLOCK,
) -> ReplicationReport:
    """Copy the tables with the engine behind `move`, and wait for all. A table that fails is parked.

    `cancel` ends all transfers, from any thread: it is called when this thread is interrupted.

    Raises:
        ChannelError: the source or the target cannot be opened, or the file and `select` match no table.
    """
    found_tables = find_tables(replication, settings.select)
    for note in found_tables.notes:
        _log.warning(note)
    found_tables.check_some("copied", settings.select)
    at_once = tables_at_once(replication.parallel, found_tables.copies)
    replication = replication.model_copy(update={"parallel": at_once})
    run = _Run(replication, found_tables, move, settings, clock)
    if settings.begun is not None:
        settings.begun(run.report)
    run.check_together()
    with limited(replication, settings) as (limit_options, keeper):
        try:
            keys = ForeignKeys(found_tables.copies)
            keys.drop()
            run.carry_out(limit_options, cancel)
            outcomes = {outcome.stream: outcome for outcome in run.report.tables}
            build_left(found_tables.copies, outcomes, replication.limit)
            keys.add(outcomes)
            if run.followed:
                run.follow(settings, limit_options)
        finally:
            run.report.seconds = clock.now() - run.began
            if keeper is not None:
                run.report.windows = [
                    (at, text, str(speeds)) for at, text, speeds in keeper.changes
                ]
    return run.report


@contextlib.contextmanager
def limited(
    replication: Replication, settings: RunSettings
) -> Iterator[tuple[dict[str, Any], WindowKeeper | None]]:
    """The options that make one limit hold for all tables, and what changes it by the time."""
    limit = replication.limit
    otherwise = Speeds(limit.rows_per_second, limit.bytes_per_second)
    windows = limit.parsed
    if settings.shared_limit is not None:
        if windows or otherwise != Speeds():
            raise OptionError(
                "option '--shared-limit' names a limit that is served elsewhere, and the file has a limit: remove "
                "one of them",
                option="--shared-limit",
            )
        yield {"sharedLimit": settings.shared_limit}, None
        return
    if not windows and otherwise == Speeds():
        yield {}, None
        return
    zone = zone_of(limit.timezone)
    name = f"replicate-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    # A job that has ended may count for a moment, beside those that run.
    most = max(MOST_JOBS, 2 * replication.parallel)
    with windowed_limit(name, otherwise, windows, zone, max_jobs=most) as (shared, keeper):
        yield {"sharedLimit": shared.name}, keeper


def _rows_of(copies: Collection[TableCopy]) -> int | None:
    """About how many rows a run of these tables has; None = a run of some has fewer than their catalog says."""
    rows = [
        copy.table.rows if copy.table is not None else None for copy in copies if not copy.fault
    ]
    counted = [count for count in rows if count is not None]
    is_known = len(counted) == len(rows) and all(copy.mode == "full" for copy in copies)
    return sum(counted) if is_known else None


class _Run:
    """The tables as they go. The first error that is not a table's, such as Ctrl-C, ends all of them."""

    def __init__(
        self,
        replication: Replication,
        found_tables: FoundTables,
        move: Move,
        settings: RunSettings,
        clock: Clock,
    ) -> None:
        self._replication = replication
        self._copies = found_tables.copies
        self.followed = [
            index for index, copy in enumerate(self._copies) if copy.mode == "full_then_changes"
        ]
        self._move = move
        self._settings = settings
        self._clock = clock
        self.began = clock.now()
        self._at = utc_now()
        self._lock = threading.Lock()
        self._ended = 0
        self._cancelled = False
        self._by_options: dict[str, TableRun] = {}
        """One of the tables whose options are the same, but for their names."""
        self._has_target = False
        """Whether the target has answered for a table, so its url is right."""
        self._stopped = threading.Event()
        run_id = f"{self._at:%Y%m%dT%H%M%S}.{self._at.microsecond:06d}Z"
        self.report = ReplicationReport(run_id, self._at, notes=found_tables.notes)
        self.report.tables = [
            TableOutcome(copy.stream, copy.object, copy.mode) for copy in self._copies
        ]

    def carry_out(self, limit_options: Mapping[str, Any], cancel: Callable[[], None]) -> None:
        batch = {
            index: copy for index, copy in enumerate(self._copies) if index not in self.followed
        }
        if self._settings.planned is not None:
            self._settings.planned(len(batch), _rows_of(batch.values()))
        join: JoinedMove | None = getattr(self._move, "together", None)
        units = (
            groups_of(self._replication.parallel, batch) if join else [[index] for index in batch]
        )
        joining = first_increments(batch) if join else set()
        alone_units = [unit for unit in units if unit[0] not in joining]
        units = alone_units + divided(self._replication.parallel, sorted(joining), batch)
        pending: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for unit in units:
            pending.put(unit)
        late: queue.SimpleQueue[_Planned] = queue.SimpleQueue()
        late_small: list[_Planned] = []
        looking: list[list[int]] = []
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def next_one() -> None:
            unit = next_unit()
            if unit is None:
                end_late()  # all tables have been looked at
                return
            if unit[0] in joining:
                look(unit)
                return
            copied = (
                self._group(unit, join, limit_options)
                if join is not None and len(unit) > 1
                else set()
            )
            for index in unit:
                if index not in copied and not self._cancelled:
                    alone(index)

        def next_unit() -> list[int] | None:
            with self._lock:
                try:
                    unit = pending.get_nowait()
                except queue.Empty:
                    return None
                if unit[0] in joining:
                    looking.append(unit)
                return unit

        def look(unit: list[int]) -> None:
            """Look at increments together: each is copied now, or late as one that waits, or in a group."""
            planned: list[_Planned] = []

            def one(index: int) -> bool:
                run = self._table_run(index)

                def spec_of() -> bool:
                    spec = run.spec()
                    self._has_target = True
                    is_late = spec is not None and (run.waits or run.is_first)
                    (late_small if is_late else planned).append((index, run, spec))
                    return False

                return self._patiently(run, spec_of)

            try:
                with looked_up([self._copies[index] for index in unit]):
                    for index in unit:
                        if not self._cancelled:
                            self._one(index, lambda index=index: one(index))  # type: ignore[misc]
            finally:
                with self._lock:
                    looking.remove(unit)
            for index, run, spec in planned:
                if not self._cancelled:
                    self._one(index, lambda run=run, spec=spec: end(run, [spec]))  # type: ignore[misc]

        def end_late() -> None:
            """Copy a table that was looked at; after these, the small ones in groups, once all are looked at.

            Raises:
                queue.Empty: there is nothing that this thread could do.
            """
            try:
                planned = [late.get_nowait()]
            except queue.Empty:
                with self._lock:
                    if looking or not late_small:
                        raise
                    planned = late_small.copy()
                    late_small.clear()
            runs = {index: run for index, run, _ in planned}
            copied: set[int] = set()
            if join is not None:
                small = [index for index in runs if index in joining and runs[index].is_first]
                for unit in divided(self._replication.parallel, small, batch):
                    if len(unit) > 1 and not self._cancelled:
                        copied |= {*self._group(unit, join, limit_options, runs)}
            for index, run, spec in planned:
                if index not in copied and not self._cancelled:
                    self._one(index, lambda run=run, spec=spec: end(run, [spec]))  # type: ignore[misc]

        def end(run: TableRun, planned: list[TransferSpec | None]) -> bool:
            def copy() -> bool:
                spec = planned.pop() if planned else run.spec()
                return run.copy(spec, self._move, limit_options)

            return self._patiently(run, copy)

        def alone(index: int) -> None:
            def begin() -> bool:
                run = self._table_run(index)

                def copy() -> bool:
                    with sessions.one_table():
                        spec = run.spec()
                    self._has_target = True
                    if spec is not None and run.waits:
                        late.put((index, run, spec))
                        return False
                    return run.copy(spec, self._move, limit_options)

                return self._patiently(run, copy)

            self._one(index, begin)

        def work() -> None:
            failed: BaseException | None = None
            try:
                while not self._cancelled:
                    next_one()
            except queue.Empty:
                pass
            except BaseException as error:
                failed = error
            finally:
                ended.put(failed)

        most = min(self._replication.parallel, len(units))
        threads = [
            threading.Thread(target=work, name=f"spark-channel-table-{number}", daemon=True)
            for number in range(most)
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                failed = ended.get()  # not `join`, which no signal interrupts
                if failed is not None:
                    raise failed
        except BaseException:
            self._cancelled = True
            self._stopped.set()
            cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise

    def _table_run(self, index: int) -> TableRun:
        copy, outcome = self._copies[index], self.report.tables[index]
        alike = options_but_names(copy)
        like = self._by_options.get(alike)
        run = TableRun(copy, outcome, self._settings, self.report, self, like)
        if alike:
            self._by_options.setdefault(alike, run)
        return run

    def _group(
        self,
        unit: Sequence[int],
        join: JoinedMove,
        limit_options: Mapping[str, Any],
        planned: Mapping[int, TableRun] | None = None,
    ) -> Collection[int]:
        """Copy small tables together; returns the places of those that were copied. `planned`: their increments."""
        began = self._clock.now()
        try:
            if planned is None:
                runs = {index: self._table_run(index) for index in unit}
            else:
                runs = {index: planned[index] for index in unit}
                for run in runs.values():
                    run.wait()
            copied = copy_group(runs, join, limit_options, f"replicate {self.report.run_id}")
        except Exception as error:
            _log.info("%d small tables are copied one by one: %s", len(unit), error)
            return ()
        seconds = (self._clock.now() - began) / len(unit)
        for index in copied:
            self._has_target = True
            self.report.tables[index].seconds += seconds
            self._ended_one(self.report.tables[index])
        return copied

    def _patiently(
        self, run: "TableRun", step: Callable[[], bool], most_long: float = _LONG_TRIES
    ) -> bool:
        """Return what `step` does; again, with growing pauses, while an end that was there before cannot be reached.

        Each try is a separate run for the table: it asks for the position, and claims the write again.
        """
        pause, most = _FIRST_PAUSE, run.retry_seconds
        since: float | None = None
        long_tries = 0
        while True:
            began = self._clock.now()
            try:
                return step()
            except ChannelError as error:
                now = self._clock.now()
                long_tries += now - began > most
                if since is None or (now - began > most and long_tries <= most_long):
                    since, pause = now, _FIRST_PAUSE
                if now + pause > since + most or not run.passes(error, has_target=self._has_target):
                    raise
                _log.warning("a table is tried again in %.1f s: %s", pause, why_of(error))
            self.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def check_together(self) -> None:
        """Check that `select` takes all tables that the tunnel follows: it has one position for all of them.

        Raises:
            OptionError: it takes some of them.
        """
        if not self.followed or not self._settings.select:
            return
        followed = {self._copies[index].stream for index in self.followed}
        every = find_tables(self._replication).copies
        unselected = [
            copy.stream
            for copy in every
            if copy.mode == "full_then_changes" and copy.stream not in followed
        ]
        if unselected:
            raise OptionError(
                f"--select takes {min(followed)} and not {unselected[0]}, and one tunnel follows both: select all "
                "tables of mode full_then_changes, or none",
                option="--select",
            )

    def follow(self, settings: RunSettings, limit_options: Mapping[str, Any]) -> None:
        """Follow the tables of mode `full_then_changes`, after the others: up to now (`once`), or until it is ended."""
        began = self._clock.now()
        outcomes = {outcome.stream: outcome for outcome in self.report.tables}
        if settings.full_refresh:
            note = (
                "--full-refresh does not hold for tables of mode full_then_changes: `spark-channel tunnel resnapshot "
                f"{self._replication.typed} --table TABLE` reads their rows again"
            )
            self.report.notes = (*self.report.notes, note)
            _log.warning(note)
        followed = [self._copies[index] for index in self.followed]
        ready = [copy for copy in followed if not copy.fault]
        park({copy.stream: OptionError(copy.fault) for copy in followed if copy.fault}, outcomes)
        if not ready:
            return
        try:
            if settings.following is not None and not settings.once:
                settings.following(len(ready))

            def step() -> bool:
                starts = True
                while starts:
                    follower = Follower(self._replication, ready, outcomes, self.report)
                    starts = follower.run(limit_options, once=settings.once)
                return True

            run = TableRun(ready[0], outcomes[ready[0].stream], settings, self.report, self)
            self._patiently(run, step, math.inf)  # it may follow for months
        except LimitError:  # it is of no table
            raise
        except Exception as error:
            park({copy.stream: error for copy in ready}, outcomes)
        for copy in ready:
            outcome = outcomes[copy.stream]
            outcome.seconds = self._clock.now() - began
            if outcome.state == "not run":
                outcome.state = "unchanged"

    def wait(self, seconds: float) -> None:
        """
        Raises:
            JobCancelledError: the run was ended meanwhile.
        """
        if seconds > 0 and self._stopped.wait(seconds):
            raise JobCancelledError("the run was ended")

    def now(self) -> float:
        return self._clock.now()

    def _one(self, index: int, step: Callable[[], bool]) -> None:
        """One step of a table; it returns whether the table has ended. A table that fails has, too."""
        outcome, began = self.report.tables[index], self._clock.now()
        has_ended = True
        try:
            if self._copies[index].fault:
                raise OptionError(self._copies[index].fault)
            has_ended = step()
        except LimitError:  # it is of no table
            raise
        except Exception as error:
            if self._cancelled:
                outcome.why = "the run was ended"
                return
            park({outcome.stream: error}, {outcome.stream: outcome})
            outcome.rows = outcome.nbytes = 0
        finally:
            outcome.seconds += self._clock.now() - began
        if has_ended:
            self._ended_one(outcome)

    def _ended_one(self, outcome: TableOutcome) -> None:
        with self._lock:
            self._ended += 1
            number = self._ended
        if self._settings.ended is not None and not self._cancelled:
            self._settings.ended(outcome, number, len(self._copies))
