"""The rows of a result in batches, read from the server at the pace of the consumer.

PyMySQL makes one tuple a row, and its cursors spend most of their time on it; here a batch stays one piece of memory,
of which each column is cut out as a whole. The text protocol's packets are described in
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset.html
"""

import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql
from pymysql.connections import Connection, LoadLocalPacketWrapper, MySQLResult
from pymysql.constants import CLIENT

__all__ = [
    "GuardedConnection",
    "field_batches",
]


_CHUNK = 1 << 18
_LARGEST_PACKET = 0xFFFFFF
_HEAD = 4
_EOF, _ERROR, _NULL = 0xFE, 0xFF, 0xFB
_WIDE = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The first byte of a field whose length follows -> the bytes of that length."""
_COM_QUERY = 0x03

_MOST_COLUMNS, _MOST_BYTES = 4096, (1 << 30) + _LARGEST_PACKET
"""Of a row: what a table may have, and what max_allowed_packet may be."""
_MALFORMED = 2027
_DAMAGE = (struct.error, LookupError, TypeError, ValueError, OverflowError)
"""What reading bytes raises that are something else than they should be; Arrow's errors are among these."""

Fields = list[pa.LargeBinaryArray]
Places = npt.NDArray[np.int64]


def field_batches(connection: Any, sql: str, batch_rows: int, batch_bytes: int) -> Iterator[Fields]:
    """The result of `sql` as fields, an array for each of its columns; null is NULL.

    A batch has at most `batch_rows` rows and about `batch_bytes` bytes. What the server refuses, also in the
    middle of the result, is raised as PyMySQL does, and so is a packet that is not as the protocol has it. After an
    early end the connection is good for nothing but to be abandoned. After the last batch, `connection.warnings_left`
    says how many warnings the statement left.
    """
    try:
        yield from _batches(connection, sql, batch_rows, batch_bytes)
    except _DAMAGE as error:
        raise pymysql.err.OperationalError(
            _MALFORMED,
            f"a packet of the result is not as MySQL's protocol has it ({type(error).__name__})",
        ) from error


def _batches(connection: Any, sql: str, batch_rows: int, batch_bytes: int) -> Iterator[Fields]:
    # PyMySQL has no public way below its cursors.
    connection._execute_command(_COM_QUERY, sql)  # noqa: SLF001 - PyMySQL has no public way
    first = connection._read_packet()  # noqa: SLF001 - PyMySQL has no public way
    if first.is_load_local_packet():
        connection.checked_file(first)
    width = int(first.read_length_encoded_integer())
    if not 0 < width <= _MOST_COLUMNS:
        raise ValueError("the number of columns")
    for _ in range(width):
        connection._read_packet()  # noqa: SLF001 - PyMySQL has no public way
    connection._read_packet()  # noqa: SLF001 - PyMySQL has no public way
    rows = _Rows(connection._rfile.read1)  # noqa: SLF001 - PyMySQL has no public way
    while not rows.ended:
        data, begins, ends = rows.take(batch_rows, batch_bytes)
        if len(begins):
            yield _columns(data, begins, ends, width)
    connection.warnings_left = rows.warnings


class _Rows:
    """Finds the rows in what has come; `ended` once the server has said so, with the number of `warnings`."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self.ended = False
        self.warnings = 0

    def take(self, most_rows: int, most_bytes: int) -> tuple[bytes | bytearray, Places, Places]:
        """Whole rows in one piece of memory: where each one's first field begins, and where its last one ends."""
        buffer, begins, used = self._buffer, list[int](), 0
        while True:
            used = self._find(begins, used, most_rows)
            if begins and (
                self.ended or len(begins) >= most_rows or used >= most_bytes or self._is_long(used)
            ):
                break
            if self.ended:
                break
            if self._is_long(used) and (long_row := self._long(used)):
                row, self._buffer = long_row[0], buffer[long_row[1] :]
                return row, np.array([0]), np.array([len(row)])
            self._more()
        self._buffer = buffer[used:]
        places = np.array(begins, np.int64)
        return buffer, places, np.append(places[1:] - _HEAD, used)[: len(places)]

    def _find(self, begins: list[int], begin: int, most_rows: int) -> int:
        """Add the rows behind `begin` that have come whole; returns the end of the last."""
        buffer, size, head = self._buffer, len(self._buffer), struct.Struct("<I").unpack_from
        while len(begins) < most_rows and begin + _HEAD < size:
            length = head(buffer, begin)[0] & _LARGEST_PACKET
            end = begin + _HEAD + length
            if length == _LARGEST_PACKET or end > size:
                break
            mark = buffer[begin + _HEAD]
            if mark >= _EOF and (mark == _ERROR or length < 9):
                self._finish(bytes(buffer[begin + _HEAD : end]), mark)
                break
            begins.append(begin + _HEAD)
            begin = end
        return begin

    def _more(self) -> None:
        chunk = self._read(_CHUNK)
        if not chunk:
            import pymysql

            self.ended = True
            raise pymysql.err.OperationalError(2013, "Lost connection to the server during query")
        self._buffer += chunk

    def _is_long(self, begin: int) -> bool:
        return self._buffer[begin : begin + 3] == b"\xff\xff\xff"

    def _long(self, begin: int) -> tuple[bytes, int] | None:
        """A row of more than 16 MiB, which comes in several packets: (its bytes, where it ends)."""
        packets, length, first = list[tuple[int, int]](), _LARGEST_PACKET, begin
        while length == _LARGEST_PACKET:
            if begin - first > _MOST_BYTES:
                raise ValueError("a row of more than 1 GiB")
            if begin + _HEAD > len(self._buffer):
                return None
            length = int.from_bytes(self._buffer[begin : begin + 3], "little")
            end = begin + _HEAD + length
            packets.append((begin + _HEAD, end))
            begin = end
        if begin > len(self._buffer):
            return None
        return b"".join(self._buffer[start:end] for start, end in packets), begin

    def _finish(self, packet: bytes, mark: int) -> None:
        self.ended = True
        if mark == _ERROR:
            import pymysql

            pymysql.err.raise_mysql_exception(packet)
        self.warnings = int.from_bytes(packet[1:3], "little")


