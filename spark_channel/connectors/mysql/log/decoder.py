"""Decodes the events of a binary log into the changes of tables: insert, update, delete, truncate. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_channel.connectors.mysql.log.events import DAMAGE, Event, Kind, damaged, statement_of
from spark_channel.connectors.mysql.log.fields import Ask
from spark_channel.connectors.mysql.log.position import Gtid, MariadbGtids, Remaining
from spark_channel.connectors.mysql.log.statements import (
    DROPS,
    TRUNCATES,
    CascadeEffect,
    ColumnEffect,
    Effect,
    LoggedStatement,
    defined_by,
    effects_of,
)
from spark_channel.connectors.mysql.log.table import (
    FollowedTable,
    RowShape,
    TableDecoder,
    WindowReporter,
)
from spark_channel.errors import SchemaError, SourceError

__all__ = ["ChangeDecoder"]

_INT = int.from_bytes
_STANDALONE = 1
_BATCH_ROWS, _BATCH_BYTES = 20_000, 8 << 20


class ChangeDecoder:
    """Events in, changes out, of `tables`, and of the transactions that `remaining` takes; None: of all.

    `counts`: rows are counted, and not kept. `telling`: the log is read beside a chunk of existing rows.
    `has`: the log may have rows with other columns: whether the table has a column by now; None: it may not.
    `skips`: by tables of several, the transactions that do not belong to the feed.
    """

    def __init__(
        self,
        tables: Sequence[FollowedTable],
        remaining: Remaining | None,
        ask: Ask,
        *,
        counts: bool = False,
        telling: WindowReporter | None = None,
        has: Callable[[str], bool] | None = None,
        skips: Mapping[str, Remaining] | None = None,
    ) -> None:
        self.tables = [
            TableDecoder(
                table,
                ask,
                counts=counts,
                telling=telling if telling is not None and telling.table == table.listed else None,
                has=has,
                skips=(skips or {}).get(table.listed),
            )
            for table in tables
        ]
        self._reporting = next((table for table in self.tables if table.telling is not None), None)
        self._skipping = [table for table in self.tables if table.skips is not None]
        self._by_needle = {table.needle: table for table in self.tables}
        self._telling, self._remaining, self._counts = telling, remaining, counts
        self._gtids, self._charsets = tables[0].gtids, tables[0].charsets
        self._cutters: dict[int, RowShape] = {}
        self._changed: dict[TableDecoder, None] = {}
        """Tables with changes that were not taken."""
        self._kept = self._bytes = 0
        self.gtid: Gtid | None = None
        self._name, self._time = "", 0
        self._takes = self._wanted = self._held = self._open = False
        self.found = 0
        """Changes in the present transaction."""
        self.at: TableDecoder | None = None
        """The table that was looked at last: an error is about it. None: of all."""
        self.altered: list[TableDecoder] = []
        """Tables of several that the present transaction has dropped, or may have given other columns."""

    def batches(self, events: Iterable[Event]) -> Iterator[pa.RecordBatch]:
        """All changes up to the end of the range, or of the log; of each table in the order of the log.

        Raises:
            SchemaError: a table has other columns than its stream began with; names the column.
            SourceError: what cannot be followed: a dropped or renamed table, rows without all their columns.
            MisfitError: a value that its column's type cannot hold.
        """
        for event in events:
            ended = self.take(event)
            if self._kept >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
                yield from self._taken()
            self._report_keys(_BATCH_ROWS)
            if ended and self.done:
                break
        self._check_ended()
        yield from self._taken()
        self._report_keys(1)

    @property
    def done(self) -> bool:
        """Whether the rest of the log is not needed. MariaDB reports exactly what a snapshot sees."""
        telling = self._telling
        if telling is not None and not (
            telling.old.done and telling.seen.done and self._gtids is MariadbGtids
        ):
            return False
        return self._remaining is not None and self._remaining.done

    @property
    def lacks(self) -> bool:
        """Whether transactions of the range, or of what a chunk saw, were not in the log."""
        telling = self._telling
        reported = telling is None or (telling.old.done and telling.seen.done)
        return not reported or (self._remaining is not None and not self._remaining.done)

    @property
    def is_wanted(self) -> bool:
        """Whether the last transaction is of the range."""
        return self._takes

    def take(self, event: Event) -> bool:
        """Note one event; whether it ends a transaction."""
        try:
            return self._take(event)
        except DAMAGE as error:
            raise damaged(event.kind, event.position, error) from error

    def _take(self, event: Event) -> bool:
        kind = event.kind
        if kind in Kind.ROWS:
            self._rows(event)
        elif kind == Kind.TABLE_MAP:
            self._map(event)
        elif kind in (Kind.MARIADB_GTID, Kind.MYSQL_GTID):
            self._begin(event)
        elif kind == Kind.XID:
            return self._end()
        elif kind in Kind.STATEMENTS:
            return self._statement(event)
        elif kind == Kind.XA_PREPARE:
            if self.found and not event.data[event.body]:
                raise self._stopped(
                    "is changed by an XA transaction, whose end is elsewhere in the log"
                )
            return self._end()
        elif kind == Kind.PARTIAL_UPDATE:
            self._partial(event)
        elif kind in (Kind.ANONYMOUS_GTID, Kind.TAGGED_GTID):
            self.at = None
            lack = "without a GTID" if kind == Kind.ANONYMOUS_GTID else "with a tagged GTID"
            raise SourceError(
                f"the binary log has a transaction {lack}, from which the change feed cannot derive its position: "
                "the server must run with gtid_mode = ON, and gtid_next = AUTOMATIC without a tag"
            )
        elif kind == Kind.INCIDENT:
            self.at = None
            raise self._stopped("may lack changes: the server has noted that it lost events")
        elif (self._wanted or self._held) and not event.has_no_rows:
            self.at = None
            raise self._stopped(f"cannot be followed past an event of unknown kind {kind}")
        return False

    def _partial(self, event: Event) -> None:
        shape = self._shape_of(event)
        if shape is not None:
            table = shape.owner.table
            raise SourceError(
                f"in the binary log {table.label} has parts of a JSON value only: run SET GLOBAL "
                f"binlog_row_value_options = '', also in sessions that set it themselves. {table.advice}"
            )

    def _check_ended(self) -> None:
        """Check that the present transaction is whole: after a crash its beginning may be at the end of a file.

        The server has rolled it back, and MariaDB gives its GTID to the next one.
        """
        if self._wanted or self._held:
            self.at = None
            raise self._stopped(
                "cannot be followed past a transaction without an end, which a crash of the server left"
            )

    def _begin(self, event: Event) -> None:
        self._check_ended()
        self.gtid = event.gtid()
        telling = self._telling
        is_new = telling is None or not telling.old.takes(self.gtid)
        self._takes = is_new and (self._remaining is None or self._remaining.takes(self.gtid))
        self._wanted = self._takes
        self._held = telling is not None and telling.window.holds(is_new, self.gtid)
        for table in self._skipping if is_new else ():
            assert table.skips is not None
            table.is_skipped = table.skips.takes(self.gtid)
        self._name, self._time = self._gtids.name(self.gtid), event.microseconds()
        self._open = (
            event.kind == Kind.MARIADB_GTID and not event.data[event.body + 12] & _STANDALONE
        )
        self._cutters.clear()
        self.altered.clear()
        self.found = 0

    def _end(self) -> bool:
        self._wanted = self._held = self._open = False
        return True

    def _statement(self, event: Event) -> bool:
        statement = statement_of(event, self._charsets)
        text = statement.text
        first = text[:12].lstrip().upper()
        if first.startswith(("BEGIN", "XA START")):
            self._open = True
            return False
        if first.startswith(("COMMIT", "ROLLBACK", "SAVEPOINT", "XA ")):
            if first.startswith("ROLLBACK") and self.found:
                raise self._stopped(
                    "is changed by a transaction that was rolled back, and yet is in the log"
                )
            if first.startswith(("SAVEPOINT", "XA END")) or text[:12].upper().startswith(
                "ROLLBACK TO"
            ):
                return False
            return self._end()
        if self._wanted or self._held:
            self._note_statement(statement)
        return not self._open and self._end()

    def _note_statement(self, statement: LoggedStatement) -> None:
        for decoder in self.tables:
            table, self.at = decoder.table, decoder
            if decoder.is_dropped:
                self._note_dropped(decoder, statement)
                continue
            if not decoder.enter(is_wanted=self._wanted, is_held=self._held):
                continue
            columns = {column.name: column.declared for column in table.columns}
            for effect in effects_of(
                statement, table.database, table.name, folds=table.folds, columns=columns
            ):
                if not (isinstance(effect, CascadeEffect) and table.logs_cascades):
                    self._note_effect(decoder, effect, statement)
            if (
                table.listed
                and decoder.is_wanted
                and not decoder.is_dropped
                and _defines(statement, table) == "alter"
            ):
                self.altered.append(decoder)

    def _note_effect(
        self, decoder: TableDecoder, effect: Effect, statement: LoggedStatement
    ) -> None:
        if effect == TRUNCATES:
            count = decoder.found
            decoder.truncated(self._name, self._time)
            self._count(decoder, count, decoder.nbytes)
            return
        has, table = decoder.has, decoder.table
        if isinstance(effect, ColumnEffect) and effect.lost and has and not has(effect.column):
            return  # it is NULL from there on, with `onSchemaChange=ignore`
        if table.listed and (effect in DROPS or not decoder.is_wanted):
            # Where it is behind the range, the next one ends before it; existing rows are read again then, or gone.
            if decoder.is_wanted:
                decoder.is_dropped = True
                self.altered.append(decoder)
            if decoder.telling is not None:
                decoder.telling.window.emptied()
            return
        if not isinstance(effect, ColumnEffect):
            raise self._stopped(
                f"cannot be followed past a statement that {effect} ({statement.text[:200]!r})"
            )
        effect_text = (
            f"has lost column {effect.column!r}"
            if effect.lost
            else f"has column {effect.column!r} of another type, or with other values,"
        )
        raise SchemaError(
            f"{table.label} {effect_text} since its stream began. {table.advice_of(has)}"
        )

    def _note_dropped(self, decoder: TableDecoder, statement: LoggedStatement) -> None:
        """Another table with the name of one that was dropped is not the one that is followed."""
        is_wanted = self._wanted and not decoder.is_skipped
        if is_wanted and _defines(statement, decoder.table) == "create":
            error = self._stopped("was dropped, and made again")
            error.is_made_again = True
            raise error

    def _stopped(self, reason: str) -> SourceError:
        table = (self.at or self.tables[0]).table
        label = table.label
        if self.at is None and table.listed:
            label = f"one of the tables {', '.join(table.table.listed for table in self.tables)}"
        return SourceError(
            f"{label} {reason}, at transaction {self._name} of the binary log. {table.advice}"
        )

    def _shape_of(self, event: Event) -> RowShape | None:
        """Of rows that are needed."""
        shape = self._cutters.get(_INT(event.data[event.body : event.body + 6], "little"))
        if shape is not None:
            self.at = shape.owner
        return shape

    def _map(self, event: Event) -> None:
        if not (self._wanted or self._held):
            return
        data, at = event.data, event.body + 8
        middle = at + 1 + data[at]
        end = middle + 3 + data[middle + 1]
        decoder = self._by_needle.get(bytes(data[at:end]))
        if decoder is None or not decoder.enter(is_wanted=self._wanted, is_held=self._held):
            return
        self.at = decoder
        number = _INT(data[event.body : event.body + 6], "little")
        self._cutters[number] = decoder.shape(bytes(data[end : event.end]))

    def _rows(self, event: Event) -> None:
        shape = self._shape_of(event)
        if shape is not None:
            decoder = shape.owner
            count, nbytes = decoder.found, decoder.nbytes
            decoder.rows(event, shape, self._name, self._time)
            self._count(decoder, count, nbytes)

    def _count(self, decoder: TableDecoder, count: int, nbytes: int) -> None:
        """Count what a table has found since it had `count` changes of `nbytes` bytes."""
        added = decoder.found - count
        self.found += added
        if added and not self._counts:
            self._kept += added
            self._bytes += decoder.nbytes - nbytes
            self._changed[decoder] = None

    def _report_keys(self, least: int) -> None:
        table = self._reporting
        if table is not None and table.reported >= least:
            self.at = table
            with table.understood(self._name):
                table.report_keys()

    def _taken(self) -> Iterator[pa.RecordBatch]:
        changed, self._changed = self._changed, {}
        self._kept = self._bytes = 0
        for table in changed:
            self.at = table
            yield from table.taken()


def _defines(statement: LoggedStatement, table: FollowedTable) -> str:
    return defined_by(statement, table.database, table.name, folds=table.folds)
