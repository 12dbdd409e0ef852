"""One table of a replication: which rows a run copies, and under which position they are published."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast

import pyarrow as pa

from spark_channel.connectors import Reader, Writer, find_connector
from spark_channel.connectors.base.claims import Follows, StreamProgress
from spark_channel.connectors.base.contract import is_row_refusal
from spark_channel.connectors.base.small_tables import SmallTable, Together
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.errors import (
    BatchRefusedError,
    ChannelError,
    DirtyRowsError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
)
from spark_channel.option_types import resolve_references
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import StreamBatch
from spark_channel.processes import cores
from spark_channel.progress import TransferReport
from spark_channel.replication.drift import Decision, LoadColumns, decide
from spark_channel.replication.masks import MaskColumns, check_renamed
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.tables import (
    TableCopy,
    check_open,
    is_away,
    is_stricter,
    target_schema,
    with_numbers,
)
from spark_channel.transfers.channels import jobs_at_once
from spark_channel.transfers.write_job import job_name
from spark_channel.transform.transformer import Transformer, prepare

__all__ = [
    "Move",
    "Pace",
    "RunSettings",
    "TableRun",
    "continue_numbers",
    "continue_numbers_of",
    "is_of_values",
    "of_table",
    "reader_of",
    "tables_at_once",
    "together_of",
    "why_of",
    "writer_of",
]

_log = log_of(__name__)

Move = Callable[[TransferSpec, Mapping[str, Any]], TransferReport]
"""Carries out a transfer on an engine, with options of the whole job."""

_NOTHING_YET = -(2**63) + 1
"""The position of an incremental stream whose table was empty."""
_INSTEAD = re.compile(
    r"[.:] (?:leave it out with option 'columns'(?:\. 'columns' does.*| \(from .*)?|Follow it by 'dbtable'.*)$",
    re.DOTALL,
)
"""What an error advises for a table that no tunnel of several tables follows."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pace(Protocol):
    """The time of a run."""

    def now(self) -> float: ...

    def wait(self, seconds: float) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a caller gives beside the file.

    `begun` gets the report before a table is copied: what there is of it, if the run ends by an error.

    For a display: `ended`, a table ended; `planned`, how many tables are copied, and about how many rows, if known;
    `following`, how many tables are followed from now on, without `once`.
    """

    select: Sequence[str] = ()
    full_refresh: bool = False
    dry_run: bool = False
    once: bool = False
    shared_limit: str | None = None
    begun: Callable[[ReplicationReport], None] | None = None
    ended: Callable[[TableOutcome, int, int], None] | None = None
    planned: Callable[[int, int | None], None] | None = None
    following: Callable[[int], None] | None = None


def writer_of(copy: TableCopy) -> Writer:
    """The writer of a table's target, which is not opened yet."""
    writer: Writer = _opened(copy.writer, "writer")
    return writer


def reader_of(copy: TableCopy) -> Reader:
    """The reader of a table's source, which is not opened yet."""
    reader: Reader = _opened(copy.reader, "reader")
    return reader


def tables_at_once(parallel: int, copies: Sequence[TableCopy]) -> int:
    """How many of `parallel` tables are copied at the same time: see `jobs_at_once`."""
    known = [copy for copy in copies if not copy.fault]
    channels = [1 if copy.is_small else int(copy.reader.get("channels", cores())) for copy in known]
    return jobs_at_once(
        "tables",
        min(parallel, max(1, len(copies))),
        map(reader_of, known[:1]),
        map(writer_of, known[:1]),
        channels=max(channels, default=1),
        cores=cores(),
    )


def continue_numbers_of(copy: TableCopy) -> None:
    """As `continue_numbers`, of one table.

    Raises:
        ChannelError: an end does not answer.
    """
    writer = writer_of(copy)
    if isinstance(writer, SqlWriter):
        writer.continue_numbers(reader_of(copy).definition)


def continue_numbers(copies: Iterable[TableCopy]) -> None:
    """Let identity and serial columns of the targets count on: an application may add rows there from now on."""
    for copy in with_numbers(list(copies)):
        try:
            continue_numbers_of(copy)
        except ChannelError as error:
            _log.warning(
                "%s: its numbers in the target may not go on behind its rows: %s",
                copy.stream,
                error,
            )


