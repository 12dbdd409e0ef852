"""Changes of tables by one replication slot: insert, update, delete and truncate as rows, in commit order.

The slot is peeked at, so a range can be read again; it is advanced only when a range is settled. A position T
means: all transactions whose commit record begins before T are done. That is also how the server skips
transactions behind a slot, and what the consistent point of a new slot says about a copy that begins after it.
A feed of one table has a list of one: its subclass says what becomes of its tables, and how their rows are given.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, utc_now
from spark_channel.connectors.base.feed import (
    ChangeFeed,
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
)
from spark_channel.connectors.postgresql.catalog import Part, PgTable, kept_bytes
from spark_channel.connectors.postgresql.catalog.slots import restart_lsn
from spark_channel.connectors.postgresql.failures import explain, is_gone, is_short
from spark_channel.connectors.postgresql.log.columns import LogColumn, TableColumns
from spark_channel.connectors.postgresql.log.followed_columns import check_decodable, row_key
from spark_channel.connectors.postgresql.log.pgoutput import ChangeDecoder, TableShape
from spark_channel.connectors.postgresql.log.position import position_of
from spark_channel.connectors.postgresql.log.publication import (
    Published,
    check_operations,
    read_published,
)
from spark_channel.connectors.postgresql.log.slot import (
    BUSY,
    MOST_COUNTED,
    ReplicationSlot,
    create_slot,
    end_stream,
    flushed_lsn,
    lent,
    lsn_literal,
    peek,
    quoted,
    wait_until_free,
    waiting_changes,
    waiting_query,
)
from spark_channel.connectors.postgresql.log.slot_stream import (
    SlotStream,
    Streamed,
    StreamLostError,
)
from spark_channel.connectors.postgresql.log.table_list import named_as
from spark_channel.connectors.postgresql.log.tables_decoder import TableChanges, TablesDecoder
from spark_channel.connectors.postgresql.log.tables_token import TablesToken
from spark_channel.connectors.postgresql.log.watermarks import Connect, Events, PgWatermarks
from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.feed.incremental_snapshot import (
    MOST_TABLES,
    BaseProgress,
    ChunkRange,
    ChunkWindow,
    Key,
    WatermarkLog,
    read_windows,
)
from spark_channel.connectors.sql.feed.log_tables import (
    CHANGE_BYTES,
    MOST_WAITS,
    RANGE_ROWS,
    of_table,
)
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.feed.tables_lag import TableWaiting, lag_of_tables
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import OptionError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["FollowedTable", "ReplicationFeed"]

_log = log_of(__name__)

_BATCH_ROWS, _BATCH_BYTES = 65_536, 4 << 20
_SKIPS_EMPTY = 150000
"""Older servers show transactions without a change of the tables, too."""
_LAG_BUSY_SECONDS = 5.0
_MUCH_KEPT = 64 << 20
_MUCH_DECODED = 64 << 20
"""A look that decodes this much before its position has the slot read by a connection that stays open."""
_REFUSED_SECONDS = 600.0
_FREE_SENDERS = "SELECT current_setting('max_wal_senders')::int - count(*) FROM pg_stat_replication"
_LEFT_SENDERS = 3
"""One for the connection; a standby that comes back finds another."""
_REST, _LONGEST_REST = 9, 30.0
"""A look decodes all WAL that the oldest open transaction of anyone makes the server keep. Where that is much, the slot
rests after a look without a change, so that looks take a tenth of one core of the server, or one look in 30 s. The rest
ends when the server keeps less."""
FRESH_BYTES = 16 << 20
"""A position without changes behind it stays behind the log by this much, at most: else the slot would keep what other
tables write."""


@dataclass(frozen=True)
class FollowedTable:
    """One table as a range has it: `schema` is that of its rows, in Arrow's types."""

    name: str
    oid: int
    columns: TableColumns
    schema: pa.Schema

    @property
    def label(self) -> str:
        return f"table {self.name!r}"


