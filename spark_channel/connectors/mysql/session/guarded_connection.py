"""PyMySQL's connection, which sends a server only the data of the present LOAD DATA, and no plain password.

A server, or an attacker in its place, may ask for any file in answer to any statement (LOAD DATA LOCAL), and for the
password in answer to the login: in plain text, or encrypted for a key that it sends. Neither is sent: no file is ever
opened, and what this connection's own LOAD sends comes from memory; a password goes only to a server whose
certificate was verified, or for a key that the user trusts.
"""

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection, LoadLocalPacketWrapper, MySQLResult
from pymysql.constants import CLIENT

__all__ = [
    "GuardedConnection",
]

_HEAD = 4
"""The bytes of a packet before its data: a length of three, and the number that the next packet has to follow."""
_FILE_PACKET, _SPARE = 256 << 10, 1 << 10
"""Each packet takes the server a wait for the next one; `socketTimeout` is for one packet as a whole."""
_UNKNOWN_PACKET = 16 << 10
_PLAIN = (b"mysql_clear_password", b"dialog", b"mysql_old_password")
"""Plugins by which the server gets the password, or what can be turned into it."""
_SHA256 = "sha256_password"
_CACHING = b"caching_sha2_password"
_UNTRUSTED, _OUT_OF_SYNC = 2061, 2014


class GuardedConnection(Connection):  # type: ignore[misc] # PyMySQL is untyped
    """`tls` is used if the server has it, and must be there if `tls_required`.

    `server_public_key`: the key for which a password may be encrypted. `takes_key`: without one, the key that the
    server sends is used. `sends_plain`: inside TLS the password is sent as it is, also to a server that is not
    verified. `is_local`: so is the first login of MySQL's own plugin, `caching_sha2_password`, and no other.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None,
        tls_required: bool,
        server_public_key: bytes | None = None,
        takes_key: bool = False,
        sends_plain: bool = False,
        is_local: bool = False,
        **arguments: Any,
    ) -> None:
        self._is_encrypted = False
        self._is_local = is_local
        self._plugin = b""
        self._is_trusted = sends_plain or (tls is not None and tls.verify_mode == ssl.CERT_REQUIRED)
        self.warnings_left = 0
        self.most_packet = _UNKNOWN_PACKET
        self._sendable: tuple[str, Iterable[bytes | memoryview]] | None = None
        self._public_key: bytes | None = None
        self._takes_key = True
        arguments["server_public_key"] = server_public_key
        super().__init__(
            ssl=tls,
            ssl_disabled=True if tls is None else None,
            defer_connect=True,
            client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows that it found, not those that it changed
            **arguments,
        )
        if tls is not None:
            self._ssl_required = tls_required
            if not tls_required:
                self.client_flag &= ~CLIENT.SSL
        self._takes_key = takes_key and server_public_key is None
        # The time of an attempt holds for the login, too: another service may wait for the client to speak first.
        self._read_timeout = self.connect_timeout
        self.connect()
        self._read_timeout = arguments.get("read_timeout")

    _auth_plugin_name: str

    @property
    def _secure(self) -> bool:
        """Whether PyMySQL may send the password as it is; it sets this once there is TLS."""
        return self._is_encrypted and (self._is_trusted or self._is_local_login)

    @_secure.setter
    def _secure(self, is_encrypted: bool) -> None:
        self._is_encrypted = is_encrypted

    @property
    def _is_local_login(self) -> bool:
        return self._is_local and (self._plugin or self._auth_plugin_name.encode()) == _CACHING

    def _get_server_information(self) -> None:
        super()._get_server_information()
        if self.ssl and not self._is_trusted and self._auth_plugin_name == _SHA256:
            # PyMySQL would send the password with its first words. The server then asks for what its account needs.
            self._auth_plugin_name = "caching_sha2_password"

    @property
    def server_public_key(self) -> bytes | None:
        """Set by PyMySQL, too, when a server has sent a key. Inside TLS a server wants no key, but the password."""
        if self._is_encrypted and not self._secure and self.password:
            self._refuse_plain("sha256_password or caching_sha2_password")
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key is not None and not self._takes_key:
            self._force_close()
            raise pymysql.err.OperationalError(
                _UNTRUSTED,
                "the server wants the password encrypted with a key that it sent itself, over a connection without "
                "TLS. An attacker who impersonates the server could read the password, so it was not sent. "
                "Enable TLS on the server and omit option 'sslmode'; or set 'serverRsaPublicKeyFile' to the file of "
                "the server's key; or accept the risk with 'allowPublicKeyRetrieval=true'",
            )
        self._public_key = key

    @contextmanager
    def may_send(self, name: str, data: Iterable[bytes | memoryview]) -> Iterator[None]:
        """While this is open the server may ask for a file `name`, which is `data` in pieces, and for no other."""
        self._sendable = name, data
        try:
            yield
        finally:
            self._sendable = None

    def checked_file(self, packet: Any) -> Iterable[bytes | memoryview]:
        """The file that the server asks for.

        Raises:
            pymysql.err.OperationalError: it asks for another; the connection is ended.
        """
        name_asked = bytes(LoadLocalPacketWrapper(packet).filename)
        if self._sendable is None or name_asked != self._sendable[0].encode():
            self._force_close()
            raise pymysql.err.OperationalError(
                _UNTRUSTED,
                f"the server asked for the file {name_asked[:200]!r} of this machine, which no statement named: "
                "it is not the server that it should be, or it was taken over. Nothing was sent",
            )
        return self._sendable[1]

    def send_file(self, data: Iterable[bytes | memoryview]) -> None:
        """Send the file in packets that the server takes, and go on to read its answer."""
        size = min(_FILE_PACKET, self.most_packet - _SPARE)
        for piece in data:
            view = memoryview(piece)
            for begin in range(0, len(view), size):
                self.write_packet(view[begin : begin + size])
        self.write_packet(b"")
        # A server that ends the statement earlier does not count the packets that it has not read.
        head = self._rfile.peek(_HEAD)
        if len(head) >= _HEAD:
            self._next_seq_id = head[_HEAD - 1]

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

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, *arguments: Any) -> Any:
        self._plugin = plugin_name
        if plugin_name in _PLAIN and not self._secure:
            self._refuse_plain(plugin_name.decode())
        return super()._process_auth(plugin_name, auth_packet, *arguments)

    def _refuse_plain(self, plugin: str) -> None:
        self._force_close()
        has = "its certificate was not verified" if self._is_encrypted else "there is no TLS"
        raise pymysql.err.OperationalError(
            _UNTRUSTED,
            f"the server asks for the password in plain text ({plugin}), and {has}: who answers in its place would "
            "read it, so it was not sent. Set 'sslrootcert' to the file of the CA (option 'sslmode' is then "
            "verify-full), or sslmode=verify-full for one that the system knows; or accept the risk inside TLS with "
            "'enableCleartextPlugin=true'",
        )


class _GuardedResult(MySQLResult):  # type: ignore[misc] # PyMySQL is untyped
    def _read_load_local_packet(self, first_packet: Any) -> None:
        """Replaces PyMySQL's own, which always sends packets of 16 KiB, even to a server that has disconnected."""
        self.connection.send_file(self.connection.checked_file(first_packet))
        answer = self.connection._read_packet()  # noqa: SLF001 - as PyMySQL's own does
        if not answer.is_ok_packet():
            raise pymysql.err.OperationalError(
                _OUT_OF_SYNC, "the server answers a LOAD DATA with neither its end nor an error"
            )
        self._read_ok_packet(answer)
