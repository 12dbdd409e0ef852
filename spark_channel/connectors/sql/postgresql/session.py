"""The interface of every connection to a server, of any driver; statements begin and end transactions.

The server may be a connection pooler, which hands each transaction to another session, and that session to another
client between two. So nothing is set, held or prepared for longer than a transaction.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlglot import exp

from spark_channel.connectors.sql.postgresql.failures import explain
from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.postgresql.settings import Settings, refused_by_pooler
from spark_channel.connectors.sql.session import DriverSession, committed
from spark_channel.connectors.sql.statements import Node
from spark_channel.errors import ChannelError

__all__ = ["PgSession", "literal", "literal_sql"]

_BEGINS = re.compile(r"\s*(?:BEGIN|START\s+TRANSACTION)\b(?P<modes>.*)", re.IGNORECASE | re.DOTALL)
_ENDS = re.compile(r"\s*(?:COMMIT|ROLLBACK)\s*", re.IGNORECASE)


class PgSession(DriverSession):
    """`failure` is the class of what it raises for anything the server refuses.

    Every statement runs in a transaction that begins with `Settings`: in the one that is open, or in its own. The time
    zone is the server's, unless `sessionTimeZone` or the user's statements set another: values are sent in binary,
    which has none. `settings` are those of the connection's own.
    """

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
        self._version: int | None = None
        self._name = f"spark-channel {purpose}"
        self._settings = Settings.of(options, {"application_name": self._name, **(settings or {})})
        self._is_begun = False

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
            return self._run(sql)
        return self._run(sql) if self._is_begun else self._alone(sql)

    def begin(self, modes: str = "", *first: str) -> None:
        """Begin a transaction, with its settings; `first`: statements that no query may precede."""
        self._is_begun = True
        try:
            self._script([f"BEGIN {modes}".rstrip(), *first, *self._settings.each])
        except BaseException:
            self.roll_back()
            raise

    def ping(self) -> None:
        self._run("SELECT 1")

    def explain(self, error: BaseException) -> ChannelError:
        return self._failure(explain(error, self.place))

    @contextmanager
    def transaction(self, modes: str = "", *first: str) -> Iterator[None]:
        """Commits in the end; any exception rolls back. For the arguments see `begin`."""
        self.begin(modes, *first)
        with committed(self):
            yield

    @contextmanager
    def own_transaction(self) -> Iterator[None]:
        """Around a result that is streamed: in the transaction that is open, or in one of its own.

        Its user closes the connection on a failure, which takes the transaction along: a ROLLBACK would first read
        what the server has still to send.
        """
        is_own = not self._is_begun
        if is_own:
            self.begin()
        yield
        if is_own:
            self.rows("COMMIT")

    def roll_back(self) -> None:
        """End the transaction without its changes; a lost connection has done so."""
        if self.is_open:
            try:
                self.rows("ROLLBACK")
            except self._failure:
                pass

    @abstractmethod
    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        """One statement. Outside a transaction: one exchange with the server, which a pooler does not divide."""

    def _script(self, statements: Sequence[str]) -> None:
        """Several statements, in one exchange where the driver can."""
        for statement in statements:
            self._run(statement)

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

    def _set_up(self) -> None:
        """Name the session, and run the user's statements whose effect must last; the others are `Settings.each`."""
        name = f"set_config('application_name', {literal_sql(self._name)}, false)"
        named = f"CASE WHEN {self._is_own()} THEN {name} END"
        for version, _ in self._run(f"SELECT current_setting('server_version_num'), {named}"):
            self._version = int(version)
        if not self._settings.once:
            return
        if self._is_shared():
            raise self._failure(refused_by_pooler(self.place, self._settings.once[0], "url"))
        for statement in self._settings.once:
            self._run(statement)


def literal(value: str | int | None) -> Node:
    """A value in a statement: quoted, or NULL."""
    if value is None:
        return exp.null()
    return exp.Literal.number(value) if isinstance(value, int) else exp.Literal.string(value)


def literal_sql(value: str | int | None) -> str:
    return literal(value).sql("postgres")
