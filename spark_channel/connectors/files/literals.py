"""SQL literals, typed to the column that they are compared with.

Whole-number, decimal, date and timestamp columns are ladders: each value is a whole number of steps (units in the
last place, days, microseconds), so that a literal between two steps, or beyond the last one, is compared exactly
instead of being rounded or refused.
"""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import is_text
from spark_channel.connectors.files.conditions import Compare, Condition, NotNullConstant
from spark_channel.errors import OptionError

__all__ = ["comparison", "exact", "same_step"]

_EPOCH = datetime(1970, 1, 1)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXACT = Context(prec=100)


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The lowest and highest step of a ladder type; None = not a ladder."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    if pa.types.is_signed_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    return None


def exact(value: object, kind: pa.DataType) -> Any:
    """`value` (a literal, or a statistic's Python value) as a number of steps, or as itself.

    Returns a Fraction for ladder types; str, bytes, bool or float for the others.

    Raises:
        ValueError, TypeError: the value does not fit the type.
    """
    if pa.types.is_integer(kind):
        return Fraction(_number(value))
    if pa.types.is_decimal(kind):
        return Fraction(_number(value)) * Fraction(10) ** kind.scale
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        since = _instant(value, aware=getattr(kind, "tz", None) is not None) - _EPOCH
        seconds = Fraction(since // timedelta(microseconds=1), 10**6)
        if pa.types.is_date32(kind):
            return seconds / 86_400
        return seconds * (10**3 if pa.types.is_date64(kind) else _UNITS[kind.unit])
    if pa.types.is_floating(kind):
        number = float(_number(value))
        if not math.isfinite(number):
            raise ValueError("a finite number")
        return number
    if pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError("TRUE or FALSE")
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        if isinstance(value, bytes):
            return value
        raise ValueError("bytes, such as X'00FF'")
    if is_text(kind):
        if isinstance(value, str):
            return value
        raise ValueError("a text in single quotes")
    raise TypeError(f"columns of type {kind} cannot be compared")


def _number(value: object) -> Decimal | int | float:
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, (int, float)):
        return value
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError("a number") from None
    if not number.is_finite():
        raise ValueError("a finite number")
    # No column holds a number beyond: what a user types is bounded before it is compared exactly.
    if abs(number.adjusted()) > 400:
        raise ValueError("a number between -1e400 and 1e400")
    return number


def _instant(literal: object, *, aware: bool) -> datetime:
    takes = "a date or time in single quotes, such as '2020-01-31' or '2020-01-31 13:05:00'"
    value: object = literal
    if isinstance(literal, str):
        try:
            value = datetime.fromisoformat(literal.strip())
        except ValueError:
            raise ValueError(takes) from None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            if not aware:
                raise ValueError("a time without a zone, since the column has none")
            value = value.astimezone(UTC).replace(tzinfo=None)
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    raise ValueError(takes)


def _step_value(step: int, kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(step).scaleb(-kind.scale, _EXACT)
    return step


def _typed_literal(column: str, value: object, kind: pa.DataType) -> Any:
    try:
        return exact(value, kind)
    except (ValueError, TypeError, OverflowError) as error:
        value_text = f"'{value}'" if isinstance(value, str) else str(value)
        takes = f"it takes {error}" if isinstance(error, ValueError) else str(error)
        raise OptionError(
            f"option 'where' compares column {column!r} ({kind}) with {value_text}; {takes}",
            option="where",
            got=value_text,
            takes=str(error),
        ) from None


def _compared_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return pa.float64()
    return pa.large_string() if kind == pa.string_view() else kind


def comparison(column: str, op: str, value: object, kind: pa.DataType) -> Condition:
    """`column <op> value`, decided here when the literal lies between or beyond the column's steps.

    Raises:
        OptionError: the literal does not fit the column's type.
    """
    rank = _typed_literal(column, value, kind)
    bounds = _bounds(kind)
    if bounds is None:
        return Compare(column, op, rank, _compared_type(kind), rank)
    step = math.floor(rank)
    between = step != rank
    if between and op in ("eq", "ne"):
        return NotNullConstant(column, op == "ne")
    low, high = bounds
    if step > high:
        return NotNullConstant(column, op in ("lt", "le", "ne"))
    if step < low:
        return NotNullConstant(column, op in ("gt", "ge", "ne"))
    if between:
        op = "le" if op in ("lt", "le") else "gt"
    return Compare(column, op, _step_value(step, kind), kind, step)


def same_step(column: str, value: object, kind: pa.DataType) -> tuple[Any, Any, pa.DataType] | None:
    """(value, rank, type) of the one column value that equals the literal; None = there is none."""
    condition = comparison(column, "eq", value, kind)
    return (
        (condition.value, condition.rank, condition.type)
        if isinstance(condition, Compare)
        else None
    )
