"""Cuts the rows of a binary log into their fields, without looking into these. Pure.

A row has a bit for each column that is NULL, and then the others' bytes, without gaps. What lies between two columns
of variable length always has the same bytes, so it is cut by one `struct`; which columns are NULL chooses the plan.
"""

import base64
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from struct import Struct, unpack_from
from typing import Any

from spark_channel.connectors.mysql.log.events import TableMap, real_type
from spark_channel.errors import SourceError

__all__ = [
    "Field",
    "RowCutter",
    "date_text",
    "datetime_text",
    "decimal_number",
    "decimal_text",
    "field_of",
    "fraction",
    "json_text",
    "time_text",
    "uuid_text",
]


_INTEGERS = {1: "b", 2: "h", 3: "i", 8: "q"}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of so many digits of a decimal."""
_LONG = frozenset({245, 252, 255, 242, 140})
"""Their length has as many bytes as their metadata says."""
_OLD_TIMES = {7: "TIMESTAMP", 11: "TIME", 12: "DATETIME"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of the log. `code` is its type there; `size` its bytes, or, with a `prefix`, the most it may have.

    `form` is how `struct` reads it, "" for one that has a `prefix`: so many bytes that say its length.
    """

    code: int
    meta: int
    unsigned: bool
    form: str
    size: int
    prefix: int = 0


def field_of(found: TableMap, place: int, label: str) -> Field:
    """How column `place` lies in a row.

    Raises:
        SourceError: a type that is not known here; names it.
    """
    code, meta, unsigned = found.types[place], found.metadata[place], found.unsigned[place]
    code = real_type(code, meta)
    if code in _INTEGERS:
        form = _INTEGERS[code].upper() if unsigned else _INTEGERS[code]
        return Field(code, meta, unsigned, form, Struct("<" + form).size)
    if code in _LONG:
        return Field(code, meta, unsigned, "", 1 << 32, meta)
    if code in (15, 253, 141):
        return Field(code, meta, unsigned, "", meta, 1 if meta < 256 else 2)
    if code == 254:
        size = ((meta >> 4 & 0x300) ^ 0x300) | (meta & 0xFF)
        return Field(code, meta, unsigned, "", size, 1 if size < 256 else 2)
    fixed = {4: "f", 5: "d", 13: "B"}
    if code in fixed:
        return Field(code, meta, unsigned, fixed[code], Struct("<" + fixed[code]).size)
    if code in (247, 248):
        size = meta & 0xFF
    elif code in (9, 10, 14):
        size = 3
    elif code in (17, 18, 19):
        size = {17: 4, 18: 5, 19: 3}[code] + (meta + 1) // 2
    elif code == 246:
        size = _decimal_bytes(meta >> 8, meta & 0xFF)
    elif code == 16:
        size = (meta >> 8) + (1 if meta & 0xFF else 0)
    else:
        name = "" if not found.names else f" {found.names[place]!r}"
        if code in _OLD_TIMES:
            raise SourceError(
                f"column{name} of {label} is a {_OLD_TIMES[code]} in the format before MySQL 5.6 and MariaDB 10.1, "
                "which the change feed does not decode: run ALTER TABLE ... FORCE, which rewrites the table"
            )
        raise SourceError(
            f"column{name} of {label} has type {code} in the binary log, which the change feed does not decode: "
            "follow the table by 'cursorColumn', or change the column's type"
        )
    return Field(code, meta, unsigned, f"{size}s", size)


