"""The ADBC driver's picture of a database, and the connections that share it."""

import os
import threading
from contextlib import suppress
from typing import Any, cast

import adbc_driver_manager
import adbc_driver_postgresql

from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.sql.adbc_driver import dbapi
from spark_channel.connectors.sql.postgresql_family import QUOTES, is_pooler, refused_by_quotes
from spark_channel.errors import ChannelError

__all__ = ["BY_COPY", "SharedConnection", "SharedDatabase", "shared_database"]

BY_COPY = "adbc.postgresql.use_copy"
"""Whether a statement's result comes by COPY."""
_BUILTIN = {"adbc.postgresql.type_resolver_mode": "builtin"}
"""The driver knows PostgreSQL's own types; by default it lists those of users, too, two for each table of the database:
findings/adbc-postgresql-connect-lists-tables.sh
"""
_MOST_DATABASES = 8


class SharedDatabase:
    """It knows PostgreSQL's own types: to list those of users costs as much as five connections, or more. The last of
    its connections that ends closes it.

    The driver does not free a database that is dropped without `close`. It counts connections without a lock, and after
    a wrong count each end of a connection fails, so that they begin and end under this one
    (https://github.com/apache/arrow-adbc/issues/4753).
    """

    def __init__(self, url: str) -> None:
        self._database = adbc_driver_postgresql.connect(url, _BUILTIN)
        # Reentrant: the end of a connection that was dropped may come in between.
        self.lock = threading.RLock()

    def connect(self, *, autocommit: bool) -> "SharedConnection":
        with self.lock:
            connection = adbc_driver_manager.AdbcConnection(self._database)
        return SharedConnection(self, connection, autocommit=autocommit)

    def close(self) -> None:
        """Do nothing: a connection calls this at its own end."""

    def __del__(self) -> None:
        # A connection was dropped unclosed, or none was ever opened.
        with suppress(RuntimeError, AttributeError):
            self._database.close()


class SharedConnection(dbapi.Connection):
    def __init__(
        self,
        shared: SharedDatabase,
        connection: adbc_driver_manager.AdbcConnection,
        *,
        autocommit: bool,
    ) -> None:
        self._lock = shared.lock
        super().__init__(cast(Any, shared), connection, autocommit=autocommit)

    def close(self) -> None:
        with self._lock:
            super().close()


_databases: dict[tuple[int, str], tuple[SharedDatabase, bool]] = {}
_databases_lock = threading.Lock()


def shared_database(
    options: PostgresOptions, *, failure: type[ChannelError]
) -> tuple[SharedDatabase, bool]:
    """The driver's picture of a database, which needs a connection only to list the types; and whether a pooler is
    between, which the driver's connections do not show.

    One a process. A type that is made later it does not know (findings/adbc-postgresql-type-made-later.sh), and needs
    not: a read selects a value of a user's type as text.

    Raises:
        failure: a setting of the server keeps the driver from knowing its types.
    """
    conninfo = options.conninfo()
    key = (os.getpid(), conninfo)
    with _databases_lock:
        shared = _databases.get(key)
    if shared is None:
        database = SharedDatabase(conninfo)
        with database.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{BY_COPY: "false"})
            cursor.execute(QUOTES)
            if cursor.fetchall():
                raise failure(refused_by_quotes(options.address.shown, "url"))
        shared = database, is_pooler(conninfo)
        with _databases_lock:
            while len(_databases) >= _MOST_DATABASES:
                del _databases[next(iter(_databases))]
            _databases[key] = shared
    return shared
