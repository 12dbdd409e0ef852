"""The rows of a result in batches, read from the server at the pace of the consumer.

PyMySQL makes one tuple a row, and its cursors spend most of their time on it; here a batch stays one piece of memory,
of which each column is cut out as a whole. The text protocol's packets are described in
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset.html
"""

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from spark_channel.connectors.mysql.types.native import END, ESCAPE, NULL_MARK, SEPARATOR

__all__ = ["field_batches", "line_batches"]

_CHUNK = 1 << 18
_LARGEST_PACKET = 0xFFFFFF
_HEAD = 4
_SHORT = 0x100
_FEW_BYTES = 1_024
_LOOKS = 2
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
Octets = npt.NDArray[np.uint8]
_T = TypeVar("_T")
_Field = tuple[Places, Places, npt.NDArray[np.bool_] | None]


def field_batches(connection: Any, sql: str, batch_rows: int, batch_bytes: int) -> Iterator[Fields]:
    """The result of `sql` as fields, an array for each of its columns; null is NULL.

    A batch has at most `batch_rows` rows and about `batch_bytes` bytes. What the server refuses, also in the
    middle of the result, is raised as PyMySQL does, and so is a packet that is not as the protocol has it. After an
    early end the connection is good for nothing but to be abandoned. After the last batch, `connection.warnings_left`
    says how many warnings the statement left.
    """
    return _results(connection, sql, batch_rows, batch_bytes, _columns)


def line_batches(
    connection: Any, sql: str, batch_rows: int, batch_bytes: int
) -> Iterator[tuple[memoryview, Places]]:
    """As `field_batches`, as lines for LOAD DATA with `LINE_FORM`: (bytes, where lines begin and end in them)."""
    return _results(connection, sql, batch_rows, batch_bytes, _lines)


def _results(
    connection: Any,
    sql: str,
    batch_rows: int,
    batch_bytes: int,
    shaped: Callable[[bytearray, Places, Places, int], _T],
) -> Iterator[_T]:
    try:
        rows, width = _begun(connection, sql)
        while not rows.ended:
            data, begins, ends = rows.take(batch_rows, batch_bytes)
            if len(begins):
                yield shaped(data, begins, ends, width)
        connection.warnings_left = rows.warnings
    except _DAMAGE as error:
        raise pymysql.err.OperationalError(
            _MALFORMED,
            f"a packet of the result is not as MySQL's protocol has it ({type(error).__name__})",
        ) from error


def _begun(connection: Any, sql: str) -> "tuple[_Rows, int]":
    """The rows of a statement's result, and how many columns it has."""
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
    return _Rows(connection._rfile.read1), width  # noqa: SLF001 - PyMySQL has no public way


