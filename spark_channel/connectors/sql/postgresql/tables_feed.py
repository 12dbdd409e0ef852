"""Changes of several tables by one replication slot, decoded once, and their existing rows in chunks beside them.

Each batch has rows of one table, with that table's columns, and its name in the last column, `_table`.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.feed import TABLE as _TABLE
from spark_channel.connectors.feed import FeedLag, FeedLimit, FeedOptions, TableLag
from spark_channel.connectors.split_reader import Token
from spark_channel.connectors.sql.base_chunks import BaseChunk
from spark_channel.connectors.sql.change_feed import change_schema
from spark_channel.connectors.sql.chunk_window import BaseProgress, ChunkWindow, Key, read_window
from spark_channel.connectors.sql.postgresql.catalog import PgTable
from spark_channel.connectors.sql.postgresql.entries import Entries
from spark_channel.connectors.sql.postgresql.pgoutput import ChangeDecoder, TableShape
from spark_channel.connectors.sql.postgresql.published import Followed, check_published
from spark_channel.connectors.sql.postgresql.read_session import PgReadSession
from spark_channel.connectors.sql.postgresql.replication import (
    _FRESH_BYTES,
    _MOST_WAITS,
    _RANGE_ROWS,
    ReplicationFeed,
    _flushed,
    _lent,
    _most,
)
from spark_channel.connectors.sql.postgresql.slots import kept_bytes
from spark_channel.connectors.sql.postgresql.tables_decoder import TableChanges, TablesDecoder
from spark_channel.connectors.sql.postgresql.tables_list import (
    Found,
    find_listed,
    find_one,
    is_pattern,
    left_out,
    listed,
    look_up,
)
from spark_channel.connectors.sql.postgresql.tables_token import TablePlace, TablesToken
from spark_channel.connectors.sql.postgresql.watermarks import Connect, PgWatermarks, obstacle
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.short import Line
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.planning import Split

__all__ = ["TablesFeed"]

_log = logging.getLogger(__name__)

_OWN = (_TABLE, "_op", "_lsn", "_commit_ts")
_RANGE_SECONDS = 0.4
_ADVICE = "Reset the tunnel to follow its tables as they are now"
_LEFT = (
    "Run `spark-channel tunnel resnapshot` for each, which does not tell of rows deleted meanwhile, and "
    "`spark-channel tunnel resume`; or reset the tunnel to follow its tables as they are now"
)
"""What to do with tables that left the publication."""


@dataclass(frozen=True)
class _Table:
    """One table that is followed: `schema` is that of its changes, without its name."""

    name: str
    reader: SqlReader
    shape: TableShape
    key: Sequence[str]
    columns: pa.Schema
    schema: pa.Schema

    def decoder(self, after: int, upto: int) -> ChangeDecoder:
        made = ChangeDecoder(self.shape, self.schema, after, upto)
        made.follow_key(self.key)
        return made


class TablesFeed(ReplicationFeed):
    """One partition, as of one table. `schema` has only the columns that all batches have.

    The options name the tables that a new tunnel begins with; later, its tokens have them.
    """

    can_evolve = False
    has_tables = True
    range_seconds = _RANGE_SECONDS

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.tables is not None
        for name, given in (
            ("columns", reader.options.columns), ("customSchema", reader.options.custom_schema),
        ):  # fmt: skip
            if given:
                raise OptionError(
                    f"option {name!r} goes with one table, and 'tables' names several: omit it, or follow the table "
                    "by 'dbtable' and its own slot",
                    option=name,
                )
        if options.evolves or options.ignores:
            mode = "evolve" if options.evolves else "ignore"
            raise OptionError(
                f"option 'onSchemaChange' got {mode!r}, which goes with one table ('dbtable'), not with 'tables': omit "
                "it; a table that gets other columns stops the tunnel with an error",
                option="onSchemaChange", got=mode, takes="fail",
            )  # fmt: skip
        self._items = listed(options.tables)
        self._has_base = options.has_base
        self._unchecked = [item for item in self._items if not is_pattern(item)]
        self._known: dict[str, _Table] = {}
        self._entries_of: dict[int, Entries] = {}
        super().__init__(reader, options)

    def _follow(self) -> None:
        self._schema = pa.schema([change_schema(pa.schema([])).field(name) for name in _OWN[1:]]).append(
            pa.field(_TABLE, pa.string())
        )

    def earliest(self) -> list[Token]:
        with self._session() as session:
            tables = self._begin(session)
            entries = self._published(session, [each.oid for each in tables])
            made = self._made(session)
            return [self._token(self._confirmed(session) if made is None else made, tables, entries)]

    def now(self) -> list[Token]:
        with self._session() as session:
            tables = self._begin(session)
            for each in tables if self._has_base else ():
                self._check_base(session, each)
            entries = self._published(session, [each.oid for each in tables])
            # The slot is made last: an error leaves none behind.
            return [self._token(self._place_now(session), tables, entries)]

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = map(TablesToken.read, tokens)
        bases = {}
        with self._session() as session:
            for name, place in token.tables.items():
                table = self._table(session, name, place.oid)
                base = self._log_of(table, token.lsn, lambda: nullcontext(session)).start(
                    session, table.reader.resolve(session), token.lsn
                )
                bases[name] = replace(place, base=base, since=None if base is None else token.lsn)
        made = TablesToken(token.lsn, bases, token.lsn, token.lsn)
        return [made.token()]

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        with self._session() as session:
            oid = find_one(session, table).oid
            found = look_up(session, [oid])[oid]
            self._check_base(session, found, "whose existing rows are read whatever 'tunnelType' is")
            entries = self._published(session, [oid]).get(oid, ())
            at = _flushed(session)

        def changed(token: Token) -> Token:
            old, what = TablesToken.read(token), (found.name, found.oid, found.columns, at, entries)
            return (old.restarted(*what) if again else old.joined(*what)).token()

        return changed

    def tables(self, token: Token) -> Collection[str]:
        found = token.get("tables")
        return tuple(found) if isinstance(found, dict) else ()

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        token = TablesToken.read(after)
        self.base_held = False
        with self._session() as session:
            entries = self._check_tables(session, token)
            self._check_place(session, token.lsn)
            if not token.is_read:
                made = self._next_of(session, token, limit, upto)
                return after if made == token else made.held_by(entries).token()
            most = _most(limit)
            flushed = _flushed(session)
            last = self._last_of(session, token.lsn, most or 1)
            if last is None:
                if flushed - token.lsn < _FRESH_BYTES:
                    return after
                end = flushed  # other tables wrote that much
            else:
                end = last if most else max(last, _flushed(session))
        if upto is not None:
            end = min(end, TablesToken.read(upto).lsn)
        return token.seen(end, ()).held_by(entries).token() if end > token.lsn else after

    def reaches(self, token: Token, end: Token) -> bool:
        return TablesToken.read(token).lsn >= TablesToken.read(end).lsn

    def changes(self, after: Token, upto: Token) -> list[Split]:
        old, new = TablesToken.read(after), TablesToken.read(upto)
        tables = {name: each.oid for name, each in old.tables.items()}
        log = {"after": old.lsn, "upto": new.lsn, "tables": tables, "begins": old.begins()}
        chunk = old.chunk_to(new)
        if chunk is not None:
            name, place, upper = chunk
            assert place.base is not None
            keys = {"lower": place.base.after, "upper": upper, "order": place.base.order}
            return [Split({"kind": "window", **log, "table": name, "since": place.since, **keys})]
        return [Split({"kind": "changes", **log})] if new.lsn > old.lsn else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        raise OptionError(
            "option 'tables' reads existing rows beside the changes only: omit 'baseMode' and 'tunnelType', or follow "
            "each table by 'dbtable' and its own slot",
            option="tables",
        )

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        params = split.params
        after, upto = int(params["after"]), int(params["upto"])
        with Line(self._session) as ours, Line(partial(self._reader.connect, "read")) as rows:
            connect = partial(_lent, ours)
            with connect() as session:
                tables = [self._table(session, name, oid) for name, oid in params["tables"].items()]
            first = {each.shape.oid: int(params["begins"][each.name]) for each in tables}
            if params["kind"] == "changes":
                for name, batch in self._decoded_of(connect, tables, first, after, upto, upto):
                    yield _named(batch, name)
                return
            table = next(each for each in tables if each.name == params["table"])
            first[table.shape.oid] = int(params["since"])
            events = partial(self._beside, connect, tables, table, first)
            found = self._log_of(table, upto, connect, partial(_lent, rows), events, params["order"])
            log = _Named(found, table.name)
            lower, upper = params["lower"], params["upper"]
            yield from read_window(
                log, after, upto, None if lower is None else tuple(lower), tuple(upper), log.chunk_rows()
            )

    def settle(self, upto: Token) -> None:
        self._confirm(TablesToken.read(upto).confirmable)

    def lag(self, token: Token) -> FeedLag:
        found = TablesToken.read(token)
        tables = tuple(_lag_of(name, each) for name, each in found.tables.items())
        with self._session() as session:
            self._confirmed(session)
            behind = max(0, _flushed(session) - found.lsn)
            kept = kept_bytes(session, self._slot)
            changes, seconds = self._waiting(session, found.lsn)
        if found.is_read:
            return FeedLag(changes, behind, seconds, kept, tables=tables)
        is_held = self._max_kept is not None and (kept or 0) > self._max_kept
        base = _base_of([each.base for each in found.tables.values() if each.since is not None])
        rows = None if changes is None or base.rows is None else base.rows + changes
        return replace(
            base, rows=rows, nbytes=behind, seconds=seconds, kept=kept, base_held=is_held, tables=tables
        )

    # --- tables ---

    def _begin(self, session: PgReadSession) -> list[Found]:
        """The tables that a new tunnel begins with."""
        found = find_listed(session, self._publication, self._items)
        without = list(left_out(session, self._publication, self._items))
        if without:
            _log.warning(
                "publication %r does not have %s: tunnel and slot do not follow them. ALTER PUBLICATION %s ADD TABLE "
                "..., then `spark-channel tunnel add-table`",
                self._publication, ", ".join(without), self._publication,
            )  # fmt: skip
        present = look_up(session, [each.oid for each in found])
        for each in found:
            self._table(session, each.name, each.oid)
        return [present[each.oid] for each in found]

    @staticmethod
    def _token(lsn: int, tables: Sequence[Found], entries: Mapping[int, Entries]) -> Token:
        places = {
            each.name: TablePlace(each.oid, each.columns, entries=entries.get(each.oid, ()))
            for each in tables
        }
        return TablesToken(lsn, places).token()

    def _check_base(self, session: PgReadSession, found: Found, joins: str = "") -> None:
        """`joins`: what is said of a table that is not one of those that a tunnel begins with."""
        table = self._table(session, found.name, found.oid)
        why = obstacle(session, table.reader.resolve(session))
        if why is not None:
            raise SourceError(
                f"table {found.name!r}{joins and f', {joins},'} cannot be read beside its changes: {why}. Follow it by "
                "'dbtable' and its own slot, or make a tunnel with it and tunnelType=stream, which does not read "
                "existing rows"
            )

    def _table(self, session: PgReadSession, name: str, oid: int) -> _Table:
        known = self._known.get(name)
        if known is not None and known.shape.oid == oid:
            return known
        found = look_up(session, [oid]).get(oid)
        if found is None:
            raise SourceError(f"table {name!r} was dropped. {_ADVICE}")
        options = self._reader.options.model_copy(update={"dbtable": found.sql})
        reader: SqlReader = cast(Any, type(self._reader))(options)
        reader.fetch_size = self._reader.fetch_size
        source = reader.resolve(session)
        made = _Table(
            name, reader, self._checked(session, source), cast(PgTable, source.table).key, source.schema,
            change_schema(source.schema),
        )  # fmt: skip
        self._known[name] = made
        return made

    def _checked(self, session: PgReadSession, source: ReadSource) -> TableShape:
        taken = [name for name in source.names if name in _OWN]
        if taken:
            raise SchemaError(
                f"{source.label} has a column {taken[0]!r}, which is a name of the feed's own: rename the column, or "
                "omit the table"
            )
        try:
            return self._check(session, source)
        except SchemaError as error:
            raise SchemaError(
                f"{error}. 'columns' does not go with 'tables': follow this table by 'dbtable' and its own slot"
            ) from None

    def _check_tables(self, session: PgReadSession, token: TablesToken) -> dict[int, Entries]:
        """The entries by which the publication has the tables.

        Raises:
            SourceError: one was dropped, renamed or made again, or left the publication. SchemaError: one has other
                columns.
            OptionError: the options name one that the tunnel does not follow.
        """
        present = look_up(session, [each.oid for each in token.tables.values()])
        for name, place in token.tables.items():
            found = present.get(place.oid)
            if found is None or found.name != name:
                what = "was dropped, or made again" if found is None else f"is {found.name!r} now"
                raise SourceError(f"table {name!r} of the tunnel {what}. {_ADVICE}")
            if found.columns != place.columns:
                raise SchemaError(
                    f"table {name!r} has other columns than when the tunnel began to follow it. {_ADVICE}"
                )
        now = self._published(session, [each.oid for each in token.tables.values()])
        known = [
            Followed(name, place.oid, place.entries or self._entries_of.get(place.oid, ()))
            for name, place in token.tables.items()
        ]
        check_published(self._publication, known, now, _LEFT)
        self._entries_of = now
        for item in self._unchecked:
            if find_one(session, item).name not in token.tables:
                raise OptionError(
                    f"option 'tables' names {item!r}, which the tunnel does not follow: add it with `spark-channel "
                    f"tunnel add-table --table {item}`",
                    option="tables", got=item,
                )  # fmt: skip
        self._unchecked = []
        return now

    # --- ranges ---

    def _next_of(
        self, session: PgReadSession, token: TablesToken, limit: FeedLimit, upto: Token | None
    ) -> TablesToken:
        """The next range while existing rows are left to read: what is in the log, and a chunk of one table.

        As of one table. Its position always moves, so that what waits for a later one is not kept waiting.
        """
        most = _most(limit)
        marks = self._marks(session)
        if not self.reads_base and self._is_idle(session, marks, token.lsn, token.safe, token.doubt):
            return token
        last, count = (None, 0) if most is None else self._counted(session, token.lsn, most)
        is_cut = most is not None and count >= most
        marks.mark()
        end = last if is_cut and last is not None else _flushed(session)
        if upto is not None:
            end = min(end, TablesToken.read(upto).lsn)
        end = max(token.lsn, end)
        is_paused = not self.reads_base or self._pauses(session)
        self.base_held = self.reads_base and is_paused and not is_cut
        if is_paused and end == token.lsn:
            return token
        marks.mark()
        after = token.seen(end, marks.running())
        if is_paused:
            return after
        if is_cut and after.waited < _MOST_WAITS:
            return replace(after, waited=after.waited + 1)
        name = after.due()
        if name is None:
            return after
        place = after.tables[name]
        table = self._table(session, name, place.oid)
        order = () if place.base is None else place.base.order
        log = self._log_of(table, end, lambda: nullcontext(session), order=order)
        if place.base is None:
            return after.started(name, log.start(session, table.reader.resolve(session), end))
        rows = _RANGE_ROWS if most is None else max(1, most - (0 if is_cut else count))
        return after.advanced(name, log.bound(place.base.after, place.base.until, rows), rows)

    def _marks(self, session: PgReadSession) -> PgWatermarks:
        """For what is of the log, and of no table."""
        lone = pa.schema([])

        def connect() -> AbstractContextManager[PgReadSession]:
            return nullcontext(session)

        return PgWatermarks(self._reader, connect, connect, _no_events, lone, lone, 0, rule=self._rule)

    def _log_of(
        self, table: _Table, at: int, connect: Connect, rows: Connect | None = None,
        events: Callable[..., Iterator[pa.RecordBatch]] | None = None, order: Sequence[str] = (),
    ) -> PgWatermarks:  # fmt: skip
        """With `rows`, both open a session again that was lost."""
        seconds = 0.0 if rows is None else getattr(self._reader.options, "retry_timeout", 0.0)
        return PgWatermarks(
            table.reader, connect, rows or connect, events or _no_events, table.columns, table.schema, at, seconds,
            rule=self._rule, order=order,
        )  # fmt: skip

    def _beside(
        self, connect: Connect, tables: Sequence[_Table], table: _Table, first: Mapping[int, int], after: int,
        upto: int, high: int, window: ChunkWindow, key: Sequence[str],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The changes of all tables, once, while `window` is told of those of `table`."""
        followed = tables if upto > after else [table]
        for name, batch in self._decoded_of(connect, followed, first, after, upto, high, table, window, key):
            yield _named(batch, name)

    def _decoded_of(
        self, connect: Connect, tables: Sequence[_Table], first: Mapping[int, int], after: int, upto: int, high: int,
        table: _Table | None = None, window: ChunkWindow | None = None, key: Sequence[str] = (),
    ) -> Iterator[tuple[str, pa.RecordBatch]]:  # fmt: skip
        made = {}
        for each in tables:
            decoder = each.decoder(after, upto)
            if each is table and window is not None:
                decoder.tell(window, key)
            made[each.shape.oid] = TableChanges(each.name, decoder, first[each.shape.oid])
        decoders = TablesDecoder(made)
        with connect() as session:
            for messages in self._messages(session, after, high):
                yield from decoders.feed(messages)
            yield from decoders.finish()


