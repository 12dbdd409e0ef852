"""Tables that are followed by the source's log: one tunnel reads all of them, and each delivery is published once."""

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors import Reader, WriteContext, Writer, load_reader
from spark_channel.connectors.base.feed import BEGIN, ENDS, OPERATION
from spark_channel.connectors.base.registry import describe
from spark_channel.connectors.sql.log_tables import OWN_COLUMNS
from spark_channel.errors import (
    BatchRefusedError,
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    SupersededError,
    TargetError,
)
from spark_channel.limits import RateLimiter
from spark_channel.option_types import resolve_references
from spark_channel.replication.config import Replication
from spark_channel.replication.deletes import (
    AT,
    after_truncate,
    kept_key,
    net_changes,
    with_columns,
    with_deletes,
)
from spark_channel.replication.drift import AddNulls, Decision, LoadColumns, decide
from spark_channel.replication.masks import MaskColumns, mask_of
from spark_channel.replication.renames import (
    ColumnChanges,
    changes_of,
    columns_noted,
    columns_unnoted,
    is_made_again,
    note_columns,
    other_columns,
)
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.tables import TableCopy, connector_of, is_away, target_schema
from spark_channel.replication.tunnels import (
    AGAIN,
    FILE,
    PARKED,
    known_tables,
    note,
    options_of,
    parked_of,
    parts_of,
    tunnel_of,
)
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel import Delivery, Tunnel

__all__ = ["Follower", "key_of"]

_OF_LOG = ("_lsn", AT, "_table")
_TRIES = 3
"""A table that an end refuses so often, while that end answers, is parked."""
_log = logging.getLogger(__name__)


