"""PyMySQL's connection, which sends a server only the data of the present LOAD DATA, and no plain password.

A server, or an attacker in its place, may ask for any file in answer to any statement (LOAD DATA LOCAL), and for
the password in answer to the login: in plain text, or encrypted for a key that it sends. Neither is sent: a file only
while this connection's own LOAD runs, and only the one that it names; a password only inside TLS, or for a key that the
user trusts.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection, LoadLocalPacketWrapper, MySQLResult
from pymysql.constants import CLIENT

__all__ = ["GuardedConnection"]

_PLAIN = (b"mysql_clear_password", b"dialog")
_UNTRUSTED = 2061


class GuardedConnection(Connection):  # type: ignore[misc] # PyMySQL is untyped
    """`tls` is used if the server has it, and must be there if `tls_required`.

    `server_public_key`: the key for which a password may be encrypted. `takes_key`: without one, the key that the
    server sends is used.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None,
        tls_required: bool,
        server_public_key: bytes | None = None,
        takes_key: bool = False,
        **given: Any,
    ) -> None:
        self._sendable: str | None = None
        self._public_key: bytes | None = None
        self._takes_key = True
        given["server_public_key"] = server_public_key
        super().__init__(
            ssl=tls, ssl_disabled=True if tls is None else None, defer_connect=True,
            client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows that it found, not those that it changed
            **given,
        )  # fmt: skip
        if tls is not None:
            self._ssl_required = tls_required
            if not tls_required:
                self.client_flag &= ~CLIENT.SSL
        self._takes_key = takes_key and server_public_key is None
        # The time of an attempt holds for the login, too: another service may wait for the client to speak first.
        self._read_timeout = self.connect_timeout
        self.connect()
        self._read_timeout = given.get("read_timeout")

    @property
    def server_public_key(self) -> bytes | None:
        """Set by PyMySQL, too, when a server has sent a key."""
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key is not None and not self._takes_key:
            self._force_close()
            raise pymysql.err.OperationalError(
                _UNTRUSTED,
                "the server wants the password encrypted for a key that it sends, "
                "and the connection has no TLS: who answers in its place could read it. "
                "Switch TLS on in the server and omit option 'sslmode', or name the server's key "
                "by 'serverRsaPublicKeyFile', or accept it with 'allowPublicKeyRetrieval=true'",
            )
        self._public_key = key

    @contextmanager
    def may_send(self, path: str) -> Iterator[None]:
        """While this is open the server may ask for file `path`, and for no other."""
        self._sendable = path
        try:
            yield
        finally:
            self._sendable = None

    def refuse_file(self, packet: Any) -> None:
        """Raise unless the server asks for the file that it may have.

        Raises:
            pymysql.err.OperationalError: it asks for another; the connection is ended.
        """
        asked = bytes(LoadLocalPacketWrapper(packet).filename)
        if self._sendable is None or asked != self._sendable.encode():
            self._force_close()
            raise pymysql.err.OperationalError(
                _UNTRUSTED,
                f"the server asked for the file {asked[:200]!r} of this machine, which no statement named: "
                "it is not the server that it should be, or it was taken over. Nothing was sent",
            )

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        self._result = None
        result = _GuardedResult(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, *more: Any) -> Any:
        if plugin_name in _PLAIN and not self._secure:
            self._force_close()
            raise pymysql.err.OperationalError(
                _UNTRUSTED,
                f"the server asks for the password in plain text ({plugin_name.decode()}), "
                "and the connection has no TLS: set option 'sslmode' to 'verify-full' with 'sslrootcert', "
                "or to 'require'",
            )
        return super()._process_auth(plugin_name, auth_packet, *more)


class _GuardedResult(MySQLResult):  # type: ignore[misc] # PyMySQL is untyped
    def _read_load_local_packet(self, first_packet: Any) -> None:
        self.connection.refuse_file(first_packet)
        super()._read_load_local_packet(first_packet)