def together_of(copy: TableCopy, reader: Reader, writer: Writer) -> Together | None:
    """Return how the table is copied with other small ones; None = alone."""
    return find_connector(resolve_references(copy.writer), "writer").copied_together(reader, writer)


class TableRun:
    """One table, once."""

    def __init__(
        self,
        copy: TableCopy,
        outcome: TableOutcome,
        settings: RunSettings,
        report: ReplicationReport,
        pace: Pace | None = None,
        like: "TableRun | None" = None,
    ) -> None:
        """`like`: the run of a table whose options are the same, but for the table's name."""
        self._copy, self._outcome, self._settings = copy, outcome, settings
        self._report, self._pace = report, pace
        self._ready_at = 0.0
        self._planned: _Planned | None = None
        self._columns_said = ""
        self._looked_at: tuple[pa.Schema | None] | None = None
        self._was_there = False
        self.waits = False
        self.wait_seconds = 0.0
        """How long its copy waits for rows that may be committed late."""
        if like is None:
            self._writing, self._reading = writer_of(copy), reader_of(copy)
        else:
            self._writing, self._reading = like.ends_for(copy)

    @property
    def retry_seconds(self) -> float:
        """For how long an end may be away: twice as long as a copy that has begun tries."""
        options = (self._reading.options, self._writing.options)
        return 2 * max(float(getattr(end_options, "retry_timeout", 0.0)) for end_options in options)

    def passes(self, error: ChannelError, *, has_target: bool) -> bool:
        """Whether an end of the table is away for a while. The source was there when its tables were listed."""
        if isinstance(error, SourceError):
            end: Any = self._reading
        elif has_target and isinstance(error, TargetError):
            end = self._writing
        else:
            return False
        return is_away(end, error)

    def copy(self, spec: TransferSpec | None, move: Move, limit_options: Mapping[str, Any]) -> bool:
        """Carry out what `spec` returned, when all of its rows are committed."""
        copy, outcome = self._copy, self._outcome
        if spec is None:
            outcome.state = "unchanged"
            return True
        self.wait()
        options = {**limit_options, "jobId": copy.job_id}
        try:
            outcome.report = move(spec, options)
        except (SchemaError, TargetError) as error:
            of_values = is_of_values(error, self._writing)
            if not of_values and not isinstance(error, SchemaError):
                raise
            again = self._after_refusal(of_values=of_values)
            if again is None:
                raise
            spec = again
            outcome.report = move(spec, options)
        self.ended(outcome.report)
        self._keep_note()
        return True

    def wait(self) -> None:
        """Wait until all rows up to the planned position are committed."""
        if self.waits and self._pace is not None:
            self._pace.wait(self._ready_at - self._pace.now())

    @property
    def is_first(self) -> bool:
        """Whether an increment is planned that replaces all rows: the first one of its stream."""
        planned = self._planned
        return self._copy.mode == "incremental" and planned is not None and planned.overwrite

    def spec(self) -> TransferSpec | None:
        """The table's transfer; None = there is nothing to copy."""
        self._planned = self._increment() if self._copy.mode == "incremental" else self._whole()
        if self._planned is None:
            return None
        # To look at the columns of both ends takes as long as to copy a small table, and they seldom differ.
        later = self._copy.contract.tables == "evolve" and self._keeps_columns
        return self._spec(self._planned, looks=self._settings.dry_run or not later)

    def _keep_note(self) -> None:
        """Keep what was done with columns for `status`. The rows are committed: nothing fails the table here."""
        if not self._columns_said:
            return
        try:
            self._writing.note_stream(self._copy.state_name(), self._columns_said)
        except ChannelError as error:
            _log.warning("%s: `status` will not say of columns: %s", self._copy.stream, error)

    def _after_refusal(self, *, of_values: bool) -> TransferSpec | None:
        """The transfer as the contract wants it, after columns or values were refused; None = it has no other."""
        assert self._planned is not None
        first = self._spec(self._planned, looks=False)
        again = self._spec(self._planned, looks=True, refused=of_values)
        return None if again == first else again

    @property
    def _keeps_columns(self) -> bool:
        """Whether the target has columns, to which it adds or compares those of the rows."""
        return "onschemachange" in type(self._writing.options).names()

    def _whole(self) -> "_Planned":
        """The next version of the table: a later run has a higher number, also on a host whose clock is late."""
        name = self._copy.state_name()
        progress, is_there = self._writing.stream_or_target(name)
        position = self._next(progress, is_there=bool(is_there))
        return _Planned(StreamBatch(name, position), overwrite=True)

    def _next(self, progress: StreamProgress | None, *, is_there: bool) -> int:
        """The position of a table's next version, of which `progress` is the last one."""
        if progress is None and not self._settings.dry_run and is_there:
            self._note(
                f"{self._copy.object} was there before the first run of this stream, which replaces its rows: if "
                "another file writes to it, too, give one of them another 'object'"
            )
        self._check_file(progress)
        last = -1 if progress is None or progress.position is None else progress.position
        now = (self._report.started_at - _EPOCH) // timedelta(microseconds=1)
        return max(now, last + 1)

    def ends_for(self, copy: TableCopy) -> tuple[Writer, Reader]:
        """The writer and the reader of another table, whose options are the same, but for its name."""
        return of_table(self._writing, copy.writer), of_table(self._reading, copy.reader)

    def together(self) -> Together | None:
        """Return how the table is copied with other small ones; None = alone."""
        return together_of(self._copy, self._reading, self._writing)

    def small_table(self) -> SmallTable:
        """The table, to be copied with others."""
        label = self._copy.job_id
        stream, job = self._copy.state_name(), job_name(label)
        return SmallTable(self._reading, self._writing, stream, label, job)

    def place(self, table: SmallTable) -> None:
        """Set the position under which `table`, which was looked up, is published."""
        planned, key = self._planned, self._copy.options.primary_key or ()
        if self._copy.mode != "incremental":
            table.position = self._next(table.known, is_there=table.is_there)
            return
        assert planned is not None
        is_new = table.known is None or table.known.position is None
        if not is_new or (table.is_there and not self._was_there):
            table.why = TargetError("another run has published it")
        elif key and set(key) != set(table.key):
            table.why = TargetError("its rows are matched by another key than its primary key")
        table.position, table.condition = planned.stream.position, planned.condition or None
        table.follows = Follows(planned.stream.previous)

    def ended(self, report: TransferReport) -> None:
        """Note the copy of the table."""
        outcome = self._outcome
        outcome.report, outcome.state = report, "done"
        outcome.rows, outcome.nbytes = report.rows, report.bytes
        if self._copy.mode == "incremental" and self._planned is not None:
            outcome.position = self._planned.stream.position
        if report.left_out:
            outcome.add_why(f"without {'; '.join(report.left_out)}")
        if report.renamed:
            outcome.add_why(f"other names than in the source: {'; '.join(report.renamed)}")

    def _check_file(self, progress: StreamProgress | None) -> None:
        """Report that another file writes to the object: its columns, masks and rows may be others."""
        other = self._copy.other_file(progress.by) if progress is not None else ""
        if not other or progress is None:
            return
        self._note(
            f"{self._copy.object} was written by file {other} at {progress.published_at}, and now by "
            f"{self._copy.file}: if both are used, remove the table from one of them, or give it another 'object'"
        )

    def _note(self, reason: str) -> None:
        """Report what a user should know. A table that is copied alone after its group was looked at is noted once."""
        if self._outcome.why != reason:
            self._outcome.why = reason
            _log.warning("%s: %s", self._copy.stream, reason)

    def _increment(self) -> "_Planned | None":
        copy, name = self._copy, self._copy.state_name()
        assert copy.options.update_key is not None
        check_open(copy)
        progress, found_there = self._writing.stream_or_target(name)
        self._check_file(progress)
        is_there = self._is_there() if found_there is None else found_there
        self._was_there = is_there
        if progress is not None and (self._settings.full_refresh or not is_there):
            if not self._settings.dry_run and (is_there or copy.contract.tables == "evolve"):
                self._writing.forget_stream(name)
            progress = replace(progress, position=None)
        if progress is None and is_there and not self._settings.full_refresh:
            raise OptionError(
                f"{copy.object} exists, and has no record of this stream: this is its first run, or its source, "
                "update_key, primary_key, where or columns (also the key of a mask) were changed. To replace all rows "
                f"of {copy.object}, run it once with --full-refresh --select '{copy.stream}'"
            )
        previous = None if progress is None else progress.position
        after = None if previous in (None, _NOTHING_YET) else previous
        again = bool(copy.options.primary_key)
        increment = self._reading.increment(copy.options.update_key, after, again=again)
        if increment.position is None:
            if increment.went_back:
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
        waits = increment.waits_seconds if late is None else late
        self.wait_seconds = waits
        if waits and self._pace is not None:  # rows up to the position may not be committed yet
            self.waits, self._ready_at = True, self._pace.now() + waits
        stream = StreamBatch(name, increment.position, chained=True, previous=previous)
        return _Planned(stream, overwrite=previous is None, condition=increment.condition)

    def _is_there(self) -> bool:
        exists = self._writing.exists()
        return self.target_schema() is not None if exists is None else exists

    def target_schema(self) -> pa.Schema | None:
        """The columns of the target; None = it is not there, or nothing reads it. A dry run asks for them once."""
        if not self._settings.dry_run:
            return target_schema(self._copy, self._writing)
        if self._looked_at is None:
            self._looked_at = (target_schema(self._copy, self._writing),)
        return self._looked_at[0]

    def compared(self) -> tuple[pa.Schema, pa.Schema, tuple[Transformer, ...]]:
        """The columns of the source and of the target, and the steps from the rows of one to those of the other.

        Raises:
            SchemaError: the target has no such table, or the contract refuses its columns.
        """
        copy, source, target = self._copy, self._reading.schema(), self.target_schema()
        if target is None:
            raise SchemaError(f"the target has no table {copy.object}: replicate it first")
        masks = copy.options.columns
        check_renamed(masks or {}, copy.stream, source.names, target.names)
        steps = (MaskColumns.for_stream(copy.stream, masks),) if masks else ()
        arriving = prepare(steps, source).output_schema
        decision = decide(
            copy.contract,
            arriving,
            target,
            keeps_columns=self._keeps_columns,
            check=self._writing.value_check,
        )
        return source, target, (*steps, *decision.steps)

    def _spec(
        self, planned: "_Planned", *, looks: bool, refused: bool = False
    ) -> TransferSpec | None:
        copy, options = self._copy, self._copy.options
        steps: list[Transformer] = []
        if options.columns:
            steps.append(MaskColumns.for_stream(copy.stream, options.columns))
        if options.load_columns:
            steps.append(LoadColumns(self._report.run_id, self._report.started_at))
        reader, writer = dict(copy.reader), dict(copy.writer)
        decision = self._decide(planned, steps, refused=refused) if looks else Decision()
        if decision.skip:
            self._outcome.why = decision.skip
            return None
        if looks:
            planned = self._with_older_rows(planned, decision)
        conditions = [reader.get("where"), planned.condition]
        if copy.table is not None and copy.table.own_rows and self._writing.is_parent():
            conditions.append(copy.table.own_rows)  # each child of the target gets those of its own
        filters = [condition for condition in conditions if condition]
        if filters:
            reader["where"] = (
                filters[0]
                if len(filters) == 1
                else " AND ".join(f"({condition})" for condition in filters)
            )
        writer |= self._write_options(planned, writer, decision)
        transfer_spec = TransferSpec(
            Endpoint(str(reader.pop("reader")), reader),
            Endpoint(str(writer.pop("writer")), writer),
            (*steps, *decision.steps),
            save_mode="overwrite" if planned.overwrite else "append",
            stream=planned.stream,
            part_of=f"replicate {self._report.run_id}",
            leaves_builds=copy.leaves_builds,
        )
        return (
            replace(transfer_spec, channels=1, splits_per_channel=1)
            if copy.is_small
            else transfer_spec
        )

    def _with_older_rows(self, planned: "_Planned", decision: Decision) -> "_Planned":
        """Say what is done with columns; an increment has the rows that were copied before, too, if these have values
        in a new column.
        """
        copy, stream = self._copy, planned.stream
        words = decision.words
        is_later = copy.mode == "incremental" and not planned.overwrite
        read = self._reading.schema().names if decision.added and is_later else ()
        added = [name for name in decision.added if name in read]
        if added and self._reading.has_values(added):
            if copy.options.primary_key:
                assert copy.options.update_key is not None
                increment = self._reading.increment(copy.options.update_key, None, again=True)
                if increment.position is None:
                    return planned  # the rows went meanwhile
                words += ": all rows are read again, since older ones have values there"
                stream = replace(stream, position=increment.position)
                planned = replace(planned, stream=stream, condition=increment.condition)
            else:
                words += (
                    f", with NULL in the rows that were copied before: --full-refresh --select '{copy.stream}' reads "
                    "them again"
                )
        if words:
            self._note(words)
        self._columns_said = words
        return planned

    def _decide(
        self, planned: "_Planned", steps: Sequence[Transformer], *, refused: bool
    ) -> Decision:
        copy = self._copy
        is_replaced = planned.overwrite and not self._keeps_columns
        if is_replaced and not copy.options.columns:
            return Decision()  # files: an overwrite brings its own columns
        source, target = self._reading.schema(), self.target_schema()
        if target is not None and (is_replaced or copy.contract.columns == "evolve"):
            check_renamed(copy.options.columns or {}, copy.stream, source.names, target.names)
        if is_replaced:
            return Decision()
        arriving = prepare(steps, source).output_schema
        return decide(
            copy.contract,
            arriving,
            target,
            keeps_columns=self._keeps_columns,
            refused=refused,
            is_stricter=refused and target is not None and is_stricter(copy, self._reading),
            check=self._writing.value_check,
        )

    def _write_options(
        self, planned: "_Planned", writer: Mapping[str, Any], decision: Decision
    ) -> dict[str, Any]:
        key = self._copy.options.primary_key
        names = type(self._writing.options).names()
        options: dict[str, Any] = {"commit": "job", **dict(decision.options)}
        if self._copy.mode == "incremental" and key:
            if "writemode" not in names:
                raise OptionError(
                    f"primary_key updates rows, and {writer['writer']} files cannot be updated: omit primary_key, so "
                    "that rows are added, or write to a database or to Delta"
                )
            if "dbtable" in names or not planned.overwrite:
                options |= {"writeMode": "upsert", "keyColumns": list(key)}
        return options


