"""The ADBC driver's picture of a database, and the connections that share it."""

import threading
from contextlib import suppress
from typing import Any, cast

import adbc_driver_manager.dbapi
import adbc_driver_postgresql

__all__ = ["SharedConnection", "SharedDatabase"]


class SharedDatabase:
    """Costs as much as five connections. The last of its connections that ends closes it.

    The driver does not free a database that is dropped without `close`. It counts connections without a lock, and after
    a wrong count each end of a connection fails, so that they begin and end under this one
    (https://github.com/apache/arrow-adbc/issues/4753).
    """

    def __init__(self, url: str) -> None:
        self._database = adbc_driver_postgresql.connect(url)
        # Reentrant: the end of a connection that was dropped may come in between.
        self.lock = threading.RLock()

    def connect(self, *, autocommit: bool) -> "SharedConnection":
        with self.lock:
            opened = adbc_driver_manager.AdbcConnection(self._database)
        return SharedConnection(self, opened, autocommit=autocommit)

    def close(self) -> None:
        """Do nothing: a connection calls this at its own end."""

    def __del__(self) -> None:
        # A connection was dropped unclosed, or none was ever opened.
        with suppress(RuntimeError, AttributeError):
            self._database.close()


class SharedConnection(adbc_driver_manager.dbapi.Connection):
    def __init__(
        self,
        shared: SharedDatabase,
        opened: adbc_driver_manager.AdbcConnection,
        *,
        autocommit: bool,
    ) -> None:
        self._lock = shared.lock
        super().__init__(cast(Any, shared), opened, autocommit=autocommit)

    def close(self) -> None:
        with self._lock:
            super().close()
