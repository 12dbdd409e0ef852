"""Rows as packets carry them, cut at any byte: each field comes out as it went in."""

import io
import random
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pymysql
import pytest
from hypothesis import given, settings

from spark_channel.connectors.mysql.session import protocol
from spark_channel.connectors.mysql.session.protocol import field_batches, line_batches

Row = tuple[bytes | None, ...]
END = b"\xfe\x00\x00\x02\x00"


def _field(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    for mark, wide in ((0xFC, 2), (0xFD, 3)):
        if size < 1 << 8 * wide:
            return bytes([mark]) + size.to_bytes(wide, "little") + value
    return b"\xfe" + size.to_bytes(8, "little") + value


def _packets(body: bytes) -> bytes:
    """A row longer than a packet continues in the next one, which may be empty."""
    parts, most = [], 0xFFFFFF
    for start in range(0, len(body) + 1, most):
        part = body[start : start + most]
        parts.append(len(part).to_bytes(3, "little") + b"\0" + part)
    return b"".join(parts)


class Server:
    """Sends a result, `piece` bytes at a time."""

    def __init__(self, rows: list[Row], end: bytes, piece: int) -> None:
        sent = b"".join(_packets(b"".join(map(_field, row))) for row in rows)
        self._rfile = io.BufferedReader(_Pieces(sent + (_packets(end) if end else b""), piece), 1)
        self._width = len(rows[0]) if rows else 2

    def _execute_command(self, command: int, sql: str) -> None:
        assert (command, sql) == (3, "SELECT")

    def _read_packet(self) -> Any:
        return self

    def is_load_local_packet(self) -> bool:
        return False

    def read_length_encoded_integer(self) -> int:
        return self._width


class _Pieces(io.RawIOBase):
    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece, self._at = data, piece, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + min(self._piece, len(buffer))]
        self._at += len(part)
        buffer[: len(part)] = part
        return len(part)


def _read(
    rows: list[Row], *, piece: int, most_rows: int = 1000, most_bytes: int = 1 << 20
) -> list[list[Row]]:
    server = Server(rows, END, piece)
    found = field_batches(server, "SELECT", most_rows, most_bytes)
    return [list(zip(*(field.to_pylist() for field in fields), strict=True)) for fields in found]


SIZE = st.none() | st.integers(0, 4) | st.integers(245, 260) | st.just(70_000)


