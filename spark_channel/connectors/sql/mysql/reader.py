"""Reads a table, a view or a query of a MySQL server as Arrow."""

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.sql.mysql.decode import MisfitError, decode, selected
from spark_channel.connectors.sql.mysql.options import MysqlReadOptions, address_of
from spark_channel.connectors.sql.mysql.session import LostConnectionError, Session
from spark_channel.connectors.sql.mysql.source import ReadSource, read_source
from spark_channel.connectors.sql.mysql.splits import make_splits, split_conditions
from spark_channel.connectors.sql.mysql.wire import field_batches
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["MysqlReader"]

_BATCH_ROWS = 65_536
_BATCH_BYTES = 4 << 20


class MysqlReader(Reader):
    """Splits by key ranges of equal rows; a split is one statement, so it sees one state of the table.

    The server sends as fast as batches are taken: what waits is the server, and memory stays flat.
    """

    Options: ClassVar[type[ReadOptions]] = MysqlReadOptions
    options: MysqlReadOptions

    def __init__(self, options: MysqlReadOptions) -> None:
        super().__init__(options)
        self._source: ReadSource | None = None

    def schema(self) -> pa.Schema:
        try:
            with self._session(patient=False) as session:
                self._source = read_source(session, self.options)
        except LostConnectionError as error:
            raise SourceError(error.text) from error
        return self._source.schema

    def split(self, advice: int) -> list[Split]:
        try:
            with self._session(patient=False) as session:
                return make_splits(session, self._known(session), self.options, max(1, advice))
        except LostConnectionError as error:
            raise SourceError(error.text) from error

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pymysql

        session = self._session()
        try:
            source = self._known(session)
            sql = source.sql(selected(source.columns), split_conditions(session, source, split))
            width = len(selected(source.columns))
            for fields in field_batches(session.connection, sql, width, *self._batch_size(split)):
                yield decode(fields, source.columns, source.schema)
        except MisfitError as error:
            column = error.column
            raise SourceError(
                f"column {column.name!r}, declared {column.declared}, of {source.label} on {session.place} holds "
                f"{error.why}: name another type with 'customSchema' (such as {column.name} STRING), or convert "
                "the column with 'query'; 'zeroDates' null reads zero dates as NULL"
            ) from None
        except LostConnectionError as error:
            raise SourceError(error.text) from error
        except (pymysql.err.MySQLError, OSError) as error:
            raise session.explain(error) from error
        finally:
            session.abandon()

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.sql.mysql.feed import MysqlFeed

        return MysqlFeed(self, options)

    def resource_mark(self, split: Split) -> str | None:
        return address_of(self.options).host

    def _session(self, *, patient: bool = True) -> Session:
        return Session(self.options, SourceError, patient=patient)

    def _known(self, session: Session) -> ReadSource:
        if self._source is None:
            self._source = read_source(session, self.options)
        return self._source

    def _batch_size(self, split: Split) -> tuple[int, int]:
        row_bytes = int(split.params["row_bytes"])
        rows, nbytes = self.options.fetch_size or _BATCH_ROWS, _BATCH_BYTES
        if self.fetch_size.rows is not None:
            rows = min(rows, self.fetch_size.rows)
        if self.fetch_size.nbytes is not None:
            rows = min(rows, max(1, self.fetch_size.nbytes // row_bytes))
        return max(1, rows), nbytes
