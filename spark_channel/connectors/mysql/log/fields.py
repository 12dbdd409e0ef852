"""Fields of the binary log as Arrow arrays, equal to what a read of the table gives for the same values.

Values that the column's Arrow type holds unchanged are converted column by column. Everything else - dates with zeros,
times of more than a day, columns that `customSchema` reads as another type - becomes the server's text, which
goes through the batch reader's own decoder: the same value, or the same error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_channel.connectors.mysql.log.binary_json import json_text
from spark_channel.connectors.mysql.log.field_texts import (
    date_text,
    datetime_text,
    decimal_number,
    decimal_text,
    fraction,
    time_text,
    uuid_text,
)
from spark_channel.connectors.mysql.log.rows import Field
from spark_channel.connectors.mysql.types import decode_fields, parts
from spark_channel.connectors.sql.catalog import ReadColumn
from spark_channel.errors import SchemaError

__all__ = ["Ask", "LogColumn"]

Ask = Callable[[str, Sequence[bytes]], Sequence[str]]
"""Answers of the server: an expression with `{}` for a literal of bytes, for each of these."""
Values = Sequence[Any]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
_CODECS = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_SMALL_DIGITS = 18
"""A decimal of so many digits is a 64-bit integer."""
_INTEGERS = frozenset({1, 2, 3, 8})
_BINARY = "binary"
_BY_SERVER = {"inet4": "INET6_NTOA({})", "inet6": "INET6_NTOA({})"}
_FLOATS = {4: pa.float32(), 5: pa.float64()}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


@dataclass(frozen=True)
class LogColumn:
    """One column that is read: as the user wants it, and as the log has it.

    `charset` of its texts there; `members` of an enum or a set.
    """

    column: ReadColumn
    field: Field
    charset: str
    members: tuple[bytes, ...] = ()
    zero_dates: bool = False

    @property
    def declared(self) -> str:
        return parts(self.column.declared)[0]

    def array(self, values: Values, ask: Ask) -> pa.Array:
        """The column's values, None for NULL.

        Raises:
            MisfitError: a value that its type cannot hold.
        """
        kind = self.column.kind
        array = self._made(values, kind, ask)
        if array is not None and array.type.equals(kind):
            return array
        texts = [None if value is None else self.text(value, ask) for value in values]
        if self.zero_dates and self.declared in ("date", "datetime", "timestamp"):
            texts = [
                None if text is None or text.startswith("0000-00-00") else text for text in texts
            ]
        raw = pa.types.is_string(kind) or pa.types.is_binary(kind)
        lines = [(None if raw else b"") if text is None else text.encode() for text in texts]
        schema = pa.schema([pa.field(self.column.name, kind)])
        return decode_fields([pa.array(lines, pa.large_binary())], [self.column], schema).column(0)

    def _made(self, values: Values, kind: pa.DataType, ask: Ask) -> pa.Array | None:
        """The values in the type that belongs to the declared one; None if it cannot hold them."""
        code = self.field.code
        if code in _INTEGERS or code in (4, 5):
            return _integers(values, kind) if code in _INTEGERS else pa.array(values, _FLOATS[code])
        if code == 13:
            return pa.array([value and 1900 + value for value in values], pa.int16())
        if code in _FIXED:
            return _FIXED[code](self.field, values, kind)
        if code in (247, 248):
            return pa.array(self._member_texts(values, ask), pa.string())
        if code == 245:
            return pa.array(
                [None if value is None else json_text(value) for value in values], pa.string()
            )
        if self.declared == "uuid":
            return pa.array(
                [None if value is None else uuid_text(value) for value in values], pa.string()
            )
        if self.declared in _BY_SERVER:
            size = self.field.size
            padded = [None if value is None else value.ljust(size, b"\0") for value in values]
            return pa.array(_asked(padded, _BY_SERVER[self.declared], ask), pa.string())
        if self.charset == _BINARY:
            return pa.array(self._padded(values), pa.binary())
        return self._texts(values, ask)

    def _padded(self, values: Values) -> Values:
        """A BINARY is in the log without the zeros at its end."""
        if self.declared != _BINARY:
            return values
        return [None if value is None else value.ljust(self.field.size, b"\0") for value in values]

    def _texts(self, values: Values, ask: Ask) -> pa.Array:
        if self.charset in _UTF8:
            return pa.array(values, pa.binary()).cast(pa.string())
        return pa.array(_decoded(values, self.charset, ask), pa.string())

    def _member_texts(self, values: Values, ask: Ask) -> list[str | None]:
        """A member's number from 1, or a set's bits; 0 is the empty text of a value that was refused once."""
        names = ["", *(str(member) for member in _decoded(self.members, self.charset, ask))]
        numbers = [None if value is None else int.from_bytes(value, "little") for value in values]
        if self.field.code == 247:
            return [None if number is None else names[number] for number in numbers]
        texts: dict[int | None, str | None] = {None: None}
        for number in numbers:
            if number is not None and number not in texts:
                texts[number] = ",".join(
                    name for bit, name in enumerate(names[1:]) if number >> bit & 1
                )
        return [texts[number] for number in numbers]

    def text(self, value: Any, ask: Ask) -> str:
        """One value as the batch reader's statement shows it."""
        code, meta = self.field.code, self.field.meta
        if code in _INTEGERS:
            return str(value)
        if code == 9:
            return str(int.from_bytes(value, "little", signed=not self.field.unsigned))
        if code == 13:
            return f"{value and 1900 + value:04d}"
        if code == 16:
            return str(int.from_bytes(value, "big"))
        if code == 246:
            return decimal_text(value, meta >> 8, meta & 0xFF)
        if code in (10, 14):
            number = int.from_bytes(value, "little")
            return date_text((number >> 9) * 13 + (number >> 5 & 15), number & 31)
        if code == 18:
            whole = int.from_bytes(value[:5], "big") - (1 << 39)
            return datetime_text(whole, _micros_of(value[5:]), meta)
        if code == 17:
            seconds, micros = int.from_bytes(value[:4], "big"), _micros_of(value[4:])
            if seconds == 0 and micros == 0:
                return datetime_text(0, 0, meta)
            return str(np.datetime64(seconds, "s")).replace("T", " ") + fraction(micros, meta)
        if code == 19:
            return time_text(_time_packed(value), meta)
        if code in (4, 5):
            raise SchemaError(
                f"column {self.column.name!r} is {self.column.declared}, "
                f"and customSchema reads it as {self.column.kind}: "
                "the change feed has no text of a float that equals the server's; omit it from customSchema"
            )
        if (
            self.charset == _BINARY
            and code not in (245, 247, 248)
            and self.declared not in ("uuid", *_BY_SERVER)
        ):
            return str(self._padded([value])[0].decode("utf-8", "replace"))
        array = self._made([value], pa.string(), ask)
        assert array is not None
        return str(array[0].as_py())


