"""A connection that writes with psycopg, which sends COPY's bytes unchanged."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.marks import marked
from spark_channel.connectors.sql.postgresql.copy_rows import HEADER, TRAILER, CopyRows
from spark_channel.connectors.sql.postgresql.failures import is_gone
from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.sql.statements import identifier
from spark_channel.errors import ChannelError
from spark_channel.retry import Retry

__all__ = ["KeptSession", "PgWriteSession", "reach"]


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

    @property
    def is_idle(self) -> bool:
        """Whether it is open, without a transaction."""
        connection = self._connection
        return connection is not None and connection.info.transaction_status == TransactionStatus.IDLE

    def answers(self) -> bool:
        """Whether its server is there; one that is not is closed."""
        try:
            self.rows("SELECT 1")
        except self._failure:
            self.close()
            return False
        return True

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


class KeptSession:
    """Between the tasks of one thread a session is kept: a server spends milliseconds on a new one."""

    def __init__(self) -> None:
        self._kept = threading.local()

    def __reduce__(self) -> tuple[type["KeptSession"], tuple[()]]:
        return KeptSession, ()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """In this thread, until the end."""
        self._kept.keeps, self._kept.session = True, None
        try:
            yield
        finally:
            session, self._kept.keeps, self._kept.session = self._kept.session, False, None
            if session is not None:
                session.close()

    def take(self) -> PgWriteSession | None:
        """The session that was kept, if its server still answers."""
        session: PgWriteSession | None = getattr(self._kept, "session", None)
        self._kept.session = None
        return session if session is not None and session.answers() else None

    def give(self, session: PgWriteSession) -> None:
        """A session whose user needs it no more."""
        if getattr(self._kept, "keeps", False) and session.is_idle and self._kept.session is None:
            self._kept.session = session
        else:
            session.close()


def reach(options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> PgWriteSession:
    """A new session, tried for `retryTimeout` with growing pauses while the server cannot be reached."""
    return Retry(options.retry_timeout, what=f"reaching {options.address.shown}").call(
        lambda: PgWriteSession(options, failure=failure, purpose=purpose),
        lambda error: isinstance(error, failure) and is_gone(error),
    )
