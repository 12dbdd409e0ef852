"""Sessions of psycopg: of them, one looks at tables."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from spark_channel.connectors.postgresql.failures import sqlstate_of
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.connection import (
    PgSession,
    ResultColumn,
    literal_sql,
)
from spark_channel.connectors.sql.postgresql_family import connected, joined
from spark_channel.connectors.sql.session import BoundSession
from spark_channel.connectors.sql.statements import marked
from spark_channel.errors import ChannelError

__all__ = ["PgPlanSession", "PsycopgSession"]

_BY_ITSELF = "25001"
"""What is said of a statement that cannot run in a transaction, before it does anything."""
_TYPES = (
    "SELECT oid::bigint, typname::text, typcategory::text, typnamespace = 'pg_catalog'::regnamespace "
    "FROM pg_catalog.pg_type WHERE oid IN ({oids})"
)


class PsycopgSession(PgSession, BoundSession):
    """Used by one thread."""

    failures = (psycopg.Error, OSError)

    def __init__(
        self,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(options, failure=failure, purpose=purpose, settings=settings)
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

    def affected(self, sql: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Run statements: the rows that the first one affected, and those that the last one returns."""
        with self._cursor() as cursor:
            cursor.execute(cast(Any, sql))
            affected = cursor.rowcount
            while cursor.nextset():
                pass
            result = cursor.pgresult  # `description` makes an object of each column
            return affected, cursor.fetchall() if result is not None and result.nfields else []

    def _script(self, statements: Sequence[str]) -> None:
        self.affected(joined(statements))

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


class PgPlanSession(PsycopgSession):
    """Looks at tables and queries. The protocol takes one statement at a time, whatever the user's texts are."""

    def result_columns(self, query: str) -> list[ResultColumn]:
        with nullcontext() if self._is_begun else self.transaction():
            with self._cursor() as cursor:
                # In binary it is one statement or refused. A type without a binary form fails with its first value.
                cursor.execute(cast(Any, query), binary=True)
                result = cursor.pgresult
                assert result is not None
                columns = [
                    (column.name, result.ftype(number), result.fmod(number))
                    for number, column in enumerate(cursor.description or ())
                ]
            oids = ", ".join({str(oid) for _, oid, _ in columns})
            types = (
                {oid: about for oid, *about in self.rows(_TYPES.format(oids=oids))} if oids else {}
            )
        for name, oid, _ in columns:
            if oid not in types:
                raise self._failure(
                    f"{self.place}: another session dropped the type of column {name!r} (OID {oid}) while the query "
                    "was planned: run again. If the query itself names the type, change the query"
                )
        return [
            ResultColumn(name, types[oid][0], typmod, *types[oid][1:])
            for name, oid, typmod in columns
        ]

    def _alone(self, sql: str) -> list[tuple[Any, ...]]:
        with self.transaction():
            return self._run(sql)

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(cast(Any, sql), binary=True)
            return cursor.fetchall() if cursor.description else []
