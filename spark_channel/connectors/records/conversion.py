"""One value of a record as a value of a column: exactly, or refused with the reason."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_channel.plain_text import shortened
from spark_channel.serialization import Number, written

__all__ = ["Rules", "converter", "json_text", "text_of"]

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