def _asked(values: Values, expression: str, ask: Ask) -> list[str | None]:
    distinct = sorted({value for value in values if value is not None})
    answers: Mapping[Any, str] = (
        dict(zip(distinct, ask(expression, distinct), strict=True)) if distinct else {}
    )
    return [None if value is None else answers[value] for value in values]


def _decoded(values: Values, charset: str, ask: Ask) -> list[str | None]:
    """Texts of another character set, as the server converts them."""
    codec = "utf-8" if charset in _UTF8 else _CODECS.get(charset)
    if codec is not None:
        return [None if value is None else value.decode(codec) for value in values]
    plain = charset != "swe7" and all(value is None or value.isascii() for value in values)
    if plain:
        return [None if value is None else value.decode("ascii") for value in values]
    return _asked(values, f"CONVERT(_{charset} {{}} USING utf8mb4)", ask)


def _integers(values: Values, kind: pa.DataType) -> pa.Array | None:
    if pa.types.is_boolean(kind):
        if not all(value is None or 0 <= value <= 1 for value in values):
            return None
        return pa.array([value if value is None else value == 1 for value in values], pa.bool_())
    if not pa.types.is_integer(kind):
        return None
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:  # one does not fit: as a text, its error names it
        return None


def _bytes(values: Values, size: int) -> tuple[npt.NDArray[np.uint8], Mask | None]:
    """A row of bytes for each value; and which are NULL, whose bytes are zeros."""
    null: Mask | None = None
    if None in values:
        null = np.fromiter((value is None for value in values), np.bool_, len(values))
        empty = bytes(size)
        values = [empty if value is None else value for value in values]
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), size), null


def _big(memory: npt.NDArray[np.uint8], begin: int, end: int) -> Numbers:
    """The number in these bytes of each row, the highest first."""
    number = np.zeros(len(memory), np.int64)
    for byte in range(begin, end):
        number = number << 8 | memory[:, byte]
    return number


def _little(memory: npt.NDArray[np.uint8]) -> Numbers:
    return _big(memory[:, ::-1], 0, memory.shape[1])


def _micros(memory: npt.NDArray[np.uint8], begin: int) -> Numbers:
    size = memory.shape[1] - begin
    return _big(memory, begin, memory.shape[1]) * np.int64(100 ** (3 - size))


def _micros_of(data: bytes) -> int:
    return int.from_bytes(data, "big") * int(100 ** (3 - len(data)))


def _array(
    numbers: npt.NDArray[Any], null: Mask | None, stored: pa.DataType, kind: pa.DataType
) -> pa.Array:
    return pa.array(numbers, stored, mask=null).view(kind)


def _mediumints(field: Field, values: Values, kind: pa.DataType) -> pa.Array:
    memory, null = _bytes(values, 3)
    numbers = _little(memory)
    if not field.unsigned:
        numbers = np.where(numbers >= 1 << 23, numbers - (1 << 24), numbers)
    return pa.array(numbers, pa.uint32() if field.unsigned else pa.int32(), mask=null, safe=True)


