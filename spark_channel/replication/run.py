"""Runs a replication: tables side by side, under one limit, each published in one step."""

import contextlib
import hashlib
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
)
from spark_channel.option_types import resolve_references
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import StreamBatch
from spark_channel.progress import TransferReport
from spark_channel.replication.config import Limit, Replication
from spark_channel.replication.drift import Decision, LoadColumns, decide
from spark_channel.replication.masks import MaskColumns, mask_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.tables import FoundTables, TableCopy, find_tables
from spark_channel.service.windows import Speeds, WindowKeeper, zone_of
from spark_channel.transform.transformer import Transformer, prepare

__all__ = ["Move", "RunSettings", "replicate_on"]

_log = logging.getLogger(__name__)

Move = Callable[[TransferSpec, Mapping[str, Any]], TransferReport]
"""Carries out a transfer on an engine, with options of the whole job."""

_NOTHING_YET = -(2**63) + 1
"""The position of an incremental stream whose table was empty."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a caller gives beside the file. `ended`: a table ended, for a display."""

    select: Sequence[str] = ()
    full_refresh: bool = False
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
        ChannelError: the source or the target cannot be opened, so that no table was begun.
    """
    found = find_tables(replication, settings.select)
    for note in found.notes:
        _log.warning(note)
    run = _Run(replication, found, move, settings, clock)
    with _limited(replication.limit, settings) as (more, keeper):
        try:
            run.carry_out(more, cancel)
        finally:
            run.report.seconds = clock.now() - run.began
            if keeper is not None:
                run.report.windows = [
                    (at, text, str(speeds)) for at, text, speeds in keeper.changes
                ]
    return run.report


@contextlib.contextmanager
def _limited(
    limit: Limit, settings: RunSettings
) -> Iterator[tuple[dict[str, Any], WindowKeeper | None]]:
    """The options that make one limit hold for all tables, and what changes it by the time."""
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
    from spark_channel.service import SharedLimit

    first = otherwise if otherwise != Speeds() else Speeds(rows=1)
    name = f"replicate-{os.getpid()}"
    with SharedLimit(name, first.rows, first.nbytes) as shared:
        paused = [False]

        def apply(speeds: Speeds) -> None:
            if speeds.paused:
                shared.pause()
            else:
                shared.set(speeds.rows, speeds.nbytes)
                if paused[0]:
                    shared.resume()
            paused[0] = speeds.paused

        with WindowKeeper(windows, otherwise, zone_of(limit.timezone), apply) as keeper:
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
        self._move = move
        self._settings = settings
        self._clock = clock
        self.began = clock.now()
        self._at = utc_now()
        self._lock = threading.Lock()
        self._ended = 0
        self._cancelled = False
        run_id = f"{self._at:%Y%m%dT%H%M%S}.{self._at.microsecond:06d}Z"
        self.report = ReplicationReport(run_id, self._at, notes=found.notes)
        self.report.tables = [
            TableOutcome(each.stream, each.object, each.mode) for each in self._copies
        ]

    def carry_out(self, more: Mapping[str, Any], cancel: Callable[[], None]) -> None:
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(len(self._copies)):
            left.put(place)
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            failed: BaseException | None = None
            try:
                while not self._cancelled:
                    self._one(left.get_nowait(), more)
            except queue.Empty:
                pass
            except BaseException as error:
                failed = error
            finally:
                ended.put(failed)

        most = min(self._replication.parallel, len(self._copies))
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
            cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise

    def _one(self, place: int, more: Mapping[str, Any]) -> None:
        copy, outcome = self._copies[place], self.report.tables[place]
        began = self._clock.now()
        try:
            if copy.fault:
                raise OptionError(copy.fault)
            _TableRun(copy, outcome, self._settings, self.report, self._clock).run(self._move, more)
        except ChannelError as error:
            if self._cancelled:
                outcome.why = "the run was ended"
                return
            outcome.state, outcome.why = "parked", _why(error, copy)
            outcome.error_type = type(error).__name__
            outcome.rows = outcome.nbytes = 0
            _log.warning("%s is parked: %s", copy.stream, outcome.why)
        finally:
            outcome.seconds = self._clock.now() - began
            with self._lock:
                self._ended += 1
                number = self._ended
            if self._settings.ended is not None and not self._cancelled:
                self._settings.ended(outcome, number, len(self._copies))


def _why(error: ChannelError, copy: TableCopy) -> str:
    """The message of an error. One of a source is not shown where columns are masked: it may quote a value."""
    text = (
        str(error)
        .replace("option 'cursorColumn'", "update_key")
        .replace("'cursorColumn'", "update_key")
    )
    masks = [each for each in (copy.options.columns or {}).values() if each != "keep"]
    if masks and isinstance(error, SourceError | SchemaError) and _quotes_a_value(error):
        return (
            f"{type(error).__name__}: the message may quote a value, and columns of {copy.stream} are masked, so it is "
            "withheld. Copy the table without masks to a safe place to see it"
        )
    return text


def _quotes_a_value(error: BaseException) -> bool:
    """Whether a value of the rows may be in the message: what a reader says of the source itself has none."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "quotes_value", False):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class _TableRun:
    """One table, once."""

    def __init__(
        self,
        copy: TableCopy,
        outcome: TableOutcome,
        settings: RunSettings,
        report: ReplicationReport,
        clock: Clock,
    ) -> None:
        self._copy, self._outcome, self._settings = copy, outcome, settings
        self._report, self._clock = report, clock
        self._writing = _opened(copy.writer, "writer")
        self._reading = _opened(copy.reader, "reader")

    def run(self, move: Move, more: Mapping[str, Any]) -> None:
        copy, outcome = self._copy, self._outcome
        planned = self._increment() if copy.mode == "incremental" else self._whole()
        if planned is None:
            outcome.state = "unchanged"
            return
        spec = self._spec(planned)
        if spec is None:
            outcome.state = "unchanged"
            return
        outcome.report = move(spec, {**more, "jobId": _job_id(copy.stream)})
        outcome.rows, outcome.nbytes = outcome.report.rows, outcome.report.bytes
        outcome.position = planned.stream.position if copy.mode == "incremental" else None
        outcome.state = "done"

    def _whole(self) -> "_Planned":
        """The next version of the table: a later run has a higher number, also on a host whose clock is late."""
        name = self._copy.state_name()
        known = self._writing.stream_progress(name)
        last = -1 if known is None else known.position
        now = (self._report.started_at - _EPOCH) // timedelta(microseconds=1)
        return _Planned(StreamBatch(name, max(now, last + 1)), overwrite=True)

    def _increment(self) -> "_Planned | None":
        copy, name = self._copy, self._copy.state_name()
        assert copy.options.update_key is not None
        _hold_open(copy)
        known = self._writing.stream_progress(name)
        there = self._is_there()
        if known is not None and (self._settings.full_refresh or not there):
            self._writing.forget_stream(name)
            known = None
        if known is None and there and not self._settings.full_refresh:
            raise OptionError(
                f"{copy.object} is there, and has no record of this stream: this is its first run, or its update_key, "
                "primary_key, where or columns (also the key of a mask) were changed. To replace all rows of "
                f"{copy.object}, run it once with --full-refresh --select '{copy.stream}'"
            )
        previous = None if known is None else known.position
        after = None if previous in (None, _NOTHING_YET) else previous
        again = bool(copy.options.primary_key)
        found = self._reading.increment(copy.options.update_key, after, again=again)
        if found.position is None:
            if previous is not None:
                return None
            stream = StreamBatch(name, _NOTHING_YET, chained=True)
            return _Planned(stream, overwrite=True, condition="1 = 0")
        late = copy.options.late_seconds
        waits = found.waits_seconds if late is None else late
        if waits and after is not None:
            self._clock.sleep(waits)  # rows up to the position may not be committed yet
        stream = StreamBatch(name, found.position, chained=True, previous=previous)
        return _Planned(stream, overwrite=previous is None, condition=found.condition)

    def _is_there(self) -> bool:
        there = self._writing.exists()
        return self._target_schema() is not None if there is None else there

    def _target_schema(self) -> pa.Schema | None:
        """The columns of the target; None = it is not there, or nothing reads it."""
        if self._writing.exists() is False:
            return None
        given = {key: value for key, value in self._copy.writer.items() if key != "writer"}
        given["reader"] = self._copy.writer["writer"]
        try:
            connector = find_connector(given, "reader")
            known = connector.options_class("reader").names()
            kept = {key: value for key, value in given.items() if key.lower() in known}
            return _opened(kept, "reader").schema()
        except (SourceError, OptionError) as error:
            _log.debug("the target of %s cannot be read: %s", self._copy.stream, error)
            return None

    def _spec(self, planned: "_Planned") -> TransferSpec | None:
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
        decision = self._decide(planned, steps)
        if decision.skip:
            self._outcome.why = decision.skip
            return None
        writer |= self._write_options(planned, writer, decision)
        return TransferSpec(
            Endpoint(str(reader.pop("reader")), reader),
            Endpoint(str(writer.pop("writer")), writer),
            (*steps, *decision.steps),
            save_mode="overwrite" if planned.overwrite else "append",
            stream=planned.stream,
        )

    def _decide(self, planned: "_Planned", steps: Sequence[Transformer]) -> Decision:
        names = self._writing.Options.names()
        keeps_columns = "onschemachange" in names
        if planned.overwrite and not keeps_columns:
            return Decision()  # files: an overwrite brings its own columns
        arriving = prepare(steps, self._reading.schema()).output_schema
        return decide(
            self._copy.contract, arriving, self._target_schema(), keeps_columns=keeps_columns
        )

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


def _hold_open(copy: TableCopy) -> None:
    """Hold the columns that the target records or matches to be values that may be seen there."""
    options = copy.options
    masks = options.columns or {}
    assert options.update_key is not None
    mask = mask_of(masks, copy.stream, options.update_key)
    if mask is not None and mask.kind != "keep":
        raise OptionError(
            f"update_key {options.update_key!r} has mask {mask}, and the target records its highest value: name "
            "another column, or mask it with 'keep'"
        )
    for name in options.primary_key or ():
        mask = mask_of(masks, copy.stream, name)
        if mask is not None and mask.kind not in ("keep", "hmac", "sha256"):
            raise OptionError(
                f"primary_key {name!r} has mask {mask}, which does not tell rows apart: use hmac or sha256"
            )


def _job_id(stream: str) -> str:
    """A name for jobs and files: letters that are allowed there, and what tells two such names apart."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", stream).lstrip("_.-")[:40] or "table"
    return f"{plain}-{hashlib.sha256(stream.encode()).hexdigest()[:6]}"
