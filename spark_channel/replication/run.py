"""Runs a replication: tables side by side, under one limit, each published in one step."""

import contextlib
import logging
import math
import os
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.connectors.base.claims import StreamProgress
from spark_channel.connectors.sql.session_pool import keeping_sessions
from spark_channel.errors import (
    ChannelError,
    JobCancelledError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
)
from spark_channel.option_types import resolve_references
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import StreamBatch
from spark_channel.progress import TransferReport
from spark_channel.replication.changes import Follower
from spark_channel.replication.config import Replication
from spark_channel.replication.drift import Decision, LoadColumns, decide
from spark_channel.replication.masks import MaskColumns
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.tables import (
    FoundTables,
    TableCopy,
    find_tables,
    hold_open,
    is_away,
    target_schema,
)
from spark_channel.replication.tunnels import tunnel_name
from spark_channel.service.shared_limit import MOST_JOBS
from spark_channel.service.windows import (
    Speeds,
    WindowKeeper,
    windowed_limit,
    windowed_rates,
    zone_of,
)
from spark_channel.transform.transformer import Transformer, prepare

__all__ = ["Move", "RunSettings", "TableRun", "limited", "replicate_on", "writer_of"]

_log = logging.getLogger(__name__)

Move = Callable[[TransferSpec, Mapping[str, Any]], TransferReport]
"""Carries out a transfer on an engine, with options of the whole job."""

_NOTHING_YET = -(2**63) + 1
"""The position of an incremental stream whose table was empty."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries of a table whose source or target is away."""
_LONG_TRIES = 3
"""A table has so many. A long one may have copied rows, or may have waited for answers that never came."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a caller gives beside the file. `ended`: a table ended, for a display."""

    select: Sequence[str] = ()
    full_refresh: bool = False
    dry_run: bool = False
    once: bool = False
    shared_limit: str | None = None
    ended: Callable[[TableOutcome, int, int], None] | None = None


def replicate_on(
    replication: Replication,
    move: Move,
    cancel: Callable[[], None],
    settings: RunSettings = RunSettings(),
    clock: Clock = SYSTEM_CLOCK,
) -> ReplicationReport:
    """Copy the tables with the engine behind `move`, and wait for all. A table that fails is parked.

    `cancel` ends all transfers, from any thread: it is called when this thread is interrupted.

    Raises:
        ChannelError: the source or the target cannot be opened, or the file and `select` match no table.
    """
    found = find_tables(replication, settings.select)
    for note in found.notes:
        _log.warning(note)
    if not found.copies:
        raise OptionError(
            f"no table is copied: {'; '.join(found.notes) or 'the streams that match tables are disabled'}. Correct "
            "the names, or let the source's role see the tables",
            option="--select" if settings.select else "streams",
        )
    run = _Run(replication, found, move, settings, clock)
    run.hold_together()
    with keeping_sessions(), limited(replication, settings) as (more, keeper):
        try:
            run.carry_out(more, cancel)
            if run.followed:
                run.follow(settings)
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