class Follower:
    """Follows the tables of one source from one log position, from `run` to `stop`.

    The tunnel's store is in the target's database, beside its claims, unless the source's option `tunnelStore` names
    another. A delivery is one batch of a separate stream: one that comes again is not published again.

    A table whose rows are refused is parked alone: its deliveries pass unwritten until it is resumed, and then its
    rows are read again. The tunnel's notes have the parked tables, and why.
    """

    def __init__(
        self,
        replication: Replication,
        copies: Sequence[TableCopy],
        outcomes: Mapping[str, TableOutcome],
        report: ReplicationReport,
    ) -> None:
        self._replication, self._report = replication, report
        self._copies = {each.stream: each for each in copies}
        self._by_name = {
            (each.table.schema, each.table.name): each for each in copies if each.table is not None
        }
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[str, ...]] = {}
        self._tunnel: Tunnel | None = None
        self._aside: set[tuple[str, str]] = set()
        """Tables that are parked for this run, and that the tunnel keeps."""
        self._id = ""
        self._parked: dict[str, str] = {}
        self._failed: dict[tuple[str, int], int] = {}
        self._decisions: dict[str, tuple[pa.Schema, Decision]] = {}
        self._shapes: dict[str, set[tuple[str, ...]]] = {}
        """Names of the columns that were looked up in the catalog, in the log's order."""

    def run(self, more: Mapping[str, Any], limit: RateLimiter | None, *, once: bool) -> None:
        """Follow the tables; `once`: up to the changes that are there now, with all existing rows.

        `more` are options of the source's reader; the caller changes `limit`, which then holds instead of their speeds.

        Raises:
            ChannelError: the log cannot be read, or a table cannot be written.
        """
        for outcome in (self._outcomes[stream] for stream in self._copies):
            if outcome.state == "parked":  # by a try before an outage
                outcome.state, outcome.why, outcome.error_type = "not run", "", ""
        self._apart(self._find_key)
        self._leave_out()
        if not self._copies:
            return
        self._tunnel = tunnel = tunnel_of(self._replication)
        is_there = tunnel.exists()
        if is_there:
            self._hold_file(tunnel)
        again = self._make_ready(tunnel) if is_there else set()
        if not is_there:
            self._apart(self._make_table)
        if not self._copies:
            return
        options = {**options_of(self._replication, self._copies.values()), **more}
        self._tunnel = tunnel = tunnel_of(self._replication, options)
        if is_there:
            self._follow_others(tunnel, options, again)
            for each in again:
                tunnel.store.note(tunnel.name, each, None)
            tunnel.resume()
        else:
            tunnel.create()
        for copy in columns_unnoted(tunnel, self._copies.values(), again):
            if not note_columns(tunnel, copy):
                break  # this source has no numbers
        if self._replication.file:
            tunnel.store.note(tunnel.name, FILE, self._replication.file)
        self._id = tunnel.store.get(tunnel.name).id
        for stream, why in self._parked.items():
            if stream in self._outcomes:
                self._show_parked(stream, why, "")
        tunnel.shown, tunnel.limit = self._shown(), limit
        tunnel.consume(self._process, threads=self._replication.parallel, drained=once)

    def _find_key(self, copy: TableCopy) -> None:
        self._keys[copy.stream] = key_of(copy)
        self._steps(copy)  # which need the keys of the masks

    def _hold_file(self, tunnel: Tunnel) -> None:
        """Hold the tunnel to be of this file: one that has other tables would end those of the file before it.

        Raises:
            OptionError: another file has tables in it that this one does not have.
        """
        before, here = tunnel.store.notes(tunnel.name).get(FILE, ""), self._replication.file
        if not before or not here or before == here:
            return
        known = known_tables(tunnel, options_of(self._replication, self._copies.values()))
        own = self._by_name.keys() | self._aside
        lost = sorted(name for name in known if parts_of(name) not in own)
        if lost:
            raise OptionError(
                f"{before} follows {', '.join(lost[:3])} from this source into this target by tunnel {tunnel.name!r}, "
                f"and {here} would end that, since a source and a target have one tunnel: write these tables into "
                f"{here}, too, or give the two files one"
            )
        said = (
            f"tunnel {tunnel.name!r} was followed by {before}, and now by {here}: do not run both"
        )
        self._report.notes = (*self._report.notes, said)
        _log.warning(said)

    def _make_ready(self, tunnel: Tunnel) -> set[str]:
        """Make and empty the tables whose rows are to be read again; returns their streams."""
        notes = parked_of(tunnel)
        self._parked = {each: why for each, (what, why) in notes.items() if what == PARKED}
        again = {each for each, (what, _) in notes.items() if what == AGAIN}

        def step(copy: TableCopy) -> None:
            if self._make_table(copy):
                again.add(copy.stream)
            elif copy.stream not in again and is_made_again(tunnel, copy):
                # Also one that is parked: the tunnel reads nothing while it follows a table that was dropped.
                self._note_again(copy.stream)
                again.add(copy.stream)
            if copy.stream in again:
                self._empty(copy)

        self._apart(step)
        return again.intersection(self._copies)

    def _leave_out(self) -> None:
        """Leave tables to the next run that the target lacks, and that the contract does not want made."""
        for copy in list(self._copies.values()):
            tables = copy.contract.tables
            if tables == "evolve" or self._writer(copy, {}).exists() is not False:
                continue
            outcome = self._outcomes[copy.stream]
            try:
                outcome.why = decide(copy.contract, pa.schema([]), None, keeps_columns=True).skip
            except SchemaError as error:
                outcome.state, outcome.why = "parked", str(error)
                outcome.error_type = type(error).__name__
            self._forget(copy)

    def _forget(self, copy: TableCopy) -> None:
        """Leave the table to the next run."""
        del self._copies[copy.stream]
        assert copy.table is not None
        del self._by_name[copy.table.schema, copy.table.name]

    def _apart(self, step: Callable[[TableCopy], object]) -> list[TableCopy]:
        """Do a step for each table. Those that it refuses are parked for this run, and returned; the others go on.

        Raises:
            ChannelError: the source or the target does not answer.
        """
        refused = []
        for copy in list(self._copies.values()):
            try:
                step(copy)
            except (SchemaError, OptionError, BatchRefusedError, TargetError, SourceError) as error:
                is_asked = isinstance(error, (TargetError, SourceError))
                if is_asked and not self._answers(copy, error):
                    raise
                _log.warning("%s is parked: %s", copy.stream, error)
                outcome = self._outcomes[copy.stream]
                outcome.state, outcome.why = "parked", str(error)
                outcome.error_type = type(error).__name__
                assert copy.table is not None
                self._aside.add((copy.table.schema, copy.table.name))
                self._forget(copy)
                refused.append(copy)
        return refused

    def _make_table(self, copy: TableCopy) -> bool:
        """Make the table that the target lacks, with its key; returns whether a tunnel is to read its rows again."""
        key = kept_key(self._keys[copy.stream], copy.deletes)
        writer = self._writer(copy, {"writeMode": "upsert", "keyColumns": list(key)})
        if writer.exists() is not False:
            return False
        if copy.contract.tables != "evolve":  # `_leave_out` saw it there
            raise SchemaError(
                f"the target's table {copy.object} was dropped, and contract.tables is {copy.contract.tables}: "
                "create it, or set contract.tables to evolve"
            )
        columns = _reader(copy).schema()
        taken = set(columns.names) & set(OWN_COLUMNS)
        if taken:
            raise SchemaError(
                f"{copy.stream} has column {min(taken)!r}, a name that the source's log adds to each change: rename "
                "the column, or use mode full"
            )
        schema = with_columns(prepare(self._steps(copy), columns).output_schema, copy.deletes)
        is_read = self._tunnel is not None and self._tunnel.exists()
        if is_read and copy.stream not in self._parked:
            # before the table is there, and looks as if it had all rows
            self._note_again(copy.stream)
        try:
            plan = writer.prepare(WriteContext(f"make-{uuid.uuid4().hex}", commit="job"), schema)
            writer.commit(plan, [])
        except TargetError:
            if writer.exists() is not True:  # else another run has made it meanwhile
                raise
        return is_read and copy.stream not in self._parked

    def _note_again(self, stream: str) -> None:
        assert self._tunnel is not None
        note(self._tunnel, stream, AGAIN)

    def _follow_others(
        self, tunnel: Tunnel, options: Mapping[str, Any], again: Collection[str]
    ) -> None:
        """Add the tables that the file has since the tunnel was made, and remove those that it no longer has.

        The rows of a table that the tunnel has are read `again`. So are those of a removed one if it comes back, and
        of one that is parked for this run: the target does not hear of their changes meanwhile.
        """
        known = known_tables(tunnel, options)
        there = {parts_of(name) for name in known}
        for parts, copy in self._by_name.items():
            assert copy.table is not None
            if parts not in there:
                tunnel.add_table(copy.table.dbtable)
            elif copy.stream in again:
                tunnel.resnapshot(copy.table.dbtable)
        for name in known:
            schema, table = parts = parts_of(name)
            if parts in self._by_name:
                continue
            stream = f"{schema}.{table}" if schema else table
            if stream not in self._parked:
                self._note_again(stream)
            if parts not in self._aside:
                tunnel.remove_table(name)

    def _shown(self) -> dict[str, str]:
        """What the job of the tunnel's client says of this run; of several tables the target names none."""
        options = [self._writer(copy, {}).options for copy in self._copies.values()]
        target = connector_of(self._replication.target, "writer").name
        if options:
            target = f"{target} {describe(options[0])}"
        if len(options) > 1:
            target = f"{target.rpartition('#')[0] or target}#(tables)"
        return {"target": target, "part_of": f"replicate {self._report.run_id}"}

    def stop(self) -> None:
        """End after the deliveries at hand, from any thread."""
        if self._tunnel is not None:
            self._tunnel.stop()

    def _writer(self, copy: TableCopy, options: Mapping[str, Any]) -> Writer:
        given = {**resolve_references(copy.writer), **options}
        writer, _ = connector_of(self._replication.target, "writer").writer_with(given)
        return writer

    def _process(self, delivery: Delivery) -> None:
        batches = list(delivery.batches)  # bounded by the range
        copy = self._by_name.get(parts_of(delivery.table))
        if copy is None:
            # The range is from before the table left the file, or the table is parked for this run.
            _log.warning("the changes of %s are not written", delivery.table)
            return
        if not batches or self._is_parked(copy.stream):
            return
        try:
            shapes = {tuple(each.schema.names) for each in batches}
            other = self._other_columns(copy, shapes)
            rows = _joined([_changed(each, self._steps(copy)) for each in batches])
            stream = (f"replicate/changes/{self._id}/{delivery.channel}", delivery.sequence)
            why = f"{', '.join(other)} had another name" if other else ""
            if other:
                self._note_again(copy.stream)
            if self._make_table(copy):
                why = "its table in the target was dropped"
            written = self._write(copy, rows, stream)
            self._settle(copy, shapes, why)
        except (SchemaError, OptionError, BatchRefusedError) as error:
            self._park(copy, error)
            return
        except (TargetError, SourceError) as error:
            place = (copy.stream, delivery.sequence)
            self._failed[place] = self._failed.get(place, 0) + 1
            is_overtaken = isinstance(error, SupersededError)
            if is_overtaken or self._failed[place] < _TRIES or not self._answers(copy, error):
                raise
            self._park(copy, error)
            return
        with self._lock:
            outcome = self._outcomes[copy.stream]
            outcome.rows += written
            outcome.state = "done"
            outcome.position = delivery.sequence

    def _other_columns(self, copy: TableCopy, shapes: set[tuple[str, ...]]) -> tuple[str, ...]:
        """`other_columns` of the names in rows, where this run has not seen these."""
        if self._tunnel is None or shapes <= self._shapes.get(copy.stream, set()):
            return ()
        return other_columns(self._tunnel, copy, {name for each in shapes for name in each})

    def _settle(self, copy: TableCopy, shapes: set[tuple[str, ...]], why: str) -> None:
        """After rows of these `shapes` are written. `why` the existing rows are to be read again, or ""."""
        if why:
            assert self._tunnel is not None
            note_columns(self._tunnel, copy, [name for each in shapes for name in each])
            self._read_beside(copy, why)
            self._shapes[copy.stream] = set()
        self._shapes.setdefault(copy.stream, set()).update(shapes)

    def _is_parked(self, stream: str) -> bool:
        """Another run may have resumed a table that this one knows as parked."""
        if stream not in self._parked:
            return False
        assert self._tunnel is not None
        if parked_of(self._tunnel).get(stream, ("", ""))[0] != PARKED:
            del self._parked[stream]
        return stream in self._parked

    def _answers(self, copy: TableCopy, error: ChannelError) -> bool:
        """Whether the end that refused the table answers, so that it is the table that it refuses."""
        if isinstance(error, SourceError):
            return not is_away(_reader(copy), error)
        try:
            return self._writer(copy, {}).exists() is not None
        except ChannelError:
            return False

    def _park(self, copy: TableCopy, error: ChannelError) -> None:
        """Before the delivery has its checkpoint: it is not written, and the table's rows are read again later."""
        assert self._tunnel is not None
        note(self._tunnel, copy.stream, PARKED, str(error))
        self._parked[copy.stream] = str(error)
        _log.warning("%s is parked: %s", copy.stream, error)
        self._show_parked(copy.stream, str(error), type(error).__name__)

    def _show_parked(self, stream: str, why: str, kind: str) -> None:
        with self._lock:
            outcome = self._outcomes[stream]
            outcome.state, outcome.error_type = "parked", kind
            outcome.why = (
                f"{why}. Its changes are not written until `spark-channel replicate resume FILE {stream}`, after "
                "which the next run reads all its rows again"
            )

    def _steps(self, copy: TableCopy) -> list[Transformer]:
        steps: list[Transformer] = []
        if copy.options.columns:
            steps.append(MaskColumns.of(copy.stream, copy.options.columns))
        if copy.options.load_columns:
            steps.append(LoadColumns(self._report.run_id, self._report.started_at))
        return steps

    def _write(self, copy: TableCopy, rows: pa.Table, stream: tuple[str, int] | None = None) -> int:
        """Publish changes in one transaction with their `stream`; returns how many there were."""
        emptied_at = None
        if copy.deletes == "hard":
            rows, emptied_at = after_truncate(rows, self._report.started_at)
        return self._publish_by_contract(copy, rows, emptied_at, stream)

    def _empty(self, copy: TableCopy) -> None:
        """Let the target have no rows of the source, before these are read again."""
        if self._writer(copy, {}).exists() is False:
            return
        columns = _reader(copy).schema()
        self._other_columns(copy, {tuple(columns.names)})
        kept = prepare(self._steps(copy), columns).output_schema
        of_log = [pa.field(AT, pa.timestamp("us", tz="UTC")), pa.field(OPERATION, pa.string())]
        empty = pa.schema([*kept, *of_log]).empty_table()
        read_at = self._report.started_at.replace(microsecond=0)  # when the next rows begin
        self._publish_by_contract(copy, empty, read_at, None)

    def _publish_by_contract(
        self,
        copy: TableCopy,
        rows: pa.Table,
        emptied_at: datetime | None,
        stream: tuple[str, int] | None,
    ) -> int:
        key, deletes = self._keys[copy.stream], copy.deletes
        number, at = 0 if stream is None else stream[1], self._report.started_at
        made = with_deletes(rows, deletes, key, at, emptied_at=emptied_at, number=number)
        given: dict[str, Any] = {"writeMode": "apply", "keyColumns": list(kept_key(key, deletes))}
        if emptied_at is not None and deletes == "hard":
            # A lake table is overwritten: `_publish` does that of a write without a key.
            if not copy.is_lake:
                given["preSql"] = f"DELETE FROM {copy.writer['dbtable']}"  # noqa: S608 - a quoted name
            else:
                given = {}
        known = self._decisions.get(copy.stream)
        decision = known[1] if known is not None and known[0] == made.schema else Decision()
        try:
            return self._publish(copy, given, decision, made, stream)
        except (SchemaError, OptionError):  # a column, or one of the key, is not there
            # To compare the columns of both takes a while, and they seldom differ.
            changes = self._column_changes(copy, made.schema)
            again = self._decide(copy, made.schema)
            if again == decision and not changes.renamed:
                raise
            is_read = stream is None or copy.contract.columns != "evolve"
            filled = () if is_read else changes.filled
            if filled:
                # before the column is there, and looks as if it had its values
                self._note_again(copy.stream)
            written = self._publish(copy, given, again, made, stream)
            kept = again if not again.options else Decision(again.steps)  # a column is added once
            self._decisions[copy.stream] = (made.schema, kept)
            if self._tunnel is not None and self._tunnel.exists():
                note_columns(self._tunnel, copy, made.schema.names)
            if filled:
                names = ", ".join(filled)
                self._read_beside(copy, f"existing rows may have values in the new column {names}")
            return written

    def _column_changes(self, copy: TableCopy, columns: pa.Schema) -> ColumnChanges:
        """What became of the columns that the target lacks; those that were renamed are, in the target, too.

        Raises:
            SchemaError: the contract does not want that, or it would show a masked column.
        """
        target = target_schema(copy, self._writer(copy, {}))
        if target is None or self._tunnel is None:
            return ColumnChanges()
        here, there = ({each.lower() for each in names} for names in (columns.names, target.names))
        own = {OPERATION, BEGIN, *ENDS, "_loaded_at", "_run_id"}
        new = [name for name in columns.names if name.lower() not in there | own]
        gone = [name for name in target.names if name.lower() not in here | own]
        if not new:
            return ColumnChanges()
        arriving = [name for name in columns.names if name.lower() not in own]
        changes = changes_of(copy, columns_noted(self._tunnel, copy.stream), arriving, new, gone)
        if copy.is_lake:  # not altered by SQL
            return ColumnChanges({}, (*changes.filled, *changes.renamed.values()))
        if not changes.renamed or copy.contract.columns not in ("evolve", "freeze"):
            return replace(changes, renamed={})
        writer = self._writer(copy, {})
        quoted = getattr(getattr(writer, "dialect", None), "quoted", '"{}"'.format)
        table = copy.writer["dbtable"]
        said = [
            f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(now)}"
            for old, now in changes.renamed.items()
        ]
        key = kept_key(self._keys[copy.stream], copy.deletes)
        names = (*changes.renamed, *changes.renamed.values())
        is_key = {each.lower() for each in names} & {each.lower() for each in key}
        if is_key or copy.contract.columns == "freeze":
            why = "it is in the key" if is_key else "contract.columns is freeze"
            both = ", ".join(f"{old!r} to {now!r}" for old, now in changes.renamed.items())
            raise SchemaError(f"the source has renamed {both}, and {why}: run {'; '.join(said)}")
        empty = pa.schema([target.field(name) for name in target.names if name in key])
        try:
            for statement in said:
                self._publish(copy, {"postSql": statement}, Decision(), empty.empty_table(), None)
        except ChannelError as error:
            _log.warning("%s: a column cannot be renamed: %s", copy.stream, error)
            return replace(changes, renamed={}, filled=(*changes.filled, *changes.renamed.values()))
        return changes

    def _read_beside(self, copy: TableCopy, why: str) -> None:
        """Have the existing rows read again while changes go on: the log does not have what they hold."""
        assert self._tunnel is not None
        assert copy.table is not None
        _log.warning("%s: %s: all its rows are read again", copy.stream, why)
        self._tunnel.resnapshot(copy.table.dbtable)
        self._tunnel.store.note(self._tunnel.name, copy.stream, None)

    def _decide(self, copy: TableCopy, columns: pa.Schema) -> Decision:
        arriving = pa.schema([each for each in columns if each.name != OPERATION])
        target = target_schema(copy, self._writer(copy, {}))
        own = {each.lower() for each in columns.names} & {BEGIN, *ENDS}
        lacks = own - {each.lower() for each in (target or columns).names}
        # Without the column, no delete would be seen.
        if lacks and copy.deletes != "hard" and copy.contract.columns != "evolve":
            raise SchemaError(
                f"deletes {copy.deletes} writes column {min(lacks)!r}, which the target lacks: drop the table in the "
                "target, and the next run copies it again"
            )
        decision = decide(copy.contract, arriving, target, keeps_columns=True)
        if not copy.is_lake or target is None:
            return decision
        here = {each.lower() for each in arriving.names}
        lost = tuple(each for each in target if each.name.lower() not in here)
        return replace(decision, steps=(*decision.steps, AddNulls(lost))) if lost else decision

    def _publish(
        self,
        copy: TableCopy,
        given: Mapping[str, Any],
        decision: Decision,
        rows: pa.Table,
        stream: tuple[str, int] | None,
    ) -> int:
        count, is_whole = rows.num_rows, copy.is_lake
        gone = None
        if is_whole:
            rows, gone = net_changes(rows, self._keys[copy.stream])
        steps = prepare(decision.steps, rows.schema)
        options = {**given, "writeMode": "upsert"} if is_whole and given else dict(given)
        writer = self._writer(copy, {**options, **dict(decision.options)})
        if options.get("writeMode") == "upsert":
            cast(Any, writer).gone = gone
        context = WriteContext(
            f"changes-{uuid.uuid4().hex}",
            commit="job",
            stream=stream,
            overwrite=is_whole and not given,
        )
        plan = writer.prepare(context, steps.output_schema)
        if plan.published_at is not None:
            return 0
        try:
            task = writer.open(plan, 0, 0)
            try:
                for batch in rows.combine_chunks().to_batches():
                    task.write(steps.run(batch).batch)
                receipt = task.close()
            except BaseException:
                task.rollback()
                raise
            writer.commit(plan, [receipt])
        except BaseException:
            writer.abort(plan, None)
            raise
        return int(count)


