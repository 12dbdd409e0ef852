"""A table's changes by logical replication: insert, update, delete and truncate as rows, in commit order.

The slot is peeked at, so a range can be read again; it is advanced only when a range is settled. A position T
means: all transactions whose commit record begins before T are done. That is also how the server skips
transactions behind a slot, and what the consistent point of a new slot says about a copy that begins after it.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths, noted
from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import (
    ChangeFeed,
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
    missing_source,
)
from spark_channel.connectors.postgresql.catalog import PgTable, find_table, kept_bytes
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.log_columns import (
    LogTypes,
    check_decodable,
    row_columns,
    row_key,
)
from spark_channel.connectors.postgresql.pgoutput import (
    ChangeDecoder,
    LogColumn,
    TableColumns,
    TableShape,
    lsn_text,
)
from spark_channel.connectors.postgresql.publication import (
    Followed,
    Part,
    Published,
    check_operations,
    check_published,
    read_published,
)
from spark_channel.connectors.postgresql.replication import (
    BUSY,
    MOST_COUNTED,
    ReplicationSlot,
    create_slot,
    flushed_lsn,
    lent,
    lsn_literal,
    peek,
    quoted,
    wait_until_free,
    waiting_changes,
    waiting_query,
)
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.postgresql.tokens import LogToken, token_of
from spark_channel.connectors.postgresql.watermarks import (
    Connect,
    PgWatermarks,
    obstacle,
    warn_of_kept_wal,
)
from spark_channel.connectors.sql.incremental_snapshot import BaseProgress, ChunkWindow, read_window
from spark_channel.connectors.sql.keyset import SessionHolder
from spark_channel.connectors.sql.log_feed import SchemaRule
from spark_channel.connectors.sql.log_tables import (
    CHANGE_BYTES,
    MOST_WAITS,
    RANGE_ROWS,
    TableWaiting,
)
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.reader import PostgresReader

__all__ = [
    "FRESH_BYTES",
    "ReplicationFeed",
]

_log = logging.getLogger(__name__)

_BATCH_ROWS, _BATCH_BYTES = 65_536, 4 << 20
_LAG_BUSY_SECONDS = 5.0
_LEFT = "Reset the tunnel, or begin with a new checkpoint directory, to read all rows again"
"""What to do with a stream of one table that left its publication."""
FRESH_BYTES = 16 << 20
"""A position without changes behind it stays behind the log by this much, at most: else the slot would keep what other
tables write."""


class ReplicationFeed(ReplicationSlot, ChangeFeed):
    """One partition: a slot has one reader. It is made when the feed begins, and dropped with the tunnel."""

    can_evolve = True

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.slot is not None
        if options.publication is None:
            raise OptionError(
                "option 'slot' needs 'publication': which tables' changes does it decode? "
                "Make one with CREATE PUBLICATION name FOR TABLE ...",
                option="publication",
            )
        if reader.options.where is not None or reader.options.query is not None:
            raise OptionError(
                "logical replication follows a whole table: omit 'where' and 'query', "
                "and name the table with 'dbtable' (a publication may have a row filter)",
                option="where",
            )
        self._reader = reader
        self._slot = options.slot
        self._publication = options.publication
        self._max_kept = options.max_slot_lag
        self._is_paused = False
        self._rule = SchemaRule(evolves=options.evolves, ignores=options.ignores)
        self._follow()

    def _follow(self) -> None:
        """Find the table; one that is not there is `missing`."""
        self._schema = pa.schema([])
        self._lengths: TextLengths = {}
        with self._session() as session:
            try:
                source = self._reader.resolve(session)
            except SourceError as error:
                name = self._reader.options.dbtable
                if name is None or find_table(session, name) is not None:
                    raise
                self.missing = missing_source(error, "If it was renamed, give it its name back. ")
                return
            # Before there is a slot or a position: what a stream begins with is older than its first change.
            oid = cast(PgTable, source.table).oid
            self._begins_with = self._published(session, [oid])
            cast("PostgresReader", self._reader).part = self._begins_with.parts.get(oid, Part())
            source = self._reader.resolve(session)
            self._shape = self._check(session, source)
            self._label = source.label
            self._columns = source.schema
            self._key, self._apart = row_key(source), row_columns(source)
            self._schema = change_schema(source.schema)
            self._lengths = source.text_lengths

    def _recall(self, token: LogToken) -> None:
        """The table is not there any more: take it as it was when a range was handed out."""
        assert self.missing is not None
        options = self._reader.options
        # What a user chooses of the columns is chosen by a table that there is.
        if token.table is None or options.columns or options.custom_schema:
            raise self.missing
        oid, shape = token.table
        self._shape = TableShape(oid, f"table {options.dbtable!r}", shape.columns)
        self._columns = LogTypes(self._session).schema(shape.columns)
        self._key, self._apart = shape.key, shape.apart
        self._schema = change_schema(self._columns)

    def _check_there(self) -> None:
        if self.missing is not None:
            raise self.missing

    def schema(self) -> pa.Schema:
        if self.missing is not None and not self._schema.names:
            raise self.missing
        return noted(self._schema, self._lengths)

    def earliest(self) -> list[Token]:
        """As far back as the slot goes."""
        self._check_there()
        with self._session() as session:
            return [self._begun(self._made(session) or self._confirmed(session))]

    def now(self) -> list[Token]:
        """A point that every transaction before it is visible at: a new slot's, if need be a temporary one's."""
        self._check_there()
        with self._session() as session:
            return [self._begun(self._place_now(session))]

    def _begun(self, lsn: int) -> Token:
        return self._noted(LogToken(lsn), self._begins_with).token()

    def _noted(self, token: LogToken, published: Published) -> LogToken:
        return replace(
            token,
            entries=published.entries.get(self._shape.oid, ()),
            table=(self._shape.oid, TableColumns(self._shape.columns, self._key, self._apart)),
        )

    def _place_now(self, session: PgReadSession) -> int:
        made = self._made(session)
        if made is None:
            name = f"{self._slot[:50]}_now"
            with (
                session.transaction()
            ):  # the slot belongs to the session, which a pooler changes with it
                made = create_slot(session, name, temporary=True)
                session.rows(f"SELECT pg_drop_replication_slot({quoted(name)})::text")
        return made

    def end(self) -> list[Token]:
        with self._session() as session:
            return [token_of(flushed_lsn(session))]

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = tokens
        with self._session() as session:
            source = self._reader.resolve(session)
            why = obstacle(session, source)
            if why is not None:
                warn_of_kept_wal(session, source, why, self._slot)
                return None
            found = LogToken.read(token)
            base = self._watermarks(found.lsn, lambda: nullcontext(session)).start(
                session, source, found.lsn
            )
        return [replace(found, base=base).token()]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        self._check_there()
        found = LogToken.read(after)
        start = found.lsn
        self.base_held = False
        with self._session() as session:
            source = self._reader.resolve(session)
            self._rule.check(self._columns, source.schema, source.label, self._key)
            self._check_same_table(source)
            published = self._check_published(session, source.label, found)
            self._check_place(session, start)
            if found.base is not None:
                made = self._next(session, start, found.base, limit, upto)
                if made == LogToken(start, found.base):
                    return after
                return self._noted(made, published).token()
            most = limit.most_rows(CHANGE_BYTES)
            flushed = flushed_lsn(session)
            last = self._last_of(session, start, most or 1)
            if last is None:
                if flushed - start < FRESH_BYTES:
                    return after
                end = flushed  # other tables wrote that much
            else:
                # Without a limit it is enough to know that there is something: all up to now is taken.
                end = last if most else max(last, flushed_lsn(session))
        if upto is not None:
            end = min(end, LogToken.read(upto).lsn)
        return self._noted(LogToken(end), published).token() if end > start else after

    def reaches(self, token: Token, end: Token) -> bool:
        return LogToken.read(token).lsn >= LogToken.read(end).lsn

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = LogToken.read(after), LogToken.read(upto)
        if self.missing is not None:
            self._recall(new if new.table is not None else old)
        start, end = old.lsn, new.lsn
        lower = None if old.base is None else old.base.after
        if old.base is not None and (new.base is None or new.base.after != lower):
            upper = old.base.until if new.base is None else new.base.after
            chunk = {"lower": lower, "upper": upper, "order": old.base.order}
            return [Split({"kind": "window", "after": start, "upto": end, **chunk})]
        return [Split({"kind": "changes", "after": start, "upto": end})] if end > start else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        note = {"at": LogToken.read(upto[0]).lsn}
        return [
            Split({**split.params, **note}, split.rows, split.nbytes)
            for split in self._reader.split(advice)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] == "changes":
            yield from self._changes(split)
            return
        if split.params["kind"] == "window":
            if self.missing is None:
                yield from self._window(split)
                return
            _log.warning(
                "%s is not there any more, nor are its existing rows that were not read: "
                "its changes in the log are delivered",
                self._shape.label,
            )
            yield from self._changes(split)
            return
        for batch in self._reader.read(split):
            rows = batch.num_rows
            marks = [
                pa.repeat(pa.scalar("insert"), rows),
                pa.repeat(pa.scalar(lsn_text(split.params["at"])), rows),
                pa.nulls(rows, self._schema[-1].type),
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *marks], schema=self._schema)

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and (is_gone(error) or BUSY in str(error))

    def settle(self, upto: Token) -> None:
        self._confirm(LogToken.read(upto).confirmable)

    def _confirm(self, lsn: int) -> None:
        end = lsn_literal(lsn)
        slot = quoted(self._slot)
        with self._session() as session:
            # An existing slot already refuses to go back.
            session.rows(
                f"SELECT pg_replication_slot_advance(slot_name, {end})::text FROM pg_replication_slots "  # noqa: S608 - quoted
                f"WHERE slot_name = {slot} AND NOT active AND confirmed_flush_lsn < {end}"
            )

    def lag(self, token: Token) -> FeedLag:
        found = LogToken.read(token)
        start, base = found.lsn, found.base
        if self.missing is not None:
            self._recall(found)
        with self._session() as session:
            self._confirmed(session)
            behind = max(0, flushed_lsn(session) - start)
            kept = kept_bytes(session, self._slot)
            waiting = self._waiting(session, {self._shape.oid: start})[self._shape.oid]
        changes, seconds = waiting.changes, waiting.seconds
        if base is None:
            return FeedLag(changes, behind, seconds, kept)
        rows = None if base.left is None or changes is None else base.left + changes
        is_held = self._max_kept is not None and (kept or 0) > self._max_kept
        return FeedLag(rows, behind, seconds, kept, base.read, base.rows, base.chunks, is_held)

    def close(self) -> None:
        slot = quoted(self._slot)
        with self._session() as session:
            session.rows(
                "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots "  # noqa: S608 - quoted
                f"WHERE slot_name = {slot}"
            )

    def _session(self) -> PgReadSession:
        return PgReadSession(
            self._reader.options,
            failure=SourceError,
            purpose="changes",
            settings={"TimeZone": "UTC"},  # pgoutput sends texts
        )

    def _changes(self, split: Split) -> Iterator[pa.RecordBatch]:
        after, upto = int(split.params["after"]), int(split.params["upto"])
        decoder = self._decoder(after, upto)
        with self._session() as session:
            yield from self._decoded(session, decoder, after, upto)

    def _decoder(self, after: int, upto: int) -> ChangeDecoder:
        has = self._rule.has(self._has_column)
        return ChangeDecoder(self._shape, self._schema, after, upto, has=has)

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column by now, which the stream did not begin with; else it was dropped."""
        if self.missing is not None:
            return False
        with self._session() as session:
            return (
                self._reader.options.columns is None and name in self._reader.resolve(session).names
            )

    def _window(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Changes, and the existing rows of a range of keys."""
        params = split.params
        after, upto = int(params["after"]), int(params["upto"])
        lower, upper = params["lower"], params["upper"]
        with (
            SessionHolder(self._session) as ours,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):
            log = self._watermarks(
                upto, partial(lent, ours), partial(lent, rows), params.get("order", ())
            )
            yield from read_window(
                log,
                after,
                upto,
                None if lower is None else tuple(lower),
                tuple(upper),
                log.chunk_rows(),
            )

    def _watermarks(
        self, at: int, connect: Connect, rows: Connect | None = None, order: Sequence[str] = ()
    ) -> PgWatermarks:
        """With `rows`, both open a session again that was lost."""
        seconds = 0.0 if rows is None else getattr(self._reader.options, "retry_timeout", 0.0)
        events = partial(self._events, connect)
        return PgWatermarks(
            self._reader,
            connect,
            rows or connect,
            events,
            self._columns,
            self._schema,
            at,
            seconds,
            order=order,
            rule=self._rule,
        )

    def _events(
        self,
        connect: Connect,
        after: int,
        upto: int,
        high: int,
        window: ChunkWindow,
        key: Sequence[str],
    ) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder(after, upto)
        decoder.tell(window, key)
        with connect() as session:
            yield from self._decoded(session, decoder, after, high)

    def _decoded(
        self, session: PgReadSession, decoder: ChangeDecoder, after: int, upto: int
    ) -> Iterator[pa.RecordBatch]:
        decoder.follow_key(self._key, self._apart)
        for messages in self._messages(session, after, upto):
            yield from decoder.feed(messages)
        yield from decoder.finish()

    def _messages(self, session: PgReadSession, after: int, upto: int) -> Iterator[list[bytes]]:
        """The log from where the slot is, up to `upto`; `after` must be in it."""
        self._check_place(session, after)
        wait_until_free(session, self._slot)
        for batch in session.stream(
            self._query("data", upto, None), BatchSize(_BATCH_ROWS, _BATCH_BYTES)
        ):
            yield batch.column(0).to_pylist()

    def _next(
        self,
        session: PgReadSession,
        start: int,
        base: BaseProgress,
        limit: FeedLimit,
        upto: Token | None,
    ) -> LogToken:
        """The next range while the base is read: what is in the log, and a chunk.

        Where the limit cuts the log, the log alone: it is what makes the server keep WAL. After three such
        ranges the base has its turn.
        """
        most = limit.most_rows(CHANGE_BYTES)
        log = self._watermarks(start, lambda: nullcontext(session), order=base.order)
        if not self.reads_base and self._is_idle(session, log, start, base.safe, base.doubt):
            return LogToken(start, base)
        last, count = (None, 0) if most is None else self._counted(session, start, most)
        is_cut = most is not None and count >= most
        is_paused = not self.reads_base or self._pauses(session)
        self.base_held = self.reads_base and is_paused
        if is_paused:
            log.mark()  # the position moves on, so that no reader takes the base to be read
        end = last if is_cut and last is not None else flushed_lsn(session)
        if upto is not None:
            end = min(end, LogToken.read(upto).lsn)
        end = max(start, end)
        if is_paused and end == start:
            return LogToken(start, base)
        log.mark()
        base = base.confirmable(end, log.running())
        if is_paused:
            return LogToken(end, base)
        if is_cut and base.waited < MOST_WAITS:
            return LogToken(end, replace(base, waited=base.waited + 1))
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return LogToken(end, base.advanced(log.bound(base.after, base.until, rows), rows))

    def _is_idle(
        self, session: PgReadSession, log: PgWatermarks, start: int, safe: int, doubt: Sequence[int]
    ) -> bool:
        """Whether nothing changed after `start`, and the slot keeps little that it does not need.

        For `safe` and `doubt` see `BaseProgress`.
        """
        flushed = flushed_lsn(session)
        if flushed - start >= FRESH_BYTES or self._has_changes(session, start):
            return False
        # What a long transaction has made it keep is given back when that has ended.
        return flushed - safe < FRESH_BYTES or not set(doubt).isdisjoint(log.running())

    def _pauses(self, session: PgReadSession) -> bool:
        """Whether the slot keeps more than it may, so that only changes are read."""
        if self._max_kept is None:
            return False
        kept = kept_bytes(session, self._slot) or 0
        if (kept > self._max_kept) != self._is_paused:
            self._is_paused = not self._is_paused
            _log.warning(
                "slot %r keeps %d bytes of WAL, and option 'maxSlotLag' is %d: the reading of existing rows %s",
                self._slot,
                kept,
                self._max_kept,
                "pauses, changes are read on" if self._is_paused else "continues",
            )
        return self._is_paused

    def _waiting(
        self, session: PgReadSession, followed: Mapping[int, int]
    ) -> Mapping[int, TableWaiting]:
        """The changes of each table after its own position, in one look at the slot."""

        def look(what: str) -> str:
            return self._query(what, None, MOST_COUNTED, "WITH ORDINALITY")

        try:
            rows = peek(session, waiting_query(look, followed), _LAG_BUSY_SECONDS)
        except SourceError as error:
            if BUSY in str(error):  # its reader has it, and is not to be kept from it
                return dict.fromkeys(followed, TableWaiting())
            raise
        return waiting_changes(rows, followed, utc_now().timestamp())

    def _has_changes(self, session: PgReadSession, start: int) -> bool:
        """Whether a transaction that was committed after `start` has changes, which may have been written before."""
        most = 1
        while True:
            ((changes, shown),) = peek(session, self._new_query(start, most))
            if changes or shown < most:
                return bool(changes)
            most *= 4

    def _check_same_table(self, source: ReadSource) -> None:
        """The log names a table by its number, which outlives a new name, and not a table that was made again."""
        if cast(PgTable, source.table).oid != self._shape.oid:
            raise SourceError(
                f"{source.label} is another table than the one that the stream began with, which was dropped or "
                "renamed. Reset the tunnel, or begin with a new checkpoint directory, to follow the new one"
            )

    def _published(self, session: PgReadSession, oids: Sequence[int]) -> Published:
        return read_published(session, self._publication, oids)

    def _check_published(self, session: PgReadSession, label: str, known: LogToken) -> Published:
        """What the publication has, held to be what it had at `known`; of a token that does not tell, when this feed
        began.

        Asked for each range, before its end is known: what left after that is told at the next one.
        """
        oid = self._shape.oid
        now, first = self._published(session, [oid]), self._begins_with
        table = Followed(label, oid, known.entries or first.entries.get(oid, ()))
        check_published(self._publication, [table], now, _LEFT)
        return now

    def _check(self, session: PgReadSession, source: ReadSource) -> TableShape:
        table = source.table
        if not isinstance(table, PgTable) or table.kind not in ("r", "p"):
            raise OptionError(
                f"logical replication follows one plain table, and {source.label} is none",
                option="dbtable",
            )
        level = session.value("SELECT current_setting('wal_level')")
        if level != "logical":
            raise SourceError(
                f"{session.place} has wal_level = {level}; logical replication needs wal_level = logical "
                "in postgresql.conf, and a restart of the server"
            )
        name = quoted(self._publication)
        if not session.value(f"SELECT count(*) FROM pg_publication WHERE pubname = {name}"):  # noqa: S608 - quoted
            raise SourceError(
                f"there is no publication {self._publication!r} in {session.place}; "
                f"make it with CREATE PUBLICATION {self._publication} FOR TABLE {table.label}"
            )
        if table.kind == "p" and not self._is_by_root(session):
            raise SourceError(
                f"{source.label} is partitioned, "
                f"and publication {self._publication!r} names its partitions as the tables that change: "
                f"run ALTER PUBLICATION {self._publication} SET (publish_via_partition_root = true), "
                "or follow one partition"
            )
        published = self._published(session, [table.oid])
        if table.oid not in published.entries:
            raise SourceError(
                f"publication {self._publication!r} does not hold table {table.label}; "
                f"add it with ALTER PUBLICATION {self._publication} ADD TABLE {table.label}"
            )
        check_operations(self._publication, published)
        self._check_identity(session, source)
        check_decodable(source)
        return self._shape_of(session, source)

    def _check_identity(self, session: PgReadSession, source: ReadSource) -> None:
        """Hold an index that REPLICA IDENTITY names to have the columns of the table's key."""
        table = cast(PgTable, source.table)
        rows = session.rows(
            "SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "  # noqa: S608 - a number
            f"AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indrelid = {table.oid} AND i.indisreplident"
        )
        named = [str(name) for (name,) in rows]
        key = ", ".join(name for name in row_key(source) if name not in named)
        if named and key:
            index = ", ".join(named)
            raise SourceError(
                f"{source.label} has REPLICA IDENTITY USING INDEX on {index}, so a delete has no other column, and an "
                f"update of {key} does not say which row it was. Run ALTER TABLE {table.label} REPLICA IDENTITY "
                f"DEFAULT; or leave {key} out with option 'columns', if the target tells rows apart by {index}"
            )

    def _shape_of(self, session: PgReadSession, source: ReadSource) -> TableShape:
        table = cast(PgTable, source.table)
        listed = self._published(session, [table.oid]).parts.get(table.oid, Part()).columns
        rows = session.rows(
            "SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute "  # noqa: S608 - a number
            f"WHERE attrelid = {table.oid} AND attnum > 0 AND NOT attisdropped AND attgenerated = '' "
            "ORDER BY attnum"
        )
        return TableShape(
            table.oid,
            source.label,
            tuple(
                LogColumn(str(name), int(oid), int(mod))
                for name, oid, mod in rows
                if listed is None or name in listed
            ),
        )

    def _is_by_root(self, session: PgReadSession) -> bool:
        """As JSON, because PostgreSQL has this column since 13 only."""
        return bool(
            session.value(
                "SELECT to_jsonb(p) ->> 'pubviaroot' = 'true' FROM pg_publication p "  # noqa: S608 - quoted
                f"WHERE pubname = {quoted(self._publication)}"
            )
        )