def _columns(data: bytes | bytearray, begins: Places, ends: Places, width: int) -> Fields:
    memory, at, fields = np.frombuffer(data, np.uint8), begins, []
    for _ in range(width):
        start, end, null = _field(memory, at)
        if np.any(start > end) or np.any(end > ends):
            raise ValueError("a field that ends behind its row")
        fields.append(_cut(data, start, end, null))
        at = end
    if not np.array_equal(at, ends):
        raise ValueError("the fields of a row end elsewhere than the row")
    return fields


def _field(
    memory: npt.NDArray[np.uint8], at: Places
) -> tuple[Places, Places, npt.NDArray[np.bool_] | None]:
    """Start and end of the field at each of `at`, and which are NULL."""
    mark = memory[at]
    length = mark.astype(np.int64)
    if mark.max() < _NULL:
        return at + 1, at + 1 + length, None
    start, null = at + 1, mark == _NULL
    length[null] = 0
    for code, wide in _WIDE.items():
        rows = np.flatnonzero(mark == code)
        if len(rows):
            lengths = [
                memory[start[rows] + byte].astype(np.int64) << 8 * byte for byte in range(wide)
            ]
            length[rows] = np.sum(lengths, axis=0)
            start[rows] += wide
    return start, start + length, null


def _cut(
    data: bytes | bytearray, start: Places, end: Places, null: npt.NDArray[np.bool_] | None
) -> pa.LargeBinaryArray:
    """Fields lie apart, and Arrow's values side by side: of fields and what is between, every other one is taken."""
    rows = len(start)
    edges = np.empty(2 * rows + 1, np.int64)
    edges[0:-1:2], edges[1::2], edges[-1] = start, end, end[-1]
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    every = pa.Array.from_buffers(pa.large_binary(), 2 * rows, buffers)
    # Made of buffers: Arrow looks at an array of numpy's with pandas, which takes half a second to import.
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    places = [validity, pa.py_buffer(np.arange(0, 2 * rows, 2, dtype=np.int64))]
    return every.take(pa.Array.from_buffers(pa.int64(), rows, places))


# PyMySQL's connection, which sends a server only the data of the present LOAD DATA, and no plain password.
#
# A server, or an attacker in its place, may ask for any file in answer to any statement (LOAD DATA LOCAL), and for the
# password in answer to the login: in plain text, or encrypted for a key that it sends. Neither is sent: no file is ever
# opened, and what this connection's own LOAD sends comes from memory; a password goes only to a server whose
# certificate was verified, or for a key that the user trusts.


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
        self._sendable: tuple[str, memoryview] | None = None
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
    def may_send(self, name: str, data: bytes | memoryview) -> Iterator[None]:
        """While this is open the server may ask for a file `name`, which is `data`, and for no other."""
        self._sendable = name, memoryview(data)
        try:
            yield
        finally:
            self._sendable = None

    def checked_file(self, packet: Any) -> memoryview:
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

    def send_file(self, data: memoryview) -> None:
        """Send the file in packets that the server takes, and go on to read its answer."""
        size = min(_FILE_PACKET, self.most_packet - _SPARE)
        for begin in range(0, len(data), size):
            self.write_packet(data[begin : begin + size])
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