def _bits(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    memory, null = _bytes(values, field.size)
    numbers = _big(memory, 0, field.size)
    if pa.types.is_boolean(kind):
        return pa.array(numbers == 1, pa.bool_(), mask=null)
    if not pa.types.is_integer(kind):
        return None
    return _array(
        numbers, null, pa.int64(), pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
    )


def _days(months: Numbers, day: Numbers, null: Mask | None) -> Numbers | None:
    """Days since 1970 (`months`: 13 for each year); None if a date is none, or of the year 0."""
    year, month = months // 13, months % 13
    if null is not None:
        year, month, day = (np.where(null, 1, part) for part in (year, month, day))
    if (
        year.min(initial=1) < 1
        or month.min(initial=1) < 1
        or month.max(initial=1) > 12
        or day.min(initial=1) < 1
    ):
        return None
    since = (year - 1970) * 12 + month - 1
    first, after = (
        months.astype("M8[M]").astype("M8[D]").astype(np.int64) for months in (since, since + 1)
    )
    days = first + day - 1
    return None if (days >= after).any() else days


def _dates(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    memory, null = _bytes(values, 3)
    numbers = _little(memory)
    days = _days((numbers >> 9) * 13 + (numbers >> 5 & 15), numbers & 31, null)
    return None if days is None else _array(days.astype(np.int32), null, pa.int32(), pa.date32())


def _datetimes(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    memory, null = _bytes(values, field.size)
    whole = _big(memory, 0, 5) - (1 << 39)
    days = _days(whole >> 22, whole >> 17 & 31, null)
    if days is None:
        return None
    clock = (whole >> 12 & 31) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
    return _array(
        (days * 86_400 + clock) * 1_000_000 + _micros(memory, 5),
        null,
        pa.int64(),
        pa.timestamp("us"),
    )


def _timestamps(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    memory, null = _bytes(values, field.size)
    micros = _big(memory, 0, 4) * 1_000_000 + _micros(memory, 4)
    zero = micros == 0
    if (zero if null is None else zero & ~null).any():
        return None  # 0000-00-00
    return _array(micros, null, pa.int64(), pa.timestamp("us", "UTC"))


def _time_packed(value: bytes) -> int:
    """As MySQL packs a time: 24 bits of it are the fraction, and the sign is over all."""
    size = len(value)
    number = int.from_bytes(value, "big") - (1 << 8 * size - 1)
    part = 8 * (size - 3)
    whole, fraction = abs(number) >> part, abs(number) & (1 << part) - 1
    packed = whole << 24 | fraction * int(100 ** (6 - size))
    return -packed if number < 0 else packed


def _times(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    memory, null = _bytes(values, field.size)
    numbers = _big(memory, 0, field.size) - (1 << 8 * field.size - 1)
    if null is not None:
        numbers = np.where(null, 0, numbers)
    part = 8 * (field.size - 3)
    whole = numbers >> part
    if numbers.min(initial=0) < 0 or (whole >> 12).max(initial=0) > 23:
        return None
    clock = (whole >> 12) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
    micros = clock * 1_000_000 + (numbers & (1 << part) - 1) * 100 ** (6 - field.size)
    return _array(micros, null, pa.int64(), pa.time64("us"))


def _decimals(field: Field, values: Values, kind: pa.DataType) -> pa.Array | None:
    digits, scale = field.meta >> 8, field.meta & 0xFF
    if not pa.types.is_decimal128(kind) or (kind.precision, kind.scale) != (digits, scale):
        return None
    if digits > _SMALL_DIGITS:
        null = [value is None for value in values]
        packed = b"".join(
            (0 if value is None else decimal_number(value, digits, scale)).to_bytes(
                16, "little", signed=True
            )
            for value in values
        )
        return _of_words(packed, np.array(null) if any(null) else None, len(values), kind)
    memory, missing = _bytes(values, field.size)
    negative = memory[:, 0] < 0x80
    memory = np.where(negative[:, None], ~memory, memory)
    memory[:, 0] ^= 0x80
    numbers, at, whole = np.zeros(len(values), np.int64), 0, digits - scale
    for count in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        size = _DIGIT_BYTES[count]
        numbers = numbers * 10**count + _big(memory, at, at + size)
        at += size
    numbers = np.where(negative, -numbers, numbers)
    words = np.stack([numbers, numbers >> 63], axis=1)
    return _of_words(words.tobytes(), missing, len(values), kind)


def _of_words(words: bytes, null: Mask | None, rows: int, kind: pa.DataType) -> pa.Array:
    valid = None if null is None else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(words)])


_FIXED: Mapping[int, Callable[[Field, Values, pa.DataType], pa.Array | None]] = {
    9: _mediumints,
    10: _dates,
    14: _dates,
    16: _bits,
    17: _timestamps,
    18: _datetimes,
    19: _times,
    246: _decimals,
}
