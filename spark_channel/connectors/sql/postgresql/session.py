"""The interface of every connection to a server, of any driver; statements begin and end transactions."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlglot import exp

from spark_channel.connectors.sql.postgresql.failures import explain
from spark_channel.connectors.sql.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.script import session_script
from spark_channel.connectors.sql.session import DriverSession, transaction
from spark_channel.connectors.sql.statements import Node
from spark_channel.errors import ChannelError

__all__ = ["PgSession", "literal", "literal_sql"]

_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
}


class PgSession(DriverSession):
    """`failure` is the class of what it raises for anything the server refuses.

    It keeps the server's time zone, unless `sessionTimeZone` or the user's statements set another: values are sent in
    binary, which has none.
    """

    def __init__(self, options: PostgresOptions, *, failure: type[ChannelError]) -> None:
        self.place = options.address.shown
        self.version = 0
        """As `server_version_num`, such as 150004: once it is set up."""
        self._failure = failure

    @property
    def is_open(self) -> bool:
        """Whether it was not closed; its server may be gone all the same."""
        return self._connection is not None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._run(sql)

    def explain(self, error: BaseException) -> ChannelError:
        return self._failure(explain(error, self.place))

    def transaction(self) -> AbstractContextManager[None]:
        return transaction(self, "BEGIN")

    def roll_back(self) -> None:
        """End the transaction without its changes; a lost connection has done so."""
        if self.is_open:
            try:
                self.rows("ROLLBACK")
            except self._failure:
                pass

    @abstractmethod
    def _run(self, sql: str) -> list[tuple[Any, ...]]: ...

    def _reached(self) -> Any:
        if self._connection is None:
            raise self._failure(f"{self.place}: the connection is closed")
        return self._connection

    def _set_up(self, options: PostgresOptions, purpose: str) -> None:
        settings = {**_SETTINGS, "application_name": f"spark-channel {purpose}"}
        if options.current_schema is not None:
            settings["search_path"] = _search_path(options.current_schema)
        if options.query_timeout:
            settings["statement_timeout"] = str(options.query_timeout * 1000)
        if options.session_time_zone is not None:
            self.rows(exp.select(_set("TimeZone", options.session_time_zone)).sql("postgres"))
        calls = [_set(name, value) for name, value in settings.items()]
        for statement in session_script(options, "postgres"):
            self.rows(statement)
        version = exp.func("current_setting", literal("server_version_num"))
        ((found, *_),) = self.rows(exp.select(version, *calls).sql("postgres"))
        self.version = int(found)


def literal(value: str | int | None) -> Node:
    """A value in a statement: quoted, or NULL."""
    if value is None:
        return exp.null()
    return exp.Literal.number(value) if isinstance(value, int) else exp.Literal.string(value)


def literal_sql(value: str | int | None) -> str:
    return literal(value).sql("postgres")


def _set(name: str, value: str) -> Node:
    return exp.func("set_config", literal(name), literal(value), exp.false())


def _search_path(text: str) -> str:
    names: Sequence[str] = [name.strip().strip('"') for name in text.split(",")]
    return ", ".join(exp.to_identifier(name, quoted=True).sql("postgres") for name in names)
