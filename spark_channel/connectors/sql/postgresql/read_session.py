"""A connection that reads rows as Arrow, through ADBC."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import Any, cast

import adbc_driver_manager
import adbc_driver_manager.dbapi
import adbc_driver_postgresql
import pyarrow as pa

from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql.pooler import is_pooler
from spark_channel.connectors.sql.postgresql.session import PgSession
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import ChannelError

__all__ = ["PgReadSession"]

_HINT = "adbc.postgresql.batch_size_hint_bytes"
_BY_COPY = "adbc.postgresql.use_copy"
_FAILURES = (adbc_driver_manager.Error, pa.ArrowException, OSError)
"""What the driver raises; the last two while a result is being read."""


class _Lasting:
    """Stands for a database where a connection would close it at its own end."""

    def close(self) -> None:
        pass


_databases: dict[tuple[int, str], tuple[Any, bool]] = {}
_databases_lock = threading.Lock()
_MOST_DATABASES = 8


def _database(options: PostgresOptions, *, fresh: bool) -> tuple[Any, bool]:
    """The driver's picture of a database: it holds no connection, and takes one to make, to list the types. And whether
    a pooler is between, which the driver's connections do not tell.

    One a process; `fresh` creates it again, with the present types.
    """
    conninfo = options.conninfo()
    key = (os.getpid(), conninfo)
    with _databases_lock:
        kept = _databases.get(key)
    found = None if fresh else kept
    if found is None:
        found = adbc_driver_postgresql.connect(conninfo), is_pooler(conninfo) if kept is None else kept[1]
        with _databases_lock:
            while len(_databases) >= _MOST_DATABASES:
                del _databases[next(iter(_databases))]
            _databases[key] = found
    return found


class PgReadSession(PgSession):
    """Used by one thread. `fresh`: it knows types that were made since this process first connected.

    Outside a transaction no query by COPY runs: the driver prepares, describes and runs it in three exchanges with the
    server, and a pooler may send each of them to another session.
    """

    failures = _FAILURES

    def __init__(
        self,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        # A cursor is read to its end here, and planned for that.
        own = {"cursor_tuple_fraction": "1.0", **(settings or {})}
        super().__init__(options, failure=failure, purpose=purpose, settings=own)
        with self.closed_on_failure(), self.explained():
            database, self._is_behind = _database(options, fresh=fresh)
            connection: Any = adbc_driver_manager.dbapi.Connection
            self._connection = connection(
                _Lasting(), adbc_driver_manager.AdbcConnection(database), autocommit=True
            )
            self._set_up()

    def schema_of(self, sql: str) -> pa.Schema:
        """The Arrow schema of a query's result, with the driver's notes on PostgreSQL's types."""
        with nullcontext() if self._is_begun else self.transaction(), self._cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_record_batch().schema

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        """By COPY, in batches of about `size.nbytes` of its bytes; leaving early ends the connection."""
        with self.closed_on_failure(), self.own_transaction(), self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{_HINT: str(size.nbytes)})
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    def fetch(self, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
        """A result as Arrow, `rows` at a time, each asked for when it is wanted; in the caller's transaction.

        Two thirds as fast as `stream`, whose COPY the server pushes into sockets, megabytes ahead of its reader.
        """
        self.rows(f"DECLARE channel_rows NO SCROLL CURSOR FOR {sql}")
        yield from self._fetched(f"FETCH FORWARD {rows} FROM channel_rows")

    def pieces(self, sql: str, rows: Callable[[], int]) -> Iterator[pa.RecordBatch]:
        """A result in one short transaction, `rows()` at a time, each asked for when it is wanted.

        Leaving early ends the connection.
        """
        with self.closed_on_failure():
            self.rows("BEGIN")
            self.rows(f"DECLARE channel_rows NO SCROLL CURSOR FOR {sql}")
            while True:
                asked = rows()
                batches = self._of(f"FETCH FORWARD {asked} FROM channel_rows")
                yield from batches
                if sum(batch.num_rows for batch in batches) < asked:
                    break
            self.rows("COMMIT")

    def _fetched(self, sql: str) -> Iterator[pa.RecordBatch]:
        while True:
            batches = self._of(sql)
            if not any(batch.num_rows for batch in batches):
                return
            yield from batches

    def _of(self, sql: str) -> list[pa.RecordBatch]:
        """A result that does not come by COPY."""
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{_BY_COPY: "false"})
            cursor.execute(sql)
            return list(cursor.fetch_record_batch())

    def _is_own(self) -> str:
        return "false" if self._is_behind else "true"

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{_BY_COPY: "false"})
            cursor.execute(sql)
            return cast(list[tuple[Any, ...]], cursor.fetchall()) if cursor.description else []

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        connection = self._reached()
        with self.explained(), closing(connection.cursor()) as cursor:
            yield cursor
