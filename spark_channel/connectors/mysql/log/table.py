"""The rows of one table in a binary log: cut from its events, decoded into batches of changes. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import TABLE, change_schema, new_columns_advice
from spark_channel.connectors.mysql.log.events import (
    DAMAGE,
    Event,
    Kind,
    TableMap,
    inflated,
    packed_integer,
    table_map,
)
from spark_channel.connectors.mysql.log.fields import Ask, LogColumn
from spark_channel.connectors.mysql.log.position import GtidSet, MariadbGtids, Remaining
from spark_channel.connectors.mysql.log.rows import Field, RowCutter, field_of
from spark_channel.connectors.mysql.types import is_text_type, parts
from spark_channel.connectors.sql.catalog import ReadColumn
from spark_channel.connectors.sql.feed.base_chunk import texts_of
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow
from spark_channel.errors import SchemaError, SourceError

__all__ = ["RESET", "FollowedTable", "RowShape", "TableDecoder", "WindowReporter", "becomes"]

RESET = "Reset the tunnel, or begin with a new checkpoint directory"

_INT = int.from_bytes
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
    """A table that is followed, as it was when its stream began, or as a position of a feed of several tables has it.

    `columns` are those that are wanted, `names` all that it has; `charsets` by the numbers of their collations.
    `folds`: names of tables are equal in any case. `logs_cascades`: the log has rows that foreign keys change.
    `generated`: columns that may be nowhere in the log. `apart`: columns that may also identify a row in a target,
    beside `key`.
    `listed`: its name in a feed of several tables, in which it may be dropped; else "". `advice` and `columns_advice`:
    what to do where it cannot be followed, and where its columns have changed.
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
    logs_cascades: bool = False
    generated: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()
    listed: str = ""
    is_dropped: bool = False
    advice: str = RESET
    columns_advice: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the wanted columns."""
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    def advice_of(self, has: Callable[[str], bool] | None) -> str:
        """What to do about columns that `has` does not excuse: see `ChangeDecoder`."""
        return self.columns_advice or new_columns_advice(goes_on=has is not None)


@dataclass(frozen=True)
class WindowReporter:
    """Where a log that is read beside a chunk of existing rows reports changed rows: to `window`, by the columns `key`.

    `old` are the transactions before the range, `seen` those that the chunk's statement saw, both from where the log
    begins. `table`: which one of several it is, by the name that the feed has for it.
    """

    window: ChunkWindow
    key: Sequence[ReadColumn]
    old: Remaining
    seen: Remaining
    table: str = ""


@dataclass
class RowShape:
    """How rows of the table are in the log, for as long as its TABLE_MAP stays the same.

    `columns` has None for one that the table did not have then. `reported` are the keys that a window
    gets, by the columns `window_key`.
    """

    owner: "TableDecoder"
    cutter: RowCutter
    columns: list[tuple[int, LogColumn] | None]
    key: list[int]
    window_key: list[tuple[int, LogColumn]]
    reported: list[list[Any]] = field(default_factory=list)


@dataclass
class _Rows:
    """Rows of one shape that are cut and not yet given; None: of no shape, a truncate."""

    shape: RowShape | None
    values: list[list[Any]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


class TableDecoder:
    """Cuts and keeps the rows of one table, until `taken` returns them. `skips`: its transactions that do not belong to
    the feed, from where the log begins. For the others see `ChangeDecoder`.
    """

    def __init__(
        self,
        table: FollowedTable,
        ask: Ask,
        *,
        counts: bool,
        telling: WindowReporter | None,
        has: Callable[[str], bool] | None,
        skips: Remaining | None,
    ) -> None:
        self.table, self.telling, self.has, self.skips = table, telling, has, skips
        self.is_dropped = table.is_dropped
        self.is_wanted = self.is_held = self.is_skipped = False
        """Whether the present transaction's changes are wanted, are reported to a window, or are neither."""
        self._ask, self._counts = ask, counts
        database, name = table.database.encode(), table.name.encode()
        self.needle = bytes([len(database)]) + database + b"\0" + bytes([len(name)]) + name + b"\0"
        self._shapes: dict[bytes, RowShape] = {}
        self._chunks: list[_Rows] = []
        self.reported = 0
        self.found = self.nbytes = 0
        """Changes of the table so far, and their bytes."""
        self.first = 0
        """When the first of them was committed, in microseconds; 0 = there is none."""

    @cached_property
    def _schema(self) -> pa.Schema:
        schema = change_schema(self.table.schema)
        return schema.append(pa.field(TABLE, pa.string())) if self.table.listed else schema

    def enter(self, *, is_wanted: bool, is_held: bool) -> bool:
        """Whether the decoder needs a transaction that is wanted, or that is reported to a window."""
        self.is_wanted = is_wanted and not self.is_skipped and not self.is_dropped
        self.is_held = is_held and self.telling is not None and not self.is_dropped
        return self.is_wanted or self.is_held

    def shape(self, body: bytes) -> RowShape:
        """How rows are in the log behind a TABLE_MAP with this body."""
        shape = self._shapes.get(body)
        if shape is None:
            is_mariadb = self.table.gtids is MariadbGtids
            key = () if self.telling is None else self.telling.key
            table = table_map(body, 0, len(body), is_mariadb=is_mariadb)
            shape = self._shapes[body] = _shape(self, table, key, self.has)
        return shape

    def rows(self, event: Event, shape: RowShape, gtid: str, time: int) -> None:
        """Note the changes of one event, of transaction `gtid` at `time`."""
        data, at, end, kind = event.data, event.body + 8, event.end, event.kind
        if kind in Kind.WITH_EXTRA:
            at += _INT(data[at : at + 2], "little")
        width, at = packed_integer(data, at)
        if width != len(shape.cutter.fields):
            raise ValueError(
                f"rows of {width} columns, and the table has {len(shape.cutter.fields)}"
            )
        size, every = (width + 7) // 8, (1 << width) - 1
        is_update = kind in Kind.UPDATES
        for _ in range(1 + is_update):
            # MySQL sets the bits behind the last column, too; MariaDB does not.
            if _INT(data[at : at + size], "little") & every != every:
                raise SourceError(
                    f"a change of {self.table.label} in the binary log lacks columns: run SET GLOBAL binlog_row_image "
                    f"= 'FULL', also in sessions that set it themselves. {self.table.advice}"
                )
            at += size
        if kind in Kind.COMPRESSED:
            data, at = inflated(data[at:end]), 0
            end = len(data)
        if self.is_held:
            self._note_keys(shape, data, at, end)
        if not self.is_wanted:
            return
        self.nbytes += end - at
        self.first = self.first or time
        chunk, cut = self._chunk(shape), shape.cutter.cut
        if not is_update:
            operation = "insert" if kind in Kind.INSERTS else "delete"
            while at < end:
                row, at = cut(data, at)
                self._add(chunk, operation, row, gtid, time)
            _check_end(at, end)
            return
        key = shape.key
        while at < end:
            old, at = cut(data, at)
            new, at = cut(data, at)
            if any(old[index] != new[index] for index in key):
                self._add(chunk, "delete", old, gtid, time)  # the row of the old key is gone
            self._add(chunk, "update", new, gtid, time)
        _check_end(at, end)

    def truncated(self, gtid: str, time: int) -> None:
        if self.telling is not None:
            self.telling.window.emptied()
        if self.is_wanted:
            self.first = self.first or time
            self._add(self._chunk(None), "truncate", [], gtid, time)

    def _note_keys(self, shape: RowShape, data: bytes, at: int, end: int) -> None:
        """Of all rows, as they were before and after."""
        places = [index for index, _ in shape.window_key]
        while at < end:
            row, at = shape.cutter.cut(data, at)
            shape.reported.append([row[index] for index in places])
            self.reported += 1
        _check_end(at, end)

    def report_keys(self) -> None:
        self.reported = 0
        for shape in self._shapes.values():
            rows, shape.reported = shape.reported, []
            if rows and self.telling is not None:
                columns = list(zip(*rows, strict=True))
                arrays = [
                    column.array(values, self._ask)
                    for (_, column), values in zip(shape.window_key, columns, strict=True)
                ]
                for key in zip(*(array.to_pylist() for array in texts_of(arrays)), strict=True):
                    self.telling.window.changed(key)

    def _chunk(self, shape: RowShape | None) -> _Rows:
        if not self._chunks or self._chunks[-1].shape is not shape:
            self._chunks.append(_Rows(shape))
        return self._chunks[-1]

    def _add(self, chunk: _Rows, operation: str, values: list[Any], gtid: str, time: int) -> None:
        self.found += 1
        if self._counts:
            return
        chunk.values.append(values)
        chunk.operations.append(operation)
        chunk.gtids.append(gtid)
        chunk.times.append(time)

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The changes since it was last asked.

        Raises:
            MisfitError: a value that its column's type cannot hold.
        """
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            if chunk.operations:
                with self.understood(chunk.gtids[0]):
                    batch = self._batch(chunk)
                yield batch

    @contextmanager
    def understood(self, gtid: str) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise SourceError(
                f"values of {self.table.label} from transaction {gtid} of the binary log on "
                f"are not understood ({type(error).__name__} {str(error)[:100]}): "
                "they are damaged, or of a newer server"
            ) from error

    def _batch(self, chunk: _Rows) -> pa.RecordBatch:
        rows = len(chunk.operations)
        if chunk.shape is None:
            arrays = [pa.nulls(rows, column.kind) for column in self.table.columns]
        else:
            columns = list(zip(*chunk.values, strict=True))
            arrays = [
                pa.nulls(rows, column.kind)
                if source is None
                else source[1].array(columns[source[0]], self._ask)
                for source, column in zip(chunk.shape.columns, self.table.columns, strict=True)
            ]
        times = pa.array(chunk.times, pa.int64()).view(pa.timestamp("us", "UTC"))
        marks = [pa.array(chunk.operations, pa.string()), pa.array(chunk.gtids, pa.string()), times]
        if self.table.listed:
            marks.append(pa.repeat(pa.scalar(self.table.listed), rows))
        return pa.RecordBatch.from_arrays([*arrays, *marks], schema=self._schema)


def _check_end(at: int, end: int) -> None:
    """Rows whose last one ends elsewhere than their event were cut at wrong places."""
    if at != end:
        raise ValueError(f"rows that end {at - end} bytes behind their event")


def _shape(
    owner: TableDecoder,
    logged: TableMap,
    window_key: Sequence[ReadColumn],
    has: Callable[[str], bool] | None,
) -> RowShape:
    """How the wanted columns, and those of a window's key, are read from rows of `logged`.

    Raises:
        SchemaError: other columns than the stream began with. SourceError: names of columns are not in the log.
    """
    table = owner.table
    if not logged.names:
        advice = f"{table.advice[0].lower()}{table.advice[1:]}"
        raise SourceError(
            f"a change of {table.label} in the binary log does not name its columns: run SET GLOBAL "
            f"binlog_row_metadata = 'FULL'. It holds for changes from then on, so: {advice}"
        )
    advice = table.advice_of(has)
    # Names of columns are equal in any case, also where one was renamed so.
    lowered = {name.lower() for name in table.names}
    new_names = [
        name for name in logged.names if name.lower() not in lowered and (has is None or has(name))
    ]
    if new_names:
        raise SchemaError(
            f"{table.label} has a new column {new_names[0]!r} since its stream began. {advice}"
        )
    fields = [field_of(logged, index, table.label) for index in range(len(logged.types))]
    places = {name.lower(): index for index, name in enumerate(logged.names)}

    def place_of(name: str) -> int | None:
        return places.get(name.lower())

    needed = {*table.key, *(column.name for column in window_key), *table.generated}
    for column in table.columns:
        index = place_of(column.name)
        if index is None:
            if has is not None and column.name not in needed:
                continue
            raise SchemaError(
                f"{table.label} has no column {column.name!r} in the binary log: it was lost since its stream began, "
                f"or is generated and not stored. {advice}"
            )
        field, collation = fields[index], logged.collations[index]
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
            f"{table.label} has no key column {missing[0]!r} in the binary log. {table.advice}"
        )
    present = [column for column in table.columns if place_of(column.name) is not None]
    names = dict.fromkeys(
        (*table.key, *(name for name in table.apart if place_of(name) is not None))
    )
    cutter = RowCutter(
        fields, {places[name.lower()] for name in (*(column.name for column in present), *names)}
    )
    order = {index: number for number, index in enumerate(cutter.wanted)}

    def read_as(column: ReadColumn) -> tuple[int, LogColumn]:
        at = places[column.name.lower()]
        return order[at], _log_column(table, column, logged, at, fields[at])

    # Without a unique key, each update deletes the old row, whatever the target's key is.
    key = [order[places[name.lower()]] for name in names] or list(order.values())
    read = {column.name: read_as(column) for column in present}
    columns = [read.get(column.name) for column in table.columns]
    return RowShape(owner, cutter, columns, key, [read_as(column) for column in window_key])


def becomes(was: FollowedTable, now: FollowedTable) -> str:
    """What forbids that a table continues with other columns, where the log may have rows of both; "" = nothing."""
    if set(was.key) != set(now.key):
        return f"has key ({', '.join(now.key)}), and had ({', '.join(was.key)}),"
    old_columns = {column.name.lower(): column for column in was.columns}
    for column in now.columns:
        old = old_columns.get(column.name.lower())
        if old is not None and not _takes_values(column.declared, old.declared):
            return f"has column {column.name!r} of type {column.declared}, and had {old.declared},"
    return ""


def _takes_values(now: str, was: str) -> bool:
    """Whether a column of type `now` has the values that it had with type `was`, in the log as in the table."""
    (name, sizes, unsigned), (old, old_sizes, was_unsigned) = parts(now), parts(was)
    if name in _WIDTHS and old in _WIDTHS:
        return _WIDTHS.index(old) <= _WIDTHS.index(name) and unsigned == was_unsigned
    if name == old == "decimal":
        (digits, scale), (old_digits, old_scale) = map(int, sizes), map(int, old_sizes)
        return old_scale <= scale and old_digits - old_scale <= digits - scale
    texts = ("varchar", "tinytext", "text", "mediumtext", "longtext")
    if name in texts:
        return old in (*texts, "char")
    if name in ("datetime", "timestamp", "time", "binary", "float", "double"):
        return now == was
    return name == old and unsigned == was_unsigned


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
            (at for at, codes in enumerate(_WIDTHS) if field.code in _CODES[codes]), len(_WIDTHS)
        )
        return width <= _WIDTHS.index(name) and field.unsigned == unsigned
    if name == "decimal" and field.code == 246:
        digits, scale = (int(size) for size in sizes)
        was, then = field.meta >> 8, field.meta & 0xFF
        return then <= scale and was - then <= digits - scale
    is_long = name in ("varchar", "tinytext", "text", "mediumtext", "longtext")
    return is_long and collation != _BINARY_COLLATION and field.code in (15, 253, 254, *_BLOBS)


def _log_column(
    table: FollowedTable, column: ReadColumn, logged: TableMap, index: int, field: Field
) -> LogColumn:
    collation = logged.collations[index]
    charset = "binary"
    name = parts(column.declared)[0]
    if is_text_type(column.declared) and name not in _NO_CHARSET and field.code != 245:
        if collation not in table.charsets:
            raise SourceError(
                f"column {column.name!r} of {table.label} has collation {collation} in the binary log, "
                "which the server does not list in information_schema: convert the column to utf8mb4"
            )
        charset = table.charsets[collation]
    return LogColumn(column, field, charset, logged.members[index], table.zero_dates)
