"""Log feeds: chunks read, table held, schema changes followed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import change_schema, new_columns_advice
from spark_channel.connectors.sql.catalog import Column, MisfitError
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow, Key
from spark_channel.connectors.sql.read.keyset import Keyset, keyset_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource, check_same_columns
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, SourceError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = [
    "READ",
    "BaseChunk",
    "BaseTable",
    "SchemaRule",
    "TableFacts",
    "as_inserts",
    "base_keyset",
    "base_splits",
    "between",
    "check_order",
    "chunk_rows",
    "count_of",
    "key_of",
    "last_key",
    "order_of",
    "texts_of",
]


# A table's existing rows as chunks by ranges of its primary key, which are read beside its log.
# Pure.


READ = "read"
"""`_op` of an existing row: no event of the log."""
_CHUNK_ROWS, _CHUNK_BYTES = 50_000, 16 << 20
_WIDTH = 200
"""Bytes of a row, where the server does not know how many rows there are."""


@dataclass(frozen=True)
class BaseChunk:
    """Rows of one statement; see `Chunk`. `batches` have the columns of `keyset`, and `schema` is that of the feed.

    `at` is the position for `_lsn`. `seen` says whether the statement saw a transaction. `places` says where each
    column of the feed is in the batches; None = the table has lost it.
    """

    batches: Sequence[pa.RecordBatch]
    keyset: Keyset
    last: Key | None
    seen: Callable[[Any], bool]
    schema: pa.Schema
    at: str
    places: Sequence[int | None]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.batches)

    def sees(self, transaction: Any) -> bool:
        return self.seen(transaction)

    def kept(self, window: ChunkWindow) -> Iterator[pa.RecordBatch]:
        if window.is_emptied:
            return
        for batch in self.batches:
            left = self._left(batch, window)
            rows = left.num_rows
            if rows:
                marks = [
                    pa.repeat(pa.scalar(READ), rows),
                    pa.repeat(pa.scalar(self.at), rows),
                    pa.nulls(rows, self.schema[-1].type),
                ]
                columns = [
                    pa.nulls(rows, field.type) if place is None else left.column(place)
                    for place, field in zip(self.places, self.schema, strict=False)
                ]
                yield pa.RecordBatch.from_arrays([*columns, *marks], schema=self.schema)

    def _left(self, batch: pa.RecordBatch, window: ChunkWindow) -> pa.RecordBatch:
        if not window.keys:
            return batch
        texts = texts_of([batch.column(place) for place in self.keyset.places])
        firsts = pa.array({key[0] for key in window.keys}, pa.string())
        dropped = pc.is_in(texts[0], firsts)
        if len(texts) > 1:
            keys = zip(*(each.to_pylist() for each in texts), strict=True)
            dropped = pa.array([key in window.keys for key in keys], pa.bool_())
        return batch.filter(pc.invert(dropped))


def base_splits(reader: SqlReader, advice: int, at: str | int) -> list[Split]:
    """Splits of the existing rows that are read before the changes, as of position `at`."""
    return [
        Split({**split.params, "at": at}, split.rows, split.nbytes)
        for split in reader.split(advice)
    ]


def as_inserts(batch: pa.RecordBatch, schema: pa.Schema, at: str) -> pa.RecordBatch:
    """Existing rows that are read before the changes, as of position `at`. `schema`: that of the feed."""
    rows = batch.num_rows
    marks = [
        pa.repeat(pa.scalar("insert"), rows),
        pa.repeat(pa.scalar(at), rows),
        pa.nulls(rows, schema[-1].type),
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *marks], schema=schema)


def texts_of(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The columns of a key as a window has them."""
    return [pc.cast(each, pa.string()) for each in columns]


def base_keyset(source: ReadSource) -> Keyset:
    """
    Raises:
        SourceError: the table no longer has a key by which its chunks are found.
    """
    found = keyset_of(source, Split({"kind": "all"}))
    if found is None:
        raise SourceError(
            f"{source.label} has lost the primary key by which its base is read: reset the tunnel, or begin with a new "
            "checkpoint directory"
        )
    return found


