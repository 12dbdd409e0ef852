"""MySQL's binary JSON as the text that the server itself shows. Pure. (MariaDB's JSON is a text.)

The format is described in https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html.
"""

import base64
import json
from struct import unpack_from
from typing import Any

from spark_channel.connectors.mysql.log.field_texts import (
    date_text,
    datetime_text,
    decimal_text,
    time_text,
)

__all__ = ["json_text"]


_LITERALS = {0: "null", 1: "true", 2: "false"}
_OPAQUE_TIMES = {7: "timestamp", 10: "date", 11: "time", 12: "datetime"}
_EXACT_BELOW, _EXACT_FROM = 1e15, 1e-15
_DEEPEST = 100
"""MySQL's own bound."""


class _Bounds:
    """Offsets that lead back, or to one place again and again, would make a text without end of some bytes."""

    def __init__(self, most: int) -> None:
        self._left, self._bytes, self._depth = most, most, 0

    def enter(self, values: int) -> None:
        self._left -= values
        self._depth += 1
        if self._left < 0 or self._depth > _DEEPEST:
            raise ValueError("a JSON value of more values than bytes, or of more than 100 levels")

    def leave(self) -> None:
        self._depth -= 1

    def within(self, data: bytes, begin: int, length: int) -> bytes:
        """The bytes of a key or a value: all of them together are no more than there are."""
        self._bytes -= length
        if self._bytes < 0:
            raise ValueError("a JSON value whose texts are longer than it")
        return data[begin : begin + length]


def json_text(data: bytes) -> str:
    """The value as `CAST(column AS CHAR)` shows it.

    Raises:
        ValueError, IndexError, struct.error: it is damaged.
    """
    return _value(data[0], data, 1, _Bounds(len(data))) if data else "null"


def _value(kind: int, data: bytes, at: int, bounds: _Bounds) -> str:
    if kind in (0, 1, 2, 3):
        return _nested(data, at, bounds, large=kind in (1, 3), is_object=kind in (0, 1))
    if kind == 4:
        return _LITERALS[data[at]]
    numbers = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
    if kind in numbers:
        return str(unpack_from(numbers[kind], data, at)[0])
    if kind == 11:
        return _double(unpack_from("<d", data, at)[0])
    if kind == 12:
        length, at = _length(data, at)
        return _quoted(bounds.within(data, at, length).decode())
    if kind == 15:
        length, begin = _length(data, at + 1)
        return _opaque(data[at], bounds.within(data, begin, length))
    raise ValueError(f"a JSON value of kind {kind}")


def _nested(data: bytes, at: int, bounds: _Bounds, *, large: bool, is_object: bool) -> str:
    """Offsets in an array or object are counted from its own beginning."""
    begin, wide, form = at, (4 if large else 2), ("<I" if large else "<H")
    (count,) = unpack_from(form, data, at)
    bounds.enter(count)
    at += 2 * wide
    keys = []
    if is_object:
        for _ in range(count):
            (offset,) = unpack_from(form, data, at)
            (length,) = unpack_from("<H", data, at + wide)
            keys.append(_quoted(bounds.within(data, begin + offset, length).decode()))
            at += wide + 2
    inline = {4, 5, 6} | ({7, 8} if large else set())
    values = []
    for _ in range(count):
        kind = data[at]
        position = at + 1 if kind in inline else begin + unpack_from(form, data, at + 1)[0]
        values.append(_value(kind, data, position, bounds))
        at += 1 + wide
    bounds.leave()
    if is_object:
        return (
            "{"
            + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
            + "}"
        )
    return "[" + ", ".join(values) + "]"


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits in each byte, the lowest first."""
    length, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return length, at


def _quoted(text: str) -> str:
    """As MySQL escapes: control characters, quotes and backslashes, and nothing else."""
    return json.dumps(text, ensure_ascii=False)


def _double(value: float) -> str:
    """The shortest digits; a whole number keeps a point, and an exponent has neither plus nor leading zeros."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    size = abs(value)
    if not exponent and (value == 0 or size < _EXACT_BELOW):
        return text
    digits, point = _digits(mantissa, int(exponent or 0))
    sign = "-" if value < 0 else ""
    if _EXACT_FROM <= size < _EXACT_BELOW:
        return f"{sign}0.{'0' * -point}{digits}"
    decimals = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{decimals}e{point - 1}"


def _digits(mantissa: str, exponent: int) -> tuple[str, int]:
    """(significant digits, where the point is behind the first of them)."""
    whole, _, part = mantissa.lstrip("-").partition(".")
    digits = whole + part
    point = len(whole) + exponent
    bare = digits.lstrip("0")
    return bare.rstrip("0") or "0", point - (len(digits) - len(bare))


def _opaque(kind: int, data: bytes) -> str:
    """A value of another SQL type inside JSON."""
    if kind == 246:
        return decimal_text(data[2:], data[0], data[1])
    name: Any = _OPAQUE_TIMES.get(kind)
    if name is None:
        return _quoted(f"base64:type{kind}:{base64.b64encode(data).decode()}")
    packed = int.from_bytes(data, "little", signed=True)
    if name == "time":
        return _quoted(time_text(packed, 6))
    whole, micros = packed >> 24, packed & 0xFFFFFF
    days = whole >> 17
    if name == "date":
        return _quoted(date_text(days >> 5, days & 31))
    return _quoted(datetime_text(whole, micros, 6))
