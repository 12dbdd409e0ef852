"""Changes of several tables by one connection to the binary log, and their existing rows in chunks beside them.

The log has the statements that change tables. A range ends before a statement after which a table cannot be followed,
and with an ALTER that changes a table's columns. So each row of a range that was handed out can be read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from spark_channel.arrow_schema import noted
from spark_channel.connectors.base.feed import (
    FeedLag,
    FeedLimit,
    FeedOptions,
    Token,
    change_schema,
    missing_source,
)
from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.log.decoder import ChangeDecoder
from spark_channel.connectors.mysql.log.dump import dumped
from spark_channel.connectors.mysql.log.feed import BinlogFeed, no_answers
from spark_channel.connectors.mysql.log.position import GtidSet
from spark_channel.connectors.mysql.log.schema import check_server, check_table
from spark_channel.connectors.mysql.log.snapshot import obstacle, start_of
from spark_channel.connectors.mysql.log.table import FollowedTable, becomes
from spark_channel.connectors.mysql.log.table_list import find_listed, find_one, name_of, named
from spark_channel.connectors.mysql.log.token import (
    BinlogPlace,
    BinlogToken,
    TablesToken,
    followed,
    noted_table,
    recalled,
)
from spark_channel.connectors.mysql.session import MysqlSession, is_away, quoted
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.feed.base_chunk import as_inserts, base_splits
from spark_channel.connectors.sql.feed.log_tables import (
    RANGE_SECONDS,
    READ_AGAIN,
    REMOVE,
    base_refused,
    check_base,
    check_names,
    check_options,
    columns_advice,
    is_pattern,
    listed,
    no_column,
    not_followed,
    of_table,
    rules_of,
    warn_of_dropped,
    warn_of_gone_rows,
)
from spark_channel.connectors.sql.feed.named_rows import rows_schema
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SchemaError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["BinlogTablesFeed", "OneTableFeed"]

_INSTEAD = "'dbtable'"
_ADVICE = f"Run {READ_AGAIN}; or {REMOVE}"
_log = log_of(__name__)


class OneTableFeed(BinlogFeed):
    """A list of one table, which has no name in it."""

    _cuts_at_alter = False

    def _follow(self, session: MysqlSession) -> None:
        """Find the table; one that is not there is `missing`."""
        self._schema = pa.schema([])
        try:
            source = self._reader.resolve(session)
        except SourceError as error:
            name = self._options.dbtable
            if name is None or self._reader.dialect.find_table(session, name) is not None:
                raise
            self.missing = missing_source(error)
            return
        check_table(session, source)
        check_server(session, cast(MysqlTable, source.table).schema)
        self._source = source
        self._table = followed(self._server, source, self._options)
        self._columns, self._schema = source.schema, change_schema(source.schema)

    def _recall(self, token: BinlogToken) -> None:
        """Take a table that was dropped as it was when a range was handed out."""
        assert self.missing is not None
        if token.table is None:
            raise self.missing
        self._table = recalled(self._server, self._reader, token.table)
        self._schema = change_schema(self._table.schema)

    def _check_there(self) -> None:
        if self.missing is not None:
            raise self.missing

    def schema(self) -> pa.Schema:
        if self.missing is not None and not self._schema.names:
            raise self.missing
        return self._schema if self.missing else noted(self._schema, self._source.text_lengths)

    def earliest(self) -> list[Token]:
        self._check_there()
        return super().earliest()

    def now(self) -> list[Token]:
        self._check_there()
        return super().now()

    def end(self) -> list[Token]:
        with self._session() as session:
            return [self._begun(session, self._ended(session))]

    def _begun(self, session: MysqlSession, position: GtidSet) -> Token:
        return self._known(BinlogToken(position))

    def _known(self, token: BinlogToken) -> Token:
        """With the table's present columns."""
        return replace(token, table=None if self.missing else noted_table(self._table)).token()

    def _read(self, token: Token) -> TablesToken:
        return BinlogToken.read(token, self._gtids).several()

    def _written(self, token: TablesToken) -> Token:
        return self._known(BinlogToken.single(token))

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = tokens
        with self._session() as session:
            source = self._reader.resolve(session)
            reason = obstacle(source)
            if reason is not None:
                _log.warning(
                    "%s is read as a whole before its changes: %s. Until then the server must keep its binary logs "
                    "(binlog_expire_logs_seconds)",
                    source.label,
                    reason,
                )
                return None
            position = BinlogToken.read(token, self._gtids)
            self._check_place(session, position.position)
            return [replace(position, base=start_of(session, source, position.position)).token()]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        self._check_there()
        with self._session() as session:
            source = self._reader.resolve(session)
            self._rule.check(self._columns, source.schema, source.label, self._table.key)
            check_table(session, source)
            return self._range(session, after, limit, upto)

    def changes(self, after: Token, upto: Token) -> list[Split]:
        if self.missing is not None:
            old, new = BinlogToken.read(after, self._gtids), BinlogToken.read(upto, self._gtids)
            self._recall(new if new.table is not None else old)
        return super().changes(after, upto)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        return base_splits(self._reader, advice, str(self._position(upto[0])))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["kind"] in ("changes", "window"):
            yield from super().read(split)
            return
        for batch in self._reader.read(split):
            yield as_inserts(batch, self._schema, split.params["at"])

    def lag(self, token: Token) -> FeedLag:
        position = self._read(token)
        return FeedLag() if self.missing is not None else replace(self._lag(position), tables=())

    def _recalled(self, name: str, progress: BinlogPlace) -> FollowedTable:
        """With the columns that the stream began with."""
        return self._table

    def _reader_of(self, table: FollowedTable) -> SqlReader:
        return self._reader

    def _source_of(
        self, session: MysqlSession, progress: BinlogPlace, position: GtidSet
    ) -> ReadSource | None:
        return self._reader.resolve(session)

    def _has_rows(self, progress: BinlogPlace, start: GtidSet) -> bool:
        if self.missing is None:
            return True
        _log.warning(
            "%s does not exist: its existing rows that were not read are lost, "
            "and its changes in the log are delivered",
            self._table.label,
        )
        return False

    def _has(self, *, in_range: bool) -> Callable[[str], bool] | None:
        return self._rule.has(self._has_column)

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column by now, which the stream did not begin with; else it was dropped."""
        if self.missing is not None:
            return False
        with self._session() as session:
            return self._options.columns is None and name in self._reader.resolve(session).names

    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        """The error for a value that its column's type cannot hold."""
        if self.missing is not None:
            return SourceError(
                f"column {error.column.name!r} of {self._table.label} has {error.what}"
            )
        with self._session() as session:
            return self._reader.refused(session, self._source, error, " (in its binary log)")