def order_of(keyset: Keyset, sorted_as: Callable[[Column], str]) -> tuple[str, ...]:
    """The columns of the key, each with what decides which of two values is first."""
    made = []
    for each in keyset.key:
        about = keyset.source.about(each.name)
        assert about is not None
        made.append(f"{each.name} {sorted_as(about)}{' descending' if each.descending else ''}")
    return tuple(made)


def check_order(keyset: Keyset, sorted_as: Callable[[Column], str], order: Sequence[str]) -> None:
    """
    Raises:
        SourceError: keys are in another order than `order`, in which the reading of the base began, so that no key
            shows which rows are left.
    """
    now = order_of(keyset, sorted_as)
    # A name in another case is the same column, or the statement that names it fails.
    if order and [each.lower() for each in now] != [each.lower() for each in order]:
        raise SourceError(
            f"{keyset.source.label} is ordered by its primary key ({', '.join(now)}), "
            f"and was by ({', '.join(order)}) when the reading of its existing rows began: which of them "
            "are left to read is not known. Reset the tunnel, or begin with a new checkpoint directory"
        )


def between(keyset: Keyset, lower: Key | None, upper: Key) -> list[str]:
    """The conditions of the rows behind `lower`, up to and with `upper`."""
    return [
        *([] if lower is None else [_compared(keyset, ">", lower)]),
        _compared(keyset, "<=", upper),
    ]


def _compared(keyset: Keyset, sign: str, key: Key) -> str:
    """Steps, where a database finds no range of an index for a comparison of rows."""
    source = keyset.source
    columns = [source.column(each.name) for each in keyset.key]
    values = [
        source.dialect.key_literal(value, source.about(each.name))
        for value, each in zip(key, keyset.key, strict=True)
    ]
    if len(columns) == 1 or source.dialect.row_values:
        return f"({', '.join(columns)}) {sign} ({', '.join(values)})"
    steps = []
    for depth, (column, value) in enumerate(zip(columns, values, strict=True)):
        equal = [f"{columns[place]} = {values[place]}" for place in range(depth)]
        own = sign if depth + 1 == len(columns) else sign[0]
        steps.append(f"({' AND '.join([*equal, f'{column} {own} {value}'])})")
    return f"({' OR '.join(steps)})"


def key_of(keyset: Keyset, conditions: Sequence[str], skipped: int, *, last: bool = False) -> str:
    """The statement for the key of row number `skipped`, from 0; `last`: counted from the end."""
    source = keyset.source
    columns = [keyset.columns[place].expression for place in keyset.places]
    order = ", ".join(source.column(each.name) + (" DESC" if last else "") for each in keyset.key)
    return f"{source.sql(columns, conditions)} ORDER BY {order} LIMIT 1 OFFSET {skipped}"


def count_of(keyset: Keyset, conditions: Sequence[str], most: int) -> str:
    """The statement for the number of rows, up to `most`."""
    inner = keyset.source.sql(["1 AS one"], conditions)
    return f"SELECT COUNT(*) FROM ({inner} LIMIT {most}) counted"  # noqa: S608 - quoted names and literals


def last_key(batch: pa.RecordBatch, keyset: Keyset) -> Key:
    return tuple(batch.column(place)[-1].as_py() for place in keyset.places)


