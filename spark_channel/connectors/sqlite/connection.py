"""SQLite's library in this process, through ADBC."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, cast

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import pyarrow as pa

from spark_channel.connectors.sql.parameters import one_row

__all__ = ["FAILURES", "Connection", "LocalConnection"]

FAILURES = (adbc_driver_manager.Error, pa.ArrowException, OSError)
"""The errors that a connection raises."""

_BATCH_ROWS = "adbc.sqlite.query.batch_rows"


class Connection(Protocol):
    """A connection in autocommit, used by one thread."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def insert(self, sql: str, rows: pa.Table | pa.RecordBatch) -> None: ...

    def stream(self, sql: str, batch_rows: int) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class LocalConnection:
    """See `Connection`."""

    def __init__(self, uri: str) -> None:
        self._connection: Any = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql, one_row(parameters))
            return cast(list[tuple[Any, ...]], cursor.fetchall())

    def insert(self, sql: str, rows: pa.Table | pa.RecordBatch) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.executemany(sql, rows)

    def stream(self, sql: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        with closing(self._connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{_BATCH_ROWS: str(batch_rows)})
            cursor.execute(sql)
            with cursor.fetch_record_batch() as batches:
                yield from batches

    def close(self) -> None:
        self._connection.close()
