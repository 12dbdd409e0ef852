"""Reads a table, a view or a query of a MySQL server as Arrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.health import Health
from spark_channel.connectors.sql.mysql.dialect import MysqlDialect
from spark_channel.connectors.sql.mysql.options import MysqlReadOptions, address_of
from spark_channel.connectors.sql.mysql.session import LostConnectionError, MysqlSession
from spark_channel.connectors.sql.mysql.splits import MysqlSplitter
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["MysqlReader"]


class MysqlReader(SqlReader):
    """See `SqlReader`."""

    Options: ClassVar[type[ReadOptions]] = MysqlReadOptions
    Splitter = MysqlSplitter
    options: MysqlReadOptions
    dialect: MysqlDialect

    def __init__(self, options: MysqlReadOptions) -> None:
        dialect = MysqlDialect(
            zero_dates=options.zero_dates == "null",
            one_is_bit=options.tiny_int1_is_bit,
            local=options.timestamps_as == "local",
        )
        super().__init__(options, dialect)
        dialect.in_utc = options.is_plain_table

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        try:
            with MysqlSession(self.options, SourceError, patient=purpose == "read") as session:
                if purpose == "read":
                    session.wait_for_slow_reader()
                if self.dialect.in_utc:
                    session.rows("SET SESSION time_zone = '+00:00'")
                yield session
        except LostConnectionError as error:
            raise SourceError(error.text) from error

    def health(self) -> Health:
        from spark_channel.connectors.sql.mysql.health import MysqlHealth

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
        from spark_channel.connectors.sql.mysql.binlog_feed import BinlogFeed

        return BinlogFeed(self, evolves=options.evolves, ignores=options.ignores)

    def resolve(self, session: Session) -> ReadSource:
        """A view may hold the user's conditions: it is read in the zone of the server."""
        source = super().resolve(session)
        if self.dialect.in_utc and source.table is not None and source.table.is_view:
            self.dialect.in_utc = False
            session.rows("SET SESSION time_zone = DEFAULT")
            source = super().resolve(session)
        return source

    def resource_mark(self, split: Split) -> str | None:
        return address_of(self.options).host
