"""A connection that writes with psycopg, which sends COPY's bytes unchanged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.marks import marked
from spark_channel.connectors.sql.postgresql.copy_rows import HEADER, TRAILER, CopyRows
from spark_channel.connectors.sql.postgresql.failures import is_gone
from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.sql.statements import identifier
from spark_channel.errors import ChannelError
from spark_channel.retry import Retry

__all__ = ["PgWriteSession", "reach"]


class PgWriteSession(PgSession):
    """Used by one thread."""

    failures = (psycopg.Error, OSError)

    def __init__(self, options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> None:
        super().__init__(options, failure=failure)
        with self.explained():
            self._connection = psycopg.connect(
                options.conninfo("spark-channel"), autocommit=True, prepare_threshold=None
            )
        with self.closed_on_failure():
            self._set_up(options, purpose)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """As `PgSession.rows`; each `?` of `sql` is the next of `parameters`."""
        if parameters:
            sql = marked(sql, lambda number: literal_sql(parameters[number - 1]))
        return super().rows(sql)

    def copy(self, schema: str, table: str, rows: CopyRows) -> None:
        """Send `rows` into the columns of the same names."""
        if rows.count == 0:
            return
        place = statements.named_table((schema, table)).expression.sql("postgres")
        names = ", ".join(identifier(name).sql("postgres") for name in rows.names)
        with (
            self._cursor() as cursor,
            cursor.copy(f"COPY {place} ({names}) FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.write(HEADER)
            for piece in rows.pieces:
                copy.write(piece)
            copy.write(TRAILER)

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(cast(Any, sql))
            while cursor.nextset():
                pass  # of several statements, the last one's rows
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        connection = self._reached()
        with self.explained(), connection.cursor() as cursor:
            yield cursor


def reach(options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> PgWriteSession:
    """A new session, tried for `retrySeconds` with back-off while the server cannot be reached."""
    return Retry(options.retry_timeout, what=f"reaching {options.address.shown}").call(
        lambda: PgWriteSession(options, failure=failure, purpose=purpose),
        lambda error: isinstance(error, failure) and is_gone(error),
    )
