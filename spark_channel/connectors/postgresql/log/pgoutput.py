"""Decodes pgoutput, PostgreSQL's own format of logical replication (protocol 1), into Arrow. Pure.

Values come as texts of the server; each column's texts become its Arrow type in one cast. Messages:
B(egin), C(ommit), R(elation), I(nsert), U(pdate), D(elete), T(runcate); O(rigin), Y (type) and M are skipped.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import change_schema, new_columns_advice
from spark_channel.connectors.postgresql.log.columns import LogColumn, difference
from spark_channel.connectors.postgresql.log.position import lsn_text
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow
from spark_channel.errors import SchemaError, SourceError
from spark_channel.lazy import compute as pc

__all__ = ["DAMAGE", "RELATION", "ChangeDecoder", "TableShape", "begin_time"]


_EPOCH_MICROSECONDS = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's times begin."""
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_SIZE = struct.Struct(">I").unpack_from
_BEGIN = struct.Struct(">Qqi").unpack_from
RELATION = struct.Struct(">I").unpack_from
_UNCHANGED = object()
DAMAGE = (struct.error, LookupError, TypeError, ValueError, OverflowError)
"""What reading bytes raises that are not as pgoutput writes them; Arrow's errors of values are ValueErrors."""
_INSERT, _UPDATE, _DELETE, _TRUNCATE = "insert", "update", "delete", "truncate"


def begin_time(message: bytes) -> int | None:
    """The commit time of the transaction that this message begins, in microseconds since 1970; else None."""
    return _BEGIN(message, 1)[1] + _EPOCH_MICROSECONDS if message[:1] == b"B" else None


@dataclass(frozen=True)
class TableShape:
    """The table that is followed: its place in the log, and its columns as they were."""

    oid: int
    label: str
    columns: tuple[LogColumn, ...]


@dataclass
class _Rows:
    """Rows that are decoded and not yet given."""

    values: list[list[bytes | None]]
    operations: list[str] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


