"""Decodes the events of a binary log into the changes of one table: insert, update, delete, truncate. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import change_schema, new_columns_advice
from spark_channel.connectors.mysql.binlog_events import (
    DAMAGE,
    Event,
    Kind,
    TableMap,
    damaged,
    inflated,
    packed_integer,
    statement_of,
    table_map,
)
from spark_channel.connectors.mysql.binlog_position import Gtid, GtidSet, MariadbGtids, Remaining
from spark_channel.connectors.mysql.binlog_rows import Field, RowCutter, field_of
from spark_channel.connectors.mysql.binlog_statements import (
    TRUNCATES,
    ColumnEffect,
    LoggedStatement,
    effects_of,
)
from spark_channel.connectors.mysql.binlog_values import Ask, LogColumn
from spark_channel.connectors.mysql.types import is_text_type, parts
from spark_channel.connectors.sql.catalog import ReadColumn
from spark_channel.connectors.sql.incremental_snapshot import ChunkWindow
from spark_channel.connectors.sql.log_feed import texts_of
from spark_channel.errors import SchemaError, SourceError

__all__ = ["RESET", "ChangeDecoder", "FollowedTable", "WindowReporter"]

RESET = "Reset the tunnel, or begin with a new checkpoint directory"

_INT = int.from_bytes
_STANDALONE = 1
_BATCH_ROWS, _BATCH_BYTES = 20_000, 8 << 20
_BINARY_COLLATION = 63
_CODES: Mapping[str, frozenset[int]] = {
    "tinyint": frozenset({1}),
    "smallint": frozenset({2}),
    "mediumint": frozenset({9}),
    "int": frozenset({3}),
    "bigint": frozenset({8}),
    "float": frozenset({4}),
    "double": frozenset({5}),
    "decimal": frozenset({246}),
    "date": frozenset({10, 14}),
    "time": frozenset({19}),
    "datetime": frozenset({18}),
    "timestamp": frozenset({17}),
    "year": frozenset({13}),
    "bit": frozenset({16}),
    "char": frozenset({254}),
    "varchar": frozenset({15, 253}),
    "binary": frozenset({254}),
    "varbinary": frozenset({15, 253}),
    "enum": frozenset({247}),
    "set": frozenset({248}),
    "json": frozenset({245, 252}),
    "uuid": frozenset({254}),
    "inet4": frozenset({254}),
    "inet6": frozenset({254}),
}
"""Types in the log by the declared type; texts and blobs of any length are 252 and its neighbours."""
_BLOBS = frozenset({249, 250, 251, 252})
_COMPRESSED = frozenset({140, 141})
_WIDTHS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_NO_CHARSET = frozenset({"uuid", "inet4", "inet6"})


@dataclass(frozen=True)
class FollowedTable:
    """The table that is followed, as it was when its stream began.

    `columns` are those that are wanted, `names` all that it has; `charsets` by the numbers of their collations.
    `folds`: names of tables are equal in any case. `generated`: columns that may be nowhere in
    the log. `apart`: columns by which a target may tell rows apart beside `key`.
    `is_exact`: the server tells exactly what a snapshot sees, so no window needs the log behind that.
    """

    database: str
    name: str
    label: str
    columns: tuple[ReadColumn, ...]
    names: tuple[str, ...]
    key: tuple[str, ...]
    charsets: Mapping[int, str]
    gtids: type[GtidSet]
    zero_dates: bool = False
    folds: bool = False
    generated: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        return self.gtids is MariadbGtids


@dataclass(frozen=True)
class WindowReporter:
    """What a log that is read beside a chunk of existing rows tells its `window`, by the columns `key`.

    `old` are the transactions before the range, `seen` those that the chunk's statement saw, both from where the log
    begins.
    """

    window: ChunkWindow
    key: Sequence[ReadColumn]
    old: Remaining
    seen: Remaining


@dataclass
class _Shape:
    """How rows of the table are in the log, for as long as its TABLE_MAP stays the same.

    `columns` has None for one that the table did not have then. `told` are the rows whose keys a window is to be told,
    by the columns `window_key`.
    """

    cutter: RowCutter
    columns: list[tuple[int, LogColumn] | None]
    key: list[int]
    window_key: list[tuple[int, LogColumn]]
    told: list[list[Any]] = field(default_factory=list)


@dataclass
class _Rows:
    """Rows of one shape that are cut and not yet given; None: of no shape, a truncate."""

    shape: _Shape | None
    values: list[list[Any]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


class ChangeDecoder:
    """Events in, changes out, of one table, and of the transactions that `remaining` takes; None: of all.

    `counts`: rows are counted, and not kept. `telling`: the log is read beside a chunk of existing rows.
    `has`: the log may have rows with other columns: whether the table has a column by now; None: it may not.
    """

    def __init__(
        self,
        table: FollowedTable,
        remaining: Remaining | None,
        ask: Ask,
        *,
        counts: bool = False,
        telling: WindowReporter | None = None,
        has: Callable[[str], bool] | None = None,
    ) -> None:
        self._table = table
        self._telling = telling
        self._has = has
        self._remaining = remaining
        self._ask = ask
        self._counts = counts
        self._schema = change_schema(
            pa.schema([pa.field(each.name, each.kind) for each in table.columns])
        )
        database, name = table.database.encode(), table.name.encode()
        self._needle = bytes([len(database)]) + database + b"\0" + bytes([len(name)]) + name + b"\0"
        self._shapes: dict[bytes, _Shape] = {}
        self._cutters: dict[int, _Shape] = {}
        self._chunks: list[_Rows] = []
        self._kept = self._bytes = self._told = 0
        self.gtid: Gtid | None = None
        self._name, self._time = "", 0
        self._wanted = self._held = self._open = False
        self.found = 0
        """Changes of the table in the present transaction."""

    def batches(self, events: Iterable[Event]) -> Iterator[pa.RecordBatch]:
        """All changes up to the end of the range, or of the log.

        Raises:
            SchemaError: the table has other columns than the stream began with; names the column.
            SourceError: what cannot be followed: a dropped or renamed table, rows without all their columns.
            MisfitError: a value that its column's type cannot hold.
        """
        for event in events:
            try:
                ended = self.take(event)
            except DAMAGE as error:
                raise damaged(event.kind, event.position, error) from error
            if self._kept >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
                yield from self._taken()
            if self._told >= _BATCH_ROWS:
                self._tell_keys()
            if ended and self.done:
                break
        yield from self._taken()
        with self._understood():
            self._tell_keys()

    @property
    def done(self) -> bool:
        """Whether the rest of the log is not needed."""
        telling = self._telling
        if telling is not None and not (
            telling.old.done and telling.seen.done and self._table.is_exact
        ):
            return False
        return self._remaining is not None and self._remaining.done

    @property
    def lacks(self) -> bool:
        """Whether transactions of the range, or of what a chunk saw, were not in the log."""
        telling = self._telling
        told = telling is None or (telling.old.done and telling.seen.done)
        return not told or (self._remaining is not None and not self._remaining.done)

    def take(self, event: Event) -> bool:
        """Note one event; whether it ends a transaction."""
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
            what = "without a GTID" if kind == Kind.ANONYMOUS_GTID else "with a tagged GTID"
            raise SourceError(
                f"the binary log has a transaction {what}, by which the change feed cannot tell its position: "
                "the server must run with gtid_mode = ON, and gtid_next = AUTOMATIC without a tag"
            )
        elif kind == Kind.INCIDENT:
            raise self._stopped("may lack changes: the server has noted that it lost events")
        elif (self._wanted or self._held) and not event.has_no_rows:
            raise self._stopped(f"cannot be followed past an event of unknown kind {kind}")
        return False

    def _partial(self, event: Event) -> None:
        if self._of_ours(event) is not None:
            raise SourceError(
                f"in the binary log {self._table.label} has parts of a JSON value only: run SET GLOBAL "
                f"binlog_row_value_options = '', also in sessions that set it themselves. {RESET}"
            )

    def _begin(self, event: Event) -> None:
        self.gtid = event.gtid()
        telling = self._telling
        is_new = telling is None or not telling.old.takes(self.gtid)
        self._wanted = is_new and (self._remaining is None or self._remaining.takes(self.gtid))
        self._held = telling is not None and telling.window.holds(is_new, self.gtid)
        self._name, self._time = self._table.gtids.name(self.gtid), event.microseconds()
        self._open = (
            event.kind == Kind.MARIADB_GTID and not event.data[event.body + 12] & _STANDALONE
        )
        self._cutters.clear()
        self.found = 0

    def _end(self) -> bool:
        self._wanted = self._held = self._open = False
        return True

    def _statement(self, event: Event) -> bool:
        statement = statement_of(event, self._table.charsets)
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
        table = self._table
        columns = {each.name: each.declared for each in table.columns}
        for effect in effects_of(
            statement, table.database, table.name, folds=table.folds, columns=columns
        ):
            if effect == TRUNCATES:
                if self._telling is not None:
                    self._telling.window.emptied()
                if self._wanted:
                    self._add(self._chunk(None), "truncate", [])
            elif isinstance(effect, ColumnEffect):
                self._note_column(effect)
            else:
                raise self._stopped(
                    f"cannot be followed past a statement that {effect} ({statement.text[:200]!r})"
                )

    def _note_column(self, effect: ColumnEffect) -> None:
        """One that is lost for good is NULL from there on, with `onSchemaChange=ignore`."""
        is_ignored = effect.lost and self._has is not None and not self._has(effect.column)
        if not is_ignored:
            what = (
                f"has lost column {effect.column!r}"
                if effect.lost
                else f"has column {effect.column!r} of another type, or with other values,"
            )
            advice = new_columns_advice(goes_on=self._has is not None)
            raise SchemaError(f"{self._table.label} {what} since its stream began. {advice}")

    def _stopped(self, why: str) -> SourceError:
        return SourceError(
            f"{self._table.label} {why}, at transaction {self._name} of the binary log. {RESET}"
        )

    def _of_ours(self, event: Event) -> _Shape | None:
        found = self._cutters.get(_INT(event.data[event.body : event.body + 6], "little"))
        return found if self._wanted or self._held else None

    def _map(self, event: Event) -> None:
        data, at = event.data, event.body + 8
        if not (self._wanted or self._held) or not data.startswith(self._needle, at):
            return
        body = data[at + len(self._needle) : event.end]
        shape = self._shapes.get(body)
        if shape is None:
            shape = self._shapes[body] = self._shape(body)
        self._cutters[_INT(data[event.body : event.body + 6], "little")] = shape

    def _shape(self, body: bytes) -> _Shape:
        is_mariadb = self._table.gtids is MariadbGtids
        key = () if self._telling is None else self._telling.key
        return _shape(
            self._table, table_map(body, 0, len(body), is_mariadb=is_mariadb), key, self._has
        )

    def _rows(self, event: Event) -> None:
        shape = self._of_ours(event)
        if shape is None:
            return
        data, at, end, kind = event.data, event.body + 8, event.end, event.kind
        if kind in Kind.WITH_EXTRA:
            at += _INT(data[at : at + 2], "little")
        width, at = packed_integer(data, at)
        if width != len(shape.cutter.fields):
            raise ValueError(
                f"rows of {width} columns, and the table has {len(shape.cutter.fields)}"
            )
        size = (width + 7) // 8
        is_update = kind in Kind.UPDATES
        for _ in range(1 + is_update):
            if _INT(data[at : at + size], "little") != (1 << width) - 1:
                raise SourceError(
                    f"a change of {self._table.label} in the binary log lacks columns: run SET GLOBAL binlog_row_image "
                    f"= 'FULL', also in sessions that set it themselves. {RESET}"
                )
            at += size
        if kind in Kind.COMPRESSED:
            data, at = inflated(data[at:end]), 0
            end = len(data)
        if self._held:
            self._note_keys(shape, data, at, end)
        if not self._wanted:
            return
        self._bytes += end - at
        chunk, cut = self._chunk(shape), shape.cutter.cut
        if not is_update:
            operation = "insert" if kind in Kind.INSERTS else "delete"
            while at < end:
                row, at = cut(data, at)
                self._add(chunk, operation, row)
            return
        key = shape.key
        while at < end:
            old, at = cut(data, at)
            new, at = cut(data, at)
            if any(old[place] != new[place] for place in key):
                self._add(chunk, "delete", old)  # the row of the old key is gone
            self._add(chunk, "update", new)

    def _note_keys(self, shape: _Shape, data: bytes, at: int, end: int) -> None:
        """Of all rows, as they were before and after."""
        places = [place for place, _ in shape.window_key]
        while at < end:
            row, at = shape.cutter.cut(data, at)
            shape.told.append([row[place] for place in places])
            self._told += 1

    def _tell_keys(self) -> None:
        self._told = 0
        for shape in self._shapes.values():
            told, shape.told = shape.told, []
            if told and self._telling is not None:
                columns = list(zip(*told, strict=True))
                arrays = [
                    each.array(values, self._ask)
                    for (_, each), values in zip(shape.window_key, columns, strict=True)
                ]
                for key in zip(*(each.to_pylist() for each in texts_of(arrays)), strict=True):
                    self._telling.window.changed(key)

    def _chunk(self, shape: _Shape | None) -> _Rows:
        if not self._chunks or self._chunks[-1].shape is not shape:
            self._chunks.append(_Rows(shape))
        return self._chunks[-1]

    def _add(self, chunk: _Rows, operation: str, values: list[Any]) -> None:
        self.found += 1
        if self._counts:
            return
        self._kept += 1
        chunk.values.append(values)
        chunk.operations.append(operation)
        chunk.gtids.append(self._name)
        chunk.times.append(self._time)

    def _taken(self) -> Iterator[pa.RecordBatch]:
        chunks, self._chunks = self._chunks, []
        self._kept = self._bytes = 0
        for chunk in chunks:
            if chunk.operations:
                with self._understood():
                    made = self._batch(chunk)
                yield made

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise SourceError(
                f"values of {self._table.label} before transaction {self._name} of the binary log "
                f"are not understood ({type(error).__name__} {str(error)[:100]}): "
                "they are damaged, or of a newer server"
            ) from error

    def _batch(self, chunk: _Rows) -> pa.RecordBatch:
        rows = len(chunk.operations)
        if chunk.shape is None:
            arrays = [pa.nulls(rows, each.kind) for each in self._table.columns]
        else:
            columns = list(zip(*chunk.values, strict=True))
            arrays = [
                pa.nulls(rows, wanted.kind)
                if found is None
                else found[1].array(columns[found[0]], self._ask)
                for found, wanted in zip(chunk.shape.columns, self._table.columns, strict=True)
            ]
        times = pa.array(chunk.times, pa.int64()).view(pa.timestamp("us", "UTC"))
        return pa.RecordBatch.from_arrays(
            [
                *arrays,
                pa.array(chunk.operations, pa.string()),
                pa.array(chunk.gtids, pa.string()),
                times,
            ],
            schema=self._schema,
        )


def _shape(
    table: FollowedTable,
    found: TableMap,
    window_key: Sequence[ReadColumn],
    has: Callable[[str], bool] | None,
) -> _Shape:
    """How the wanted columns, and those of a window's key, are read from rows of `found`.

    Raises:
        SchemaError: other columns than the stream began with. SourceError: names of columns are not in the log.
    """
    if not found.names:
        raise SourceError(
            f"a change of {table.label} in the binary log does not name its columns: run SET GLOBAL "
            f"binlog_row_metadata = 'FULL'. It holds for changes from then on, so: {RESET[0].lower()}{RESET[1:]}"
        )
    advice = new_columns_advice(goes_on=has is not None)
    # Names of columns are equal in any case, also where one was renamed so.
    known = {name.lower() for name in table.names}
    more = [
        name for name in found.names if name.lower() not in known and (has is None or has(name))
    ]
    if more:
        raise SchemaError(
            f"{table.label} has a new column {more[0]!r} since its stream began. {advice}"
        )
    fields = [field_of(found, place, table.label) for place in range(len(found.types))]
    places = {name.lower(): place for place, name in enumerate(found.names)}

    def place_of(name: str) -> int | None:
        return places.get(name.lower())

    needed = {*table.key, *(each.name for each in window_key), *table.generated}
    for column in table.columns:
        place = place_of(column.name)
        if place is None:
            if has is not None and column.name not in needed:
                continue
            raise SchemaError(
                f"{table.label} has no column {column.name!r} in the binary log: it was lost since its stream began, "
                f"or is generated and not stored. {advice}"
            )
        field, collation = fields[place], found.collations[place]
        if field.code in _COMPRESSED:
            raise SchemaError(
                f"column {column.name!r} of {table.label} is COMPRESSED, and the binary log has its compressed bytes, "
                "which are not read: omit it with option 'columns', or follow the table by 'cursorColumn'"
            )
        if not _is_same(column, field, collation) and (
            has is None or not _widens(column, field, collation)
        ):
            raise SchemaError(
                f"{table.label} has column {column.name!r} of another type in the binary log than {column.declared}. "
                f"{advice}"
            )
    missing = [name for name in table.key if place_of(name) is None]
    if missing:
        raise SchemaError(
            f"{table.label} has no key column {missing[0]!r} in the binary log. {RESET}"
        )
    wanted = [each for each in table.columns if place_of(each.name) is not None]
    names = dict.fromkeys(
        (*table.key, *(each for each in table.apart if place_of(each) is not None))
    )
    cutter = RowCutter(
        fields, {places[name.lower()] for name in (*(each.name for each in wanted), *names)}
    )
    order = {place: number for number, place in enumerate(cutter.wanted)}

    def read_as(column: ReadColumn) -> tuple[int, LogColumn]:
        place = places[column.name.lower()]
        return order[place], _log_column(table, column, found, place, fields[place])

    # Without a unique key, each update deletes the old row, whatever the target's key is.
    key = [order[places[name.lower()]] for name in names] or list(order.values())
    read = {each.name: read_as(each) for each in wanted}
    columns = [read.get(each.name) for each in table.columns]
    return _Shape(cutter, columns, key, [read_as(each) for each in window_key])


def _is_same(column: ReadColumn, field: Field, collation: int) -> bool:
    name, sizes, unsigned = parts(column.declared)
    codes = _CODES.get(name, _BLOBS)
    if field.code not in codes:
        return False
    if name in ("tinyint", "smallint", "mediumint", "int", "bigint"):
        return field.unsigned == unsigned
    if name == "decimal":
        return [int(size) for size in sizes] == [field.meta >> 8, field.meta & 0xFF]
    if field.code in _BLOBS or name in ("char", "varchar", "binary", "varbinary"):
        return (
            is_text_type(column.declared) == (collation != _BINARY_COLLATION) or field.code == 245
        )
    return True


def _widens(column: ReadColumn, field: Field, collation: int) -> bool:
    """Whether the column can hold each value that the log has."""
    name, sizes, unsigned = parts(column.declared)
    if name in _WIDTHS:
        width = next(
            (at for at, each in enumerate(_WIDTHS) if field.code in _CODES[each]), len(_WIDTHS)
        )
        return width <= _WIDTHS.index(name) and field.unsigned == unsigned
    if name == "decimal" and field.code == 246:
        digits, scale = (int(size) for size in sizes)
        was, then = field.meta >> 8, field.meta & 0xFF
        return then <= scale and was - then <= digits - scale
    is_long = name in ("varchar", "tinytext", "text", "mediumtext", "longtext")
    return is_long and collation != _BINARY_COLLATION and field.code in (15, 253, 254, *_BLOBS)


def _log_column(
    table: FollowedTable, column: ReadColumn, found: TableMap, place: int, field: Field
) -> LogColumn:
    collation = found.collations[place]
    charset = "binary"
    name = parts(column.declared)[0]
    if is_text_type(column.declared) and name not in _NO_CHARSET and field.code != 245:
        if collation not in table.charsets:
            raise SourceError(
                f"column {column.name!r} of {table.label} has collation {collation} in the binary log, "
                "which the server does not list in information_schema: convert the column to utf8mb4"
            )
        charset = table.charsets[collation]
    return LogColumn(column, field, charset, found.members[place], table.zero_dates)
