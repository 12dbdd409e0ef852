"""Connections to tunnel stores in PostgreSQL. A run of several tables uses one again for its next call."""

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import adbc_driver_manager

from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.postgresql.session.shared_database import SharedDatabase
from spark_channel.connectors.sql.postgresql_family import verified
from spark_channel.connectors.sql.statements import marked

__all__ = ["transaction"]


@contextmanager
def transaction(url: str) -> Iterator["StoreConnection"]:
    """A transaction, which the end of the block commits and an error rolls back."""
    connection = sessions.take(
        ("tunnel store", url), StoreConnection.begin, lambda: StoreConnection(url)
    )
    try:
        yield connection
        connection.commit()
    finally:
        if not sessions.give(connection):
            connection.close()


@cache
def _database(_process: int, url: str) -> SharedDatabase:
    """One for all stores of a process."""
    return SharedDatabase(verified(url, "tunnelStore"))


class StoreConnection:
    """See `Statements`. In a transaction from its beginning. Used by one thread."""

    def __init__(self, url: str) -> None:
        self._connection = _database(os.getpid(), url).connect(autocommit=False)
        self._is_begun = True
        self.pool_key: Hashable | None = ("tunnel store", url)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(marked(sql, "${}".format), tuple(parameters) or None)
            if cursor.description is None:
                return []
            return list(cursor.fetchall())

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.rows(sql, parameters)

    def begin(self) -> bool:
        """Begin the next transaction; False = the server has ended the connection."""
        try:
            self._connection.adbc_connection.set_autocommit(False)
            self.rows("SELECT 1")  # the driver begins the transaction with its first statement
        except adbc_driver_manager.Error:
            return False
        self._is_begun = True
        return True

    def commit(self) -> None:
        """COMMIT alone: the driver's `commit` begins another transaction, with which a pooler drops the session."""
        self._connection.adbc_connection.set_autocommit(True)
        self._is_begun = False

    def is_reusable(self) -> bool:
        return not self._is_begun

    def close(self) -> None:
        """End the connection, and with it a transaction that was not committed."""
        self._connection.close()