def _decimal_bytes(digits: int, scale: int) -> int:
    whole = digits - scale
    return sum(4 * (each // 9) + _DIGIT_BYTES[each % 9] for each in (whole, scale))


Step = tuple[Callable[..., tuple[Any, ...]] | None, int, bool]
"""A run of columns of fixed size (what unpacks it, its bytes); or one that begins with its length (its bytes), and
whether it is wanted."""


class RowCutter:
    """Cuts rows of `fields`; of each only the columns at `wanted`, in their order, None for NULL."""

    def __init__(self, fields: list[Field], wanted: Collection[int]) -> None:
        self.fields = fields
        self.wanted = sorted(wanted)
        self._bitmap = (len(fields) + 7) // 8
        self._plans: dict[bytes, tuple[tuple[Step, ...], tuple[int, ...]]] = {}

    def cut(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """The row that begins at `at`, and where it ends."""
        begin = at + self._bitmap
        nulls = data[at:begin]
        plan = self._plans.get(nulls)
        if plan is None:
            plan = self._plans[nulls] = self._plan(nulls)
        steps, missing = plan
        row: list[Any] = []
        at = begin
        for unpack, size, keep in steps:
            if unpack is not None:
                row += unpack(data, at)
                at += size
            else:
                begin = at + size
                at = begin + (data[at] if size == 1 else int.from_bytes(data[at:begin], "little"))
                if keep:
                    row.append(data[begin:at])
        for place in missing:
            row.insert(place, None)
        return row, at

    def _plan(self, nulls: bytes) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        bits = int.from_bytes(nulls, "little")
        kept = set(self.wanted)
        steps: list[Step] = []
        run = ""

        def close() -> None:
            nonlocal run
            if run:
                made = Struct("<" + run)
                steps.append((made.unpack_from, made.size, True))
                run = ""

        for place, each in enumerate(self.fields):
            if bits >> place & 1:
                continue
            if each.prefix:
                close()
                steps.append((None, each.prefix, place in kept))
            else:
                run += each.form if place in kept else f"{each.size}x"
        close()
        return tuple(steps), tuple(
            number for number, place in enumerate(self.wanted) if bits >> place & 1
        )


# Fields of the binary log as the texts that the server shows for them. Pure; one value at a time.
#
# Most values never become texts; those do that an Arrow type cannot hold, or that the user reads as
# another type.


def date_text(months: int, day: int) -> str:
    """`months`: 13 for each year, as MySQL packs them."""
    return f"{months // 13:04d}-{months % 13:02d}-{day:02d}"


def datetime_text(packed: int, micros: int, digits: int) -> str:
    """`packed`: months, day, hour, minute, second in 17, 5, 5, 6 and 6 bits."""
    days, clock = packed >> 17, packed & 0x1FFFF
    return (
        f"{date_text(days >> 5, days & 31)} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        f"{fraction(micros, digits)}"
    )


def time_text(packed: int, digits: int) -> str:
    """`packed`: hours, minutes, seconds, microseconds in 10, 6, 6 and 24 bits, with a sign over all."""
    sign, packed = ("-" if packed < 0 else ""), abs(packed)
    clock, micros = packed >> 24, packed & 0xFFFFFF
    return f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}{fraction(micros, digits)}"


def fraction(micros: int, digits: int) -> str:
    return f".{micros:06d}"[: digits + 1] if digits else ""


def decimal_number(data: bytes, digits: int, scale: int) -> int:
    """A packed decimal without its point: groups of nine digits in four bytes, the sign in the first bit."""
    negative = not data[0] & 0x80
    packed = bytearray(data)
    packed[0] ^= 0x80
    if negative:
        packed = bytearray(byte ^ 0xFF for byte in packed)
    number, at = 0, 0
    whole = digits - scale
    for count in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        size = _DIGIT_BYTES[count]
        number = number * 10**count + int.from_bytes(packed[at : at + size], "big")
        at += size
    return -number if negative else number


def decimal_text(data: bytes, digits: int, scale: int) -> str:
    number = decimal_number(data, digits, scale)
    text = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{text[:-scale]}.{text[-scale:]}" if scale else sign + text


def uuid_text(data: bytes) -> str:
    """MariaDB keeps the parts of versions 1 to 5 in reverse order, so that times sort."""
    data = data.ljust(16, b"\0")
    if data[6] & 0x80 and 0 < data[8] <= 0x80:
        data = data[12:16] + data[10:12] + data[8:10] + data[6:8] + data[:6]
    text = data.hex()
    return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])


# MySQL's binary JSON as the text that the server itself shows. Pure. (MariaDB's JSON is a text.)
#
# The format is described in https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html.


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
        place = at + 1 if kind in inline else begin + unpack_from(form, data, at + 1)[0]
        values.append(_value(kind, data, place, bounds))
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
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"


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