@settings(max_examples=60)
@given(
    st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[SIZE] * width), max_size=12)),
    st.integers(1, 5),
    st.sampled_from([1, 50, 100_000]),
    st.sampled_from([1, 5, 300, 1 << 20]),
)
def test_any_fields_in_any_pieces(
    sizes: list[tuple[int | None, ...]], most_rows: int, most_bytes: int, piece: int
) -> None:
    rows: list[Row] = [
        tuple(None if size is None else b"%d" % number * size for size in row)
        for number, row in enumerate(sizes)
    ]
    piece = max(piece, sum(size or 0 for row in sizes for size in row) // 300)
    batches = _read(rows, piece=piece, most_rows=most_rows, most_bytes=most_bytes)
    assert [row for batch in batches for row in batch] == rows
    assert all(1 <= len(batch) <= most_rows for batch in batches)


def _texts(number: int) -> Row:
    """Rows of one length and of others, with zeros inside, and some that are not short."""
    few = (b"%d" % number, b"x" * (number % 7), None if number % 3 else b"", b"")
    zeros = bytes(number % 5) if number % 11 == 0 else b"z"
    return (*few, zeros, b"y" * 300 if number % 101 == 100 else b"")


@pytest.mark.parametrize("most_rows", [7, 1000])
def test_many_short_rows_are_found_together_and_as_they_are(
    most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked, walk = list[int](), protocol._Rows._walk

    def counted(rows: Any, buffer: bytearray, begin: int, most: int) -> Any:
        found = walk(rows, buffer, begin, most)
        walked.append(len(found[0]))
        return found

    monkeypatch.setattr(protocol._Rows, "_walk", counted)
    rows = [_texts(number) for number in range(5_000)]
    batches = _read(rows, piece=1 << 16, most_rows=most_rows)
    assert [row for batch in batches for row in batch] == rows
    walked.clear()
    short: list[Row] = [(b"%d" % number, b"", b"a text") for number in range(5_000)]
    batches = _read(short, piece=1 << 16)
    assert [row for batch in batches for row in batch] == short
    assert sum(walked) < 50


@pytest.mark.parametrize("size", [0xFFFFFF - 4, 0xFFFFFF - 3, 0x1FFFFFE - 9, (1 << 24) + 5])
def test_a_row_longer_than_a_packet_stands_alone(size: int) -> None:
    rows: list[Row] = [(b"before",), (bytes(size),), (b"after",), (None,)]
    assert [row for batch in _read(rows, piece=1 << 20) for row in batch] == rows


def test_an_error_in_the_middle_is_raised_as_pymysql_does() -> None:
    server = Server([(b"a",)], b"\xff\x15\x04#28000no", 1 << 20)
    with pytest.raises(pymysql.err.OperationalError, match="no"):
        list(field_batches(server, "SELECT", 10, 10))


def test_a_connection_that_ends_within_a_row_is_lost() -> None:
    server = Server([(b"abc",)], b"", 1 << 20)
    batches = field_batches(server, "SELECT", 10, 1 << 20)
    with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        list(batches)


def test_a_row_whose_fields_end_elsewhere_is_no_row() -> None:
    server = Server([(b"abc", b"d")], END, 1 << 20)
    server._width = 1
    with pytest.raises(pymysql.err.OperationalError, match="not as MySQL's protocol has it"):
        list(field_batches(server, "SELECT", 10, 10))


def _loaded(line: bytes, width: int) -> Row:
    """A line as LOAD DATA takes it apart."""
    assert line.endswith(b"\3" * 5)
    fields, value, is_null, octets = list[bytes | None](), bytearray(), False, iter(line[:-5])
    for octet in octets:
        if octet == 1:
            fields.append(None if is_null and value == b"N" else bytes(value))
            value, is_null = bytearray(), False
            continue
        assert octet != 3
        if octet == 2:
            octet = next(octets)
            is_null |= octet == ord("N")
        value.append(octet)
    fields.append(None if is_null and value == b"N" else bytes(value))
    assert len(fields) == width
    return tuple(fields)


def _as_lines(rows: list[Row], piece: int, most_rows: int, most_bytes: int) -> list[Row]:
    lines = []
    for data, bounds in line_batches(Server(rows, END, piece), "SELECT", most_rows, most_bytes):
        ends = bounds.tolist()
        assert ends[-1] == len(data)
        lines += [bytes(data[start:end]) for start, end in pairwise(ends)]
    return [_loaded(line, len(rows[0])) for line in lines]


def _value(chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.2:
        return None
    if kind < 0.4:
        return bytes(chance.choices([0, 1, 2, 3, ord("N")], k=chance.randint(0, 9)))
    if kind < 0.43:
        return b"x" * chance.choice([250, 251, 252, 300, 65_535, 65_536])
    return b"value %d" % chance.randint(0, 10**6)


@pytest.mark.parametrize("number", range(200))
def test_lines_have_the_values_of_the_rows(number: int) -> None:
    chance = random.Random(number)
    width = chance.randint(1, 5)
    rows: list[Row] = [
        tuple(_value(chance) if number % 3 else b"%d" % chance.randint(0, 99) for _ in range(width))
        for _ in range(chance.choice([1, 10, 300]))
    ]
    most_rows, most_bytes = chance.choice([1, 7, 1000]), chance.choice([1, 50, 1 << 20])
    assert _as_lines(rows, 1 << 16, most_rows, most_bytes) == rows


def test_a_line_of_a_row_that_is_longer_than_a_packet() -> None:
    rows: list[Row] = [(b"x", b""), (bytes((1 << 24) + 5), None), (None, b"\1")]
    assert _as_lines(rows, 1 << 20, 1000, 1 << 20) == rows


def test_a_line_whose_fields_end_elsewhere_is_no_line() -> None:
    server = Server([(b"abc", b"d")], END, 1 << 20)
    server._width = 1
    with pytest.raises(pymysql.err.OperationalError, match="not as MySQL's protocol has it"):
        list(line_batches(server, "SELECT", 10, 10))
