"""The changes of followed tables as the target gets them, by the contract of each."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from spark_channel.arrow_schema import text_lengths
from spark_channel.clock import utc_text
from spark_channel.connectors import WriteContext, Writer
from spark_channel.connectors.base.contract import ColumnFact
from spark_channel.connectors.base.feed import BEGIN, ENDS, OPERATION
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    SupersededError,
    TargetError,
)
from spark_channel.option_types import resolve_references
from spark_channel.plain_text import log_of
from spark_channel.replication.config import Replication
from spark_channel.replication.deletes import (
    AT,
    kept_key,
    latest_time,
    net_changes,
    with_deletes,
)
from spark_channel.replication.delivery_rows import ChangeRows
from spark_channel.replication.drift import AddNulls, Decision, LoadColumns, decide
from spark_channel.replication.masks import MaskColumns
from spark_channel.replication.renames import (
    ColumnChanges,
    changes_of,
    columns_noted,
    note_columns,
    note_names,
    other_columns,
)
from spark_channel.replication.report import ReplicationReport
from spark_channel.replication.table_run import is_of_values, reader_of
from spark_channel.replication.tables import (
    TableCopy,
    connector_of,
    is_away,
    is_stricter,
    target_schema,
)
from spark_channel.replication.tunnels import (
    AGAIN,
    DONE,
    note,
)
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel import Tunnel

__all__ = ["ChangePublisher", "why_filled"]

TIMES = "#times "
"""Before a stream's name: the note of the latest time in its versions."""

_log = log_of(__name__)


