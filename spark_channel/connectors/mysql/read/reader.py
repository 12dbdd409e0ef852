"""Reads a table, a view or a query of a MySQL server as Arrow."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, cast

import pyarrow as pa

from spark_channel.connectors.base.contract import ColumnFact, NativeRows, Reader
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions, LogFacts
from spark_channel.connectors.base.health import Health
from spark_channel.connectors.mysql.dialect import (
    MysqlDialect,
    MysqlTable,
    find_rows,
    of_tables,
    parted,
    state_of,
    table_of,
)
from spark_channel.connectors.mysql.dialect.definition import read_definition, read_definitions
from spark_channel.connectors.mysql.health import MysqlHealth
from spark_channel.connectors.mysql.options import MysqlReadOptions, address_of
from spark_channel.connectors.mysql.read.splitter import MysqlSplitter
from spark_channel.connectors.mysql.session import MysqlSession, code_of, is_away, is_short, quoted
from spark_channel.connectors.mysql.types import SYSTEM, native_types
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import split_conditions
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["MysqlReader"]

_COLUMNS_IN_KEYS = "SELECT table_schema, table_name FROM information_schema.key_column_usage"
_DENIED = frozenset({1142, 1143})
"""No right on the table, or on a column of it."""


class MysqlReader(SqlReader):
    """See `SqlReader`."""

    Options: ClassVar[type[ReadOptions]] = MysqlReadOptions
    native_system = SYSTEM
    Splitter = MysqlSplitter
    options: MysqlReadOptions
    dialect: MysqlDialect

    def __init__(self, options: MysqlReadOptions) -> None:
        dialect = MysqlDialect(
            zero_dates=options.zero_dates == "null",
            one_is_bit=options.tiny_int1_is_bit,
            local=options.timestamps_as == "local",
            wide_as_text=options.wide_decimals == "text",
        )
        super().__init__(options, dialect)
        dialect.in_utc = options.is_plain_table

    def is_lost(self, error: BaseException) -> bool:
        """Whether it is the server that fails, and not what is read."""
        return is_away(error) or is_short(error)

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        with MysqlSession(self.options, SourceError, patient=purpose == "read") as session:
            if purpose == "read":
                session.wait_for_slow_reader()
            if self.dialect.in_utc:
                session.execute("SET SESSION time_zone = '+00:00'")
            yield session

    def health(self) -> Health:

        return MysqlHealth(self.options, SourceError, self.row_cost)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        if self.options.binlog and options.cursor_column is not None:
            raise OptionError(
                "options 'binlog' and 'cursorColumn' are two ways to follow a table: give one of them",
                option="binlog",
            )
        if not self.options.binlog and options.cursor_column is None:
            raise OptionError(
                "a MySQL table is read as a stream from the binary log (option 'binlog' true), "
                "or by a column that only grows ('cursorColumn')",
                option="cursorColumn",
            )
        if not self.options.binlog:
            return super().feed(options)
        from spark_channel.connectors.mysql.log.tables import OneTableFeed

        return OneTableFeed(self, options)

    def tables_feed(self, options: FeedOptions) -> ChangeFeed:
        if not self.options.binlog:
            raise OptionError(
                f"option 'tables' got {options.tables!r}, and several tables of MySQL are followed by the binary log: "
                "set 'binlog' to true, or name one table with 'dbtable'",
                option="tables",
                got=options.tables,
            )
        from spark_channel.connectors.mysql.log.tables import BinlogTablesFeed

        return BinlogTablesFeed(self, options)

    def column_facts(self) -> Mapping[str, ColumnFact]:
        with self.looking() as (_, source):
            columns = () if source.table is None else source.table.columns
        return {
            column.name: ColumnFact("", column.not_null or column.has_default or column.generated)
            for column in columns
        }

    def log_facts(self, slot: str | None) -> LogFacts:
        from spark_channel.connectors.mysql.log.dump import log_facts

        with self.connect("plan") as session:
            return log_facts(session)

    def referring(self, tables: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """`referential_constraints` has none for a login that may SELECT alone."""
        with self.connect("plan") as session:
            return {
                (str(schema), str(name))
                for some in parted(sorted(tables))
                for schema, name in session.rows(
                    of_tables(_COLUMNS_IN_KEYS, some, "referenced_table_name IS NOT NULL")
                )
            }

    def defined(self, session: Session, table: Table) -> TableDefinition:
        assert isinstance(table, MysqlTable)
        if table.is_view:
            return super().defined(session, table)
        return read_definition(session, table, self.dialect)

    def definitions(self, readers: Sequence[Reader]) -> list[TableDefinition | None]:
        names = [cast(MysqlReader, reader).options.dbtable or "" for reader in readers]
        with self.connect("plan") as session:
            rows = find_rows(session, names)
            tables = [
                None if row is None or "VIEW" in str(row.table[2]) else (table_of(row), row)
                for row in rows
            ]
            existing = [table for table in tables if table is not None]
            definitions = iter(read_definitions(session, existing, self.dialect))
        return [None if table is None else next(definitions) for table in tables]

    def resolve(self, session: Session) -> ReadSource:
        """A view may hold the user's conditions: it is read in the zone of the server."""
        source = self._seen_whole(session, super().resolve(session))
        if self.dialect.in_utc and source.table is not None and source.table.is_view:
            self.dialect.in_utc = False
            session.execute("SET SESSION time_zone = DEFAULT")
            source = self._seen_whole(session, super().resolve(session))
        return source

    def planned(self, session: Session) -> ReadSource:
        source = self.resolve(session)
        if not isinstance(source.table, MysqlTable) or source.table.is_view:
            return source
        table = replace(source.table, state=state_of(session, source.table))
        return replace(source, table=table)

    def _seen_whole(self, session: Session, source: ReadSource) -> ReadSource:
        """Check that the login may read all columns: the server's catalog does not show it the others.

        Without them it does not show all columns of a key either, so that the rest of them may not be unique.

        Raises:
            SourceError: it may not, and option `columns` does not choose.
        """
        table = source.table
        if not isinstance(table, MysqlTable):
            return source
        try:
            session.rows(f"SELECT * FROM {source.origin} LIMIT 0")  # noqa: S608 - quoted
        except ChannelError as error:
            if code_of(error) not in _DENIED:
                raise
            if self.options.columns is None:
                user, _, host = str(session.rows("SELECT CURRENT_USER()")[0][0]).rpartition("@")
                raise SourceError(
                    f"this login may read only the columns {', '.join(source.names)} of {source.label} in "
                    f"{session.place}, and the server hides the others: run GRANT SELECT ON "
                    f"{quoted(table.schema)}.{quoted(table.name)} TO {quoted(user)}@{quoted(host)}, or choose columns "
                    "with option 'columns'"
                ) from error
            blind = replace(table, unique=(), primary=(), loose=(), keys=(), indexes=())
            return replace(source, table=blind)
        return source

    def native_or_reason(self, splits: Sequence[Split]) -> NativeRows | str:
        source, options = self._source, self.options
        if source is None or source.table is None or source.table.is_view:
            return "they are not those of a table"
        if options.custom_schema is not None:
            return "option 'customSchema' is set"
        for name in ("timestamps_as", "floats_as", "zero_dates"):
            if name in options.model_fields_set:
                value, field = getattr(options, name), type(options).model_fields[name]
                if value != field.default:
                    return f"option {field.alias!r} is {value}"
        if self.statement_seconds is not None:
            return "a limit, or option 'statementSeconds', needs the keys of the rows"
        columns = [source.about(column.name) for column in source.columns]
        types = native_types(column for column in columns if column is not None)
        if types is None:
            return "a column has a type whose bytes are no text"
        return NativeRows(SYSTEM, source.schema, types)

    def rows(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        return self._as_native(session, split) if self.native else super().rows(session, split)

    def _as_native(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as the lines of LOAD DATA."""
        source = self.known(session)
        columns = [column.expression for column in source.columns]
        sql = source.sql(columns, split_conditions(source, split))
        try:
            yield from cast(MysqlSession, session).lines(sql, self.batch_size(split))
            self.check_same(session, source)
        except ChannelError as error:
            raise self.ended(session, source, split, error) from error.__cause__

    def resource_mark(self, split: Split) -> str | None:
        return address_of(self.options).host