def chunk_rows(rows: int | None, nbytes: int, most: Callable[[int], int]) -> int:
    """How many rows are held at once, and read by one statement, of a table of `rows` rows and `nbytes` bytes.

    `most`: how many of a width a fetch may bring.
    """
    width = _WIDTH if not rows else max(1, nbytes // rows)
    return max(100, min(_CHUNK_ROWS, _CHUNK_BYTES // width, most(width)))


# Option `onSchemaChange` of a log's feed: with which changes of its table's columns it continues.


_log = log_of(__name__)


class SchemaRule:
    """Option `onSchemaChange` of a log's feed, as its table is looked at. Plain data.

    `evolves`, `ignores`: see `FeedOptions`. `advice`: what to do about columns that it refuses. `logs`: it logs
    the columns that it ignores.
    """

    def __init__(
        self, *, evolves: bool = False, ignores: bool = False, advice: str = "", logs: bool = True
    ) -> None:
        self.evolves, self.ignores = evolves, ignores
        self.advice = advice or new_columns_advice(goes_on=evolves or ignores)
        self._logs = logs
        self._logged: set[tuple[str, str]] = set()

    def has(self, asked: Callable[[str], bool]) -> Callable[[str], bool] | None:
        """For a decoder: whether the table has a column by now that the stream did not begin with; None: the log may
        have no other columns. `asked` looks at the table.
        """
        if self.ignores:
            return _never
        return asked if self.evolves else None

    def check(self, was: pa.Schema, now: pa.Schema, source: str, key: Collection[str] = ()) -> None:
        """Check that a table has the columns that its stream began with, or those that it can go on with. `key`: those
        that cannot be NULL.

        Raises:
            SchemaError: names the first column that differs.
        """
        if not self.ignores:
            check_same_columns(was, now, source, self.advice)
            return
        new = [field.name for field in now if field.name not in was.names]
        # A name in another case may be the same column, or another one.
        lost = [
            each for each in was.names if each.lower() not in {name.lower() for name in now.names}
        ]
        gone = next((name for name in lost if name in key), None)
        kept = pa.schema([field for field in was if field.name not in lost or field.name == gone])
        check_same_columns(
            kept, pa.schema([f for f in now if f.name not in new]), source, self.advice
        )
        for name, what in (
            *((name, "is NULL from now on") for name in lost),
            *((name, "is left out") for name in new),
        ):
            if self._logs and (source, name) not in self._logged:
                self._logged.add((source, name))
                _log.warning(
                    "%s has %s column %r since its stream began, which %s (onSchemaChange=ignore)",
                    source,
                    "lost" if name in lost else "a new",
                    name,
                    what,
                )


def _never(_name: str) -> bool:
    """Leave out columns that the table got, and those that it lost before the stream began."""
    return False


# The table whose existing rows are read in chunks: held, with each chunk, to be as it was when its
# stream began.


_WHOLE = Split({"kind": "all", "row_bytes": 0})


@dataclass(frozen=True)
class TableFacts:
    """What one database's catalog says. `size` asks for (rows, None = not known; bytes).

    `sorted_as` says what decides which of two values of a key's column is first.
    """

    size: Callable[[Any, ReadSource], tuple[int | None, int]]
    sorted_as: Callable[[Column], str]


class BaseTable:
    """Used by one thread, for one range.

    `columns` is the schema of the table as its stream began, `schema` that of the rows that are delivered. With None,
    a chunk has the columns that its table has then. `order`: see `BaseProgress`.
    """

    def __init__(
        self,
        reader: SqlReader,
        facts: TableFacts,
        columns: pa.Schema | None,
        schema: pa.Schema,
        order: Sequence[str],
        rule: SchemaRule,
    ) -> None:
        self._reader, self._facts, self._rule = reader, facts, rule
        self._columns, self._schema, self._order = columns, schema, order
        self._source: ReadSource | None = None

    def source(self, session: Session) -> ReadSource:
        """The table as it was when it was first asked for, without columns that the stream leaves out.

        Raises:
            SchemaError: it has other columns than its stream began with. SourceError: its keys have another order.
        """
        if self._source is None:
            self._source = self._checked(session)
        return self._source

    def look(self, session: Session) -> None:
        """Look at the table again: it may have been altered since the last chunk. It raises what `source` raises."""
        self._source = self._checked(session)

    @property
    def keyset(self) -> Keyset:
        """Once a chunk was read."""
        assert self._source is not None
        return base_keyset(self._source)

    def bound(self, session: Session, lower: Key | None, upper: Key, rows: int) -> Key | None:
        """The key of row number `rows` behind `lower`, up to `upper`; None = there are fewer rows."""
        found = self._asked(
            session, lambda keyset: key_of(keyset, between(keyset, lower, upper), rows - 1)
        )
        return tuple(found[0]) if found else None

    def last(self, session: Session) -> Key | None:
        """The last key; None = the table is empty."""
        found = self._asked(session, lambda keyset: key_of(keyset, [], 0, last=True))
        return tuple(found[0]) if found else None

    def count(self, session: Session, lower: Key | None, upper: Key, most: int) -> int:
        """How many rows there are behind `lower`, up to `upper`: up to `most`."""
        found = self._asked(
            session, lambda keyset: count_of(keyset, between(keyset, lower, upper), most)
        )
        return int(found[0][0])

    def _asked(self, session: Session, statement: Callable[[Keyset], str]) -> list[tuple[Any, ...]]:
        """What a statement answers that fails when the table was altered since it was looked at: then it is again."""
        while True:
            was = self.source(session)
            try:
                return session.rows(statement(base_keyset(was)))
            except ChannelError:
                self.look(session)
                if self.source(session).same_table == was.same_table:
                    raise

    def chunk_rows(self, session: Session) -> int:
        """How many rows are held at once, and read by one statement."""
        rows, nbytes = self._facts.size(session, self.source(session))
        return chunk_rows(
            rows,
            nbytes,
            lambda width: (
                self._reader.batch_size(Split({**_WHOLE.params, "row_bytes": width})).rows
            ),
        )

    def read(
        self, session: Session, lower: Key | None, upper: Key, rows: int
    ) -> list[pa.RecordBatch]:
        """The rows as the session has them, in the transaction that it is in.

        A table that was not locked before `look` is to be checked behind the statement, whose lock keeps its definition
        until the transaction ends: in another order of keys, the statement has left out rows.
        """
        source = self.source(session)
        keyset = base_keyset(source)
        sql = source.dialect.short_statement(
            keyset.columns, source.behind(between(keyset, lower, upper)), keyset.order, rows
        )
        return list(session.stream(sql, self._reader.batch_size(_WHOLE)))

    def check(self, session: Session) -> None:
        """It raises what `source` raises."""
        self._checked(session)

    def chunk(
        self,
        session: Session,
        raw: Sequence[pa.RecordBatch],
        upper: Key,
        rows: int,
        sees: Callable[[Any], bool],
        at: str,
    ) -> BaseChunk:
        """What `read` returned, in the types of its columns; see `BaseChunk`."""
        source, keyset = self.source(session), self.keyset
        kinds = pa.schema([pa.field(column.name, column.kind) for column in keyset.columns])
        try:
            found = [
                self._reader.dialect.decode(each, keyset.columns, kinds)
                for each in raw
                if each.num_rows
            ]
        except MisfitError as error:
            raise self._reader.misfit(session, source, _WHOLE, error, 0) from None
        is_full = sum(each.num_rows for each in found) >= rows
        last = last_key(found[-1], keyset) if is_full else None
        names = [column.name for column in source.columns]
        wanted, schema = (
            (names, change_schema(source.schema))
            if self._columns is None
            else (self._columns.names, self._schema)
        )
        places = [names.index(name) if name in names else None for name in wanted]
        return BaseChunk(found, keyset, None if last == upper else last, sees, schema, at, places)

    def _checked(self, session: Session) -> ReadSource:
        found = self._reader.resolve(session)
        keyset = base_keyset(found)
        columns = self._columns
        if columns is not None:
            self._rule.check(columns, found.schema, found.label, [each.name for each in keyset.key])
        check_order(keyset, self._facts.sorted_as, self._order)
        if columns is None:
            return found
        return replace(
            found, columns=tuple(each for each in found.columns if each.name in columns.names)
        )
