"""Bytes that a server makes up: whatever comes, the result is rows or an error in our words, in bounded memory.

The binary log has its own, in `tests/connectors/mysql/log/test_statements.py`.
"""

import io
import random
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
import pytest
from pymysql.protocol import MysqlPacket

from spark_channel.connectors.base.feed import change_schema
from spark_channel.connectors.mysql.session.protocol import field_batches, line_batches
from spark_channel.connectors.postgresql.copy.row_bounds import row_bounds
from spark_channel.connectors.postgresql.log.columns import LogColumn
from spark_channel.connectors.postgresql.log.pgoutput import ChangeDecoder, TableShape
from spark_channel.connectors.postgresql.log.tables_decoder import TableChanges, TablesDecoder
from spark_channel.errors import ChannelError
from tests.service.fuzz import mutated, resident_mib

INPUTS = pytest.mark.parametrize("inputs", [2_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
_MOST_MIB = 200
"""What the process may grow by, whatever the bytes announce."""


# --- pgoutput

OID = 16_385
COLUMNS = (LogColumn("id", 20, -1), LogColumn("name", 25, -1), LogColumn("ok", 16, -1))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ok", pa.bool_())])


def _relation() -> bytes:
    text = b"R" + struct.pack(">I", OID) + b"public\0t\0d" + struct.pack(">h", len(COLUMNS))
    for number, column in enumerate(COLUMNS):
        key = b"\1" if number == 0 else b"\0"
        text += key + column.name.encode() + b"\0" + struct.pack(">Ii", column.oid, -1)
    return text


def _row(*values: bytes | None) -> bytes:
    text = b""
    for value in values:
        text += b"n" if value is None else b"t" + struct.pack(">i", len(value)) + value
    return struct.pack(">h", len(values)) + text


def _log() -> list[bytes]:
    oid = struct.pack(">I", OID)
    one, two = _row(b"1", b"a text", b"t"), _row(b"1", None, b"f")
    key = _row(b"1", None, None)
    return [
        b"B" + struct.pack(">Qqi", 100, 1, 7),
        _relation(),
        b"I" + oid + b"N" + one,
        b"U" + oid + b"N" + two,
        b"U" + oid + b"K" + key + b"N" + one,
        b"U" + oid + b"O" + two + b"N" + struct.pack(">h", 3) + b"uu" + b"n",
        b"D" + oid + b"K" + key,
        b"T" + struct.pack(">iBI", 1, 0, OID),
        b"C\0" + struct.pack(">QQq", 100, 101, 1),
    ]


def _decoder() -> ChangeDecoder:
    shape = TableShape(OID, "public.t", COLUMNS)
    return ChangeDecoder(shape, change_schema(SCHEMA), 0, 1_000)


def _rows(log: list[bytes], *, several: bool) -> int:
    decoder: Any = _decoder()
    if several:
        decoder = TablesDecoder({OID: TableChanges("t", decoder, 0)})
    found = [*decoder.feed(log), *decoder.finish()]
    return sum((each[1] if several else each).num_rows for each in found)


@pytest.mark.parametrize("several", [False, True])
def test_the_log_that_is_changed_has_rows(several: bool) -> None:
    assert _rows(_log(), several=several) == 7


@INPUTS
def test_messages_of_pgoutput(inputs: int) -> None:
    random_, log, before = random.Random(5), _log(), resident_mib()
    refused = 0
    for _ in range(inputs):
        changed = list(log)
        place = random_.randrange(len(changed))
        changed[place] = mutated(random_, changed[place])
        try:
            _rows(changed, several=random_.random() < 0.3)
        except ChannelError:
            refused += 1
    assert refused > inputs // 4
    assert resident_mib() - before < _MOST_MIB


# --- COPY


def _copied(random_: random.Random) -> bytes:
    rows = []
    for _ in range(random_.randint(1, 20)):
        values = (random_.choice([None, b"", b"\0\3", b"x" * 30]) for _ in range(3))
        text = b"".join(
            struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
            for value in values
        )
        rows.append(struct.pack(">h", 3) + text)
    return b"".join(rows)


@INPUTS
def test_rows_of_copy(inputs: int) -> None:
    random_, before = random.Random(6), resident_mib()
    refused = 0
    for _ in range(inputs):
        data = mutated(random_, _copied(random_))
        try:
            bounds = row_bounds(data, 3)
        except ValueError:  # which a session makes an error in its own words
            refused += 1
        else:
            assert (bounds[0], bounds[-1]) == (0, len(data))
            assert np.all(np.diff(bounds) > 0)
    assert refused > inputs // 4
    assert resident_mib() - before < _MOST_MIB


# --- packets of MySQL's text protocol


def _packet(number: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "little") + bytes([number & 0xFF]) + data


def _result() -> tuple[list[bytes], list[bytes]]:
    """What precedes the rows, and the rows with their end."""
    rows = [
        b"\x011\x06a text\xfb",
        b"\x022 \xfb\xfc\x2c\x01" + b"y" * 300,
        b"\xfd\x04\0\0" + b"long" + b"\0\0",
        b"\x01" + b"3" + b"\xfe\x02" + b"\0" * 7 + b"zz" + b"\x01q",
    ]
    return [b"\x03", b"def", b"def", b"def", b"\xfe\0\0\2\0"], [*rows, b"\xfe\0\0\2\0"]


class _Connection:
    """As much of PyMySQL's as is asked for."""

    def __init__(self, head: list[bytes], rows: bytes) -> None:
        self._head, self.warnings_left = iter(head), 0
        self._rfile = SimpleNamespace(read1=io.BytesIO(rows).read)

    def _execute_command(self, _code: int, _sql: str) -> None: ...

    def _read_packet(self) -> MysqlPacket:
        data = next(self._head, None)
        if data is None:
            raise pymysql.err.OperationalError(2013, "Lost connection")
        packet = MysqlPacket(data, "utf8")
        packet.check_error()
        return packet

    def checked_file(self, _packet: MysqlPacket) -> memoryview:
        raise pymysql.err.OperationalError(2061, "a file")


def _fields(head: list[bytes], rows: bytes) -> int:
    batches = field_batches(_Connection(head, rows), "SELECT", 3, 1 << 20)
    count = sum(len(fields[0]) for fields in batches)
    lines = line_batches(_Connection(head, rows), "SELECT", 3, 1 << 20)
    assert sum(len(bounds) - 1 for _, bounds in lines) == count
    return count


def test_the_result_that_is_changed_has_rows() -> None:
    head, rows = _result()
    data = b"".join(_packet(number, row) for number, row in enumerate(rows))
    assert _fields(head, data) == 4


@INPUTS
def test_packets_of_mysql(inputs: int) -> None:
    random_, before = random.Random(7), resident_mib()
    head, rows = _result()
    refused = 0
    for _ in range(inputs):
        beginning, changed = list(head), list(rows)
        if random_.random() < 0.2:
            place = random_.randrange(len(beginning))
            beginning[place] = mutated(random_, beginning[place])
        else:
            place = random_.randrange(len(changed))
            changed[place] = mutated(random_, changed[place])
        data = b"".join(_packet(number, row) for number, row in enumerate(changed))
        if random_.random() < 0.3:
            data = mutated(random_, data)
        try:
            _fields(beginning, data)
        except pymysql.err.MySQLError:  # which a session makes an error in its own words
            refused += 1
    assert refused > inputs // 4
    assert resident_mib() - before < _MOST_MIB


def test_a_row_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a row are bounded, whatever the server says of its end."""
    head, _ = _result()
    part = b"\xff\xff\xff\0" + b"x" * 0xFFFFFF

    class _Endless:
        def __init__(self) -> None:
            self._whole = memoryview(part)
            self._at = self.sent = 0

        def read1(self, count: int) -> bytes:
            data = bytes(self._whole[self._at : self._at + count])
            self._at = (self._at + len(data)) % len(part)
            self.sent += len(data)
            return data

    connection = _Connection(head, b"")
    endless = _Endless()
    connection._rfile = endless  # type: ignore[assignment] # which has what is asked for
    monkeypatch.setattr("spark_channel.connectors.mysql.session.protocol._MOST_BYTES", 40 << 20)
    with pytest.raises(pymysql.err.OperationalError) as met:
        list(field_batches(connection, "SELECT", 3, 1 << 20))
    assert met.value.args[0] == 2027
    assert endless.sent < 80 << 20