class _Named:
    """Chunks whose rows have their table's name."""

    def __init__(self, log: PgWatermarks, name: str) -> None:
        self._log, self._name = log, name
        self.mark, self.events, self.chunk_rows = log.mark, log.events, log.chunk_rows

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> "_NamedChunk":
        return _NamedChunk(self._log.chunk(lower, upper, rows), self._name)


class _NamedChunk:
    def __init__(self, chunk: BaseChunk, name: str) -> None:
        self._chunk, self._name = chunk, name
        self.last, self.sees = chunk.last, chunk.sees

    def kept(self, window: ChunkWindow) -> Iterator[pa.RecordBatch]:
        for batch in self._chunk.kept(window):
            yield _named(batch, self._name)


def _named(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    names = pa.repeat(pa.scalar(name), batch.num_rows)
    schema = batch.schema.append(pa.field(_TABLE, pa.string()))
    return pa.RecordBatch.from_arrays([*batch.columns, names], schema=schema)


def _no_events(*_: Any) -> Iterator[pa.RecordBatch]:
    raise AssertionError("no events are read here")


def _lag_of(name: str, place: TablePlace) -> TableLag:
    if place.since is None:
        return TableLag(name, "changes")
    if place.base is None:
        return TableLag(name, "waits")
    return TableLag(name, "base", place.base.read, place.base.rows)


def _base_of(bases: Sequence[BaseProgress | None]) -> FeedLag:
    """Of the tables whose existing rows are not all read; None: one waits, and how many it has is not known."""
    known = [each for each in bases if each is not None]
    unknown = [None] * (len(bases) - len(known))
    return FeedLag(
        rows=_sum([*unknown, *(each.left for each in known)]),
        base_read=sum(each.read for each in known),
        base_rows=_sum([*unknown, *(each.rows for each in known)]),
        base_chunks=sum(each.chunks for each in known),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None
