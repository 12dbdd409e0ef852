"""The sources of small tables, which are looked up and read together."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Self, cast

import pyarrow as pa

from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.mysql.dialect import (
    CatalogRows,
    catalog_rows,
    table_of,
)
from spark_channel.connectors.mysql.read.reader import MysqlReader
from spark_channel.connectors.mysql.session import (
    MysqlSession,
)
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.read.source import ReadSource, read_source
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.write.small_tables import PIECE
from spark_channel.errors import SourceError

__all__ = ["Sources", "see_whole", "source_of"]


def source_of(
    session: Session, reader: MysqlReader, rows: CatalogRows | None
) -> tuple[ReadSource, CatalogRows]:
    if rows is None:
        raise SourceError(f"there is no table {reader.options.dbtable}")
    table = table_of(rows)
    if table.is_view:
        raise SourceError(f"{table.label} is read alone")
    return read_source(session, reader.dialect, reader.options, table), rows


def see_whole(session: Session, sources: Sequence[ReadSource]) -> None:
    """Check that the login may read all columns: the catalog does not show it the others.

    Raises:
        SourceError: not those of each table.
    """
    if sources:
        whole = "(SELECT 1 FROM (SELECT * FROM {} LIMIT 0) AS one)"
        session.execute(" UNION ALL ".join(whole.format(each.origin) for each in sources))


class Sources:
    """The session that reads. Each table is read by one statement, which sees its rows as of one moment.

    A statement that is left in the middle ends its session: the next table gets another one.
    """

    def __init__(self, reader: MysqlReader) -> None:
        self._reader = reader
        self._connected: AbstractContextManager[Session] | None = None
        self._session: MysqlSession | None = None
        self._read: list[SmallTable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._check()
        finally:
            self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.__exit__(kind, None, None)

    def _open(self) -> MysqlSession:
        if self._connected is None:
            self._connected = self._reader.connect("read")
            self._session = cast(MysqlSession, self._connected.__enter__())
        assert self._session is not None
        return self._session

    def read(self, table: SmallTable) -> Iterator[pa.RecordBatch]:
        session, is_whole = self._open(), False
        source = table.plan.source
        self._read.append(table)
        conditions = [table.condition] if table.condition else []
        asked = source.dialect.statement(source.columns, source.behind(conditions))
        try:
            for raw in session.stream(asked, PIECE):
                if raw.num_rows:
                    yield source.dialect.decode(raw, source.columns, source.schema)
            is_whole = True
        except MisfitError as error:
            raise SourceError(f"{source.label} is read alone: {error}") from error
        finally:
            if not is_whole:
                self._end(SourceError)

    def _check(self) -> None:
        """A table that was altered since it was looked up is copied alone: its values may have been read as others."""
        read = [each for each in self._read if each.is_left]
        if not read:
            return
        places = {
            each: (each.plan.source.table.schema, each.plan.source.table.name) for each in read
        }
        found = catalog_rows(self._open(), list(places.values()), indexes=False)
        for table, place in places.items():
            rows = found.get(place)
            if rows is None or tuple(rows.columns) != table.plan.looks:
                table.why = SourceError(f"{table.plan.source.label} was altered while it was read")
                table.batches.clear()