class _Run:
    """The tables as they go. The first error that is not a table's, such as Ctrl-C, ends all of them."""

    def __init__(
        self,
        replication: Replication,
        found: FoundTables,
        move: Move,
        settings: RunSettings,
        clock: Clock,
    ) -> None:
        self._replication = replication
        self._copies = found.copies
        self.followed = [
            place for place, each in enumerate(self._copies) if each.mode == "full_then_changes"
        ]
        self._move = move
        self._settings = settings
        self._clock = clock
        self.began = clock.now()
        self._at = utc_now()
        self._lock = threading.Lock()
        self._ended = 0
        self._cancelled = False
        self._has_target = False
        """Whether the target has answered for a table, so its url is right."""
        self._stopped = threading.Event()
        run_id = f"{self._at:%Y%m%dT%H%M%S}.{self._at.microsecond:06d}Z"
        self.report = ReplicationReport(run_id, self._at, notes=found.notes)
        self.report.tables = [
            TableOutcome(each.stream, each.object, each.mode) for each in self._copies
        ]

    def carry_out(self, more: Mapping[str, Any], cancel: Callable[[], None]) -> None:
        batch = [place for place, each in enumerate(self._copies) if place not in self.followed]
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in batch:
            left.put(place)
        late: queue.SimpleQueue[tuple[int, TableRun, TransferSpec]] = queue.SimpleQueue()
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def next_one() -> None:
            try:
                place = left.get_nowait()
            except queue.Empty:
                place, run, spec = late.get_nowait()  # all tables have been looked at
                first = [spec]

                def end() -> bool:
                    spec = first.pop() if first else run.spec()
                    return run.copy(spec, self._move, more)

                self._one(place, lambda: self._patiently(run, end))
                return

            def begin() -> bool:
                run = TableRun(
                    self._copies[place],
                    self.report.tables[place],
                    self._settings,
                    self.report,
                    self,
                )

                def copy() -> bool:
                    spec = run.spec()
                    self._has_target = True
                    if spec is not None and run.waits:
                        late.put((place, run, spec))
                        return False
                    return run.copy(spec, self._move, more)

                return self._patiently(run, copy)

            self._one(place, begin)

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

        most = min(self._replication.parallel, len(batch))
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
                _log.warning("a table is tried again in %.1f s: %s", pause, _why(error))
            self.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def hold_together(self) -> None:
        """Hold `select` to take all tables that the tunnel follows: it has one position for all of them.

        Raises:
            OptionError: it takes some of them.
        """
        if not self.followed or not self._settings.select:
            return
        taken = {self._copies[place].stream for place in self.followed}
        every = find_tables(self._replication).copies
        left = [
            each.stream
            for each in every
            if each.mode == "full_then_changes" and each.stream not in taken
        ]
        if left:
            raise OptionError(
                f"--select takes {min(taken)} and not {left[0]}, and one tunnel follows both: select all tables of "
                "mode full_then_changes, or none",
                option="--select",
            )

    def follow(self, settings: RunSettings) -> None:
        """Follow the tables of mode `full_then_changes`, after the others: up to now (`once`), or until it is ended."""
        limit, began = self._replication.limit, self._clock.now()
        otherwise = Speeds(limit.rows_per_second, limit.bytes_per_second)
        speeds = {"rowsPerSecond": otherwise.rows, "bytesPerSecond": otherwise.nbytes}
        more = {name: speed for name, speed in speeds.items() if speed is not None}
        outcomes = {each.stream: each for each in self.report.tables}
        if settings.full_refresh:
            note = (
                "--full-refresh does not hold for tables of mode full_then_changes: `spark-channel tunnel resnapshot "
                f"{tunnel_name(self._replication)} --table TABLE` reads their rows again"
            )
            self.report.notes = (*self.report.notes, note)
            _log.warning(note)
        ready = []
        for copy in (self._copies[place] for place in self.followed):
            if copy.fault:
                self._park(outcomes[copy.stream], OptionError(copy.fault))
            else:
                ready.append(copy)
        if not ready:
            return
        try:
            if settings.shared_limit is not None:
                raise OptionError(
                    "--shared-limit does not hold for tables of mode full_then_changes, which are read by one tunnel: "
                    "write a limit into the file, or put these tables into a separate file",
                    option="--shared-limit",
                )
            with windowed_rates(otherwise, limit.parsed, zone_of(limit.timezone)) as rates:

                def step() -> bool:
                    # Without windows, the job's own limit may be changed on the page.
                    given, starts = rates if limit.windows else None, True
                    while starts:
                        follower = Follower(self._replication, ready, outcomes, self.report)
                        starts = follower.run(more, given, once=settings.once)
                    return True

                run = TableRun(ready[0], outcomes[ready[0].stream], settings, self.report, self)
                self._patiently(run, step, math.inf)  # it may follow for months
        except Exception as error:
            for each in ready:
                self._park(outcomes[each.stream], error)
        for each in ready:
            outcome = outcomes[each.stream]
            outcome.seconds = self._clock.now() - began
            if outcome.state == "not run":
                outcome.state = "unchanged"

    @staticmethod
    def _park(outcome: TableOutcome, error: Exception) -> None:
        outcome.state, outcome.why = "parked", _why(error)
        outcome.error_type = type(error).__name__
        _log.warning("%s is parked: %s", outcome.stream, outcome.why)

    def wait(self, seconds: float) -> None:
        """
        Raises:
            JobCancelledError: the run was ended meanwhile.
        """
        if seconds > 0 and self._stopped.wait(seconds):
            raise JobCancelledError("the run was ended")

    def now(self) -> float:
        return self._clock.now()

    def _one(self, place: int, step: Callable[[], bool]) -> None:
        """One step of a table; it returns whether the table has ended. A table that fails has, too."""
        outcome, began = self.report.tables[place], self._clock.now()
        has_ended = True
        try:
            if self._copies[place].fault:
                raise OptionError(self._copies[place].fault)
            has_ended = step()
        except Exception as error:
            if self._cancelled:
                outcome.why = "the run was ended"
                return
            self._park(outcome, error)
            outcome.rows = outcome.nbytes = 0
        finally:
            outcome.seconds += self._clock.now() - began
        if has_ended:
            with self._lock:
                self._ended += 1
                number = self._ended
            if self._settings.ended is not None and not self._cancelled:
                self._settings.ended(outcome, number, len(self._copies))