class _Rows:
    """Finds the rows in what has come; `ended` once the server has said so, with the number of `warnings`."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self.ended = False
        self.warnings = 0

    def take(self, most_rows: int, most_bytes: int) -> tuple[bytearray, Places, Places]:
        """Whole rows in one piece of memory, a head before each: where each one's first field begins, and where its
        last one ends.
        """
        buffer, begins, used = self._buffer, list[Places](), 0
        count = 0
        while True:
            for find in (_heads, self._walk):
                places, used = find(buffer, used, most_rows - count)
                begins.append(places)
                count += len(places)
            if count and (
                self.ended or count >= most_rows or used >= most_bytes or self._is_long(used)
            ):
                break
            if self.ended:
                break
            if self._is_long(used) and (long_row := self._long(used)):
                row, self._buffer = long_row[0], buffer[long_row[1] :]
                return row, np.array([_HEAD]), np.array([len(row)])
            self._more()
        self._buffer = buffer[used:]
        places = np.concatenate(begins) + _HEAD
        return buffer, places, np.append(places[1:] - _HEAD, used)[: len(places)]

    def _walk(self, buffer: bytearray, begin: int, most_rows: int) -> tuple[Places, int]:
        """The packets from `begin` on that have come whole, and the end of the last."""
        begins, size, head = array("q"), len(buffer), struct.Struct("<I").unpack_from
        while len(begins) < most_rows and begin + _HEAD < size:
            length = head(buffer, begin)[0] & _LARGEST_PACKET
            end = begin + _HEAD + length
            if length == _LARGEST_PACKET or end > size:
                break
            mark = buffer[begin + _HEAD]
            if mark >= _EOF and (mark == _ERROR or length < 9):
                self._finish(bytes(buffer[begin + _HEAD : end]), mark)
                break
            begins.append(begin)
            begin = end
        return np.array(begins, np.int64), begin

    def _more(self) -> None:
        chunk = self._read(_CHUNK)
        if not chunk:
            import pymysql

            self.ended = True
            raise pymysql.err.OperationalError(2013, "Lost connection to the server during query")
        self._buffer += chunk

    def _is_long(self, begin: int) -> bool:
        return self._buffer[begin : begin + 3] == b"\xff\xff\xff"

    def _long(self, begin: int) -> tuple[bytearray, int] | None:
        """A row of more than 16 MiB, which comes in several packets: (a head and its bytes, where it ends)."""
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
        row = bytearray(_HEAD)
        for start, end in packets:
            row += memoryview(self._buffer)[start:end]
        return row, begin

    def _finish(self, packet: bytes, mark: int) -> None:
        self.ended = True
        if mark == _ERROR:
            import pymysql

            pymysql.err.raise_mysql_exception(packet)
        self.warnings = int.from_bytes(packet[1:3], "little")


def _heads(buffer: bytearray, begin: int, most_rows: int) -> tuple[Places, int]:
    """As `_Rows._walk`, for short packets together, and maybe not all of them.

    The length of a short packet is one byte, and two that are zero. Such places are the packets where each leads to the
    next, and the first is `begin`. A place to which none leads is not a packet: two empty texts are zeros, too.
    """
    none = np.empty(0, np.int64), begin
    octets = np.frombuffer(buffer, np.uint8)[begin : begin + most_rows * (_HEAD + _SHORT)]
    if len(octets) < _FEW_BYTES or octets[1] or octets[2]:
        return none
    zeros = octets == 0
    heads = np.flatnonzero(zeros[1:-3] & zeros[2:-2])
    for _ in range(_LOOKS):
        ends = heads + _HEAD + octets[heads]
        if np.array_equal(ends[:-1], heads[1:]):
            break
        led = np.zeros(len(octets) + _HEAD + _SHORT, np.bool_)
        led[ends], led[0] = True, True
        heads = heads[led[heads]]
    ends = heads + _HEAD + octets[heads]
    follow = (ends[:-1] == heads[1:]) & (octets[heads[:-1] + _HEAD] < _EOF)
    count = min(most_rows, int(np.argmin(np.append(follow, False))))
    return heads[:count] + begin, begin + int(heads[count])


def _columns(data: bytearray, begins: Places, ends: Places, width: int) -> Fields:
    memory = np.frombuffer(data, np.uint8)
    return [_cut(data, *field) for field in _fields(memory, begins, ends, width)]


def _fields(memory: Octets, begins: Places, ends: Places, width: int) -> list[_Field]:
    at, fields = begins, []
    for _ in range(width):
        start, end, null = _field(memory, at)
        fields.append((start, end, null))
        at = end
    # No length is negative: a field that ends behind its row moves the end of its row, too.
    if not np.array_equal(at, ends):
        raise ValueError("the fields of a row end elsewhere than the row")
    return fields


def _lines(data: bytearray, begins: Places, ends: Places, width: int) -> tuple[memoryview, Places]:
    """Made in place, where no value needs more room than it has: the head and the length of a field become what
    separates lines and fields.
    """
    del data[int(ends[-1]) :]
    data += END
    memory = np.frombuffer(data, np.uint8)
    fields = _fields(memory, begins, ends, width)
    marks = [begins, *(end for _, end, _ in fields[:-1])]
    cut, nulls = list[Places](), list[Places]()
    for at, (start, _, null) in zip(marks, fields, strict=True):
        if null is not None:
            nulls.append(at[null] + 1)
            # The bytes of a long length, behind its mark.
            for byte in range(1, int((start - at).max())):
                long = at[start - at > byte] + byte
                memory[long] = 0
                cut.append(long)
        memory[at] = SEPARATOR[0]
    for byte in range(len(END)):
        memory[begins - _HEAD + byte] = END[0]
    bounds = np.append(begins, len(data) - 1) + 1
    special, ours = memory - SEPARATOR[0] <= END[0] - SEPARATOR[0], len(END) + width - 1
    if np.count_nonzero(special) == len(begins) * ours + len(END):
        if not nulls:
            return memoryview(data), bounds
        special = np.empty(0, np.bool_)
    else:  # a value has one of these bytes
        for at in marks:
            special[at] = False
        for byte in range(len(END)):
            special[bounds - 1 - byte] = False
    return _widened(memory, bounds, np.flatnonzero(special), nulls, cut)


def _widened(
    memory: Octets, bounds: Places, special: Places, nulls: list[Places], cut: list[Places]
) -> tuple[memoryview, Places]:
    """With `ESCAPE` before each of `special`, and NULL at each of `nulls`; without the bytes `cut`."""
    null = np.concatenate([np.empty(0, np.int64), *nulls])
    wheres = np.concatenate([special, null, null])
    values = np.full(len(wheres), ESCAPE[0], np.uint8)
    values[len(wheres) - len(null) :] = NULL_MARK[0]
    order = np.argsort(wheres, kind="stable")
    wheres, values = wheres[order], values[order]
    gone = np.sort(np.concatenate([np.empty(0, np.int64), *cut]))
    if len(gone):
        memory = np.delete(memory, gone)
        bounds, wheres = (at - np.searchsorted(gone, at) for at in (bounds, wheres))
    if len(wheres):
        memory = np.insert(memory, wheres, values)
        bounds = bounds + np.searchsorted(wheres, bounds)
    return memory.data, bounds


def _field(memory: Octets, at: Places) -> _Field:
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
            if not 0 <= length[rows].min() <= length[rows].max() <= len(memory):
                raise ValueError("a field that is longer than what has come")
            start[rows] += wide
    return start, start + length, null


def _cut(
    data: bytearray, start: Places, end: Places, null: npt.NDArray[np.bool_] | None
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
