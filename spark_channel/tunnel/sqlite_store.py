"""Tunnels in a SQLite file: the default, for the clients of one machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_channel.clock import utc_now
from spark_channel.connectors.sql.sqlite.database import SqliteSession
from spark_channel.errors import TunnelError, TunnelStoreError
from spark_channel.tunnel.sql_store import ONE_TUNNEL, SCHEMA, SqlStore, Statements

__all__ = ["SqliteStore"]

_LOCK_TIMEOUT = 30.0


class SqliteStore(SqlStore):
    """A connection per call, in a transaction that takes the file's write lock first.

    Args:
        path: made when a tunnel is created.
        wall: the clock that clients are timed by, in seconds since 1970; the machine's by default.
        lock_timeout: how many seconds a call waits for the lock of another one.
    """

    def __init__(
        self, path: Path, *, wall: Callable[[], float] = lambda: utc_now().timestamp(),
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:  # fmt: skip
        self._path = path
        self._wall = wall
        self._lock_timeout = lock_timeout

    def show(self) -> str:
        return str(self._path)

    @contextmanager
    def _transaction(self, *, make: bool = False) -> Iterator[Statements]:
        if make:
            try:
                self._path.absolute().parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TunnelError(
                    f"cannot make the directory of tunnel store {self._path}: {error}"
                ) from error
        elif not self._path.exists():
            raise TunnelError(
                f"tunnel store {self._path} does not exist; make a tunnel with `spark-channel tunnel create`, "
                "or name its file with option 'tunnelStore'"
            )
        mode: Any = "rwc" if make else "rw"
        with SqliteSession(
            self._path, mode, lock_timeout=self._lock_timeout, failure=TunnelStoreError
        ) as session:
            session.rows("BEGIN IMMEDIATE")
            try:
                if make:
                    for statement in SCHEMA:
                        session.rows(statement)
                yield session
                session.rows("COMMIT")
            except BaseException:
                try:
                    session.rows("ROLLBACK")
                except TunnelStoreError:
                    pass  # SQLite has rolled back itself, as it does when the disk is full
                raise

    def _lock(self, statements: Statements, name: str) -> list[tuple[Any, ...]]:
        # BEGIN IMMEDIATE holds the whole file.
        return statements.rows(ONE_TUNNEL, (name,))

    def _now(self, statements: Statements) -> float:
        return self._wall()