class ReplicationFeed(ReplicationSlot, ChangeFeed):
    """One partition: a slot has one reader. It is made when the feed begins, and dropped with the tunnel."""

    can_evolve = True

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.slot is not None
        if options.publication is None:
            raise OptionError(
                "option 'slot' needs 'publication', which names the tables whose changes are read: "
                "make one with CREATE PUBLICATION name FOR TABLE ...",
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
        self._empty_look: tuple[int, int] | None = None
        """The position behind which a look has found no change, and where the log ended before it."""
        self._next_look = self._looked_from = 0.0
        self._rests_at: str | None = None
        self._stream: SlotStream | None = None
        self._refused_until = 0.0
        self._rule = SchemaRule(evolves=options.evolves, ignores=options.ignores)
        self._range_rule = self._rule
        self._follow()

    # --- what a subclass decides ---

    @abstractmethod
    def _follow(self) -> None:
        """Find what the feed begins with."""

    @abstractmethod
    def _read_token(self, token: Token) -> TablesToken:
        """The position of a token, and its tables."""

    @abstractmethod
    def _table(self, name: str, oid: int, columns: TableColumns) -> FollowedTable:
        """A table as a position has it."""

    @abstractmethod
    def _reader_of(self, session: PgReadSession, name: str, oid: int) -> SqlReader:
        """A reader of a table's existing rows."""

    @abstractmethod
    def _rows_of(
        self, session: PgReadSession, tables: Sequence[FollowedTable]
    ) -> Mapping[str, SqlReader]:
        """Readers of the existing rows of a range that was handed out. Of a table that was dropped with its rows, the
        range has changes only.
        """

    @abstractmethod
    def _decoder_of(self, table: FollowedTable, after: int, upto: int) -> ChangeDecoder:
        """A decoder of the changes of a table in a range."""

    @abstractmethod
    def _chunk_columns(self, table: FollowedTable) -> pa.Schema | None:
        """The columns of a chunk; None: those that its table has then."""

    @abstractmethod
    def _given(self, batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
        """A batch as the feed's reader gets it."""

    @abstractmethod
    def _given_log(self, log: PgWatermarks, table: str) -> WatermarkLog[int, pa.RecordBatch]:
        """Chunks as the feed's reader gets them."""

    # --- positions and the slot ---

    def _place_now(self, session: PgReadSession) -> int:
        start = self._made(session)
        if start is None:
            name = f"{self._slot[:50]}_now"
            with session.transaction():
                # The slot belongs to the session, which a pooler changes with it.
                start = create_slot(session, name, temporary=True)
                session.rows(f"SELECT pg_drop_replication_slot({quoted(name)})::text")
        return start

    def reaches(self, token: Token, end: Token) -> bool:
        return self._read_token(token).lsn >= self._read_token(end).lsn

    def is_passing(self, error: BaseException) -> bool:
        is_away = is_gone(error) or is_short(error)
        return isinstance(error, SourceError) and (is_away or BUSY in str(error))

    def settle(self, upto: Token) -> None:
        self._confirm(self._read_token(upto).confirmable)

    def _confirm(self, lsn: int) -> None:
        stream = self._stream  # another thread may release it
        if stream is not None:
            if stream.settle(lsn):
                return
            self.release()
        end = lsn_literal(lsn)
        slot = quoted(self._slot)
        with self._session() as session:
            # An existing slot already refuses to go back.
            session.rows(
                f"SELECT pg_replication_slot_advance(slot_name, {end})::text FROM pg_replication_slots "  # noqa: S608 - quoted
                f"WHERE slot_name = {slot} AND NOT active AND confirmed_flush_lsn < {end}"
            )

    def release(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self) -> None:
        self.release()
        slot = quoted(self._slot)
        with self._session() as session:
            end_stream(session, self._slot)
            session.rows(
                "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots "  # noqa: S608 - quoted
                f"WHERE slot_name = {slot}"
            )

    def _session(self) -> PgReadSession:
        options = self._reader.options
        assert isinstance(options, PostgresReadOptions)
        return PgReadSession.lent(
            options,
            failure=SourceError,
            purpose="changes",
            settings={"TimeZone": "UTC"},  # pgoutput sends texts
        )

    def _lag(
        self,
        session: PgReadSession,
        token: TablesToken,
        present: Sequence[str],
        backfill_blocked_by: str = "",
    ) -> FeedLag:
        """`present`: the tables that were not dropped."""
        self._confirmed(session)
        begins = token.begins()
        behind = max(0, flushed_lsn(session) - token.lsn)
        kept_size = kept_bytes(session, self._slot)
        waiting = self._waiting(
            session, {progress.oid: begins[name] for name, progress in token.tables.items()}
        )
        of_names = {name: waiting[progress.oid] for name, progress in token.tables.items()}
        is_held = self._max_kept is not None and (kept_size or 0) > self._max_kept
        return replace(
            lag_of_tables(token, of_names, present),
            nbytes=behind,
            kept=kept_size,
            base_held=is_held and not token.is_read,
            backfill_blocked_by=backfill_blocked_by,
        )

    # --- ranges ---

    def _planned(
        self,
        session: PgReadSession,
        token: TablesToken,
        limit: FeedLimit,
        upto: Token | None,
        dropped: Collection[str] = (),
    ) -> TablesToken | None:
        """The end of the next range; None without a change."""
        self.base_held = False
        self._check_place(session, token.lsn)
        if not token.is_read or upto is not None:
            self.release()
        if not token.is_read:
            next_token = self._next(session, token, limit, upto, dropped)
            return None if next_token == token else next_token
        most = limit.most_rows(CHANGE_BYTES)
        # Before the look: what is committed meanwhile lies behind this end, and the next look finds it.
        flushed = flushed_lsn(session)
        if self._empty_look == (token.lsn, flushed):
            self._answer()
            return None
        if upto is None and (streamed := self._streamed(session, token.lsn, flushed, most)):
            return self._end_of_streamed(token, streamed, flushed, is_cut=most is not None)
        rests = upto is None and SYSTEM_CLOCK.now() < self._next_look
        if rests and restart_lsn(session, self._slot) == self._rests_at:
            return None
        self._empty_look = None
        last = self._last_of(session, token.lsn, most or 1)
        if session.version < _SKIPS_EMPTY and not self._has_changes(session, token.lsn):
            last = None
        if last is None:
            self._empty_look = token.lsn, flushed
            now = SYSTEM_CLOCK.now()
            if (kept_bytes(session, self._slot) or 0) >= _MUCH_KEPT:
                self._next_look = now + min(_LONGEST_REST, _REST * (now - self._looked_from))
                self._rests_at = restart_lsn(session, self._slot)
            if flushed - token.lsn < FRESH_BYTES:
                return None
            end = flushed  # other tables wrote that much
        else:
            # Without a limit it is enough to know that there is something: all up to now is taken.
            end = last if most else max(last, flushed_lsn(session))
        if upto is not None:
            end = min(end, self._read_token(upto).lsn)
        return token.seen(end, ()) if end > token.lsn else None

    def _streamed(
        self, session: PgReadSession, start: int, flushed: int, most: int | None
    ) -> Streamed | None:
        """What the open connection has behind `start`; None: look at the slot.

        It is opened where a look would decode much that is before `start`, and this process alone reads the slot.
        """
        try:
            stream = self._opened(session, start)
            found = None if stream is None else stream.look(start, flushed, most)
        except StreamLostError as error:
            found = None
            if error.refused:
                self._tell_refused(session, error)
            else:
                _log.info("the replication connection of slot %r ended: %s", self._slot, error)
        if found is None or not self.is_followed:
            self.release()
        return found

    def _opened(self, session: PgReadSession, start: int) -> SlotStream | None:
        stream = self._stream
        if stream is not None or not self.is_followed:
            return stream
        if SYSTEM_CLOCK.now() < self._refused_until:
            return None
        restart = restart_lsn(session, self._slot)
        if restart is None or start - position_of(restart) < _MUCH_DECODED:
            return None
        options = self._reader.options
        assert isinstance(options, PostgresReadOptions)
        if session.value(_FREE_SENDERS) < _LEFT_SENDERS:
            raise StreamLostError("of max_wal_senders, the last ones are left free", refused=True)
        self._stream = stream = SlotStream.open(options, self._slot, self._publication, start)
        _log.info("slot %r is read by a replication connection that stays open", self._slot)
        return stream

    def _tell_refused(self, session: PgReadSession, error: StreamLostError) -> None:
        if not self._refused_until:
            _log.warning(
                "slot %r is decoded again at each look, since no replication connection is open: %s",
                self._slot,
                explain(error.__cause__ or error, session.place),
            )
        self._refused_until = SYSTEM_CLOCK.now() + _REFUSED_SECONDS

    def _end_of_streamed(
        self, token: TablesToken, streamed: Streamed, flushed: int, *, is_cut: bool
    ) -> TablesToken | None:
        if streamed.end is not None:
            end = streamed.end
            return token.seen(end if is_cut or not streamed.is_whole else max(end, flushed), ())
        if not streamed.is_whole:
            return None  # the server is still decoding
        self._empty_look = token.lsn, flushed
        return token.seen(flushed, ()) if flushed - token.lsn >= FRESH_BYTES else None

    def _answer(self) -> None:
        stream = self._stream
        if stream is not None:
            try:
                stream.answer()
            except StreamLostError:
                self.release()

    def _next(
        self,
        session: PgReadSession,
        token: TablesToken,
        limit: FeedLimit,
        upto: Token | None,
        dropped: Collection[str],
    ) -> TablesToken:
        """The next range while existing rows are left to read: what is in the log, and a chunk of one table.

        Where the limit cuts the log, the log alone: it is what makes the server keep WAL. After three such ranges the
        base has its turn. The position always moves, so that what waits for a later one is not kept waiting.
        """
        most = limit.most_rows(CHANGE_BYTES)
        marks = self._marks(session)
        if not self.reads_base and self._is_idle(
            session, marks, token.lsn, token.safe, token.doubt
        ):
            return token
        last, count = (None, 0) if most is None else self._counted(session, token.lsn, most)
        is_cut = most is not None and count >= most
        # Flushes the log, so that its end is behind all that was committed, also by asynchronous commits.
        marks.mark()
        end = last if is_cut and last is not None else flushed_lsn(session)
        if upto is not None:
            end = min(end, self._read_token(upto).lsn)
        end = max(token.lsn, end)
        is_paused = not self.reads_base or self._pauses(session)
        self.base_held = self.reads_base and is_paused
        if is_paused and end == token.lsn:
            return token
        # Once more, behind `end`: the transactions that run after it are those that a chunk may not see.
        marks.mark()
        after = token.seen(end, marks.running())
        if is_paused:
            return after
        gone = next((name for name in dropped if after.tables[name].since is not None), None)
        if gone is not None:  # a separate range, since a range has a chunk of one table
            return after.started(gone, None)
        if is_cut and after.waited < MOST_WAITS:
            return replace(after, waited=after.waited + 1)
        names = after.due()
        begun = [name for name in names if after.tables[name].base is not None]
        if not begun:
            bases = {}
            for name in names[:MOST_TABLES]:
                progress = after.tables[name]
                table = self._table(name, progress.oid, progress.shape)
                bases[name] = self._start(session, table, end)
            return after.all_started(bases)
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return after.with_chunks(begun, rows, _Sizes(self, session, after, end))

    def rest_of(
        self, session: PgReadSession, token: TablesToken, name: str, base: BaseProgress, at: int
    ) -> PgWatermarks:
        """The existing rows of a table that are left to read, for their number."""
        progress = token.tables[name]
        table = self._table(name, progress.oid, progress.shape)
        reader = self._reader_of(session, name, progress.oid)
        return self._log_of(
            table,
            reader,
            at,
            lambda: nullcontext(session),
            order=base.order,
            rule=self._rule,
        )

    def _start(self, session: PgReadSession, table: FollowedTable, at: int) -> BaseProgress | None:
        reader = self._reader_of(session, table.name, table.oid)
        log = self._log_of(table, reader, at, lambda: nullcontext(session), rule=self._rule)
        return log.start(session, at)

    def _marks(self, session: PgReadSession) -> PgWatermarks:
        """For what is of the log, and of no table."""
        lone = pa.schema([])

        def connect() -> AbstractContextManager[PgReadSession]:
            return nullcontext(session)

        return PgWatermarks(
            self._reader, connect, connect, _no_events, lone, lone, 0, rule=self._rule
        )

    def _log_of(
        self,
        table: FollowedTable,
        reader: SqlReader,
        at: int,
        connect: Connect,
        rows: Connect | None = None,
        events: Events | None = None,
        order: Sequence[str] = (),
        *,
        rule: SchemaRule,
    ) -> PgWatermarks:
        """With `rows`, both open a session again that was lost."""
        seconds = 0.0 if rows is None else getattr(self._reader.options, "retry_timeout", 0.0)
        return PgWatermarks(
            reader,
            connect,
            rows or connect,
            events or _no_events,
            self._chunk_columns(table),
            change_schema(table.schema),
            at,
            seconds,
            rule=rule,
            order=order,
        )

    def _is_idle(
        self, session: PgReadSession, log: PgWatermarks, start: int, safe: int, doubt: Sequence[int]
    ) -> bool:
        """Whether nothing changed after `start`, and the slot keeps little that it does not need.

        For `safe` and `doubt` see `BaseProgress`.
        """
        flushed = flushed_lsn(session)
        if flushed - start >= FRESH_BYTES or self._has_changes(session, start):
            return False
        # The server frees the log that it kept for a long transaction when that has ended.
        return flushed - safe < FRESH_BYTES or not set(doubt).isdisjoint(log.running())

    def _pauses(self, session: PgReadSession) -> bool:
        """Whether the slot keeps more than it may, so that only changes are read."""
        if self._max_kept is None:
            return False
        kept_size = kept_bytes(session, self._slot) or 0
        if (kept_size > self._max_kept) != self._is_paused:
            self._is_paused = not self._is_paused
            _log.warning(
                "slot %r keeps %d bytes of WAL, and option 'maxSlotLag' is %d: the reading of existing rows %s",
                self._slot,
                kept_size,
                self._max_kept,
                "pauses, changes are read on" if self._is_paused else "continues",
            )
        return self._is_paused

    def _waiting(
        self, session: PgReadSession, followed: Mapping[int, int]
    ) -> Mapping[int, TableWaiting]:
        """The changes of each table after its own position, in one look at the slot."""

        def look(selected: str) -> str:
            return self._query(selected, None, MOST_COUNTED, "WITH ORDINALITY")

        try:
            query = waiting_query(look, followed)
            rows = peek(session, self._slot, query, _LAG_BUSY_SECONDS)
        except SourceError as error:
            if BUSY in str(error):  # its reader has it, and is not to be kept from it
                return dict.fromkeys(followed, TableWaiting())
            raise
        return waiting_changes(rows, followed, utc_now().timestamp())

    def _has_changes(self, session: PgReadSession, start: int) -> bool:
        """Whether a transaction that was committed after `start` has changes, which may have been written before."""
        most = 1
        while True:
            ((changes, count),) = peek(session, self._slot, self._new_query(start, most))
            if changes or count < most:
                return bool(changes)
            most *= 4

    # --- rows ---

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = self._read_token(after), self._read_token(upto)
        tables = {
            name: {"oid": progress.oid, "shape": progress.shape.noted()}
            for name, progress in old.tables.items()
        }
        log = {"after": old.lsn, "upto": new.lsn, "tables": tables, "begins": old.begins()}
        chunks = [
            {
                "table": name,
                "since": progress.since,
                "lower": progress.base.after,
                "upper": upper,
                "order": progress.base.order,
            }
            for name, progress, upper in old.chunks_to(new)
        ]
        if chunks:
            return [Split({"kind": "window", **log, "chunks": chunks})]
        return [Split({"kind": "changes", **log})] if new.lsn > old.lsn else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        params = split.params
        after, upto = int(params["after"]), int(params["upto"])
        with (
            SessionHolder(self._session) as ours,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):
            connect = partial(lent, ours)
            with connect():
                tables = [
                    self._table(name, noted["oid"], TableColumns.from_noted(noted["shape"]))
                    for name, noted in params["tables"].items()
                ]
            named = {table.name: table for table in tables}
            first = {table.oid: int(params["begins"][table.name]) for table in tables}
            chunks = {
                str(chunk_noted["table"]): chunk_noted for chunk_noted in params.get("chunks", ())
            }
            readers: Mapping[str, SqlReader] = {}
            if chunks:
                with connect() as session:
                    readers = self._rows_of(session, [named[name] for name in chunks])
            logs: dict[str, PgWatermarks] = {}

            def beside(
                upto: int, high: int, windows: Mapping[str, ChunkWindow]
            ) -> Iterator[pa.RecordBatch]:
                """The changes of all tables up to `upto`. Those of some are also reported to their windows."""
                reported = {
                    named[name].oid: (window, logs[name].key) for name, window in windows.items()
                }
                since = {named[name].oid: int(chunks[name]["since"]) for name in windows}
                followed = (
                    tables if upto > after else [table for table in tables if table.oid in reported]
                )
                for name, batch in self._decoded_of(
                    connect, followed, {**first, **since}, after, upto, max(upto, high), reported
                ):
                    yield self._given(batch, name)

            def beside_one(
                name: str, upto: int, high: int, window: ChunkWindow
            ) -> Iterator[pa.RecordBatch]:
                return beside(upto, high, {name: window})

            def ranges() -> Iterator[ChunkRange[int, pa.RecordBatch]]:
                for name, reader in readers.items():
                    chunk = chunks[name]
                    logs[name] = log = self._log_of(
                        named[name],
                        reader,
                        upto,
                        connect,
                        partial(lent, rows),
                        partial(beside_one, name),
                        chunk["order"],
                        rule=self._range_rule,
                    )
                    lower = None if chunk["lower"] is None else tuple(chunk["lower"])
                    upper = tuple(chunk["upper"])
                    chunk_log = self._given_log(log, name)
                    yield ChunkRange(name, chunk_log, lower, upper, log.chunk_rows())

            if readers:
                yield from read_windows(ranges(), after, upto, beside)
            elif upto > after:
                yield from beside(upto, upto, {})

    def _decoded_of(
        self,
        connect: Connect,
        tables: Sequence[FollowedTable],
        first: Mapping[int, int],
        after: int,
        upto: int,
        high: int,
        reported: Mapping[int, tuple[ChunkWindow, Sequence[str]]],
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        changes_of = {}
        for table in tables:
            decoder = self._decoder_of(table, after, upto)
            if table.oid in reported:
                decoder.report_to(*reported[table.oid])
            changes_of[table.oid] = TableChanges(table.name, decoder, first[table.oid])
        decoders = TablesDecoder(changes_of)
        with connect() as session:
            for messages in self._messages(session, after, high):
                yield from decoders.feed(messages)
            yield from decoders.finish()

    def _messages(self, session: PgReadSession, after: int, upto: int) -> Iterator[list[bytes]]:
        """The log from where the slot is, up to `upto`; `after` must be in it."""
        self._check_place(session, after)
        stream = self._stream
        if stream is not None:
            held = stream.changes(after, upto)
            if held is not None:
                yield from held
                return
            self.release()
        wait_until_free(session, self._slot)
        for batch in session.stream(
            self._query("data", upto, None), BatchSize(_BATCH_ROWS, _BATCH_BYTES)
        ):
            yield batch.column(0).to_pylist()

    # --- what a table must have ---

    def _published(self, session: PgReadSession, oids: Sequence[int]) -> Published:
        return read_published(session, self._publication, oids)

    def _check(self, session: PgReadSession, source: ReadSource) -> TableShape:
        table = source.table
        if not isinstance(table, PgTable) or table.kind not in ("r", "p"):
            raise OptionError(
                f"logical replication follows one plain table, and {source.label} is a view, a "
                "query or a foreign table: name a table with 'dbtable'",
                option="dbtable",
            )
        level = session.value("SELECT current_setting('wal_level')")
        if level != "logical":
            raise SourceError(
                f"{session.place} has wal_level = {level}; logical replication needs wal_level = logical "
                "in postgresql.conf, and a restart of the server"
            )
        name, named = quoted(self._publication), named_as(table.schema, table.name)
        if not session.value(f"SELECT count(*) FROM pg_publication WHERE pubname = {name}"):  # noqa: S608 - quoted
            raise SourceError(
                f"publication {self._publication!r} does not exist in {session.place}: "
                f"run CREATE PUBLICATION {named_as(self._publication)} FOR TABLE {named}"
            )
        if table.kind == "p" and not self._is_by_root(session):
            raise SourceError(
                f"{source.label} is partitioned, "
                f"and publication {self._publication!r} names its partitions as the tables that change: "
                f"run ALTER PUBLICATION {self._publication} SET (publish_via_partition_root = true), "
                "or follow one partition"
            )
        if table.is_filtered:
            raise SourceError(
                f"row security applies to this login on {source.label}: its policies choose the existing rows, and the "
                f"log has the changes of all rows. Follow it by a role with BYPASSRLS, or as the table's owner; or "
                "read it by 'cursorColumn', which the policies apply to"
            )
        published = self._published(session, [table.oid])
        if table.oid not in published.entries:
            raise SourceError(
                f"publication {self._publication!r} does not hold table {named}: "
                f"run ALTER PUBLICATION {named_as(self._publication)} ADD TABLE {named}"
            )
        check_operations(self._publication, published)
        self._check_identity(session, source)
        check_decodable(source, published.parts.get(table.oid, Part()))
        return self._shape_of(session, source)

    def _check_identity(self, session: PgReadSession, source: ReadSource) -> None:
        """Check that an index that REPLICA IDENTITY names has the columns of the table's key."""
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
                f"DEFAULT; or leave {key} out with option 'columns', if {index} identifies a row in the target"
            )

    def _shape_of(self, session: PgReadSession, source: ReadSource) -> TableShape:
        table = cast(PgTable, source.table)
        part = self._published(session, [table.oid]).parts.get(table.oid, Part())
        rows = session.rows(
            "SELECT attname, atttypid::bigint, atttypmod, attgenerated <> '' FROM pg_attribute "  # noqa: S608 - a number
            f"WHERE attrelid = {table.oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return TableShape(
            table.oid,
            source.label,
            tuple(
                LogColumn(str(name), int(oid), int(mod))
                for name, oid, mod, is_generated in rows
                if (name in part.generated if is_generated else part.columns is None)
                or name in (part.columns or ())
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


class _Sizes:
    """See `ChunkSizes`."""

    def __init__(
        self, feed: ReplicationFeed, session: PgReadSession, token: TablesToken, at: int
    ) -> None:
        self._rest_of = partial(feed.rest_of, session, token, at=at)

    def count(self, name: str, base: BaseProgress, most: int) -> int:
        with of_table(name):
            return self._rest_of(name, base).count(base.after, base.until, most)

    def bound(self, name: str, base: BaseProgress, rows: int) -> Key | None:
        with of_table(name):
            return self._rest_of(name, base).bound(base.after, base.until, rows)


def _no_events(*_: Any) -> Iterator[pa.RecordBatch]:
    raise AssertionError("no events are read here")