class ChangeDecoder:
    """Messages in, batches out: of one table, and of the transactions whose commit is in [after, upto).

    Args:
        schema: `change_schema` of the columns that are wanted.
        batch_rows: how many rows make a batch.
        has: the log may have rows with other columns than `shape`: whether the table has a column by now. None: it may
            not.
        kinds: rows are delivered with the columns that the log has, whatever `shape` has: their types. `schema` is then
            that of `shape`. None: all rows have `schema`.
        advice: what to do about other columns.
    """

    def __init__(
        self,
        shape: TableShape,
        schema: pa.Schema,
        after: int,
        upto: int,
        *,
        batch_rows: int = 20_000,
        has: Callable[[str], bool] | None = None,
        kinds: Callable[[Sequence[LogColumn]], pa.Schema] | None = None,
        advice: str = "",
    ) -> None:
        self._kinds = kinds
        self._advice = advice or new_columns_advice(goes_on=has is not None)
        self._shape = shape
        self._schema = schema
        self._after, self._upto = after, upto
        self._batch_rows = batch_rows
        self._has = has
        self._key_names: Sequence[str] = ()
        self._apart_names: Sequence[str] = ()
        self._unnamed: Sequence[str] = ()
        """Columns of the key that updates and deletes in the log do not name."""
        self._window_names: Sequence[str] = ()
        self._is_other = False
        self._arrange(shape.columns)
        self._rows = self._fresh()
        self._wanted = False
        self._held = False
        self._refused: str | None = None
        """Why the rows that follow in the log cannot be delivered."""
        self._add: Callable[[str, list[Any]], None] = self._append
        self._window: ChunkWindow | None = None
        self._lsn = 0
        self._time = 0

    def feed(self, messages: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Decode messages in the order in which the server gave them.

        Raises:
            SchemaError: the table has other columns than the stream began with; names the column.
            SourceError: an update without a value that is stored out of line, or a broken message.
        """
        try:
            yield from self._fed(messages)
        except DAMAGE as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            f"the log of {self._shape.label} has a message at {lsn_text(self._lsn)} that is not as pgoutput writes it "
            f"({type(error).__name__}): what answers is not PostgreSQL, or it is damaged; see 'url', and the log files "
            "of the server"
        )

    def _fed(self, messages: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        relation = self._shape.oid
        for message in messages:
            kind = message[0]
            if kind == 73 or kind == 85 or kind == 68:  # I, U, D
                if (self._wanted or self._held) and RELATION(message, 1)[0] == relation:
                    self._change(kind, message)
                    if len(self._rows.lsns) >= self._batch_rows:
                        yield self._take()
            elif kind == 66:  # B
                commit, time, transaction = _BEGIN(message, 1)
                self._wanted = self._after <= commit < self._upto
                self._held = self._window is not None and self._window.holds(
                    commit >= self._after, transaction
                )
                self._add = self._report if self._held else self._append
                if self._wanted and self._refused is not None:
                    self._check_refused()
                self._lsn, self._time = commit, time + _EPOCH_MICROSECONDS
            elif kind == 82:  # R
                if RELATION(message, 1)[0] == relation:
                    columns, named = _columns_of(message)
                    # Without a replica identity, the server refuses updates and deletes.
                    self._unnamed = [
                        name for name in self._key_names if named and name not in named
                    ]
                    if self._kinds is not None and columns != self._shape.columns:
                        if self._rows.lsns:
                            yield self._take()
                        self._shape = replace(self._shape, columns=columns)
                        self._schema = change_schema(self._kinds(columns))
                    self._check_relation(columns)
            elif kind == 84 and (self._wanted or self._held) and self._truncates(message):  # T
                if self._held and self._window is not None:
                    self._window.emptied()
                if self._wanted:
                    self._append(_TRUNCATE, [None] * (len(self._names) + 1))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The remaining rows."""
        if self._rows.lsns:
            try:
                yield self._take()
            except DAMAGE as error:
                raise self._damaged(error) from error

    def _change(self, kind: int, message: bytes) -> None:
        if kind != 73 and self._unnamed and self._wanted:
            raise SourceError(
                f"an update or delete of {self._shape.label} in the log does not name its row's "
                f"{', '.join(self._unnamed)}: the table's replica identity has changed since its stream began. "
                "Run ALTER TABLE ... REPLICA IDENTITY DEFAULT, then reset the tunnel"
            )
        old: list[Any] | None = None
        at = 5
        part = message[at]
        if part == 75 or part == 79:  # K, O: the key, or all, before the change
            old, at = self._tuple(message, at + 1)
        if kind == 68:
            if old is None:
                raise ValueError("a delete without a row")
            self._add(_DELETE, old)
            return
        new, _ = self._tuple(message, at + 1)
        if any(value is _UNCHANGED for value in new):
            new = self._filled(new, old if part == 79 else None, old)
        if kind == 85 and old is not None and part == 75:
            self._add(_DELETE, old)  # the key has changed: the row of the old one is gone
        elif kind == 85 and old is not None and self._differs(old, new):
            self._add(_DELETE, old)
        self._add(_INSERT if kind == 73 else _UPDATE, new)

    def _differs(self, old: list[Any], new: list[Any]) -> bool:
        return any(old[index] != new[index] for index in self._apart)

    def report_to(self, window: ChunkWindow, key: Sequence[str]) -> None:
        """Report the changes that `window` holds to it, by the columns `key`: also those outside [after, upto)."""
        self._window, self._window_names = window, key
        self._arrange(self._shape.columns)

    def follow_key(self, names: Sequence[str], apart: Sequence[str] = ()) -> None:
        """Check that updates and deletes name the key `names`.

        With REPLICA IDENTITY FULL, an update that changes one of the columns `apart` (empty: the key) is a delete as
        well.
        """
        self._key_names, self._apart_names = names, apart or names
        self._arrange(self._shape.columns)

    def _arrange(self, columns: Sequence[LogColumn]) -> None:
        """Find the wanted columns in rows of `columns`; one that is not there is behind the last, where a NULL is."""
        self._names = [column.name for column in columns]
        self._is_other = tuple(columns) != self._shape.columns
        places = {name: index for index, name in enumerate(self._names)}
        self._places = [places.get(name, len(columns)) for name in self._schema.names[:-3]]
        self._apart = tuple(places.get(name, len(columns)) for name in self._apart_names)
        self._window_key = tuple(places.get(name, len(columns)) for name in self._window_names)

    def _tuple(self, message: bytes, at: int) -> tuple[list[Any], int]:
        (count,) = _INT16(message, at)
        if count != len(self._names):
            raise ValueError("a row of another width than its table")
        at += 2
        values: list[Any] = []
        append = values.append
        for _ in range(count):
            kind = message[at]
            at += 1
            if kind == 116:  # t
                (size,) = _SIZE(message, at)
                at += 4
                append(message[at : at + size])
                at += size
            elif kind == 110 or kind == 117:  # n, u
                append(None if kind == 110 else _UNCHANGED)
            else:
                raise ValueError("a value of another kind than t, n and u")
        if at > len(message):
            raise ValueError("a row that is cut off")
        if self._is_other:
            append(None)
        return values, at

    def _filled(self, new: list[Any], old: list[Any] | None, key: list[Any] | None) -> list[Any]:
        """`old` is the whole row before the change, `key` what is known of it; either may be None."""
        for index, value in enumerate(new):
            if value is _UNCHANGED:
                if (
                    old is None
                    and key is not None
                    and index in self._window_key
                    and key[index] is not None
                ):
                    new[index] = key[index]
                elif old is None and self._wanted and index in self._places:
                    name = self._names[index]
                    raise SourceError(
                        f"an update of {self._shape.label} left column {name!r} as it was, and its value, stored "
                        "out of line, is not in the log: run ALTER TABLE ... REPLICA IDENTITY FULL, then reset "
                        "the tunnel"
                    )
                elif old is not None:
                    new[index] = old[index]
        return new

    def _report(self, operation: str, values: list[Any]) -> None:
        assert self._window is not None
        self._window.changed(tuple(_text(values[index]) for index in self._window_key))
        if self._wanted:
            self._append(operation, values)

    def _append(self, operation: str, values: list[Any]) -> None:
        rows = self._rows
        for column, index in zip(rows.values, self._places, strict=True):
            column.append(values[index])
        rows.operations.append(operation)
        rows.lsns.append(self._lsn)
        rows.times.append(self._time)

    def _truncates(self, message: bytes) -> bool:
        (count,) = _INT32(message, 1)
        return any(
            RELATION(message, 6 + 4 * number)[0] == self._shape.oid for number in range(count)
        )

    def _check_relation(self, columns: tuple[LogColumn, ...]) -> None:
        self._refused = difference(self._shape.columns, columns, self._has)
        if self._wanted:  # changes of other transactions are only reported to a window
            self._check_refused()
        names = [column.name for column in columns]
        lost = next(
            (name for name in (*self._key_names, *self._window_names) if name not in names), None
        )
        if lost is not None:
            raise SchemaError(
                f"{self._shape.label} has no key column {lost!r} in the log, so its changes belong to no row. Reset "
                "the tunnel, or begin with a new checkpoint directory"
            )
        self._arrange(columns)
        if self._kinds is not None and not self._rows.lsns:
            self._rows = self._fresh()

    def _check_refused(self) -> None:
        if self._refused is not None:
            raise SchemaError(
                f"{self._shape.label} {self._refused} since its stream began. {self._advice}"
            )

    def _take(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, self._fresh()
        columns = [
            _typed(values, about)
            for values, about in zip(rows.values, list(self._schema)[:-3], strict=True)
        ]
        lsns = pa.array([lsn_text(lsn) for lsn in rows.lsns], pa.string())
        times = pa.array(rows.times, pa.int64()).cast(pa.timestamp("us", "UTC"))
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array(rows.operations, pa.string()), lsns, times], schema=self._schema
        )

    def _fresh(self) -> _Rows:
        return _Rows([[] for _ in self._places])


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise SourceError(
            "a change in the log does not name its key: the table's replica identity has changed since its stream "
            "began. Run ALTER TABLE ... REPLICA IDENTITY DEFAULT, then reset the tunnel"
        )
    return value.decode()


