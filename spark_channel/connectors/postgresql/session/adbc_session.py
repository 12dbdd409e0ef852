"""The session that reads rows as Arrow, by ADBC."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar, cast

import adbc_driver_manager
import pyarrow as pa

from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.connection import (
    PgSession,
    ResultColumn,
    literal_sql,
)
from spark_channel.connectors.postgresql.session.psycopg_session import PgPlanSession
from spark_channel.connectors.postgresql.session.shared_database import BY_COPY, shared_database
from spark_channel.connectors.sql.postgresql_family import joined
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import ChannelError

__all__ = ["PgReadSession"]

_CURSOR, _QUERY = "channel_rows", "spark_channel.query"
_MAY_OPEN = "SELECT bool_or(has_language_privilege(oid, 'USAGE')) FROM pg_catalog.pg_language WHERE lanname = 'plpgsql'"
_OPEN = (
    f"DO $open$ DECLARE opened refcursor := '{_CURSOR}'; "
    f"BEGIN OPEN opened NO SCROLL FOR EXECUTE current_setting('{_QUERY}'); END $open$"
)
"""pg_stat_statements keeps each DECLARE with its literals as another statement, under an exclusive lock. Once it is
full, it drops statements of the application for that. This is one, whatever the query is.
"""
_HINT = "adbc.postgresql.batch_size_hint_bytes"


class PgReadSession(PgSession):
    """Used by one thread.

    Outside a transaction no query by COPY runs: the driver prepares, describes and runs it in three exchanges with the
    server, and a pooler may send each of them to another session.
    """

    failures = (adbc_driver_manager.Error, pa.ArrowException, OSError)
    """The last two while a result is being read."""
    defaults: ClassVar[Mapping[str, str]] = {"cursor_tuple_fraction": "1.0"}
    """A cursor is read to its end here, and planned for that."""
    _may_open: bool | None = None
    """Whether this role may run `_OPEN`; None = not asked yet."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(options, failure=failure, purpose=purpose, settings=settings)
        self._options, self._own_settings = options, settings
        with self.closed_on_failure(), self.explained():
            database, self._is_behind = shared_database(options, failure=failure)
            self._connection = database.connect(autocommit=True)
            self._set_up()

    def cancel(self) -> None:
        if self.is_open:
            self._connection.adbc_cancel()

    def beside(self) -> "PgReadSession":
        """Another session with the same login, while this one waits."""
        return PgReadSession(self._options, failure=self._failure, purpose="look")

    def result_columns(self, query: str) -> list[ResultColumn]:
        """By psycopg: the driver names no types of users, and knows few modifiers."""
        with PgPlanSession(
            self._options, failure=self._failure, purpose="look", settings=self._own_settings
        ) as session:
            return session.result_columns(query)

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
        self._script(self._opening(sql))
        yield from self._fetched(lambda: rows)

    def pieces(self, sql: str, rows: Callable[[], int]) -> Iterator[pa.RecordBatch]:
        """A result in one short transaction, `rows()` at a time, each asked for when it is wanted.

        Leaving early ends the connection.
        """
        with self.closed_on_failure():
            self.begin()
            self._script(self._opening(sql))
            yield from self._fetched(rows)
            self.execute("COMMIT")

    def _opening(self, sql: str) -> list[str]:
        """The statements that open a cursor for `sql` in a transaction."""
        if self._may_open is None:
            self._may_open = bool(self.value(_MAY_OPEN))
        if not self._may_open:
            return [f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {sql}"]
        return [f"SELECT set_config('{_QUERY}', {literal_sql(sql)}, true)", _OPEN]

    def _fetched(self, rows: Callable[[], int]) -> Iterator[pa.RecordBatch]:
        came = rows_asked = 1
        while came >= rows_asked:
            rows_asked = rows()
            batches = self._of(f"FETCH FORWARD {rows_asked} FROM {_CURSOR}")
            yield from batches
            came = sum(batch.num_rows for batch in batches)

    def _of(self, sql: str) -> list[pa.RecordBatch]:
        """A result that does not come by COPY."""
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{BY_COPY: "false"})
            cursor.execute(sql)
            return list(cursor.fetch_record_batch())

    def _is_own(self) -> str:
        return "false" if self._is_behind else "true"

    def _script(self, statements: Sequence[str]) -> None:
        with self._cursor() as cursor:
            cursor.executescript(joined(statements))

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{BY_COPY: "false"})
            cursor.execute(sql)
            return cast(list[tuple[Any, ...]], cursor.fetchall()) if cursor.description else []

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        connection = self._reached()
        with self.explained(), closing(connection.cursor()) as cursor:
            yield cursor
