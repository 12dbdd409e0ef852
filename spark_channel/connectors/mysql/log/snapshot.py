"""Chunks of a table between two positions of the binary log. Nothing is written, neither a row nor to the log.

MariaDB reports the position of a snapshot exactly, while commits wait: a transaction is in the log first, and visible
later, for as long as a semi-synchronous replica takes. So the snapshot of a chunk may be behind the log or before it,
and a row is dropped that any transaction changed between the two positions, whichever comes first.
MySQL has a transaction in `gtid_executed` after it is visible, and in the log before. So transactions up to the end of
the log behind the chunk count as not seen if the set that was read before the snapshot lacks them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pyarrow as pa

from spark_channel.connectors.mysql.dialect import MysqlColumn, MysqlTable
from spark_channel.connectors.mysql.log.position import GtidSet, Remaining
from spark_channel.connectors.mysql.log.table import WindowReporter
from spark_channel.connectors.mysql.session import MysqlSession, code_of
from spark_channel.connectors.mysql.types import parts
from spark_channel.connectors.sql.catalog import Column, ReadColumn
from spark_channel.connectors.sql.feed.base_chunk import (
    BaseChunk,
    base_keyset,
    between,
    check_order,
    count_of,
    key_of,
    order_of,
)
from spark_channel.connectors.sql.feed.base_table import BaseTable, TableFacts
from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress, ChunkWindow, Key
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.read.keyset import Keyset, keyset_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError
from spark_channel.planning import Split
from spark_channel.retry import Retry

__all__ = ["BinlogWatermarks", "RestOfTables", "obstacle", "snapshot_place", "start_of"]

_KEYS = frozenset(
    {
        "tinyint",
        "smallint",
        "mediumint",
        "int",
        "bigint",
        "char",
        "varchar",
        "decimal",
        "date",
        "datetime",
        "uuid",
    }
)
"""Types whose equal values have one text, in the log as in a statement."""
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
"""One may become another, with the same order."""
_TABLE_CHANGED = 1412
"""The table was made again (TRUNCATE, ALTER) between a snapshot and its statement."""
_SIZE = """
SELECT table_rows, data_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""

Events = Callable[[GtidSet, GtidSet, GtidSet, WindowReporter], Iterator[pa.RecordBatch]]
"""The log from a position on: (its begin, where the range begins, its end, where changes are reported)."""


def obstacle(source: ReadSource) -> str | None:
    """Why the table cannot be read in chunks beside its log; None = it can."""
    table = cast(MysqlTable, source.table)
    if str(table.engine).lower() != "innodb":
        return f"its engine is {table.engine}, whose rows do not belong to a position of the binary log"
    keyset = keyset_of(source, Split({"kind": "all"}))
    if (
        not table.primary
        or keyset is None
        or {column.name for column in keyset.key} != set(table.primary)
    ):
        return "it has no primary key whose order its rows can be read in"
    for column in keyset.key:
        about = source.about(column.name)
        assert about is not None
        if parts(about.declared)[0] not in _KEYS:
            return f"its key column {column.name!r} has a type ({about.declared}) of which equal values differ as texts"
        if column.descending:
            return f"its key column {column.name!r} has a descending index"
    return None


class _BehindError(SourceError):
    """The server has not come to where the stream began: one of several behind one name."""


def start_of(session: Session, source: ReadSource, since: GtidSet) -> BaseProgress | None:
    """The whole base; None = the table is empty. A row that the base misses changed later: the log has the change."""
    keyset = base_keyset(source)
    keys = session.rows(key_of(keyset, [], 0, last=True))
    if not keys:
        return None
    rows, _ = _size(session, source)
    return BaseProgress(
        None, tuple(keys[0]), rows=rows, order=order_of(keyset, _sorted_as), since=str(since)
    )