def _reader(copy: TableCopy) -> Reader:
    return load_reader(resolve_references(copy.reader))[0]


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """
    Raises:
        SchemaError: a column has types that no type holds together.
    """
    tables = [pa.Table.from_batches([each]) for each in batches]
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        kinds: dict[str, list[str]] = {}
        for each in (field for table in tables for field in table.schema):
            said = kinds.setdefault(each.name, [])
            said += [str(each.type)] if str(each.type) not in said else []
        names = ", ".join(
            f"{name!r} ({', '.join(said)})" for name, said in kinds.items() if said[1:]
        )
        raise SchemaError(
            f"the type of a column was changed, and changes of before and after that came together: {names}"
        ) from error


def _changed(batch: pa.RecordBatch, steps: Sequence[Transformer]) -> pa.RecordBatch:
    """The rows as the target gets them. The columns that the log adds to a row are not masked."""
    kept = [name for name in batch.schema.names if name not in (*_OF_LOG, OPERATION)]
    rows = batch.select(kept)
    made = prepare(steps, rows.schema).run(rows).batch
    made = made.append_column(AT, batch.column(AT))
    return made.append_column(
        pa.field(OPERATION, pa.string()), batch.column(OPERATION).cast(pa.string())
    )


def key_of(copy: TableCopy) -> tuple[str, ...]:
    """The columns that identify a row of the table.

    Raises:
        OptionError: it has none, or a mask makes them alike.
    """
    key = copy.options.primary_key or _reader(copy).primary_key()
    if not key:
        raise OptionError(
            f"{copy.stream} has no primary key, so its changes do not name their rows: give it one, or use mode full"
        )
    for name in key:
        mask = mask_of(copy.options.columns or {}, copy.stream, name)
        if mask is not None and mask.kind not in ("keep", "hmac", "sha256"):
            raise OptionError(
                f"primary key {name!r} has mask {mask}, which can make two keys equal: use hmac or sha256"
            )
    return key
