"""Changes of several tables by one replication slot, decoded once, and their existing rows in chunks beside them.

Each batch has rows of one table, with that table's columns, and its name in the last column, `_table`.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import (
    FeedLag,
    FeedLimit,
    Token,
    change_schema,
)
from spark_channel.connectors.postgresql.catalog import kept_bytes, oldest_of
from spark_channel.connectors.postgresql.followed_tables import (
    INSTEAD,
    FollowedTable,
    FollowedTables,
    digests,
)
from spark_channel.connectors.postgresql.pgoutput import (
    ChangeDecoder,
    TableChanges,
    TableColumns,
    TablesDecoder,
    TableShape,
    becomes,
)
from spark_channel.connectors.postgresql.publication import (
    find_one,
    look_up,
    named,
)
from spark_channel.connectors.postgresql.replication import flushed_lsn, lent
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.postgresql.table_feed import FRESH_BYTES
from spark_channel.connectors.postgresql.tokens import TablesToken
from spark_channel.connectors.postgresql.watermarks import Connect, PgWatermarks
from spark_channel.connectors.sql.incremental_snapshot import (
    BaseProgress,
    ChunkWindow,
    read_window,
)
from spark_channel.connectors.sql.keyset import SessionHolder
from spark_channel.connectors.sql.log_feed import SchemaRule
from spark_channel.connectors.sql.log_tables import (
    CHANGE_BYTES,
    MOST_WAITS,
    RANGE_ROWS,
    RANGE_SECONDS,
    NamedLog,
    base_refused,
    lag_of_tables,
    no_column,
    rows_schema,
    with_name,
)
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.planning import Split

__all__ = ["TablesFeed"]

_log = logging.getLogger(__name__)


class TablesFeed(FollowedTables):
    """One partition, as of one table. `schema` has only the columns that all batches have.

    The options name the tables that a new tunnel begins with; later, its tokens have them.
    """

    can_evolve = True
    has_tables = True
    range_seconds = RANGE_SECONDS

    def _follow(self) -> None:
        self._schema = rows_schema()
        self._lengths = {}

    def earliest(self) -> list[Token]:
        with self._session() as session:
            tables = self._begin(session)
            published = self._published(session, [each.oid for each, _ in tables])
            made = self._made(session)
            return [
                self._token(self._confirmed(session) if made is None else made, tables, published)
            ]

    def now(self) -> list[Token]:
        with self._session() as session:
            tables = self._begin(session)
            for each, _ in tables if self._has_base else ():
                self._check_base(session, each)
            published = self._published(session, [each.oid for each, _ in tables])
            # The slot is made last: an error leaves none behind.
            return [self._token(self._place_now(session), tables, published)]

    def end_of(self, token: Token) -> Token:
        with self._session() as session:
            return replace(TablesToken.read(token), lsn=flushed_lsn(session)).token()

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = map(TablesToken.read, tokens)
        bases = {}
        with self._session() as session:
            for name, place in token.tables.items():
                table = self._table(name, place.oid, place.shape)
                base = self._start(session, table, token.lsn)
                bases[name] = replace(place, base=base, since=None if base is None else token.lsn)
        made = replace(token, tables=bases, safe=token.lsn, doubt_at=token.lsn)
        return [made.token()]

    def _start(self, session: PgReadSession, table: FollowedTable, at: int) -> BaseProgress | None:
        reader = self._reader_of(session, table.name, table.oid)
        log = self._log_of(table, reader, at, lambda: nullcontext(session), rule=self._rule)
        return log.start(session, reader.resolve(session), at)

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        with self._session() as session:
            oid = find_one(session, table).oid
            found = look_up(session, [oid])[oid]
            self._check_base(
                session, found, "whose existing rows are read whatever 'tunnelType' is"
            )
            shape = self._look_at(session, found).columns
            entries = self._published(session, [oid]).entries.get(oid, ())
            at = flushed_lsn(session)

        def changed(token: Token) -> Token:
            old = TablesToken.read(token)
            what = (found.name, found.oid, found.columns, shape, at, entries)
            return (old.restarted(*what, self._takes) if again else old.joined(*what)).token()

        return changed

    def leaving(self, table: str) -> Callable[[Token], Token]:
        def changed(token: Token) -> Token:
            old = TablesToken.read(token)
            meant = named(table, old.tables)
            return old.left(meant[0] if len(meant) == 1 else table).token()

        return changed

    def _takes(self, was: TableColumns, now: TableColumns) -> bool:
        """Whether a table continues with other columns, so that the log may have rows of both."""
        return (self._rule.evolves or self._rule.ignores) and becomes(was, now) is None

    def tables(self, token: Token) -> Collection[str]:
        found = token.get("tables")
        return tuple(found) if isinstance(found, dict) else ()

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        token = TablesToken.read(after)
        with self._session() as session:
            while True:
                look = self._check_tables(session, token)
                made = self._planned(session, token, limit, upto, look.dropped)
                if made is None:
                    return after
                # A table that has changed meanwhile is looked at again: what is refused is not handed out.
                if digests(look_up(session, list(look.digests))) == look.digests:
                    return look.noted(made)

    def _planned(
        self,
        session: PgReadSession,
        token: TablesToken,
        limit: FeedLimit,
        upto: Token | None,
        dropped: Collection[str],
    ) -> TablesToken | None:
        """The end of the next range; None without a change."""
        self.base_held = False
        self._check_place(session, token.lsn)
        if not token.is_read:
            made = self._next_of(session, token, limit, upto, dropped)
            return None if made == token else made
        most = limit.most_rows(CHANGE_BYTES)
        flushed = flushed_lsn(session)
        last = self._last_of(session, token.lsn, most or 1)
        if last is None:
            if flushed - token.lsn < FRESH_BYTES:
                return None
            end = flushed  # other tables wrote that much
        else:
            end = last if most else max(last, flushed_lsn(session))
        if upto is not None:
            end = min(end, TablesToken.read(upto).lsn)
        return token.seen(end, ()) if end > token.lsn else None

    def reaches(self, token: Token, end: Token) -> bool:
        return TablesToken.read(token).lsn >= TablesToken.read(end).lsn

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = TablesToken.read(after), TablesToken.read(upto)
        tables = {
            name: {"oid": each.oid, "shape": each.shape.noted()}
            for name, each in old.tables.items()
        }
        log = {"after": old.lsn, "upto": new.lsn, "tables": tables, "begins": old.begins()}
        chunk = old.chunk_to(new)
        if chunk is not None:
            name, place, upper = chunk
            assert place.base is not None
            keys = {"lower": place.base.after, "upper": upper, "order": place.base.order}
            return [Split({"kind": "window", **log, "table": name, "since": place.since, **keys})]
        return [Split({"kind": "changes", **log})] if new.lsn > old.lsn else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        raise base_refused(INSTEAD)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        params = split.params
        after, upto = int(params["after"]), int(params["upto"])
        with (
            SessionHolder(self._session) as ours,
            SessionHolder(partial(self._reader.connect, "read")) as rows,
        ):
            connect = partial(lent, ours)
            with connect() as session:
                tables = [
                    self._table(name, each["oid"], TableColumns.of(each["shape"]))
                    for name, each in params["tables"].items()
                ]
                table = next((each for each in tables if each.name == params.get("table")), None)
                reader = None if table is None else self._rows_of(session, table)
            first = {each.oid: int(params["begins"][each.name]) for each in tables}
            if table is None or reader is None:
                for name, batch in self._decoded_of(connect, tables, first, after, upto, upto):
                    yield with_name(batch, name)
                return
            first[table.oid] = int(params["since"])
            events = partial(self._beside, connect, tables, table, first)
            found = self._log_of(
                table,
                reader,
                upto,
                connect,
                partial(lent, rows),
                events,
                params["order"],
                rule=self._range_rule,
            )
            log = NamedLog(found, table.name)
            lower, upper = params["lower"], params["upper"]
            yield from read_window(
                log,
                after,
                upto,
                None if lower is None else tuple(lower),
                tuple(upper),
                found.chunk_rows(),
            )

    def held_up(self, token: Token) -> str:
        found = TablesToken.read(token)
        if not found.awaited():
            return ""
        with self._session() as session:
            return self._held_up(session, found)

    def _held_up(self, session: PgReadSession, token: TablesToken) -> str:
        waiting = token.awaited()
        what = oldest_of(session, token.doubt) if waiting else ""
        return f"existing rows of {', '.join(waiting)} wait for {what}" if what else ""

    def settle(self, upto: Token) -> None:
        self._confirm(TablesToken.read(upto).confirmable)

    def lag(self, token: Token) -> FeedLag:
        found = TablesToken.read(token)
        begins = found.begins()
        with self._session() as session:
            present = look_up(session, [each.oid for each in found.tables.values()])
            self._confirmed(session)
            behind = max(0, flushed_lsn(session) - found.lsn)
            kept = kept_bytes(session, self._slot)
            waiting = self._waiting(
                session, {each.oid: begins[name] for name, each in found.tables.items()}
            )
            held_up = self._held_up(session, found)
        lag = lag_of_tables(
            found,
            {name: waiting[each.oid] for name, each in found.tables.items()},
            [name for name, each in found.tables.items() if each.oid in present],
        )
        is_held = self._max_kept is not None and (kept or 0) > self._max_kept
        return replace(
            lag,
            nbytes=behind,
            kept=kept,
            base_held=is_held and not found.is_read,
            held_up="" if found.is_read else held_up,
        )

    # --- ranges ---

    def _next_of(
        self,
        session: PgReadSession,
        token: TablesToken,
        limit: FeedLimit,
        upto: Token | None,
        dropped: Collection[str],
    ) -> TablesToken:
        """The next range while existing rows are left to read: what is in the log, and a chunk of one table.

        As of one table. Its position always moves, so that what waits for a later one is not kept waiting.
        """
        most = limit.most_rows(CHANGE_BYTES)
        marks = self._marks(session)
        if not self.reads_base and self._is_idle(
            session, marks, token.lsn, token.safe, token.doubt
        ):
            return token
        last, count = (None, 0) if most is None else self._counted(session, token.lsn, most)
        is_cut = most is not None and count >= most
        marks.mark()
        end = last if is_cut and last is not None else flushed_lsn(session)
        if upto is not None:
            end = min(end, TablesToken.read(upto).lsn)
        end = max(token.lsn, end)
        is_paused = not self.reads_base or self._pauses(session)
        self.base_held = self.reads_base and is_paused
        if is_paused and end == token.lsn:
            return token
        marks.mark()
        after = token.seen(end, marks.running())
        if is_paused:
            return after
        gone = next((name for name in dropped if after.tables[name].since is not None), None)
        if gone is not None:  # a range of its own, since a range has a chunk of one table
            return after.started(gone, None)
        if is_cut and after.waited < MOST_WAITS:
            return replace(after, waited=after.waited + 1)
        name = after.due()
        if name is None:
            return after
        place = after.tables[name]
        table = self._table(name, place.oid, place.shape)
        if place.base is None:
            return after.started(name, self._start(session, table, end))
        reader = self._reader_of(session, name, place.oid)
        log = self._log_of(
            table,
            reader,
            end,
            lambda: nullcontext(session),
            order=place.base.order,
            rule=self._rule,
        )
        rows = RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return after.advanced(name, log.bound(place.base.after, place.base.until, rows), rows)

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
        events: Callable[..., Iterator[pa.RecordBatch]] | None = None,
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
            None if self._rule.evolves else table.schema,
            change_schema(table.schema),
            at,
            seconds,
            rule=rule,
            order=order,
        )

    def _beside(
        self,
        connect: Connect,
        tables: Sequence[FollowedTable],
        table: FollowedTable,
        first: Mapping[int, int],
        after: int,
        upto: int,
        high: int,
        window: ChunkWindow,
        key: Sequence[str],
    ) -> Iterator[pa.RecordBatch]:
        """The changes of all tables, once, while `window` is told of those of `table`."""
        followed = tables if upto > after else [table]
        for name, batch in self._decoded_of(
            connect, followed, first, after, upto, high, table, window, key
        ):
            yield with_name(batch, name)

    def _decoded_of(
        self,
        connect: Connect,
        tables: Sequence[FollowedTable],
        first: Mapping[int, int],
        after: int,
        upto: int,
        high: int,
        table: FollowedTable | None = None,
        window: ChunkWindow | None = None,
        key: Sequence[str] = (),
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        made = {}
        for each in tables:
            decoder = self._decoder_of(each, after, upto)
            if each is table and window is not None:
                decoder.tell(window, key)
            made[each.oid] = TableChanges(each.name, decoder, first[each.oid])
        decoders = TablesDecoder(made)
        with connect() as session:
            for messages in self._messages(session, after, high):
                yield from decoders.feed(messages)
            yield from decoders.finish()

    def _decoder_of(self, table: FollowedTable, after: int, upto: int) -> ChangeDecoder:
        made = ChangeDecoder(
            TableShape(table.oid, table.label, table.columns.columns),
            change_schema(table.schema),
            after,
            upto,
            has=self._rule.has(no_column),
            kinds=self._types.schema if self._rule.evolves else None,
            advice=self._rule.advice,
        )
        made.follow_key(table.columns.key, table.columns.apart)
        return made


def _no_events(*_: Any) -> Iterator[pa.RecordBatch]:
    raise AssertionError("no events are read here")