class RestOfTables:
    """See `ChunkSizes`. `sources`: the tables as the catalog has them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sources: dict[str, ReadSource] = {}

    def count(self, name: str, base: BaseProgress, most: int) -> int:
        keyset = self._keyset(name, base)
        sql = count_of(keyset, between(keyset, base.after, base.until), most)
        return int(self._session.rows(sql)[0][0])

    def bound(self, name: str, base: BaseProgress, rows: int) -> Key | None:
        keyset = self._keyset(name, base)
        sql = key_of(keyset, between(keyset, base.after, base.until), rows - 1)
        keys = self._session.rows(sql)
        return tuple(keys[0]) if keys else None

    def _keyset(self, name: str, base: BaseProgress) -> Keyset:
        keyset = base_keyset(self.sources[name])
        check_order(keyset, _sorted_as, base.order)
        return keyset


def _sorted_as(column: Column) -> str:
    kind = parts(column.declared)[0]
    return "number" if kind in _NUMBERS else cast(MysqlColumn, column).collation or kind


def snapshot_place(session: Session) -> tuple[str, int]:
    """The file and position of MariaDB's log that the open transaction's snapshot belongs to."""
    status = {
        str(name).lower(): value
        for name, value in session.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")
    }
    return str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])


class BinlogWatermarks:
    """Used by one thread, for one range, which begins at `after` and ends at `upto`; see `WatermarkLog`.

    `line` has the session that reads rows. `position` gives the position up to which a snapshot sees all, in its
    transaction (MariaDB) or before it. `columns` is the schema of the table as its stream began, `schema` that of the
    rows that are delivered. `order` and `since`: see `BaseProgress`.
    """

    def __init__(
        self,
        reader: SqlReader,
        line: SessionHolder,
        position: Callable[[MysqlSession], GtidSet],
        events: Events,
        columns: pa.Schema,
        schema: pa.Schema,
        after: GtidSet,
        upto: GtidSet,
        *,
        rule: SchemaRule,
        order: Sequence[str] = (),
        since: str = "",
    ) -> None:
        self._reader, self._line, self._position, self._events = reader, line, position, events
        self._after, self._upto = after, upto
        self._table = BaseTable(reader, TableFacts(_size, _sorted_as), columns, schema, order, rule)
        self._since = type(after).parse(since)
        self._snapshot: tuple[GtidSet, GtidSet, Remaining] | None = None
        self._retry = Retry(
            getattr(reader.options, "retry_timeout", 0.0), what="reading a chunk of existing rows"
        )

    def mark(self) -> GtidSet:
        """The server reports the position of a snapshot, so nothing is written."""
        assert self._snapshot is not None  # its chunk was read
        return self._snapshot[0]

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> BaseChunk:
        def once() -> BaseChunk:
            with self._session() as session:
                return self._chunk(session, lower, upper, rows)

        def passes(error: BaseException) -> bool:
            is_behind = isinstance(error, _BehindError) or code_of(error) == _TABLE_CHANGED
            return is_behind or self._reader.dialect.is_passing(error)

        return self._retry.call(once, passes)

    def events(
        self, after: GtidSet, upto: GtidSet, high: GtidSet, window: ChunkWindow
    ) -> Iterator[pa.RecordBatch]:
        assert self._snapshot is not None  # its chunk was read
        _, begin, hidden = self._snapshot
        key = _log_key(self._table.keyset)
        return self._events(
            begin, after, upto, WindowReporter(window, key, begin.remaining(after), hidden)
        )

    def chunk_rows(self) -> int:
        """How many rows are held at once, and read by one statement."""

        def once() -> int:
            with self._session() as session:
                return self._table.chunk_rows(session)

        return self._retry.call(once, self._reader.dialect.is_passing)

    @contextmanager
    def _session(self) -> Iterator[MysqlSession]:
        """The session of the line, which is opened again after an error."""
        try:
            yield cast(MysqlSession, self._line.session())
        except BaseException:
            self._line.drop()
            raise

    def _chunk(self, session: MysqlSession, lower: Key | None, upper: Key, rows: int) -> BaseChunk:
        source = self._table.source(session)
        position = None if session.is_mariadb else self._position(session)
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        if position is None:
            position = self._position(session)
        if not position.covers(self._since):
            raise _BehindError(
                f"{session.place} is a replica that lags: it has the binary log up to {str(position) or 'its start'}, "
                f"and this stream began at {self._since}. Reading {source.label} there would lose the changes between. "
                "Set 'url' to one server, not to a name that several servers share"
            )
        self._table.look(session)
        raw = self._table.read(session, lower, upper, rows)
        self._table.check(session)
        session.execute("COMMIT")
        begin = position.meet(self._after)
        hidden = begin.remaining(position)
        self._snapshot = position, begin, hidden
        return self._table.chunk(session, raw, upper, rows, hidden.takes, str(self._upto))


def _log_key(keyset: Keyset) -> Sequence[ReadColumn]:
    """The columns of the key as they are read from the log: of the types that a chunk has them in."""
    columns = []
    for column, index in zip(keyset.key, keyset.places, strict=True):
        about = keyset.source.about(column.name)
        assert about is not None
        columns.append(ReadColumn(column.name, about.declared, keyset.columns[index].kind, ""))
    return columns


def _size(session: Session, source: ReadSource) -> tuple[int | None, int]:
    """Rows as the server estimates them, None = it does not know; and bytes."""
    table = cast(MysqlTable, source.table)
    rows_found = cast(MysqlSession, session).rows(_SIZE, [table.schema, table.name])
    rows, nbytes = rows_found[0] if rows_found else (None, None)
    return (int(rows) if rows else None), int(nbytes or 0)
