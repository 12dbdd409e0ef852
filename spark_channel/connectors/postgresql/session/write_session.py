"""The session that writes rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Protocol

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.postgresql.copy.format import HEADER, TRAILER, CopyRows, bits
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.failures import is_ended
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.connection import literal_sql
from spark_channel.connectors.postgresql.session.psycopg_session import PsycopgSession
from spark_channel.connectors.sql.statements import quoted_name
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.errors import ChannelError

__all__ = ["CountedPlan", "PgWriteSession"]

_STILL_SECONDS = 30
_INHERITED = """
WITH RECURSIVE family (oid) AS (
  SELECT {table}::regclass::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(oid)), 0)::bigint FROM family
"""
_TIMEOUT = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"


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


class PgWriteSession(PsycopgSession):
    """Writes rows by COPY."""

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
