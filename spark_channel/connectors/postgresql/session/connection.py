"""Sessions: ADBC reads, psycopg writes; statements begin and end their transactions.

The server may be a connection pooler, which hands each transaction to another session, and that session to another
client between two. So nothing is set, held or prepared for longer than a transaction.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, cast

import adbc_driver_manager
import psycopg
import pyarrow as pa
from psycopg.pq import TransactionStatus

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.open_sessions import note_open
from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.connectors.base.session_pool import AnswerCache, sessions
from spark_channel.connectors.postgresql.copy.format import HEADER, TRAILER, CopyRows, bits
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.failures import (
    explain,
    is_disk_full,
    is_ended,
    is_full,
    is_of_input,
    sqlstate_of,
)
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.settings import Settings
from spark_channel.connectors.postgresql.session.shared_database import BY_COPY, shared_database
from spark_channel.connectors.sql.postgresql_family import (
    connected,
    escaped_text,
    joined,
    refused_by_pooler,
)
from spark_channel.connectors.sql.session import BatchSize, BoundSession, DriverSession, committed
from spark_channel.connectors.sql.statements import marked, quoted_name
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.errors import ChannelError
from spark_channel.final_errors import final, of_input

__all__ = [
    "PgReadSession",
    "PgSession",
    "PgWriteSession",
    "literal_sql",
]

_BEGINS = re.compile(r"\s*(?:BEGIN|START\s+TRANSACTION)\b(?P<modes>.*)", re.IGNORECASE | re.DOTALL)
_ENDS = re.compile(r"\s*(?:COMMIT|ROLLBACK)\s*", re.IGNORECASE)
_RENEW = (
    "DO $renew$ BEGIN IF {own} THEN RESET ALL; DISCARD TEMP; "
    "PERFORM pg_catalog.pg_advisory_unlock_all(), {named}; END IF; END $renew$"
)
"""In one exchange: behind a pooler the next statement may run in another session."""


_FREE = """
WITH used AS (SELECT usesysid, datid FROM pg_catalog.pg_stat_activity WHERE usesysid IS NOT NULL)
SELECT pg_catalog.concat_ws(' ', pg_catalog.pg_postmaster_start_time(), pg_catalog.current_setting('port')),
  least(
    pg_catalog.current_setting('max_connections')::int
      - pg_catalog.current_setting('superuser_reserved_connections')::int
      - coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0) - (SELECT count(*) FROM used),
    (SELECT CASE WHEN rolconnlimit >= 0 THEN rolconnlimit - (SELECT count(*) FROM used WHERE usesysid = r.oid) END
      FROM pg_catalog.pg_roles r WHERE rolname = session_user),
    (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit - (SELECT count(*) FROM used WHERE datid = d.oid) END
      FROM pg_catalog.pg_database d WHERE datname = current_database())),
  pg_catalog.split_part(pg_catalog.current_setting('server_version'), ' ', 1)
