"""What each session of PostgreSQL's has in common; statements begin and end their transactions.

The server may be a connection pooler, which hands each transaction to another session, and that session to another
client between two. So nothing is set, held or prepared for longer than a transaction.
"""

import re
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from spark_channel.connectors.base.open_sessions import note_open
from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.connectors.base.session_pool import AnswerCache, sessions
from spark_channel.connectors.postgresql.failures import (
    explain,
    is_disk_full,
    is_full,
    is_of_input,
    sqlstate_of,
)
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.settings import Settings
from spark_channel.connectors.sql.postgresql_family import escaped_text, refused_by_pooler
from spark_channel.connectors.sql.session import DriverSession, committed
from spark_channel.errors import ChannelError
from spark_channel.final_errors import final, of_input

__all__ = ["PgSession", "ResultColumn", "literal_sql"]

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


class ResultColumn(NamedTuple):
    """Of a query: its name, its type's as pg_type has it, and whether that is PostgreSQL's own and not a user's."""

    name: str
    type: str
    typmod: int
    category: str
    is_builtin: bool


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

    def result_columns(self, query: str) -> list[ResultColumn]:
        """The columns of the result of a query that was parsed, and returns no row."""
        raise NotImplementedError

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
