"""Watermarks in PostgreSQL's log, and chunks of a table read between them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import cast

import pyarrow as pa

from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable
from spark_channel.connectors.postgresql.log.position import lsn_text
from spark_channel.connectors.postgresql.log.snapshot import Snapshot
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.feed.base_chunk import BaseChunk, order_of
from spark_channel.connectors.sql.feed.base_table import BaseTable, TableFacts
from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress, ChunkWindow, Key
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.read.keyset import keyset_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SourceError
from spark_channel.planning import Split
from spark_channel.retry import Retry

__all__ = ["Connect", "Events", "PgWatermarks", "obstacle"]


_PREFIX = "spark-channel"
_WHOLE = ("int2", "int4", "int8")
_ONE_TEXT = ("text", "varchar", "uuid", "date", "timestamp")
"""Types whose equal values have one text, in the log as in a statement."""
_FACTS = """
SELECT c.relreplident::text,
  (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_catalog.pg_index i
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
   WHERE i.indrelid = c.oid AND i.indisprimary),
  (SELECT array_agg(a.attname::text)
   FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_collation k ON k.oid = a.attcollation
   WHERE a.attrelid = c.oid AND to_jsonb(k) ->> 'collisdeterministic' = 'false'),
  pg_is_in_recovery(), has_table_privilege(c.oid, 'SELECT')
FROM pg_catalog.pg_class c WHERE c.oid = {oid}
"""
_SIZE = """
SELECT reltuples::bigint, pg_table_size(oid)::bigint FROM pg_catalog.pg_class WHERE oid = {oid}
"""


def obstacle(session: PgReadSession, source: ReadSource) -> str | None:
    """Why the table cannot be read in chunks beside its log; None = it can."""
    table = cast(PgTable, source.table)
    ((identity, primary, loose, in_recovery, granted),) = session.rows(_FACTS.format(oid=table.oid))
    if in_recovery:
        return "its server is a standby, where no watermark can be written"
    if not granted:
        return "its role lacks SELECT on the whole table, without which it cannot lock it"
    if table.kind == "p":
        return "it is partitioned"
    keyset = keyset_of(source, Split({"kind": "all"}))
    if not primary or keyset is None or {column.name for column in keyset.key} != set(primary):
        return "it has no primary key whose order its rows can be read in"
    if identity not in ("d", "f"):
        return (
            "its replica identity is not its primary key (ALTER TABLE ... REPLICA IDENTITY DEFAULT)"
        )
    for column in keyset.key:
        about = cast(PgColumn, source.about(column.name))
        fixed = about.base in _ONE_TEXT or (about.base == "numeric" and about.typmod >= 0)
        if not about.builtin or not (about.base in _WHOLE or fixed) or column.name in (loose or ()):
            return f"its key column {column.name!r} has a type ({about.declared}) of which equal values differ as texts"
    try:
        _mark(session)
    except SourceError as error:
        return f"no watermark can be written: {error}"
    return None


def _mark(session: PgReadSession) -> int:
    """The commit of its transaction flushes the log up to it, whatever the session's settings are."""
    with session.transaction():
        session.execute("SET LOCAL synchronous_commit = local")
        return int(
            session.value(
                f"SELECT (pg_logical_emit_message(true, '{_PREFIX}', 'watermark') - '0/0'::pg_lsn)::bigint"
            )
        )


Connect = Callable[[], AbstractContextManager[PgReadSession]]
"""A session for a call or two, which may be one that lasts."""
Events = Callable[[int, int, ChunkWindow], Iterator[pa.RecordBatch]]
"""The log up to two positions: (its end, where changes are reported, to what)."""


