"""A connection that reads COPY's bytes with asyncpg, a hundred rows at a time."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import asyncpg
import psycopg

from spark_channel.connectors.postgresql.copy.format import HEADER, TRAILER
from spark_channel.connectors.postgresql.copy.row_bounds import Bounds, row_bounds
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.read.asyncpg_arguments import asyncpg_arguments
from spark_channel.connectors.postgresql.read.copy_login import forget_login, login_parameters
from spark_channel.connectors.postgresql.session import PgSession
from spark_channel.connectors.sql.postgresql_family import joined
from spark_channel.errors import ChannelError

__all__ = ["PgCopySession"]

_COPY_FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    psycopg.Error,  # of libpq, which is asked for the login
    OSError,
)
_KEEPALIVE = {
    "keepalives_idle": socket.TCP_KEEPIDLE if hasattr(socket, "TCP_KEEPIDLE") else None,
    "keepalives_interval": socket.TCP_KEEPINTVL,
    "keepalives_count": socket.TCP_KEEPCNT,
}
_END_SECONDS = 2.0


class PgCopySession(PgSession):
    """Used by one thread, which runs the connection's event loop while it waits for something, and only then."""

    failures = _COPY_FAILURES
    defaults: ClassVar[Mapping[str, str]] = {"client_min_messages": "error"}
    """See `_check_whole`."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        failure: type[ChannelError],
        purpose: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(options, failure=failure, purpose=purpose, settings=settings)
        parameters = options.parameters()
        self._copying: _Copying | None = None
        self._loop = _Loop(parameters)
        with self.closed_on_failure():
            with self.explained():
                self._connection = self._logged_in(parameters)
            self._set_up()

    def _logged_in(self, parameters: Mapping[str, str]) -> asyncpg.Connection:
        """Asks libpq again for a login that was kept, and is refused: a password may be renewed at any time."""
        try:
            return self._loop.run_until_complete(_connected(login_parameters(parameters)))
        except asyncpg.InvalidAuthorizationSpecificationError:
            if not forget_login(parameters):
                raise
        return self._loop.run_until_complete(_connected(login_parameters(parameters)))

    def cancel(self) -> None:
        """By the loop of the thread that waits."""
        if self._loop.is_running():
            closing = self._reached().close(timeout=_END_SECONDS)
            asyncio.run_coroutine_threadsafe(closing, self._loop).result(_END_SECONDS)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if self._loop.is_closed():
            return
        try:
            if connection is not None:
                self._loop.run_until_complete(self._end(connection))
        finally:
            self._loop.close()

    def copy(self, sql: str, columns: int, piece_bytes: int) -> Iterator[tuple[bytes, Bounds]]:
        """The rows of a query of so many columns, as COPY writes them: pieces, and where each row lies in one.

        A piece of about `piece_bytes` is asked for when it is wanted; what the server sends meanwhile waits in the
        sockets. Leaving early ends the connection, and the rest of the server's answer is not read.
        """
        connection = self._reached()
        rows = 0
        with self.closed_on_failure(), self.own_transaction():
            with self.explained():
                copying = self._copying = self._loop.run_until_complete(
                    _begun(connection, sql, piece_bytes)
                )
                while piece := self._loop.run_until_complete(copying.next()):
                    bounds = self._bounds(piece, columns)
                    rows += len(bounds) - 1
                    yield piece, bounds
            self._copying = None
            self._check_whole(rows, copying.rows)

    def _bounds(self, piece: bytes, columns: int) -> Bounds:
        try:
            return row_bounds(piece, columns)
        except ValueError as error:
            raise self._failure(
                f"{self.place}: the server sent data that is not in COPY's format: {error}"
            ) from error

    def _check_whole(self, rows: int, sent: int) -> None:
        """asyncpg 0.32 drops rows that precede another message: what a function says with RAISE INFO
        (findings/asyncpg-copy-loses-rows.sh).
        """
        if rows != sent:
            raise self._failure(
                f"{self.place}: the server sent {sent} rows, and {rows} were received: "
                "a function in the query sends messages (RAISE INFO) or changes a setting, which this fast path "
                "cannot read. Leave the function out, or read through Arrow, with a transformer or 'customSchema'"
            )

    def is_reusable(self) -> bool:
        return super().is_reusable() and self._copying is None

    def ping(self) -> None:
        self._script(["SELECT 1"])

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        """Outside a transaction without its rows: asyncpg has two exchanges with the server for these."""
        if not self._is_begun:
            self._script([sql])
            return []
        with self.explained():
            return [tuple(row) for row in self._loop.run_until_complete(self._reached().fetch(sql))]

    def _script(self, statements: Sequence[str]) -> None:
        with self.explained():
            self._loop.run_until_complete(self._reached().execute(joined(statements)))

    def _is_own(self) -> str:
        return f"pg_backend_pid() = {self._reached().get_server_pid()}"

    async def _end(self, connection: asyncpg.Connection) -> None:
        copying, self._copying = self._copying, None
        if copying is None:
            with contextlib.suppress(*_COPY_FAILURES):
                await connection.close(timeout=_END_SECONDS)
            return
        connection.terminate()
        await copying.leave()


class _Loop(asyncio.SelectorEventLoop):
    """Sockets that notice a server that vanished, as libpq's do."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        super().__init__()
        self._parameters = parameters

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """One address of a host that does not answer is not waited for."""
        return await super().create_connection(*args, **{"happy_eyeballs_delay": 0.25, **options})

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if (
            sock.family in (socket.AF_INET, socket.AF_INET6)
            and self._parameters.get("keepalives") != "0"
        ):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, option in _KEEPALIVE.items():
                if option is not None and name in self._parameters:
                    sock.setsockopt(socket.IPPROTO_TCP, option, int(self._parameters[name]))
        await super().sock_connect(sock, address)