"""
"""The server, what it has left for this login (`least` leaves out the bounds that are not set), and its version."""
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


class PgSession(DriverSession):
    """`failure` is the class of what it raises for anything the server refuses.

    Every statement runs in a transaction that begins with `Settings`: in the one that is open, or in its own. The time
    zone is the server's, unless `sessionTimeZone` or the user's statements set another: values are sent in binary,
    which has none. `settings` are those of the connection's own.
    """

    defaults: ClassVar[Mapping[str, str]] = {}
    """Settings of every session of the class."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.place = options.address.shown
        self._failure = failure
        self._hides = bool(getattr(options, "hide_values", False))
        self._version: int | None = None
        self._name = f"spark-channel {purpose}"
        self._settings = self._settings_of(options, settings)
        self._is_begun = False
        self.servers: frozenset[str] | None = None
        """The server's own names, once they were asked for."""
        self.pool_key = self._key(options, settings)
        self.answer_cache = AnswerCache()
        self.looked_up: AnswerCache | None = None
        """What was asked for many tables together, while nothing is changed: until another user gets the session."""
        self._prepared: set[str] | None = None
        """Statements that the server's session keeps; None = another client may get that session."""

    @classmethod
    def lent(
        cls,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """A session that was kept for the tables of this run, else a new one."""
        arguments = {} if settings is None else {"settings": settings}
        return sessions.take(
            cls._key(options, settings),
            lambda session: session.renewed(options, failure, purpose, settings),
            lambda: cls(options, failure=failure, purpose=purpose, **arguments),
            is_full,
            lambda session: session.fits(failure, purpose),
        )

    def fits(self, failure: type[ChannelError], purpose: str) -> bool:
        """Whether it was the session of this purpose before."""
        return self._failure is failure and self._name == f"spark-channel {purpose}"

    @classmethod
    def _key(cls, options: PostgresOptions, settings: Mapping[str, str] | None) -> Hashable | None:
        """Equal for sessions that may replace each other; None = a new one is made, and not kept.

        A user's statements need a new session; `maxConnections` counts only sessions that are in use.
        """
        names = ("session_init_statement", "start_sql", "pre_sql", "post_sql", "max_connections")
        if any(getattr(options, name, None) for name in names):
            return None
        return (
            cls,
            options.conninfo(),
            options.current_schema,
            options.query_timeout,
            options.session_time_zone,
            bool(getattr(options, "hide_values", False)),
            tuple(sorted((settings or {}).items())),
        )

    def renewed(
        self,
        options: PostgresOptions,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None,
    ) -> bool:
        """Make a session that was kept the session of another purpose; False = its server does not answer.

        What functions of a user have left in it goes, where no other client gets the session.
        """
        self._name, self._failure = f"spark-channel {purpose}", failure
        self._settings = self._settings_of(options, settings)
        self.looked_up = None
        try:
            self._script([_RENEW.format(own=self._is_own(), named=self._named())])
        except self._failure:
            return False
        return True

    def _settings_of(
        self, options: PostgresOptions, settings: Mapping[str, str] | None
    ) -> Settings:
        return Settings.from_options(
            options, {"application_name": self._name, **self.defaults, **(settings or {})}
        )

    @abstractmethod
    def cancel(self) -> None:
        """See `CancelledAtEnd`."""

    def is_reusable(self) -> bool:
        """Whether it is open, without a transaction."""
        return self.is_open and not self._is_begun

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or not sessions.give(self):
            self.close()

    @property
    def version(self) -> int:
        """As `server_version_num`, such as 150004."""
        if self._version is None:
            self._version = int(self.value("SELECT current_setting('server_version_num')"))
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether it was not closed; its server may be gone all the same."""
        return self._connection is not None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        if begins := _BEGINS.fullmatch(sql):
            self.begin(begins["modes"].strip())
            return []
        if _ENDS.fullmatch(sql):
            self._is_begun = False
            self._script([sql])
            return []
        return self._run(sql) if self._is_begun else self._alone(sql)

    def free_connections(self) -> FreeConnections | None:
        try:
            ((server, count, version),) = self.rows(_FREE)
        except ChannelError:  # a server of another program that speaks PostgreSQL's protocol
            return None
        return FreeConnections(str(server), self.place, int(count), f"PostgreSQL {version}")

    def repeated(
        self, name: str, types: str, sql: str, literals: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """With the server's plan, in a session that is kept for other tables: making one takes longer than a run."""
        if self._prepared is None or self.pool_key is None or not sessions.keeps:
            return super().repeated(name, types, sql, literals)
        execute = f"EXECUTE {name} ({', '.join(literals)})"
        if name in self._prepared:
            try:
                return self.rows(execute)
            except self._failure as error:  # a trigger of the user may have run DEALLOCATE
                if sqlstate_of(error) != "26000" or self._is_begun:
                    raise
        self.execute(f"PREPARE {name} ({types}) AS {sql}")
        self._prepared.add(name)
        return self.rows(execute)

    def begin(self, modes: str = "", *first: str) -> None:
        """Begin a transaction, with its settings; `first`: statements that no query may precede."""
        self._is_begun = True
        try:
            self._script([f"BEGIN {modes}".rstrip(), *first, *self._settings.each])
        except BaseException:
            self.undo()
            raise

    def ping(self) -> None:
        self._run("SELECT 1")

    def explain(self, error: BaseException) -> ChannelError:
        is_input, is_full = is_of_input(error), is_disk_full(error)
        explained = self._failure(explain(error, self.place, hides=self._hides))
        return final(of_input(explained, is_of_input=is_input), is_final=is_full)

    @contextmanager
    def transaction(self, modes: str = "", *first: str) -> Iterator[None]:
        """Commits in the end; any exception rolls back. For the arguments see `begin`."""
        self.begin(modes, *first)
        with committed(self):
            yield

    @contextmanager
    def own_transaction(self) -> Iterator[None]:
        """Around a result that is streamed: in the transaction that is open, or in a separate one.

        Its user closes the connection on a failure, which takes the transaction along: a ROLLBACK would first read
        what the server has still to send.
        """
        is_own = not self._is_begun
        if is_own:
            self.begin()
        yield
        if is_own:
            self.execute("COMMIT")

    def undo(self) -> None:
        """End the transaction without its changes; a lost connection has done so."""
        if self.is_open:
            try:
                self.execute("ROLLBACK")
            except self._failure:
                self.pool_key = None

    @abstractmethod
    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        """One statement. Outside a transaction: one exchange with the server, which a pooler does not divide."""

    @abstractmethod
    def _script(self, statements: Sequence[str]) -> None:
        """Several statements without their results, in one exchange."""

    def _alone(self, sql: str) -> list[tuple[Any, ...]]:
        with self.transaction():
            return self._run(sql)

    @abstractmethod
    def _is_own(self) -> str:
        """A condition in SQL: no other client gets the session. Behind a pooler the protocol names another process than
        the one that runs statements.
        """

    def _is_shared(self) -> bool:
        return not self.value(f"SELECT {self._is_own()}")

    def _reached(self) -> Any:
        if self._connection is None:
            raise self._failure(f"{self.place}: the connection is closed")
        return self._connection

    def _named(self) -> str:
        """SQL that names the session, where no other client gets it."""
        name = f"set_config('application_name', {literal_sql(self._name)}, false)"
        return f"CASE WHEN {self._is_own()} THEN {name} END"

    def _set_up(self) -> None:
        """Name the session, and run the user's statements whose effect must last; the others are `Settings.each`."""
        note_open(self)
        for version, _, is_own in self._run(
            f"SELECT current_setting('server_version_num'), {self._named()}, {self._is_own()}"
        ):
            self._version, self._prepared = int(version), set() if is_own else None
        if not self._settings.once:
            return
        if self._is_shared():
            raise self._failure(refused_by_pooler(self.place, self._settings.once[0], "url"))
        for statement in self._settings.once:
            self._run(statement)


def literal_sql(value: str | int | None) -> str:
    """A value in a statement: quoted, or NULL. A server is sent dozens for each table: sqlglot would take long."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else escaped_text(value)


class PgReadSession(PgSession):
    """Used by one thread. `listed`: it knows the types of users, too; `fresh`: also those that were made since this
    process first listed them.

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
        listed: bool = False,
        fresh: bool = False,
    ) -> None:
        super().__init__(options, failure=failure, purpose=purpose, settings=settings)
        self._options = options
        with self.closed_on_failure(), self.explained():
            database, self._is_behind = shared_database(
                options, failure=failure, listed=listed, fresh=fresh
            )
            self._connection = database.connect(autocommit=True)
            self._set_up()

    def cancel(self) -> None:
        if self.is_open:
            self._connection.adbc_cancel()

    def beside(self) -> "PgReadSession":
        """Another session with the same login, while this one waits."""
        return PgReadSession(self._options, failure=self._failure, purpose="look")

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