class PgWatermarks:
    """Used by one thread, for one range, which ends at position `upto`; see `WatermarkLog`.

    `connect` gives a session that may write a message, `rows` one that reads; after a lost connection they give another
    for `retry_seconds`. `events` reads the log. For `columns`, `schema` and `order`
    see `BaseTable`.
    """

    def __init__(
        self,
        reader: SqlReader,
        connect: Connect,
        rows: Connect,
        events: Events,
        columns: pa.Schema | None,
        schema: pa.Schema,
        upto: int,
        retry_seconds: float = 0.0,
        *,
        rule: SchemaRule,
        order: Sequence[str] = (),
    ) -> None:
        self._reader, self._connect, self._rows, self._events = reader, connect, rows, events
        self._upto = upto
        self._table = BaseTable(reader, TableFacts(_size, _sorted_as), columns, schema, order, rule)
        self._retry = Retry(retry_seconds, what="reading a chunk of the base")

    def mark(self) -> int:
        def once() -> int:
            with self._connect() as session:
                return _mark(session)

        return self._retry.call(once, self._reader.dialect.is_passing)

    def running(self) -> Collection[int]:
        """The transactions that a statement would not see now, of those that were begun before the last `mark`."""
        with self._connect() as session:
            return _snapshot(session).running

    def start(self, session: PgReadSession, at: int) -> BaseProgress | None:
        """The whole base, of which all that was committed before `at` is visible; None = the table is empty."""
        last = self._table.last(session)
        if last is None:
            return None
        rows, _ = _size(session, self._table.source(session))
        order = order_of(self._table.keyset, _sorted_as)
        return BaseProgress(None, last, at, at, rows=rows, order=order)

    def bound(self, lower: Key | None, upper: Key, rows: int) -> Key | None:
        """The key of row number `rows` behind `lower`, up to `upper`; None = there are fewer rows."""
        with self._connect() as session:
            return self._table.bound(session, lower, upper, rows)

    def count(self, lower: Key | None, upper: Key, most: int) -> int:
        """How many rows there are behind `lower`, up to `upper`: up to `most`."""
        with self._connect() as session:
            return self._table.count(session, lower, upper, most)

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> BaseChunk:
        def once() -> BaseChunk:
            with self._rows() as session:
                return self._chunk(session, lower, upper, rows)

        return self._retry.call(once, self._reader.dialect.is_passing)

    def events(
        self, after: int, upto: int, high: int, window: ChunkWindow
    ) -> Iterator[pa.RecordBatch]:
        return self._events(upto, high, window)

    @property
    def key(self) -> list[str]:
        """The columns by which the log reports a row to a window, once a chunk was read."""
        return [column.name for column in self._table.keyset.key]

    def chunk_rows(self) -> int:
        """How many rows are held at once, and read by one statement."""
        with self._connect() as session:
            return self._table.chunk_rows(session)

    def _chunk(self, session: PgReadSession, lower: Key | None, upper: Key, rows: int) -> BaseChunk:
        """In one short transaction. The lock comes before the snapshot: a table that another transaction has
        rewritten (ALTER TABLE, CLUSTER) is empty to a snapshot from before.
        """
        source = self._table.source(session)
        table = source.origin.partition(" AS ")[0]
        lock = f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE"
        session.begin("ISOLATION LEVEL REPEATABLE READ, READ ONLY", lock)
        snapshot = _snapshot(session)
        if session.value("SELECT pg_is_in_recovery()"):
            raise SourceError(
                f"a chunk of {source.label} would be read from a standby, which may lack rows that the slot's server "
                "has: name the primary alone in 'url', or add target_session_attrs=primary"
            )
        self._table.look(session)  # the lock keeps its definition
        raw = self._table.read(session, lower, upper, rows)
        session.execute("COMMIT")
        return self._table.chunk(session, raw, upper, rows, snapshot.sees, lsn_text(self._upto))


def _sorted_as(column: Column) -> str:
    """One kind of number may become another, with the same order, and one kind of text."""
    about = cast(PgColumn, column)
    if about.base in (*_WHOLE, "numeric"):
        return "number"
    return f"text {about.collation}" if about.collation else about.base


def _snapshot(session: PgReadSession) -> Snapshot:
    return Snapshot.parse(str(session.value("SELECT txid_current_snapshot()::text")))


def _size(session: PgReadSession, source: ReadSource) -> tuple[int | None, int]:
    """Rows as the server estimates them, None = it does not know; and bytes."""
    ((rows, nbytes),) = session.rows(_SIZE.format(oid=cast(PgTable, source.table).oid))
    return (int(rows) if rows > 0 else None), int(nbytes)