def _columns_of(message: bytes) -> tuple[tuple[LogColumn, ...], set[str]]:
    """The columns that a message R names, and those of the replica identity."""
    at = message.index(b"\0", 5) + 1
    at = message.index(b"\0", at) + 2  # the name's end, and the replica identity
    (count,) = _INT16(message, at)
    at += 2
    columns, identity = [], set()
    for _ in range(count):
        end = message.index(b"\0", at + 1)
        name = message[at + 1 : end].decode()
        if message[at]:
            identity.add(name)
        columns.append(LogColumn(name, RELATION(message, end + 1)[0], _INT32(message, end + 5)[0]))
        at = end + 9
    return tuple(columns), identity


def _typed(values: list[bytes | None], about: pa.Field) -> pa.Array:
    """Texts of the server as the column's type."""
    kind = about.type
    texts = pa.array(values, pa.binary()).cast(pa.string())
    try:
        if pa.types.is_time(kind):  # Arrow casts no text to a time of day
            times = [
                None if text is None else time.fromisoformat(text) for text in texts.to_pylist()
            ]
            return pa.array(times, kind)
        if pa.types.is_string(kind):
            return texts
        if pa.types.is_boolean(kind):
            return pc.equal(texts, "t")
        if pa.types.is_binary(kind):
            return pa.array(
                [None if value is None else bytes.fromhex(value[2:].decode()) for value in values],
                kind,
            )
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            plain = pc.replace_substring_regex(texts, r"\+00$", "")
            return pc.cast(plain, pa.timestamp("us")).cast(pa.int64()).cast(kind)
        return pc.cast(texts, kind)
    except (ValueError, pa.ArrowNotImplementedError):
        # The value may be one that a mask hides.
        raise SourceError(
            f"a change of column {about.name!r} has a value that {kind} cannot hold"
        ) from None