@dataclass(frozen=True, slots=True)
class _Planned:
    stream: StreamBatch
    overwrite: bool
    condition: str = ""


def _opened(options: Mapping[str, Any], half: str) -> Any:
    resolved = resolve_references(options)
    connector = find_connector(resolved, half)
    pair: tuple[Reader | Writer, list[str]] = (
        connector.reader_with(resolved) if half == "reader" else connector.writer_with(resolved)
    )
    return pair[0]


def of_table(end: Any, options: Mapping[str, Any]) -> Any:
    """A reader or writer as `end`, of another table: to parse the other options again takes ten times as long."""
    name = resolve_references({"dbtable": options["dbtable"]})
    renamed = end.options.model_copy(update=name)
    if isinstance(end, SqlWriter):
        return SqlWriter(type(cast(Any, end.database))(renamed))
    return type(end)(renamed)


def is_of_values(error: ChannelError, writer: Writer) -> bool:
    """Whether the target refused values of rows, and not the table as a whole."""
    return isinstance(error, (DirtyRowsError, BatchRefusedError)) or is_row_refusal(writer, error)


def why_of(error: Exception) -> str:
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
    text = text.replace(", whose existing rows are read whatever 'tunnelType' is,", "")
    text = _INSTEAD.sub(". Remove the cause, or use mode full or incremental", text)
    return text.replace("'cursorColumn'", "update_key")
