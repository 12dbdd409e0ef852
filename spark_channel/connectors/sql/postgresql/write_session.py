"""A connection that writes with psycopg, which sends COPY's bytes unchanged."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.marks import marked
from spark_channel.connectors.sql.postgresql.copy_rows import HEADER, TRAILER, CopyRows
from spark_channel.connectors.sql.postgresql.failures import is_ended, is_gone, sqlstate_of
from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql.paced_copy import PacedCopy
from spark_channel.connectors.sql.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.statements import identifier
from spark_channel.errors import ChannelError
from spark_channel.retry import Retry

__all__ = ["KeptSession", "PgWriteSession", "reach"]

_BIT_BYTES = 8_192
"""As libpq sends them."""
_STILL_SECONDS = 30
_INHERITED = """
WITH RECURSIVE family (oid) AS (
  SELECT {table}::regclass::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(oid)), 0)::bigint FROM family
"""
_BY_ITSELF = "25001"
"""What is said of a statement that cannot run in a transaction, before it does anything."""
_TIMEOUT = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"


class PgWriteSession(PgSession):
    """Used by one thread."""

    failures = (psycopg.Error, OSError)

    def __init__(self, options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> None:
        super().__init__(options, failure=failure, purpose=purpose)
        self._timeout: int | None = None
        """`statement_timeout` in milliseconds, once it is known."""
        self.pace: PacedCopy | None = None
        """What was learned of the server's speed."""
        self.parent: str | None = None
        """A table, as SQL, whose rows may be stored in tables that inherit from it: they are counted there, too."""
        with self.explained():
            self._connection = psycopg.connect(options.conninfo(), autocommit=True, prepare_threshold=None)
        with self.closed_on_failure():
            self._set_up()

    @property
    def is_idle(self) -> bool:
        """Whether it is open, without a transaction."""
        connection = self._connection
        return connection is not None and connection.info.transaction_status == TransactionStatus.IDLE

    def answers(self) -> bool:
        """Whether its server is there; one that is not is closed."""
        try:
            self.ping()
        except self._failure:
            self.close()
            return False
        return True

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """As `PgSession.rows`; each `?` of `sql` is the next of `parameters`."""
        if parameters:
            sql = marked(sql, lambda number: literal_sql(parameters[number - 1]))
        return super().rows(sql)

    def copy(
        self, schema: str, table: str, rows: CopyRows, between: Callable[[int], None] | None = None
    ) -> None:
        """Send `rows` into the columns of the same names.

        In a transaction they may be sent bit by bit: `between` is called after each bit, with the bytes that were sent.

        Raises:
            BatchRefusedError: the table has not stored all of them.
        """
        if rows.count == 0:
            return
        place = statements.named_table((schema, table)).expression.sql("postgres")
        names = ", ".join(identifier(name).sql("postgres") for name in rows.names)
        sql = f"COPY {place} ({names}) FROM STDIN (FORMAT binary)"
        inside = nullcontext() if self._is_begun else self.transaction()
        ended = nullcontext() if between is None else self._ended_when_still()
        with (
            inside,
            self.all_stored(place, f"{schema}.{table}", rows.count) as stored,
            ended,
            self._cursor() as cursor,
        ):
            with cursor.copy(sql) as copy:
                copy.write(HEADER)
                if between is None:
                    for piece in rows.pieces:
                        copy.write(piece)
                else:
                    sent = 0
                    for bit in _bits(rows.pieces):
                        copy.write(bit)
                        sent += len(bit)
                        between(sent)
                copy.write(TRAILER)
            stored(cursor.rowcount)

    def affected(self, sql: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Run statements: the rows that the first one affected, and those that the last one returns."""
        with self._cursor() as cursor:
            cursor.execute(cast(Any, sql))
            affected = cursor.rowcount
            while cursor.nextset():
                pass
            return affected, cursor.fetchall() if cursor.description else []

    @contextmanager
    def all_stored(self, place: str, label: str, sent: int) -> Iterator[Callable[[int], None]]:
        """Around statements that send rows to the table `place`; to be called with what each says that it stored.

        Raises:
            BatchRefusedError: not all of the `sent` rows were stored.
        """
        counts: list[int] = []
        before = self._inherited(place) if place == self.parent else 0
        yield counts.append
        stored = sum(counts)
        if stored != sent and place == self.parent:
            stored = self._inherited(place) - before
        hold_stored(label, sent, stored)

    def _inherited(self, place: str) -> int:
        """The rows that this transaction inserted into the table and those that inherit from it."""
        return int(self.value(_INHERITED.format(table=literal_sql(place))))

    @contextmanager
    def _ended_when_still(self) -> Iterator[None]:
        """The server ends a statement that is not sent to its end, as of a process that was stopped in the middle."""
        if self._timeout is None:
            self._timeout = int(self.value(_TIMEOUT))
        if 0 < self._timeout <= _STILL_SECONDS * 1000:
            yield
            return
        self.rows(f"SET LOCAL statement_timeout = {_STILL_SECONDS * 1000}")
        begun = SYSTEM_CLOCK.now()
        try:
            yield
        except self._failure as error:
            if is_ended(error) and SYSTEM_CLOCK.now() - begun >= _STILL_SECONDS:
                self.close()
                raise self._failure(
                    f"{self.place}: the server ended a COPY in the middle of which this process stood still"
                ) from ConnectionError("the connection is lost")
            raise
        self.rows(f"SET LOCAL statement_timeout = {self._timeout}")

    def _script(self, statements: Sequence[str]) -> None:
        self._run(";\n".join(statements))

    def _alone(self, sql: str) -> list[tuple[Any, ...]]:
        """With the settings in one exchange, which is one transaction to the server."""
        try:
            return self._run(";\n".join([*self._settings.each, sql]))
        except self._failure as error:
            if sqlstate_of(error) != _BY_ITSELF:
                raise
            return self._by_itself(sql, error)

    def _by_itself(self, sql: str, error: ChannelError) -> list[tuple[Any, ...]]:
        """A statement that no transaction may hold, such as VACUUM; settings that it needs are the session's then."""
        if self._settings.chosen and self._is_shared():
            raise self._failure(
                f"{self.place} is a connection pooler (such as PgBouncer), and {sql[:200]!r} cannot run in a "
                "transaction, for which alone 'currentSchema', 'sessionTimeZone' and 'sessionInitStatement' hold "
                "there. Omit these and write names with their schema, or name the server itself in 'url'"
            ) from error.__cause__
        if self._settings.chosen:
            self._script(self._settings.of_session)
        return self._run(sql)

    def _is_own(self) -> str:
        return f"pg_backend_pid() = {self._reached().info.backend_pid}"

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


def _bits(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        for at in range(0, len(piece), _BIT_BYTES):
            yield piece[at : at + _BIT_BYTES]


def reach(options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> PgWriteSession:
    """A new session, tried for `retryTimeout` with growing pauses while the server cannot be reached."""
    return Retry(options.retry_timeout, what=f"reaching {options.address.shown}").call(
        lambda: PgWriteSession(options, failure=failure, purpose=purpose),
        lambda error: isinstance(error, failure) and is_gone(error),
    )
