"""A feed of several tables by one slot, which are held to what the catalog says of them now.

Each batch has rows of one table, with that table's columns, and its name in the last column, `_table`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.base.feed import (
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
)
from spark_channel.connectors.postgresql.catalog import (
    Part,
    PartReader,
    PgTable,
    find_table,
    oldest_of,
)
from spark_channel.connectors.postgresql.log.columns import TableColumns, becomes
from spark_channel.connectors.postgresql.log.feed import FollowedTable, ReplicationFeed
from spark_channel.connectors.postgresql.log.followed_columns import (
    LogTypes,
    check_decodable,
    row_columns,
    row_key,
)
from spark_channel.connectors.postgresql.log.pgoutput import ChangeDecoder, TableShape
from spark_channel.connectors.postgresql.log.publication import Followed, Published, check_published
from spark_channel.connectors.postgresql.log.slot import flushed_lsn
from spark_channel.connectors.postgresql.log.table_list import (
    CatalogTable,
    find_listed,
    find_one,
    left_out,
    look_up,
    named,
)
from spark_channel.connectors.postgresql.log.tables_token import TablePlace, TablesToken
from spark_channel.connectors.postgresql.log.watermarks import PgWatermarks, obstacle
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.feed.incremental_snapshot import WatermarkLog
from spark_channel.connectors.sql.feed.log_tables import (
    RANGE_SECONDS,
    READ_AGAIN,
    REMOVE,
    base_refused,
    check_base,
    check_names,
    check_options,
    is_pattern,
    listed,
    no_column,
    not_followed,
    of_table,
    renamed,
    rules_of,
    warn_of_dropped,
    warn_of_gone_rows,
)
from spark_channel.connectors.sql.feed.named_rows import NamedLog, rows_schema, with_name
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SchemaError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["TablesFeed"]

_log = log_of(__name__)

_INSTEAD = "'dbtable' and its own slot"
"""How one table is followed."""
_LEFT = (
    "Run `spark-channel tunnel resnapshot` for each, which does not report rows deleted meanwhile, "
    f"and `spark-channel tunnel resume`; or {REMOVE}"
)
"""What to do with tables that left the publication."""
_MADE_AGAIN = f"Add it to the publication, run {READ_AGAIN}, and `spark-channel tunnel resume`; or run {REMOVE}"


@dataclass(frozen=True)
class _Look:
    """What the catalog said of the tables that were `asked` for, by number."""

    asked: frozenset[int]
    present: Mapping[int, CatalogTable]
    published: Published


@dataclass(frozen=True)
class _CatalogState:
    """What the catalog said of the tables. `digests` of their columns by number, `changed` those that a table continues
    with. `dropped`: the tables that no longer exist.
    """

    published: Published
    digests: Mapping[int, str]
    changed: Mapping[str, tuple[str, TableColumns]]
    dropped: Collection[str]

    def noted(self, token: TablesToken) -> Token:
        return token.reshaped(self.changed).held_by(self.published.entries).token()


class TablesFeed(ReplicationFeed):
    """One partition, as of one table. `schema` has only the columns that all batches have.

    The options name the tables that a new tunnel begins with; later, its tokens have them.
    """

    has_tables = True
    range_seconds = RANGE_SECONDS

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.tables is not None
        check_options(reader.options, _INSTEAD)
        self._items = listed(options.tables)
        self._has_base = options.has_base
        self._unchecked = [item for item in self._items if not is_pattern(item)]
        self._readers: dict[int, SqlReader] = {}
        self._types = LogTypes(self._session)
        self._accepted: dict[tuple[int, str, str], TableColumns | None] = {}
        self._told_dropped: set[str] = set()
        self._look: _Look | None = None
        super().__init__(reader, options)
        self._rule, self._range_rule = rules_of(options)

    def _follow(self) -> None:
        """Its positions have the tables."""

    def schema(self) -> pa.Schema:
        return rows_schema()

    def _read_token(self, token: Token) -> TablesToken:
        return TablesToken.read(token)

    def earliest(self) -> list[Token]:
        with self._session() as session:
            with self._begin(session) as (tables, published):
                start = self._made(session)
            at = self._confirmed(session) if start is None else start
            return [self._token(at, tables, published)]

    def now(self) -> list[Token]:
        with self._session() as session:
            with self._begin(session) as (tables, published):
                for table, _ in tables if self._has_base else ():
                    with of_table(table.name):
                        self._check_base(session, table)
            # The slot is made last: an error leaves none behind.
            return [self._token(self._place_now(session), tables, published)]

    def end_of(self, token: Token) -> Token:
        with self._session() as session:
            return replace(TablesToken.read(token), lsn=flushed_lsn(session)).token()

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = map(TablesToken.read, tokens)
        bases = {}
        with self._session() as session:
            for name, progress in token.tables.items():
                table = self._table(name, progress.oid, progress.shape)
                base = self._start(session, table, token.lsn)
                bases[name] = replace(
                    progress, base=base, since=None if base is None else token.lsn
                )
        position = replace(token, tables=bases, safe=token.lsn, doubt_at=token.lsn)
        return [position.token()]

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        with self._session() as session:
            oid = find_one(session, table).oid
            with self._looking_at(session, [oid]) as look:
                entry = look.present[oid]
                self._check_base(
                    session, entry, "whose existing rows are read whatever 'tunnelType' is"
                )
                shape = self._look_at(session, entry).columns
                entries = look.published.entries.get(oid, ())
            at = flushed_lsn(session)

        def changed(token: Token) -> Token:
            old = TablesToken.read(token)
            described = (entry.name, entry.oid, entry.columns, shape, at, entries)
            return (
                old.restarted(*described, self._takes) if again else old.joined(*described)
            ).token()

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
        tables = token.get("tables")
        return tuple(tables) if isinstance(tables, dict) else ()

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        token = TablesToken.read(after)
        with self._session() as session:
            oids = [table.oid for table in token.tables.values()]
            while True:
                with self._looking_at(session, oids) as look:
                    state = self._check_tables(session, token, look)
                    end = self._planned(session, token, limit, upto, state.dropped)
                if end is None:
                    return after
                # A table that has changed meanwhile is checked again, so that no refused change is handed out.
                if _digests(look_up(session, list(state.digests))) == state.digests:
                    return state.noted(end)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        raise base_refused(_INSTEAD)

    def backfill_blocked_by(self, token: Token) -> str:
        position = TablesToken.read(token)
        if not position.awaited():
            return ""
        with self._session() as session:
            return self._held_up(session, position)

    def _held_up(self, session: PgReadSession, token: TablesToken) -> str:
        waiting = token.awaited()
        blocker = oldest_of(session, token.doubt) if waiting else ""
        return f"existing rows of {', '.join(waiting)} wait for {blocker}" if blocker else ""

    def lag(self, token: Token) -> FeedLag:
        position = TablesToken.read(token)
        with self._session() as session:
            existing = look_up(session, [progress.oid for progress in position.tables.values()])
            present = [
                name for name, progress in position.tables.items() if progress.oid in existing
            ]
            return self._lag(session, position, present, self._held_up(session, position))

    def _decoder_of(self, table: FollowedTable, after: int, upto: int) -> ChangeDecoder:
        decoder = ChangeDecoder(
            TableShape(table.oid, table.label, table.columns.columns),
            change_schema(table.schema),
            after,
            upto,
            has=self._rule.has(no_column),
            kinds=self._types.schema if self._rule.evolves else None,
            advice=self._rule.advice,
        )
        decoder.follow_key(table.columns.key, table.columns.apart)
        return decoder

    def _chunk_columns(self, table: FollowedTable) -> pa.Schema | None:
        return None if self._rule.evolves else table.schema

    def _given(self, batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
        return with_name(batch, table)

    def _given_log(self, log: PgWatermarks, table: str) -> WatermarkLog[int, pa.RecordBatch]:
        return NamedLog(log, table)

    @contextmanager
    def _begin(
        self, session: PgReadSession
    ) -> Iterator[tuple[list[tuple[CatalogTable, TableColumns]], Published]]:
        """The tables that a new tunnel begins with, and what the publication has of them, during one look."""
        listed_tables = find_listed(session, self._publication, self._items)
        without = list(left_out(session, self._publication, self._items))
        if without:
            _log.warning(
                "publication %r does not have %s: tunnel and slot do not follow them. ALTER PUBLICATION %s ADD TABLE "
                "..., then `spark-channel tunnel add-table`",
                self._publication,
                ", ".join(without),
                self._publication,
            )
        with self._looking_at(session, [table.oid for table in listed_tables]) as look:
            tables = []
            for listed_table in listed_tables:
                with of_table(listed_table.name):
                    entry = look.present[listed_table.oid]
                    tables.append((entry, self._look_at(session, entry).columns))
            yield tables, look.published

    @staticmethod
    def _token(
        lsn: int, tables: Sequence[tuple[CatalogTable, TableColumns]], published: Published
    ) -> Token:
        places = {
            table.name: TablePlace(
                table.oid, table.columns, entries=published.entries.get(table.oid, ()), shape=shape
            )
            for table, shape in tables
        }
        return TablesToken(lsn, places).token()

    def _check_base(self, session: PgReadSession, entry: CatalogTable, joins: str = "") -> None:
        """`joins`: the message's words for a table that a tunnel did not begin with."""
        self._look_at(session, entry)
        reason = obstacle(session, self._reader_of(session, entry.name, entry.oid).resolve(session))
        check_base(entry.name, reason, _INSTEAD, joins)

    def _reader_of(self, session: PgReadSession, name: str, oid: int) -> SqlReader:
        """Of its existing rows."""
        known_reader = self._readers.get(oid)
        if known_reader is not None:
            return known_reader
        with self._looking_at(session, [oid]) as look:
            entry = look.present.get(oid)
            if entry is None:
                raise SourceError(f"table {name!r} was dropped. Run {REMOVE}")
            options = self._reader.options.model_copy(update={"dbtable": entry.sql})
            reader: SqlReader = cast(Any, type(self._reader))(options)
            reader.fetch_size = self._reader.fetch_size
            cast(PartReader, reader).part = look.published.parts.get(oid, Part())
        self._readers[oid] = reader
        return reader

    def _rows_of(
        self, session: PgReadSession, tables: Sequence[FollowedTable]
    ) -> Mapping[str, SqlReader]:
        readers = {}
        with self._looking_at(session, [table.oid for table in tables]) as look:
            self._forget(look.published)
            for table in tables:
                entry = look.present.get(table.oid)
                if entry is None:
                    warn_of_gone_rows(table.name)
                    continue
                reader = self._readers.get(table.oid)
                if reader is not None and reader.options.dbtable != entry.sql:
                    # Its old name may be another table's.
                    del self._readers[table.oid]
                readers[table.name] = self._reader_of(session, table.name, table.oid)
        return readers

    @contextmanager
    def _looking_at(self, session: PgReadSession, oids: Sequence[int]) -> Iterator["_Look"]:
        """Ask the catalog once for all of these tables: what is asked for one of them in the block is answered by
        that. The server goes through a whole publication for each question.
        """
        before = self._look
        if before is not None and before.asked.issuperset(oids):
            yield before
            return
        present = look_up(session, list(oids))
        self._look = _Look(frozenset(oids), present, super()._published(session, oids))
        try:
            yield self._look
        finally:
            self._look = before

    def _published(self, session: PgReadSession, oids: Sequence[int]) -> Published:
        look = self._look
        if look is None or not look.asked.issuperset(oids):
            return super()._published(session, oids)
        every = look.published
        entries = {oid: every.entries[oid] for oid in oids if oid in every.entries}
        return Published(entries, every.parts, every.lacks if entries else ())

    def _forget(self, now: Published) -> None:
        """Drop readers of other rows and columns than the publication has now."""
        for oid, part in now.parts.items():
            if oid in self._readers and cast(PartReader, self._readers[oid]).part != part:
                del self._readers[oid]

    def _table(self, name: str, oid: int, columns: TableColumns) -> FollowedTable:
        """As a token has it."""
        return FollowedTable(name, oid, columns, self._types.schema(columns.columns))

    def _look_at(
        self, session: PgReadSession, entry: CatalogTable, only: Collection[str] | None = None
    ) -> FollowedTable:
        """A table as the catalog has it. `only`: others of its columns are left out, whatever they are."""
        source = self._reader_of(session, entry.name, entry.oid).resolve(session)
        shape = self._checked(session, source, only)
        columns = TableColumns(shape.columns, row_key(source), row_columns(source))
        return FollowedTable(entry.name, entry.oid, columns, source.schema)

    def _checked(
        self, session: PgReadSession, source: ReadSource, only: Collection[str] | None
    ) -> TableShape:
        check_names(source, only)
        if only is not None:
            oid = cast(PgTable, source.table).oid
            part = self._published(session, [oid]).parts.get(oid, Part())
            check_decodable(source, part, lambda name: name not in only)
            return self._shape_of(session, source)
        try:
            return self._check(session, source)
        except SchemaError as error:
            raise SchemaError(
                f"{error}. 'columns' does not go with 'tables': follow this table by 'dbtable' and its own slot"
            ) from None

    def _check_tables(
        self, session: PgReadSession, token: TablesToken, look: _Look
    ) -> _CatalogState:
        """
        Raises:
            SourceError: one was renamed or made again, or left the publication. SchemaError: one has columns that it
                cannot continue with.
            OptionError: the options name one that the tunnel does not follow.
        """
        present, now = look.present, look.published
        self._forget(now)
        changed, dropped = {}, []
        for name, progress in token.tables.items():
            entry = present.get(progress.oid)
            with of_table(name):
                if entry is None:
                    self._check_dropped(session, name)
                    dropped.append(name)
                    continue
                if entry.name != name:
                    raise renamed(name, entry.name)
                shape = self._continued(session, name, progress, entry)
            if shape is not None:
                changed[name] = (entry.columns, shape)
        followed = [
            Followed(name, progress.oid, progress.entries)
            for name, progress in token.tables.items()
            if name not in dropped
        ]
        check_published(self._publication, followed, now, _LEFT)
        for item in self._unchecked:
            if (
                not named(item, (*dropped, *token.removed))
                and find_one(session, item).name not in token.tables
            ):
                raise not_followed(item)
        self._unchecked = []
        return _CatalogState(now, _digests(present), changed, dropped)

    def _check_dropped(self, session: PgReadSession, name: str) -> None:
        """A table that is not there cannot change: all that the log has of it is delivered, and nothing follows.

        Raises:
            SourceError: another one has its name, whose changes would be lost.
        """
        if find_table(session, name) is not None:
            raise SourceError(
                f"table {name!r} of the tunnel was dropped, and made again. {_MADE_AGAIN}"
            )
        if name not in self._told_dropped:
            self._told_dropped.add(name)
            warn_of_dropped(name)

    def _continued(
        self, session: PgReadSession, name: str, progress: TablePlace, entry: CatalogTable
    ) -> TableColumns | None:
        """The other columns that a table continues with; None: those that it has."""
        if entry.columns == progress.columns:
            return None
        key = progress.oid, progress.columns, entry.columns
        if key not in self._accepted:
            self._accepted[key] = self._judged(session, name, progress, entry)
        return self._accepted[key]

    def _judged(
        self, session: PgReadSession, name: str, progress: TablePlace, entry: CatalogTable
    ) -> TableColumns | None:
        was, label, rule = progress.shape, f"table {name!r}", self._rule
        stream_names = None if rule.evolves else {column.name for column in was.columns}
        try:
            table = self._look_at(session, entry, stream_names)
        except SchemaError as error:
            if stream_names is not None:
                raise
            raise SchemaError(
                f"{error}; or start the tunnel again with onSchemaChange=ignore, which leaves new columns out"
            ) from None
        if not rule.evolves:
            rule.check(self._types.schema(was.columns), table.schema, label, was.key)
        difference = becomes(was, table.columns, has=rule.has(no_column), is_kept=not rule.evolves)
        if difference is not None:
            raise SchemaError(f"{label} {difference} since its stream began. {rule.advice}")
        if rule.ignores:
            return None
        if rule.evolves:
            names = ", ".join(table.schema.names)
            _log.info("%s continues with columns %s (onSchemaChange=evolve)", label, names)
        return table.columns


def _digests(tables: Mapping[int, CatalogTable]) -> dict[int, str]:
    return {oid: table.columns for oid, table in tables.items()}