class BinlogTablesFeed(BinlogFeed):
    """Several tables by their names. `schema` has only the columns that all batches have.

    The options name the tables that a new tunnel begins with; later, its tokens have them.
    """

    has_tables = True
    range_seconds = RANGE_SECONDS

    def __init__(self, reader: SqlReader, options: FeedOptions) -> None:
        assert options.tables is not None
        check_options(reader.options, _INSTEAD)
        self._items = listed(options.tables, "`")
        self._has_base = options.has_base
        self._unchecked = [item for item in self._items if not is_pattern(item)]
        self._readers: dict[tuple[str, str], SqlReader] = {}
        self._checked: set[str] = set()
        self._as_noted: dict[str, tuple[Mapping[str, Any], FollowedTable]] = {}
        super().__init__(reader, options)
        self._rule, self._range_rule = rules_of(options)

    def _follow(self, session: MysqlSession) -> None:
        self._schema = rows_schema()

    def schema(self) -> pa.Schema:
        return self._schema

    # --- the tables ---

    def _begin(self, session: MysqlSession) -> dict[str, FollowedTable]:
        """The tables that a new tunnel begins with.

        Raises:
            OptionError: a name of no table, or a pattern of none.
        """
        tables = {}
        for database, name in find_listed(session, self._reader.dialect, self._items):
            with of_table(name_of(database, name)):
                table = self._looked_at(session, database, name)
                if self._has_base:
                    self._check_base(session, table)
            tables[table.listed] = table
        return tables

    def _looked_at(self, session: MysqlSession, database: str, name: str) -> FollowedTable:
        """A table as the catalog has it.

        Raises:
            SourceError, SchemaError, OptionError: it cannot be followed.
        """
        source = self._reader_named(database, name).resolve(session)
        check_table(session, source)
        if database not in self._checked:
            check_server(session, database)
            self._checked.add(database)
        check_names(source)
        return self._advised(followed(self._server, source, self._options))

    def _advised(self, table: FollowedTable) -> FollowedTable:
        name = name_of(table.database, table.name)
        advice = columns_advice(self._rule)
        return replace(
            table, listed=name, label=f"table {name!r}", advice=_ADVICE, columns_advice=advice
        )

    def _check_base(self, session: MysqlSession, table: FollowedTable, joins: str = "") -> None:
        source = self._reader_of(table).resolve(session)
        check_base(table.listed, obstacle(source), _INSTEAD, joins)

    def _reader_of(self, table: FollowedTable) -> SqlReader:
        return self._reader_named(table.database, table.name)

    def _reader_named(self, database: str, name: str) -> SqlReader:
        reader = self._readers.get((database, name))
        if reader is None:
            options = self._options.model_copy(
                update={"dbtable": f"{quoted(database)}.{quoted(name)}"}
            )
            reader = cast(Any, type(self._reader))(options)
            reader.fetch_size = self._reader.fetch_size
            self._readers[database, name] = reader
        return reader

    def _recalled(self, name: str, progress: BinlogPlace) -> FollowedTable:
        """As a token has it."""
        known = self._as_noted.get(name)
        if known is None or known[0] != progress.table:
            table = self._advised(recalled(self._server, self._reader, progress.table))
            known = self._as_noted[name] = (progress.table, table)
        return replace(known[1], is_dropped=True) if progress.is_dropped else known[1]

    def _source_of(
        self, session: MysqlSession, progress: BinlogPlace, position: GtidSet
    ) -> ReadSource | None:
        """The table as the catalog has it. None: the log behind `position` says that it was dropped, or renamed.

        Raises:
            SourceError: it does not; the login may not see the table.
        """
        reader = self._reader_named(progress.table["database"], progress.table["name"])
        try:
            return reader.resolve(session)
        except SourceError as error:
            if is_away(error) or not self._is_gone(progress, position):
                raise
            return None

    def _is_gone(self, progress: BinlogPlace, position: GtidSet) -> bool:
        name = name_of(progress.table["database"], progress.table["name"])
        table = self._recalled(name, progress)
        decoder = ChangeDecoder([table], None, no_answers, counts=True, has=no_column)
        with dumped(self._options, position) as log:
            for event in log:
                try:
                    if decoder.take(event) and decoder.tables[0].is_dropped:
                        return True
                except SchemaError:
                    continue  # it has other columns there, and may be dropped later
                except SourceError as error:
                    if is_away(error):
                        raise
                    return True
        return False

    # --- positions ---

    def _begun(self, session: MysqlSession, position: GtidSet) -> Token:
        """The tables are looked at behind the position, so the log has all of their later changes."""
        tables = {
            name: BinlogPlace(noted_table(table)) for name, table in self._begin(session).items()
        }
        return TablesToken(position, tables).token()

    def end_of(self, token: Token) -> Token:
        with self._session() as session:
            return replace(self._read(token), position=self._ended(session)).token()

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        (token,) = map(self._read, tokens)
        tables = {}
        with self._session() as session:
            for name, progress in token.tables.items():
                reader = self._reader_named(progress.table["database"], progress.table["name"])
                base = start_of(session, reader.resolve(session), token.position)
                since = None if base is None else token.position
                tables[name] = replace(progress, base=base, since=since)
        return [replace(token, tables=tables).token()]

    def _read(self, token: Token) -> TablesToken:
        return TablesToken.read(token, self._gtids)

    def _written(self, token: TablesToken) -> Token:
        return token.token()

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        with self._session() as session:
            at = self._visible(session)
            joined = self._looked_at(session, *find_one(session, self._reader.dialect, table))
            self._check_base(
                session, joined, "whose existing rows are read whatever 'tunnelType' is"
            )

        def changed(token: Token) -> Token:
            old = self._read(token)
            join = old.restarted if again else old.joined
            return join(joined.listed, noted_table(joined), at).token()

        return changed

    def leaving(self, table: str) -> Callable[[Token], Token]:
        def changed(token: Token) -> Token:
            old = self._read(token)
            meant = named(table, old.tables, folds=self._server.folds)
            return old.left(meant[0] if len(meant) == 1 else table).token()

        return changed

    def tables(self, token: Token) -> Collection[str]:
        tables = token.get("tables")
        return tuple(tables) if isinstance(tables, dict) else ()

    def _check_listed(self, session: MysqlSession, token: TablesToken) -> None:
        """
        Raises:
            OptionError: the options name a table that the tunnel does not follow.
        """
        names = (*token.tables, *token.removed)
        for item in self._unchecked:
            if named(item, names, folds=self._server.folds):
                continue
            if name_of(*find_one(session, self._reader.dialect, item)) not in names:
                raise not_followed(item)
        self._unchecked = []

    # --- ranges ---

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        with self._session() as session:
            self._check_listed(session, self._read(after))
            return self._range(session, after, limit, upto)

    def _has(self, *, in_range: bool) -> Callable[[str], bool] | None:
        return no_column if in_range else self._rule.has(no_column)

    def _altered(
        self, session: MysqlSession, token: TablesToken, decoder: ChangeDecoder
    ) -> TablesToken:
        """With the tables as the last transaction has left them.

        Raises:
            SchemaError: one has columns that it cannot continue with.
        """
        for decoder_of_one in decoder.altered:
            decoder.at = decoder_of_one
            name, progress = decoder_of_one.table.listed, token.tables[decoder_of_one.table.listed]
            if decoder_of_one.is_dropped:
                progress = replace(progress, is_dropped=True)
                warn_of_dropped(name)
            elif (source := self._source_of(session, progress, token.position)) is not None:
                table = self._continued(session, decoder_of_one.table, source)
                progress = replace(progress, table=noted_table(table))
            token = token.changed(tables={**token.tables, name: progress})
        return token

    def _continued(
        self, session: MysqlSession, was: FollowedTable, source: ReadSource
    ) -> FollowedTable:
        """The table with the columns that it continues with, of which the catalog may have more by now."""
        rule = self._rule
        check_table(session, source)
        if not rule.evolves:
            rule.check(was.schema, source.schema, was.label, was.key)
            return was
        check_names(source)
        table = self._advised(followed(self._server, source, self._options))
        reason = becomes(was, table)
        if reason:
            raise SchemaError(f"{was.label} {reason} since its stream began. {rule.advice}")
        names = ", ".join(column.name for column in table.columns)
        _log.info("%s continues with columns %s (onSchemaChange=evolve)", was.label, names)
        return table

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        raise base_refused(_INSTEAD)

    def _has_rows(self, progress: BinlogPlace, start: GtidSet) -> bool:
        """Whether existing rows that were handed out at `start` are there; else they are gone with their table."""
        with self._session() as session:
            if not progress.is_dropped and self._source_of(session, progress, start) is not None:
                return True
        warn_of_gone_rows(name_of(progress.table["database"], progress.table["name"]))
        return False

    def _refused(self, decoder: ChangeDecoder, error: MisfitError) -> SourceError:
        label = "a table" if decoder.at is None else decoder.at.table.label
        hides = self._reader.options.hide_values
        value = f"a value that {error.column.kind} cannot hold" if hides else error.what
        return SourceError(
            f"column {error.column.name!r} of {label} has {value} in the binary log. "
            f"{self._reader.dialect.misfit_advice(error.column)}"
        )

    def lag(self, token: Token) -> FeedLag:
        return self._lag(self._read(token))
