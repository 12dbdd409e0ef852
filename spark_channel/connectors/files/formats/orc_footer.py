"""What pyarrow does not say of an ORC file: its calendar, and the rows and the time zone of each stripe."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["OrcFooter", "read_footer"]

_JULIAN = 1
_JAVA = 0
_SNAPPY, _LZO, _LZ4, _ZSTD = 2, 3, 4, 5
_TAIL = 16 << 10


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """`julian`: days before 1582-10-15 are of the Julian calendar. `rows`: of each stripe.

    `times`: the first and the last millisecond of columns of timestamps, by the columns' numbers in the file, which
    count the types inside others, too. A column without statistics is omitted.
    """

    julian: bool
    rows: tuple[int, ...]
    times: Mapping[int, tuple[int, int]]
    _footers: tuple[tuple[int, int], ...]
    _codec: int

    def zone(self, opened: pa.NativeFile, stripe: int) -> str:
        """Where the times of a stripe were local when they were written; "" = not said.

        Raises:
            ValueError: damaged.
        """
        with _damage():
            data = _at(opened, *self._footers[stripe])
            return str(_fields(_plain(data, self._codec)).get(3, [b""])[0], "utf-8")


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"its footer cannot be read: {error}") from error


def read_footer(opened: pa.NativeFile) -> OrcFooter | None:
    """None = it is compressed by LZO, which Arrow and Python lack. Leaves `opened` at its start.

    Raises:
        ValueError: damaged.
    """
    with _damage():
        size = opened.size()
        tail = _at(opened, max(0, size - _TAIL), min(size, _TAIL))
        last = len(tail) - 1
        script = _fields(tail[last - tail[-1] : last])
        length, codec = _first(script, 1), _first(script, 2)
        if codec == _LZO:
            opened.seek(0)
            return None
        data = _at(opened, size - 1 - tail[-1] - length, length)
        footer = _fields(_plain(data, codec))
        rows, footers = [], []
        for raw in footer.get(3, []):
            stripe = _fields(raw)
            offset, index, data_length, foot, count = (_first(stripe, n) for n in range(1, 6))
            rows.append(count)
            footers.append((offset + index + data_length, foot))
        opened.seek(0)
    # Before files named their calendar, there was Java's writer alone, and Hive's old calendar.
    calendar, writer = _first(footer, 11), _first(footer, 9)
    julian = calendar == _JULIAN or (not calendar and writer == _JAVA)
    return OrcFooter(julian, tuple(rows), _times(footer.get(7, [])), tuple(footers), codec)


def _times(statistics: list[bytes]) -> dict[int, tuple[int, int]]:
    found = {}
    for number, raw in enumerate(statistics):
        for each in _fields(raw).get(9, []):
            edges = _fields(each)
            low, high = (edges.get(utc) or edges.get(local) for utc, local in ((3, 1), (4, 2)))
            if low and high:
                # Signed numbers have their sign in the lowest bit.
                found[number] = (low[0] >> 1) ^ -(low[0] & 1), (high[0] >> 1) ^ -(high[0] & 1)
    return found


def _at(opened: pa.NativeFile, offset: int, length: int) -> bytes:
    opened.seek(offset)
    return bytes(opened.read(length))


def _first(fields: dict[int, list[Any]], number: int) -> int:
    return int(fields.get(number, [0])[0])


def _plain(data: bytes, codec: int) -> bytes:
    """The bytes of chunks, each of which has its length and whether it is compressed in front."""
    if codec == 0:
        return data
    parts = []
    at = 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + (head >> 1)
        parts.append(chunk if head & 1 else _decompressed(chunk, codec))
    return b"".join(parts)


def _decompressed(chunk: bytes, codec: int) -> bytes:
    if codec == 1:
        return zlib.decompress(chunk, -15)
    if codec == _ZSTD:
        return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read())
    if codec == _SNAPPY:
        size, _ = _number(chunk, 0)
        return bytes(pa.Codec("snappy").decompress(chunk, decompressed_size=size))
    if codec == _LZ4:
        return _unpacked(chunk)
    raise KeyError(f"codec {codec}")


def _unpacked(chunk: bytes) -> bytes:
    """A block of LZ4, which does not say its size, as Arrow's codec would have to know it."""
    made = bytearray()
    at = 0
    while at < len(chunk):
        token = chunk[at]
        length, at = _length(chunk, at + 1, token >> 4)
        made += chunk[at : at + length]
        at += length
        if at >= len(chunk):
            break
        distance = int.from_bytes(chunk[at : at + 2], "little")
        length, at = _length(chunk, at + 2, token & 15)
        for _ in range(length + 4):
            made.append(made[-distance])
    return bytes(made)


def _length(chunk: bytes, at: int, length: int) -> tuple[int, int]:
    more = 255 if length == 15 else 0
    while more == 255:
        more = chunk[at]
        length += more
        at += 1
    return length, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """(a number in base 128 at `at`, where it ends)."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message of protobuf, by their numbers."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            break
        value: Any
        if kind == 0:
            value, at = _number(data, at)
        else:
            if kind == 2:
                length, at = _number(data, at)
            else:
                length = {1: 8, 5: 4}[kind]
            value = data[at : at + length]
            at += length
        found.setdefault(number, []).append(value)
    return found
