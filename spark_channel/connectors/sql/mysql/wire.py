"""The rows of a result in batches, read from the server at the pace of the consumer.

PyMySQL makes one tuple a row, and its cursors spend most of their time on it; here a batch stays one piece of memory,
of which each column is cut out as a whole. The text protocol's packets are described in
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset.html
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["field_batches"]

_CHUNK = 1 << 18
_LARGEST_PACKET = 0xFFFFFF
_HEAD = 4
_EOF, _ERROR, _NULL = 0xFE, 0xFF, 0xFB
_WIDE = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The first byte of a field whose length follows -> the bytes of that length."""
_COM_QUERY = 0x03

Fields = list[pa.LargeBinaryArray]
Places = npt.NDArray[np.int64]


def field_batches(connection: Any, sql: str, batch_rows: int, batch_bytes: int) -> Iterator[Fields]:
    """The result of `sql` as fields, an array for each of its columns; null is NULL.

    A batch has at most `batch_rows` rows and about `batch_bytes` bytes. What the server refuses, also in the
    middle of the result, is raised as PyMySQL does; after an early end the connection is good for nothing but to
    be abandoned.
    """
    # PyMySQL has no public way below its cursors.
    connection._execute_command(_COM_QUERY, sql)  # noqa: SLF001
    first = connection._read_packet()  # noqa: SLF001
    if first.is_load_local_packet():
        connection.refuse_file(first)
    width = int(first.read_length_encoded_integer())
    for _ in range(width):
        connection._read_packet()  # noqa: SLF001
    connection._read_packet()  # noqa: SLF001
    rows = _Rows(connection._rfile.read1)  # noqa: SLF001
    while not rows.ended:
        data, begins, ends = rows.take(batch_rows, batch_bytes)
        if len(begins):
            yield _columns(data, begins, ends, width)


class _Rows:
    """Finds the rows in what has come; `ended` once the server has said so."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self.ended = False

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
            if self._is_long(used) and (found := self._long(used)):
                row, self._buffer = found[0], buffer[found[1] :]
                return row, np.array([0]), np.array([len(row)])
            self._more()
        self._buffer = buffer[used:]
        places = np.array(begins, np.int64)
        return buffer, places, np.append(places[1:] - _HEAD, used)[: len(places)]

    def _find(self, begins: list[int], begin: int, most_rows: int) -> int:
        """Add the rows behind `begin` that have come whole; returns the end of the last."""
        buffer, size, head = self._buffer, len(self._buffer), Struct("<I").unpack_from
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
        parts, length = [], _LARGEST_PACKET
        while length == _LARGEST_PACKET:
            if begin + _HEAD > len(self._buffer):
                return None
            length = int.from_bytes(self._buffer[begin : begin + 3], "little")
            end = begin + _HEAD + length
            if end > len(self._buffer):
                return None
            parts.append(self._buffer[begin + _HEAD : end])
            begin = end
        return b"".join(parts), begin

    def _finish(self, packet: bytes, mark: int) -> None:
        self.ended = True
        if mark == _ERROR:
            import pymysql

            pymysql.err.raise_mysql_exception(packet)


def _columns(data: bytes | bytearray, begins: Places, ends: Places, width: int) -> Fields:
    memory, at, fields = np.frombuffer(data, np.uint8), begins, []
    for _ in range(width):
        start, end, null = _field(memory, at)
        fields.append(_cut(data, start, end, null))
        at = end
    assert np.array_equal(at, ends), "the fields of a row end elsewhere than the row"
    return fields


def _field(memory: npt.NDArray[np.uint8], at: Places) -> tuple[Places, Places, npt.NDArray[np.bool_] | None]:
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
            each = [memory[start[rows] + place].astype(np.int64) << 8 * place for place in range(wide)]
            length[rows] = np.sum(each, axis=0)
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
    return every.take(pa.array(np.arange(0, 2 * rows, 2), mask=null))