def _why(error: Exception) -> str:
    """The message of an error, with the words of the file."""
    if not isinstance(error, ChannelError):
        _log.debug("the error was raised here", exc_info=error)
        first = next(iter(str(error).splitlines()), "no message")
        return f"{type(error).__name__}: {first}"
    text = str(error).replace("option 'cursorColumn'", "update_key")
    text = text.replace(
        "Reset the tunnel, or begin with a new checkpoint directory",
        "`spark-channel replicate reset FILE '*'` begins again, after which the next run reads all rows again",
    )
    return text.replace("'cursorColumn'", "update_key")


def writer_of(copy: TableCopy) -> Writer:
    """The writer of a table's target, which is not opened yet."""
    made: Writer = _opened(copy.writer, "writer")
    return made


class TableRun:
    """One table, once."""

    def __init__(
        self,
        copy: TableCopy,
        outcome: TableOutcome,
        settings: RunSettings,
        report: ReplicationReport,
        pace: "_Run | None" = None,
    ) -> None:
        self._copy, self._outcome, self._settings = copy, outcome, settings
        self._report, self._pace = report, pace
        self._ready_at = 0.0
        self._planned: _Planned | None = None
        self.waits = False
        self._writing = writer_of(copy)
        self._reading: Reader = _opened(copy.reader, "reader")

    @property
    def retry_seconds(self) -> float:
        """For how long an end may be away: twice as long as a copy that has begun tries."""
        options = (self._reading.options, self._writing.options)
        return 2 * max(float(getattr(each, "retry_timeout", 0.0)) for each in options)

    def passes(self, error: ChannelError, *, has_target: bool) -> bool:
        """Whether an end of the table is away for a while. The source was there when its tables were listed."""
        if isinstance(error, SourceError):
            end: Any = self._reading
        elif has_target and isinstance(error, TargetError):
            end = self._writing
        else:
            return False
        return is_away(end, error)

    def copy(self, spec: TransferSpec | None, move: Move, more: Mapping[str, Any]) -> bool:
        """Carry out what `spec` returned, when all of its rows are committed."""
        copy, outcome = self._copy, self._outcome
        if spec is None:
            outcome.state = "unchanged"
            return True
        if self.waits and self._pace is not None:
            self._pace.wait(self._ready_at - self._pace.now())
        given = {**more, "jobId": copy.job_id}
        try:
            outcome.report = move(spec, given)
        except SchemaError:
            again = self._after_refusal()
            if again is None:
                raise
            outcome.report = move(again, given)
        outcome.rows, outcome.nbytes = outcome.report.rows, outcome.report.bytes
        if copy.mode == "incremental" and spec.stream is not None:
            outcome.position = spec.stream.position
        outcome.state = "done"
        return True

    def spec(self) -> TransferSpec | None:
        """The table's transfer; None = there is nothing to copy."""
        self._planned = self._increment() if self._copy.mode == "incremental" else self._whole()
        if self._planned is None:
            return None
        # To look at the columns of both ends takes as long as to copy a small table, and they seldom differ.
        later = self._copy.contract.tables == "evolve" and self._keeps_columns
        return self._spec(self._planned, looks=self._settings.dry_run or not later)

    def _after_refusal(self) -> TransferSpec | None:
        """The transfer as the contract wants it, of columns that the target refuses; None = it has no other."""
        assert self._planned is not None
        first = self._spec(self._planned, looks=False)
        again = self._spec(self._planned, looks=True)
        return None if again == first else again

    @property
    def _keeps_columns(self) -> bool:
        """Whether the target has columns, to which it adds or compares those of the rows."""
        return "onschemachange" in self._writing.Options.names()

    def _whole(self) -> "_Planned":
        """The next version of the table: a later run has a higher number, also on a host whose clock is late."""
        name = self._copy.state_name()
        known, is_there = self._writing.stream_or_target(name)
        if known is None and not self._settings.dry_run and is_there:
            self._outcome.why = (
                f"{self._copy.object} was there before the first run of this stream, which replaces its rows: if "
                "another file writes to it, too, give one of them another 'object'"
            )
            _log.warning("%s: %s", self._copy.stream, self._outcome.why)
        self._hold_file(known)
        last = -1 if known is None or known.position is None else known.position
        now = (self._report.started_at - _EPOCH) // timedelta(microseconds=1)
        return _Planned(StreamBatch(name, max(now, last + 1)), overwrite=True)

    def _hold_file(self, known: StreamProgress | None) -> None:
        """Report that another file writes to the object: its columns, masks and rows may be others."""
        other = self._copy.other_file(known.by) if known is not None else ""
        if not other or known is None:
            return
        self._outcome.why = (
            f"{self._copy.object} was written by file {other} at {known.published_at}, and now by {self._copy.file}: "
            "if both are used, remove the table from one of them, or give it another 'object'"
        )
        _log.warning("%s: %s", self._copy.stream, self._outcome.why)

    def _increment(self) -> "_Planned | None":
        copy, name = self._copy, self._copy.state_name()
        assert copy.options.update_key is not None
        hold_open(copy)
        known = self._writing.stream_progress(name)
        self._hold_file(known)
        there = self._is_there()
        if known is not None and (self._settings.full_refresh or not there):
            if not self._settings.dry_run and (there or copy.contract.tables == "evolve"):
                self._writing.forget_stream(name)
            known = replace(known, position=None)
        if known is None and there and not self._settings.full_refresh:
            raise OptionError(
                f"{copy.object} exists, and has no record of this stream: this is its first run, or its source, "
                "update_key, primary_key, where or columns (also the key of a mask) were changed. To replace all rows "
                f"of {copy.object}, run it once with --full-refresh --select '{copy.stream}'"
            )
        previous = None if known is None else known.position
        after = None if previous in (None, _NOTHING_YET) else previous
        again = bool(copy.options.primary_key)
        found = self._reading.increment(copy.options.update_key, after, again=again)
        if found.position is None:
            if found.went_back:
                self._outcome.why = (
                    f"all rows are below the update_key that was copied last: the last rows of {copy.stream} were "
                    "deleted, or the table was made again, and then its rows come with --full-refresh --select "
                    f"'{copy.stream}'"
                )
                _log.warning("%s: %s", copy.stream, self._outcome.why)
            if previous is not None:
                return None
            stream = StreamBatch(name, _NOTHING_YET, chained=True)
            return _Planned(stream, overwrite=True, condition="1 = 0")
        late = copy.options.late_seconds
        waits = found.waits_seconds if late is None else late
        if waits and self._pace is not None:  # rows up to the position may not be committed yet
            self.waits, self._ready_at = True, self._pace.now() + waits
        stream = StreamBatch(name, found.position, chained=True, previous=previous)
        return _Planned(stream, overwrite=previous is None, condition=found.condition)

    def _is_there(self) -> bool:
        there = self._writing.exists()
        return self.target_schema() is not None if there is None else there

    def target_schema(self) -> pa.Schema | None:
        """The columns of the target; None = it is not there, or nothing reads it."""
        return target_schema(self._copy, self._writing)

    def compared(self) -> tuple[pa.Schema, pa.Schema, tuple[Transformer, ...]]:
        """The columns of the source and of the target, and the steps from the rows of one to those of the other.

        Raises:
            SchemaError: the target has no such table, or the contract refuses its columns.
        """
        copy, source, target = self._copy, self._reading.schema(), self.target_schema()
        if target is None:
            raise SchemaError(f"the target has no table {copy.object}: replicate it first")
        masks = copy.options.columns
        steps = (MaskColumns.of(copy.stream, masks),) if masks else ()
        arriving = prepare(steps, source).output_schema
        decision = decide(copy.contract, arriving, target, keeps_columns=self._keeps_columns)
        return source, target, (*steps, *decision.steps)

    def _spec(self, planned: "_Planned", *, looks: bool) -> TransferSpec | None:
        copy, options = self._copy, self._copy.options
        steps: list[Transformer] = []
        if options.columns:
            steps.append(MaskColumns.of(copy.stream, options.columns))
        if options.load_columns:
            steps.append(LoadColumns(self._report.run_id, self._report.started_at))
        reader, writer = dict(copy.reader), dict(copy.writer)
        if planned.condition:
            where = reader.get("where")
            reader["where"] = (
                planned.condition if where is None else f"({where}) AND {planned.condition}"
            )
        decision = self._decide(planned, steps) if looks else Decision()
        if decision.skip:
            self._outcome.why = decision.skip
            return None
        writer |= self._write_options(planned, writer, decision)
        made = TransferSpec(
            Endpoint(str(reader.pop("reader")), reader),
            Endpoint(str(writer.pop("writer")), writer),
            (*steps, *decision.steps),
            save_mode="overwrite" if planned.overwrite else "append",
            stream=planned.stream,
            part_of=f"replicate {self._report.run_id}",
        )
        return replace(made, channels=1, splits_per_channel=1) if copy.is_small else made

    def _decide(self, planned: "_Planned", steps: Sequence[Transformer]) -> Decision:
        if planned.overwrite and not self._keeps_columns:
            return Decision()  # files: an overwrite brings its own columns
        arriving = prepare(steps, self._reading.schema()).output_schema
        target = self.target_schema()
        return decide(self._copy.contract, arriving, target, keeps_columns=self._keeps_columns)

    def _write_options(
        self, planned: "_Planned", writer: Mapping[str, Any], decision: Decision
    ) -> dict[str, Any]:
        key = self._copy.options.primary_key
        names = self._writing.Options.names()
        made: dict[str, Any] = {"commit": "job", **dict(decision.options)}
        if self._copy.mode == "incremental" and key:
            if "writemode" not in names:
                raise OptionError(
                    f"primary_key updates rows, and {writer['writer']} files cannot be updated: omit primary_key, so "
                    "that rows are added, or write to a database or to Delta"
                )
            if "dbtable" in names or not planned.overwrite:
                made |= {"writeMode": "upsert", "keyColumns": list(key)}
        return made


@dataclass(frozen=True, slots=True)
class _Planned:
    stream: StreamBatch
    overwrite: bool
    condition: str = ""


def _opened(options: Mapping[str, Any], half: str) -> Any:
    given = resolve_references(options)
    connector = find_connector(given, half)
    made: tuple[Reader | Writer, list[str]] = (
        connector.reader_with(given) if half == "reader" else connector.writer_with(given)
    )
    return made[0]
