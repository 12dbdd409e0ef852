"""Records as batches; values converted exactly."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_channel.errors import SchemaError, SourceError
from spark_channel.plain_text import shortened
from spark_channel.serialization import Number, written

__all__ = [
    "MISSING",
    "Columns",
    "Path",
    "Rules",
    "converter",
    "found_at",
    "json_text",
    "path_in",
    "path_of",
    "text_of",
]


# Where a value is inside nested ones: `address.city`, `lines[0].price`, `['a.b'].c`.


Path = tuple[str | int, ...]
_STEP = re.compile(r"""\.?([^.\[\]'"]+)|\[([0-9]{1,9})\]|\[(?:'([^']+)'|"([^"]+)")\]""")
MISSING = object()


def path_of(text: str) -> Path:
    """The steps of a path.

    Raises:
        ValueError: it is not one.
    """
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (match[0].startswith(".") != bool(steps) and match[1] is not None):
            raise ValueError("a path, such as data.items, lines[0].price or ['a.b'].c")
        name, number, *quoted = match.groups()
        steps.append(int(number) if number is not None else name or next(filter(None, quoted)))
        position = match.end()
    return tuple(steps)


def path_in(name: str) -> Path | None:
    """The path that a column's name may be; None = it is only a name."""
    if "." not in name and "[" not in name:
        return None
    try:
        return path_of(name)
    except ValueError:
        return None


def found_at(value: object, path: Path) -> object:
    """The value there, or `MISSING`."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            return MISSING
    return value


# One value of a record as a value of a column: exactly, or refused with the reason.


_EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])
_EXACT_IN_A_DOUBLE = 1 << 53
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """`zone`: in which instants become local times and texts. `separators`: of columns whose arrays are joined.

    `exact`: a number that a DOUBLE would round is refused.
    """

    zone: str = "UTC"
    separators: tuple[tuple[str, str], ...] = ()
    exact: bool = False


class _HasNumber(Exception):  # noqa: N818 - a property of a value
    """A `Number` is inside, which Python's encoder cannot write."""


def json_text(value: object) -> str:
    """A nested value as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_json_default, separators=(",", ":"))
    except _HasNumber:
        return written(value, ",", ":")


def _json_default(value: object) -> str:
    if isinstance(value, Number):
        raise _HasNumber
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (datetime, date, time)) else str(value)


def text_of(value: object, zone: ZoneInfo) -> str:
    """
    Raises:
        ValueError: bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return value.text
    if isinstance(value, datetime):
        return _local(value, zone).isoformat(" ")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("bytes that are not UTF-8; read them as BINARY") from None
    if isinstance(value, float) and math.isfinite(value):
        return format(Decimal(str(value)), "f")
    return json_text(value) if isinstance(value, (dict, list)) else str(value)


def _local(value: datetime, zone: ZoneInfo) -> datetime:
    return value if value.tzinfo is None else value.astimezone(zone).replace(tzinfo=None)


def converter(kind: pa.DataType, rules: Rules, separator: str | None = None) -> Convert:
    """What makes a value of `kind` of a value that is not None; it raises ValueError where there is none.

    Raises:
        TypeError: columns of this type cannot be filled.
    """
    zone = ZoneInfo(rules.zone)
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value: _text(value, zone, separator)
    if types.is_integer(kind):
        least, most = _range(kind)
        return lambda value: _whole(value, least, most)
    if types.is_floating(kind):
        return _exact_float if rules.exact else _float
    if types.is_decimal(kind):
        step = Decimal(1).scaleb(-kind.scale)
        return lambda value: _decimal(value, step, kind.precision)
    if types.is_boolean(kind):
        return _flag
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes
    if types.is_timestamp(kind):
        return (
            (lambda value: _instant(value, zone))
            if kind.tz
            else (lambda value: _moment(value, zone))
        )
    if types.is_date(kind):
        return lambda value: _day(value, zone)
    raise TypeError(str(kind))


def _refused(value: object, kind_name: str) -> ValueError:
    return ValueError(f"{shortened(str(value), 60)!r} ({type(value).__name__}) is not {kind_name}")


def _text(value: object, zone: ZoneInfo, separator: str | None) -> str:
    if separator is not None and isinstance(value, list):
        return separator.join("" if item is None else text_of(item, zone) for item in value)
    return text_of(value, zone)


def _range(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (
        (0, 2**bits - 1)
        if pa.types.is_unsigned_integer(kind)
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def _whole(value: object, least: int, most: int) -> int:
    whole: int | None = None
    if not isinstance(value, bool) and isinstance(value, (int, float)) and value == value // 1:
        whole = int(value)
    elif isinstance(value, (Decimal, str)):
        number = _number(value)
        whole = int(number) if number == number.to_integral_value() else None
    if whole is None or not least <= whole <= most:
        raise _refused(value, f"a whole number from {least} to {most}")
    return whole


def _number(value: Any) -> Decimal:
    try:
        number = Decimal(value.strip() if isinstance(value, str) else value)
    except InvalidOperation:
        raise _refused(value, "a number") from None
    if not number.is_finite() or abs(number.adjusted()) > 400:  # 1E+999999999 would be written out
        raise _refused(value, "a finite number")
    return number


def _float(value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) <= _EXACT_IN_A_DOUBLE or int(float(value)) == value:
            return float(value)
        raise _refused(value, "a number that a DOUBLE holds exactly")
    if isinstance(value, (str, Decimal)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise _refused(value, "a number") from None
        if math.isinf(number) and "inf" not in str(value).lower():
            raise _refused(value, "a number that a DOUBLE holds")
        return number
    raise _refused(value, "a number")


def _exact_float(value: object) -> float:
    number = _float(value)
    if isinstance(value, Decimal) and math.isfinite(number) and Decimal(repr(number)) != value:
        raise _refused(value, "a number that a DOUBLE holds exactly")
    return number


def _decimal(value: object, step: Decimal, precision: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise _refused(value, "a number")
    if isinstance(value, float):
        value = repr(value)
    try:
        number = _number(value).quantize(step, context=_EXACT)
    except (Inexact, InvalidOperation):
        number = None
    if number is None or len(number.as_tuple().digits) > precision:
        scale = -int(step.as_tuple().exponent)
        raise _refused(value, f"a number of {precision} digits, {scale} behind the point")
    return number


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _refused(value, "true or false")


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise _refused(value, "bytes")


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            pass
    raise _refused(value, "a time, such as 2024-01-31T08:30:00Z")


def _instant(value: object, zone: ZoneInfo) -> datetime:
    instant = _time(value)
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=zone)).astimezone(UTC)


def _moment(value: object, zone: ZoneInfo) -> datetime:
    return _local(_time(value), zone)


def _day(value: object, zone: ZoneInfo) -> date:
    moment = _local(_time(value), zone)
    if moment.time() != time():
        raise _refused(value, f"a day in {zone.key}; read it as TIMESTAMP")
    return moment.date()


# Records as batches of one schema.


_AS_THEY_ARE: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_int64, int),
    (pa.types.is_float64, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_binary, bytes),
)
_LARGEST = 2**63 - 1


class Columns:
    """Makes batches of `schema`. `key` is the field by which a message names a record."""

    def __init__(self, schema: pa.Schema, rules: Rules, *, key: str | None = None) -> None:
        self.schema, self._key = schema, key
        separators = dict(rules.separators)
        self._converters = []
        for field in schema:
            plain = next((kind for test, kind in _AS_THEY_ARE if test(field.type)), None)
            try:
                convert = converter(field.type, rules, separators.get(field.name))
            except TypeError:
                raise SchemaError(
                    f"column {field.name!r} is to have type {field.type}, which a record's value cannot become; read "
                    f"it as STRING (JSON), or its parts as columns {field.name}.<part>"
                ) from None
            self._converters.append((field, path_in(field.name), plain, convert))

    def batch(self, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """
        Raises:
            SourceError: a value that its column cannot hold; names the column and the record.
        """
        arrays = []
        for field, path, plain, convert in self._converters:
            values = [_found(record, field.name, path) for record in records]
            if not set(map(type, values)) <= {plain, type(None)}:
                values = [
                    None if value is None else self._converted(convert, value, field, record)
                    for value, record in zip(values, records, strict=True)
                ]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, UnicodeError):
                arrays.append(self._one_by_one(field, convert, values, records))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _converted(
        self,
        convert: Callable[[Any], Any],
        value: object,
        field: pa.Field,
        record: Mapping[str, Any],
    ) -> object:
        try:
            return convert(value)
        except (ValueError, OverflowError) as error:
            raise self._unfit(field, record, str(error)) from None

    def _one_by_one(
        self,
        field: pa.Field,
        convert: Callable[[Any], Any],
        values: Sequence[object],
        records: Sequence[Mapping[str, Any]],
    ) -> pa.Array:
        """Finds the value that Arrow did not take."""
        for value, record in zip(values, records, strict=True):
            if value is not None:
                converted = self._converted(convert, value, field, record)
                try:
                    pa.array([converted], field.type)
                except (pa.ArrowException, OverflowError, UnicodeError):
                    value_text = shortened(ascii(value), 60)
                    raise self._unfit(field, record, f"{value_text} does not fit") from None
        raise AssertionError("each value fits, and all of them do not")

    def _unfit(self, field: pa.Field, record: Mapping[str, Any], reason: str) -> SourceError:
        record_name = (
            f" of the record with {self._key} {str(record.get(self._key))!r}" if self._key else ""
        )
        return SourceError(
            f"column {field.name!r}{record_name}: {reason}. The column is read as {field.type}; "
            "give it another type with option 'schema', such as STRING, which holds every value"
        )


def _found(record: Mapping[str, Any], name: str, path: Path | None) -> Any:
    value = record.get(name)
    if value is not None or path is None:
        return value
    value = found_at(record, path)
    return None if value is MISSING else value