class ChangePublisher:
    """Writes the deliveries of tables, each in one transaction with its number.

    `_tunnel` is None until it is known where it is. `_keys` are those of the tables that are followed.
    """

    def __init__(self, replication: Replication, report: ReplicationReport) -> None:
        self._replication, self._report = replication, report
        self._tunnel: Tunnel | None = None
        self._keys: dict[str, tuple[str, ...]] = {}
        self._decisions: dict[str, tuple[pa.Schema, Decision]] = {}
        self._shapes: dict[str, set[tuple[str, ...]]] = {}
        """Names of the columns that were looked up in the catalog, in the log's order."""
        self._asked: dict[str, set[str]] = {}
        """Columns for which this run has asked for all rows, and which no row has brought yet."""
        self._times: dict[str, list[Any]] = {}
        """Of a table with `scd2`: the last delivery, and the latest time in all before it and with it."""
        self._columns_done: dict[str, str] = {}
        """What this run did with the columns of a table last."""
        self._unread: dict[str, str] = {}
        """Why the rows of a table are to be read again, until the tunnel knows it. What was seen of the reason may be
        gone when a delivery is tried again."""

    def _writer(self, copy: TableCopy, options: Mapping[str, Any]) -> Writer:
        writer_options = {**resolve_references(copy.writer), **options}
        writer, _ = connector_of(self._replication.target, "writer").writer_with(writer_options)
        return writer

    def _steps(self, copy: TableCopy) -> list[Transformer]:
        steps: list[Transformer] = []
        if copy.options.columns:
            steps.append(MaskColumns.for_stream(copy.stream, copy.options.columns))
        if copy.options.load_columns:
            steps.append(LoadColumns(self._report.run_id, self._report.started_at))
        return steps

    def _write(
        self, copy: TableCopy, rows: ChangeRows, stream: tuple[str, int] | None = None
    ) -> int:
        """Publish changes in one transaction with their `stream`; returns how many there were."""
        emptied_at = None
        if copy.deletes == "hard":
            rows, emptied_at = rows.after_truncate(self._report.started_at)
        return self._publish_by_contract(copy, rows, emptied_at, stream)

    def _empty(self, copy: TableCopy) -> None:
        """Let the target have no rows of the source, before these are read again."""
        if self._writer(copy, {}).exists() is False:
            return
        columns = reader_of(copy).schema()
        self._other_columns(copy, {tuple(columns.names)})
        output = prepare(self._steps(copy), columns).output_schema
        of_log = [pa.field(AT, pa.timestamp("us", tz="UTC")), pa.field(OPERATION, pa.string())]
        empty = ChangeRows.from_table(pa.schema([*output, *of_log]).empty_table())
        read_at = self._report.started_at.replace(microsecond=0)  # when the next rows begin
        self._publish_by_contract(copy, empty, read_at, None)

    def _publish_by_contract(
        self,
        copy: TableCopy,
        rows: ChangeRows,
        emptied_at: datetime | None,
        stream: tuple[str, int] | None,
    ) -> int:
        key, deletes = self._keys[copy.stream], copy.deletes
        number, at = 0 if stream is None else stream[1], self._report.started_at
        after = self._latest_time(copy, stream) if deletes == "scd2" else None
        if deletes == "hard":
            target_rows = rows.without(AT)
        else:
            ended = with_deletes(
                rows.table(), deletes, key, at, emptied_at=emptied_at, number=number, after=after
            )
            target_rows = ChangeRows.from_table(ended)
            if deletes == "scd2":
                self._note_time(copy, stream, after, latest_time(ended, after))
        writer_options: dict[str, Any] = {
            "writeMode": "apply",
            "keyColumns": list(kept_key(key, deletes)),
        }
        if emptied_at is not None and deletes == "hard":
            # A lake table is overwritten: `_publish` does that of a write without a key.
            if not copy.is_lake:
                writer_options["preSql"] = cast(
                    SqlWriter[Any], self._writer(copy, {})
                ).deletes_all()
            else:
                writer_options = {}
        cached = self._decisions.get(copy.stream)
        decision = (
            cached[1] if cached is not None and cached[0] == target_rows.schema else Decision()
        )
        try:
            return self._publish(copy, writer_options, decision, target_rows, stream)
        except (SchemaError, OptionError, TargetError) as error:
            # A column, or one of the key, is not there, or a value does not fit.
            refused = isinstance(error, TargetError) and is_of_values(error, self._writer(copy, {}))
            if isinstance(error, TargetError) and not refused:
                raise
            # To compare the columns of both takes a while, and they seldom differ.
            changes = self._column_changes(copy, target_rows.schema)
            again = self._decide(copy, target_rows.schema, refused=refused)
            if again == decision and not changes.renamed:
                # Another run may have changed the target between the write and the look at its columns.
                return self._publish(copy, writer_options, decision, target_rows, stream)
            is_read = stream is None or copy.contract.columns != "evolve"
            requested = self._asked.get(copy.stream, set())
            filled = () if is_read else tuple(n for n in changes.filled if n not in requested)
            reason = why_filled(filled)
            if filled:
                # before the column is there, and looks as if it had its values
                self._note_again(copy.stream, reason)
            written = self._publish(copy, writer_options, again, target_rows, stream)
            lasting = (
                again if not again.options else Decision(again.steps)
            )  # a column is added once
            self._decisions[copy.stream] = (target_rows.schema, lasting)
            self._note_done(copy, again, changes)
            if filled:
                self._read_beside(copy, reason, target_rows.schema.names)
            elif self._tunnel is not None and self._tunnel.exists():
                note_columns(self._tunnel, copy, target_rows.schema.names)
            return written

    def _note_done(self, copy: TableCopy, decision: Decision, changes: ColumnChanges) -> None:
        """Say in the log, and keep for `status`, what was done with columns."""
        renamed = ", ".join(f"{old!r} to {new!r}" for old, new in changes.renamed.items())
        parts = [f"renamed in the target: {renamed}"] if renamed else []
        words = "; ".join([*parts, *([decision.words] if decision.words else [])])
        if not words:
            return
        _log.warning("%s: %s", copy.stream, words)
        self._columns_done[copy.stream] = words
        if self._tunnel is not None and self._tunnel.exists():
            said_at = json.dumps([words, utc_text()])
            self._tunnel.store.note(self._tunnel.name, DONE + copy.stream, said_at)

    def _latest_time(self, copy: TableCopy, stream: tuple[str, int] | None) -> datetime | None:
        """The latest time in the deliveries of a table before this one, also of earlier runs; None = not known."""
        if copy.stream not in self._times and self._tunnel is not None and self._tunnel.exists():
            noted = self._tunnel.store.note_of(self._tunnel.name, TIMES + copy.stream)
            if noted is not None:
                self._times[copy.stream] = json.loads(noted)
        delivery, before, after = self._times.get(copy.stream, (None, None, None))
        is_again = stream is not None and delivery == list(stream)
        latest = before if is_again else after
        return None if latest is None else datetime.fromisoformat(latest)

    def _note_time(
        self,
        copy: TableCopy,
        stream: tuple[str, int] | None,
        before: datetime | None,
        after: datetime | None,
    ) -> None:
        """Keep the latest time before the rows are written: a run that is killed in between has passed it, too."""
        times = [None if time is None else time.isoformat() for time in (before, after)]
        record = [None if stream is None else list(stream), *times]
        if record == self._times.get(copy.stream):
            return
        if self._tunnel is not None and self._tunnel.exists():
            self._tunnel.store.note(self._tunnel.name, TIMES + copy.stream, json.dumps(record))
        self._times[copy.stream] = record

    def _column_changes(self, copy: TableCopy, columns: pa.Schema) -> ColumnChanges:
        """What became of the columns that the target lacks; those that were renamed are, in the target, too.

        Raises:
            SchemaError: the contract does not want that, or it would show a masked column.
        """
        target = target_schema(copy, self._writer(copy, {}))
        if target is None or self._tunnel is None:
            return ColumnChanges()
        here, target_names = (
            {name.lower() for name in names} for names in (columns.names, target.names)
        )
        own_columns = {OPERATION, BEGIN, *ENDS, "_loaded_at", "_run_id"}
        new = [name for name in columns.names if name.lower() not in target_names | own_columns]
        gone = [name for name in target.names if name.lower() not in here | own_columns]
        if not new:
            return ColumnChanges()
        arriving = [name for name in columns.names if name.lower() not in own_columns]
        changes = changes_of(copy, columns_noted(self._tunnel, copy.stream), arriving, new, gone)
        if copy.is_lake:  # not altered by SQL
            return ColumnChanges({}, (*changes.filled, *changes.renamed.values()))
        if not changes.renamed or copy.contract.columns not in ("evolve", "freeze"):
            return replace(changes, renamed={})
        writer = self._writer(copy, {})
        quoted = getattr(getattr(writer, "dialect", None), "quoted", '"{}"'.format)
        table = copy.writer["dbtable"]
        statements = [
            f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(now)}"
            for old, now in changes.renamed.items()
        ]
        key = kept_key(self._keys[copy.stream], copy.deletes)
        names = (*changes.renamed, *changes.renamed.values())
        is_key = {name.lower() for name in names} & {name.lower() for name in key}
        if is_key or copy.contract.columns == "freeze":
            reason = "it is in the key" if is_key else "contract.columns is freeze"
            both = ", ".join(f"{old!r} to {now!r}" for old, now in changes.renamed.items())
            raise SchemaError(
                f"the source has renamed {both}, and {reason}: run {'; '.join(statements)}"
            )
        key_columns = pa.schema([target.field(name) for name in target.names if name in key])
        nothing = ChangeRows.from_table(key_columns.empty_table())
        try:
            for statement in statements:
                self._publish(copy, {"postSql": statement}, Decision(), nothing, None)
        except ChannelError as error:
            if isinstance(error, SupersededError) or not self._answers(copy, error):
                raise
            _log.warning("%s: a column cannot be renamed: %s", copy.stream, error)
            return replace(changes, renamed={}, filled=(*changes.filled, *changes.renamed.values()))
        return changes

    def _get_columns(
        self, copy: TableCopy, facts: Mapping[str, ColumnFact], columns: pa.Schema
    ) -> bool:
        """Let the target have these `columns` of the source without a row of them; returns whether rows are to be read.

        Raises:
            SchemaError: as `_column_changes`.
        """
        assert self._tunnel is not None
        output = prepare(self._steps(copy), columns).output_schema
        changes = self._column_changes(copy, output)
        filled = changes.filled if copy.contract.columns == "evolve" else ()
        if filled:
            self._read_beside(copy, why_filled(filled), output.names)
            self._asked[copy.stream] = {*filled}
        elif changes.renamed:
            note_columns(self._tunnel, copy, [*changes.renamed.values()])
            self._note_done(copy, Decision(), changes)
        note_names(self._tunnel, copy, facts)
        return bool(filled)

    def _read_beside(self, copy: TableCopy, reason: str, handled: Sequence[str]) -> None:
        """Have the existing rows read again while changes continue: the log does not have what they hold.

        `handled`: the columns that the target has. The catalog is asked before the rows are read, and its
        answer is noted when the tunnel reads them: else nothing would show that they are still to be read.
        """
        assert self._tunnel is not None
        assert copy.table is not None
        _log.warning("%s: %s: all its rows are read again", copy.stream, reason)
        facts = reader_of(copy).column_facts()
        self._tunnel.resnapshot(copy.table.dbtable)
        note_columns(self._tunnel, copy, handled, read=facts)
        self._tunnel.store.note(self._tunnel.name, copy.stream, None)
        self._unread.pop(copy.stream, None)

    def _decide(self, copy: TableCopy, columns: pa.Schema, *, refused: bool) -> Decision:
        arriving = pa.schema([column for column in columns if column.name != OPERATION])
        target = target_schema(copy, self._writer(copy, {}))
        own_columns = {name.lower() for name in columns.names} & {BEGIN, *ENDS}
        lacks = own_columns - {name.lower() for name in (target or columns).names}
        # Without the column, no delete would be seen.
        if lacks and copy.deletes != "hard" and copy.contract.columns != "evolve":
            raise SchemaError(
                f"deletes {copy.deletes} writes column {min(lacks)!r}, which the target lacks: drop the table in the "
                "target, and the next run copies it again"
            )
        decision = decide(
            copy.contract,
            arriving,
            target,
            keeps_columns=True,
            refused=refused,
            is_stricter=refused and target is not None and is_stricter(copy, reader_of(copy)),
            check=self._writer(copy, {}).value_check,
        )
        if not copy.is_lake or target is None:
            return decision
        here = {name.lower() for name in arriving.names}
        lost = tuple(column for column in target if column.name.lower() not in here)
        return replace(decision, steps=(*decision.steps, AddNulls(lost))) if lost else decision

    def _publish(
        self,
        copy: TableCopy,
        writer_options: Mapping[str, Any],
        decision: Decision,
        rows: ChangeRows,
        stream: tuple[str, int] | None,
    ) -> int:
        count, is_whole = rows.num_rows, copy.is_lake
        gone = None
        if is_whole:
            live, gone = net_changes(rows.table(), self._keys[copy.stream])
            rows = ChangeRows.from_table(live)
        steps = prepare(decision.steps, rows.schema)
        options = (
            {**writer_options, "writeMode": "upsert"}
            if is_whole and writer_options
            else dict(writer_options)
        )
        writer = self._writer(copy, {**options, **dict(decision.options)})
        if options.get("writeMode") == "upsert":
            cast(Any, writer).gone = gone
        # The log does not say how long texts may be: the source's catalog does.
        lengths = text_lengths(reader_of(copy).schema()) if decision.options else {}
        context = WriteContext(
            f"changes-{uuid.uuid4().hex}",
            commit="job",
            stream=stream,
            overwrite=is_whole and not writer_options,
            text_lengths=lengths,
            definition=reader_of(copy).definition if decision.options else None,
        )
        plan = writer.prepare(context, steps.output_schema)
        if plan.published_at is not None:
            return 0
        try:
            task = writer.open(plan, 0, 0)
            try:
                for batch in rows.batches():
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

    def _other_columns(self, copy: TableCopy, shapes: set[tuple[str, ...]]) -> tuple[str, ...]:
        """`other_columns` of the names in rows, where this run has not seen these."""
        if self._tunnel is None or shapes <= self._shapes.get(copy.stream, set()):
            return ()
        return other_columns(self._tunnel, copy, {name for shape in shapes for name in shape})

    def _note_again(self, stream: str, reason: str = "") -> None:
        """`reason` this run is to read the rows again; "" = the next one does."""
        assert self._tunnel is not None
        if reason:
            self._unread[stream] = reason
        note(self._tunnel, stream, AGAIN)

    def _answers(self, copy: TableCopy, error: ChannelError) -> bool:
        """Whether the end that refused the table answers, so that it is the table that it refuses."""
        if isinstance(error, SourceError):
            return not is_away(reader_of(copy), error)
        try:
            return self._writer(copy, {}).exists() is not None
        except ChannelError:
            return False


def why_filled(names: Sequence[str]) -> str:
    return f"existing rows may have values in the new column {', '.join(names)}"
