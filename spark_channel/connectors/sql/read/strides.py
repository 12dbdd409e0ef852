"""JDBC's stride: equal steps of a column's value between two bounds, which filter nothing. Pure.

The steps are those of Spark's JDBC source: a fractional stride is cut to a whole one, and the bounds are moved so that
what the cut loses is shared between both ends. Values below the first and above the last step are in the outermost
splits.
"""

from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, localcontext

import pyarrow as pa

from spark_channel.errors import OptionError

__all__ = ["Bound", "boundaries", "parse_bound"]


Bound = int | date | datetime

_EPOCH_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def parse_bound(text: str, kind: pa.DataType, option: str) -> Bound:
    """`text` as a value of a column of type `kind`: a whole number, a date, or a timestamp.

    Raises:
        OptionError: not such a value, or a column that cannot be strided.
    """
    takes = "a whole number"
    try:
        if pa.types.is_date(kind):
            takes = "a date, such as 2024-01-31"
            return date.fromisoformat(text.strip())
        if pa.types.is_timestamp(kind):
            takes = "a timestamp, such as 2024-01-31 12:00:00"
            value = datetime.fromisoformat(text.strip())
            if kind.tz is None:
                if value.tzinfo is not None:
                    raise ValueError(takes)
                return value
            return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return int(text.strip())
    except (ValueError, OverflowError):
        raise OptionError(
            f"option {option!r} got {text!r}; the partition column is {kind}, so it takes {takes}",
            option=option,
            got=text,
            takes=takes,
        ) from None
    raise OptionError(
        f"option 'partitionColumn' names a column of type {kind}; a stride needs a number, a date or a timestamp. "
        "Without 'lowerBound' and 'upperBound' any type is taken",
        option="partitionColumn",
    )


def boundaries(lower: Bound, upper: Bound, count: int) -> list[Bound]:
    """The inner boundaries of at most `count` strides between `lower` and `upper`, ascending.

    N boundaries make N + 1 ranges: below the first, between two, from the last on.

    Raises:
        OptionError: `lower` is above `upper`.
    """
    first, last = _number(lower), _number(upper)
    if first > last:
        raise OptionError(
            f"option 'lowerBound' ({lower}) is above 'upperBound' ({upper}): "
            "give the lower one first",
            option="lowerBound",
            got=str(lower),
        )
    count = min(count, last - first)
    if count <= 1:
        return []
    with localcontext() as context:
        context.prec = 60
        step18 = Decimal(1).scaleb(-18)
        exact = (Decimal(last) / count).quantize(step18, ROUND_HALF_EVEN) - (
            Decimal(first) / count
        ).quantize(step18, ROUND_HALF_EVEN)
        stride = int(exact)
        lost = (exact - stride) * count / stride
        begin = first + int((lost / 2 * stride).quantize(Decimal(1), ROUND_HALF_UP))
    return [_value(begin + stride * number, lower) for number in range(1, count)]


def _number(bound: Bound) -> int:
    if isinstance(bound, datetime):
        epoch = datetime(1970, 1, 1, tzinfo=bound.tzinfo)
        return (bound - epoch) // _MICROSECOND
    if isinstance(bound, date):
        return (bound - _EPOCH_DAY).days
    return bound


def _value(number: int, like: Bound) -> Bound:
    if isinstance(like, datetime):
        return datetime(1970, 1, 1, tzinfo=like.tzinfo) + number * _MICROSECOND
    if isinstance(like, date):
        return _EPOCH_DAY + timedelta(days=number)
    return number
