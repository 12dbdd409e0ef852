"""Checks of values before they are sent, and how a row is refused. Pure."""

from decimal import Decimal

import pyarrow as pa

from spark_channel.arrow_schema import first_failure, is_cut_by_python
from spark_channel.connectors.sql.catalog import WriteColumn
from spark_channel.lazy import compute as pc

__all__ = [
    "DAYS",
    "MICROSECONDS",
    "BadValueError",
    "convert",
    "dates",
    "decimal_text",
    "first_outside",
    "local_timestamps",
    "refuse_where",
    "storage",
]


DAYS = (-719_162, 2_932_896)
"""The days of the years 1 to 9999. The microseconds are of the same years."""
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_FINITE = (-(2**63) + 2, 2**63 - 2)
"""Of other units: the ends stand for infinities."""
_DAY = 86_400_000_000


def first_outside(array: pa.Array) -> int:
    """The index of the first date, timestamp or time of day that Spark cannot hold; -1 = there is none."""
    kind = array.type
    width = pa.int64()
    if pa.types.is_date32(kind):
        width, (least, most) = pa.int32(), DAYS
    elif pa.types.is_timestamp(kind):
        least, most = MICROSECONDS if kind.unit == "us" else _FINITE
    elif pa.types.is_time64(kind):
        least, most = 0, _DAY * (1000 if kind.unit == "ns" else 1) - 1
    else:
        return -1
    numbers = pc.cast(array, width)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        return -1
    return int(pc.index(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), True).as_py())


class BadValueError(Exception):
    """Row `index` of a batch holds `value` in `column`, which the table would not return unchanged.

    `wider`: the type of a column that would; "" = none.
    """

    def __init__(
        self, column: WriteColumn, index: int, value: object, reason: str, wider: str = ""
    ) -> None:
        super().__init__(column.name)
        self.column, self.index, self.value, self.why = column, index, value, reason
        self.wider = wider


def storage(array: pa.Array) -> pa.Array:
    """The values themselves, of an extension type or a dictionary."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return pc.cast(array, array.type.value_type) if pa.types.is_dictionary(array.type) else array


def convert(array: pa.Array, kind: pa.DataType, column: WriteColumn, reason: str = "") -> pa.Array:
    """`array` as `kind`, exactly; without `reason`, Arrow says why not.

    Raises:
        BadValueError: the first value that is none of `kind`.
    """
    if array.type.equals(kind):
        return array

    def cast(part: pa.Array) -> pa.Array:
        return pc.cast(part, kind)

    try:
        return cast(array)
    except pa.ArrowInvalid as error:
        index = first_failure(array, cast)
        raise BadValueError(column, index, _shown(array, index), reason or str(error)) from None


def refuse_where(
    mask: pa.Array, array: pa.Array, column: WriteColumn, reason: str, wider: str = ""
) -> None:
    """Refuse the first value of `array` where `mask` is true. `wider`: see `BadValueError`."""
    index = pc.index(mask, True).as_py()
    if index >= 0:
        raise BadValueError(column, index, _shown(array, index), reason, wider)


def dates(array: pa.Array, column: WriteColumn) -> pa.Array:
    """Dates as days, of the years 1 to 9999."""
    array = convert(array, pa.date32(), column, "a date has no time of day")
    days = pc.cast(array, pa.int32())
    outside = pc.or_(pc.less(days, DAYS[0]), pc.greater(days, DAYS[1]))
    refuse_where(outside, array, column, "dates go from year 1 to 9999")
    return array


def local_timestamps(
    array: pa.Array,
    column: WriteColumn,
    span: tuple[int, int] = MICROSECONDS,
    reason: str = "timestamps go from year 1 to 9999",
) -> pa.Array:
    """Timestamps in microseconds, those with a zone in UTC; without a zone, as Arrow would look for a time zone
    database only to write UTC. `span` is what the column holds, and `reason` says so.
    """
    exact = pa.timestamp("us", None if array.type.tz is None else "UTC")
    array = convert(array, exact, column, f"timestamps end at microseconds; {reason}")
    microseconds = pc.cast(array, pa.int64())
    local = pc.cast(microseconds, pa.timestamp("us"))
    outside = pc.or_(pc.less(microseconds, span[0]), pc.greater(microseconds, span[1]))
    refuse_where(outside, local, column, reason)
    return local


def decimal_text(array: pa.Array) -> pa.Array:
    """Decimals as text without an exponent."""
    text = pc.cast(array, pa.string())
    # Arrow writes an exponent of numbers below 10^-6, and of negative scales.
    if not 0 <= array.type.scale <= 6 and pc.any(pc.match_substring(text, "E")).as_py():
        plain = [
            None if value is None else format(Decimal(value), "f") for value in text.to_pylist()
        ]
        text = pa.array(plain, pa.string())
    return text


def _shown(array: pa.Array, index: int) -> str:
    try:
        if not is_cut_by_python(array.type):
            return str(array[index].as_py())
    except (ValueError, OverflowError):  # Python's dates and times hold less than Arrow's
        pass
    return str(pc.cast(array.slice(index, 1), pa.string())[0].as_py())
