"""Tunnels in a PostgreSQL database: for clients on several hosts.

Through ADBC, as the PostgreSQL connector is: one driver, one libpq. Time is the server's, so clients' clocks
do not count.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from spark_channel.connectors.sql.marks import marked
from spark_channel.errors import TunnelError, TunnelStoreError, UnsupportedError
from spark_channel.tunnel.sql_store import ONE_TUNNEL, SCHEMA, SqlStore, Statements

__all__ = ["PostgresStore"]

_MAKING = 0x5C_7A_11
"""The advisory lock under which tables are made: two who make one at a time get an error otherwise."""
_UNDEFINED_TABLE = "42P01"


class PostgresStore(SqlStore):
    """A connection per call; the tunnel's row is locked while its channels are shared out."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self.show()!r})"

    def show(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self._url).partition("?")[0]

    @contextmanager
    def _transaction(self, *, make: bool = False) -> Iterator[Statements]:
        try:
            import adbc_driver_manager.dbapi
            import adbc_driver_postgresql as driver
        except ImportError:
            raise UnsupportedError(
                "a tunnel store in PostgreSQL needs adbc-driver-postgresql: "
                "pip install 'spark-channel[postgresql]'"
            ) from None
        try:
            with closing(self._connect(driver)) as connection:
                statements = _PostgresStatements(connection)
                try:
                    if make:
                        statements.rows("SELECT CAST(pg_advisory_xact_lock(?) AS TEXT)", (_MAKING,))
                        for statement in SCHEMA:
                            statements.rows(statement)
                    yield statements
                    # COMMIT alone: `commit` begins another one, with which a pooler drops the session.
                    connection.adbc_connection.set_autocommit(True)
                except BaseException:
                    connection.rollback()
                    raise
        except adbc_driver_manager.Error as error:
            text = str(error).replace(self._url, self.show()).strip()
            if getattr(error, "sqlstate", None) == _UNDEFINED_TABLE:
                raise TunnelError(
                    f"{self.show()} holds no tunnels; make one with `spark-channel tunnel create`"
                ) from error
            raise TunnelStoreError(f"tunnel store {self.show()}: {text}") from error

    def _connect(self, driver: Any) -> Any:
        """A connection; the driver's picture of the database, which costs as much as five of them, is kept."""
        import adbc_driver_manager.dbapi

        if self._known is None or self._known[0] != os.getpid():
            self._known = os.getpid(), driver.connect(self._url)
        connection: Any = adbc_driver_manager.dbapi.Connection
        return connection(_Lasting(), adbc_driver_manager.AdbcConnection(self._known[1]))

    def _lock(self, statements: Statements, name: str) -> list[tuple[Any, ...]]:
        return statements.rows(f"{ONE_TUNNEL} FOR UPDATE", (name,))

    def _now(self, statements: Statements) -> float:
        rows = statements.rows("SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)")
        return float(rows[0][0])


class _Lasting:
    """Stands for the database where a connection would close it at its own end."""

    def close(self) -> None:
        pass


class _PostgresStatements:
    """See `Statements`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(marked(sql, "${}".format), tuple(parameters) or None)
            if cursor.description is None:
                return []
            return list(cursor.fetchall())