async def _connected(parameters: Mapping[str, str]) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(**asyncpg_arguments(parameters, os.environ))
    except TimeoutError as error:
        raise TimeoutError("timeout expired") from error


async def _begun(connection: asyncpg.Connection, sql: str, piece_bytes: int) -> "_Copying":
    return _Copying(connection, sql, piece_bytes)


class _Copying:
    """One COPY that runs: a task of the loop, and what it has brought."""

    def __init__(self, connection: asyncpg.Connection, sql: str, piece_bytes: int) -> None:
        self._most = piece_bytes
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._gathered: list[bytes] = []
        self._size = 0
        self._begun = self._left = False
        self.rows = 0
        """How many the server says it sent, at the end."""
        self._task = asyncio.ensure_future(self._run(connection, sql))

    async def next(self) -> bytes:
        """The next piece; nothing after the last one."""
        if self._pieces.empty() and not self._task.done():
            piece = asyncio.ensure_future(self._pieces.get())
            await asyncio.wait({piece, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if piece.done():
                return piece.result()
            piece.cancel()
        if self._pieces.empty():
            self._task.result()
            return b""
        return self._pieces.get_nowait()

    async def leave(self) -> None:
        """Wait for the end, which comes since the connection was ended. Pieces that arrive until then are dropped."""
        self._left = True
        while not self._pieces.empty():
            self._pieces.get_nowait()
        await asyncio.wait({self._task}, timeout=_END_SECONDS)
        if self._task.done():
            self._task.exception()

    async def _run(self, connection: asyncpg.Connection, sql: str) -> None:
        status = await connection.copy_from_query(sql, output=self._take, format="binary")
        self.rows = int(status.split()[-1])
        await self._put(b"".join(self._gathered).removesuffix(TRAILER))

    async def _take(self, data: bytes) -> None:
        """Whole rows; the trailer comes with the last of them, or alone: the last ones are kept until the end."""
        if not self._begun:
            data, self._begun = data.removeprefix(HEADER), True
        if self._size >= self._most:
            await self._put(b"".join(self._gathered))
            self._gathered.clear()
            self._size = 0
        self._gathered.append(data)
        self._size += len(data)

    async def _put(self, piece: bytes) -> None:
        if piece and not self._left:
            await self._pieces.put(piece)