class _NamedTable(Protocol):
    @property
    def sql(self) -> str: ...


class CountedPlan(Protocol):
    """Of a write plan: whether the rows of its target may be stored in another table, or not at all."""

    @property
    def target(self) -> _NamedTable: ...

    @property
    def is_parent(self) -> bool: ...

    @property
    def is_ruled(self) -> bool: ...


class PgWriteSession(PgSession, BoundSession):
    """Used by one thread."""

    failures = (psycopg.Error, OSError)

    def __init__(
        self, options: PostgresOptions, *, failure: type[ChannelError], purpose: str
    ) -> None:
        super().__init__(options, failure=failure, purpose=purpose)
        self._timeout: int | None = None
        """`statement_timeout` in milliseconds, once it is known."""
        self.pace: PacedCopy | None = None
        """What was learned of the server's speed."""
        self._parent: str | None = None
        """A table, as SQL, whose rows may be stored in tables that inherit from it: they are counted there, too."""
        self._is_ruled = False
        """Whether the count of an INSERT into it may be of rows in another table."""
        with self.explained():
            self._connection = connected(
                options.conninfo(), autocommit=True, prepare_threshold=None
            )
        with self.closed_on_failure():
            self._set_up()

    def cancel(self) -> None:
        if self.is_open and self._connection.info.transaction_status == TransactionStatus.ACTIVE:
            self._connection.cancel_safe(timeout=1.0)

    def close(self) -> None:
        """A statement that runs is cancelled first: psycopg before 3.3 leaves one that a signal has interrupted."""
        with suppress(psycopg.Error):
            self.cancel()
        super().close()

    def is_reusable(self) -> bool:
        idle = TransactionStatus.IDLE
        return super().is_reusable() and self._connection.info.transaction_status == idle

    def answers(self) -> bool:
        """Whether its server is there; one that is not is closed."""
        try:
            self.ping()
        except self._failure:
            self.close()
        return self.is_open

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
        table_sql = f"{quoted_name(schema)}.{quoted_name(table)}"
        names = ", ".join(map(quoted_name, rows.names))
        sql = f"COPY {table_sql} ({names}) FROM STDIN (FORMAT binary)"
        inside = nullcontext() if self._is_begun else self.transaction()
        ended = nullcontext() if between is None else self._ended_when_still()
        with (
            inside,
            self.all_stored(table_sql, f"{schema}.{table}", rows.count) as stored,
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
                    for bit in bits(rows.pieces):
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
            result = cursor.pgresult  # `description` makes an object of each column
            return affected, cursor.fetchall() if result is not None and result.nfields else []

    def renewed(
        self,
        options: PostgresOptions,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None,
    ) -> bool:
        self.pace, self._parent, self._is_ruled = None, None, False
        return super().renewed(options, failure, purpose, settings)

    def counts_in(self, plan: CountedPlan) -> None:
        """Rows of this plan's target are counted where they are stored, which may be another table."""
        self._parent = plan.target.sql if plan.is_parent or plan.is_ruled else None
        self._is_ruled = plan.is_ruled

    @contextmanager
    def all_stored(self, table_sql: str, label: str, sent: int) -> Iterator[Callable[[int], None]]:
        """Around statements that send rows to the table `table_sql`; to be called with what each says that it stored.

        Raises:
            BatchRefusedError: not all of the `sent` rows were stored.
        """
        counts: list[int] = []
        is_looked_at = table_sql == self._parent
        before = self._inherited(table_sql) if is_looked_at else 0
        yield counts.append
        stored = sum(counts)
        if is_looked_at and (stored != sent or self._is_ruled):
            stored = self._inherited(table_sql) - before
        check_stored(label, sent, stored)

    def _inherited(self, table_sql: str) -> int:
        """The rows that this transaction inserted into the table and those that inherit from it."""
        return int(self.value(_INHERITED.format(table=literal_sql(table_sql))))

    @contextmanager
    def _ended_when_still(self) -> Iterator[None]:
        """The server ends a statement that is not sent to its end, as of a process that was stopped in the middle."""
        if self._timeout is None:
            self._timeout = int(self.value(_TIMEOUT))
        if 0 < self._timeout <= _STILL_SECONDS * 1000:
            yield
            return
        self.execute(f"SET LOCAL statement_timeout = {_STILL_SECONDS * 1000}")
        begun = SYSTEM_CLOCK.now()
        try:
            yield
        except self._failure as error:
            if is_ended(error) and SYSTEM_CLOCK.now() - begun >= _STILL_SECONDS:
                self.close()
                raise self._failure(
                    f"{self.place}: the server ended a COPY, since this process stood still and sent no data. "
                    "Spark runs the task again. Check whether its host was suspended, or out of memory"
                ) from ConnectionError("the connection is lost")
            raise
        self.execute(f"SET LOCAL statement_timeout = {self._timeout}")

    def _script(self, statements: Sequence[str]) -> None:
        self._run(joined(statements))

    def _alone(self, sql: str) -> list[tuple[Any, ...]]:
        """With the settings in one exchange, which is one transaction to the server."""
        try:
            return self._run(joined([*self._settings.each, sql]))
        except self._failure as error:
            if sqlstate_of(error) != _BY_ITSELF:
                raise
            return self._by_itself(sql, error)

    def _by_itself(self, sql: str, error: ChannelError) -> list[tuple[Any, ...]]:
        """A statement that no transaction may hold, such as VACUUM; settings that it needs are the session's then."""
        if self._settings.chosen and self._is_shared():
            raise self._failure(
                f"{self.place} is a connection pooler (such as PgBouncer), behind which 'currentSchema', "
                "'sessionTimeZone' and 'sessionInitStatement' hold in transactions only, and "
                f"{sql[:200]!r} cannot run in one. "
                "Omit these options and write names with their schema, or name the server itself in 'url'"
            ) from error.__cause__
        if self._settings.chosen:
            self._script(self._settings.of_session)
        return self._run(sql)

    def _is_own(self) -> str:
        return f"pg_backend_pid() = {self._reached().info.backend_pid}"

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.affected(sql)[1]

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        connection = self._reached()
        with self.explained(), connection.cursor() as cursor:
            yield cursor
