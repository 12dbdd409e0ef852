"""From Arrow's values to what SQLite stores, integers, reals, texts and blobs, or a refusal of the row."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.search import first_failure
from spark_channel.connectors.sql.sqlite.column_types import (
    EXACT_DIGITS,
    INSTANT,
    LOCAL,
    TIME,
    affinity,
    arrow_type,
    sqlite_type,
)
from spark_channel.errors import SchemaError

__all__ = ["BadValueError", "WriteColumn", "check_fit", "encode"]

_FIRST_MICROSECOND = -62_135_596_800_000_000
_LAST_MICROSECOND = 253_402_300_799_999_999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One column that is written: its name in the batch, the table's column, and both types."""

    name: str
    target: str
    declared: str
    kind: pa.DataType


class BadValueError(Exception):
    """Row `index` of a batch holds `value` in `column`, which SQLite would not give back as it is."""

    def __init__(self, column: WriteColumn, index: int, value: Any, why: str) -> None:
        super().__init__(column.name)
        self.column, self.index, self.value, self.why = column, index, value, why


def check_fit(column: WriteColumn) -> None:
    """Hold the column's type to fit the table's column without loss.

    Raises:
        SchemaError: it does not; names the column and both types.
    """
    natural = sqlite_type(column.name, column.kind) if not pa.types.is_null(column.kind) else ""
    wanted = arrow_type(column.declared)
    if wanted is None or not natural:
        return
    given = arrow_type(natural)
    assert given is not None
    if not _fits(given, wanted):
        hint = "cast it"
        if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
            hint = "one has a time zone and the other has none; cast it, or declare the column " + natural
        raise SchemaError(
            f"column {column.name!r} is {column.kind}, and the table's column {column.target!r} is "
            f"{column.declared} ({wanted}), which cannot hold it exactly: {hint}"
        )


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if given.equals(wanted):
        return True
    whole = pa.types.is_integer(given)
    if pa.types.is_integer(wanted):
        if pa.types.is_decimal(given):
            return bool(given.scale == 0 and given.precision <= 18 and wanted == pa.int64())
        return bool((whole and given.bit_width <= wanted.bit_width) or pa.types.is_boolean(given))
    if pa.types.is_floating(wanted):
        if pa.types.is_floating(given):
            return bool(given.bit_width <= wanted.bit_width)
        return bool(whole and given.bit_width <= (32 if wanted == pa.float64() else 16))
    if pa.types.is_decimal(wanted):
        if whole:
            digits = {8: 3, 16: 5, 32: 10, 64: 19}[given.bit_width]
            return bool(digits <= wanted.precision - wanted.scale)
        if pa.types.is_decimal(given):
            whole_digits = given.precision - given.scale
            return bool(given.scale <= wanted.scale and whole_digits <= wanted.precision - wanted.scale)
    return False


def encode(batch: pa.RecordBatch, columns: Sequence[WriteColumn]) -> pa.RecordBatch:
    """A batch as SQLite stores it, its columns named as the table's.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    arrays = [_encode(batch.column(column.name), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.target for column in columns])


def _encode(array: pa.Array, column: WriteColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = pc.cast(array, array.type.value_type)
    kind = array.type
    if pa.types.is_null(kind):
        return pc.cast(array, pa.int64())
    if kind == pa.uint64():
        array, kind = _convert(array, pa.decimal128(20, 0), column, ""), pa.decimal128(20, 0)
    if pa.types.is_integer(kind) and pa.types.is_decimal(arrow_type(column.declared) or pa.null()):
        array, kind = pc.cast(array, pa.decimal128(19, 0)), pa.decimal128(19, 0)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pc.cast(array, pa.int64())
    if pa.types.is_floating(kind):
        return _real(array, column)
    if pa.types.is_decimal(kind):
        return _decimal(array, column)
    if pa.types.is_date(kind):
        return _date(_convert(array, pa.date32(), column, "a date has no time of day"), column)
    if pa.types.is_time(kind):
        return pc.cast(_convert(array, TIME, column, "SQLite's times end at microseconds here"), pa.string())
    if pa.types.is_timestamp(kind):
        return _timestamp(array, column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return _text(pc.cast(array, pa.string()), column)
    return pc.cast(array, pa.binary())


def _convert(array: pa.Array, kind: pa.DataType, column: WriteColumn, why: str) -> pa.Array:
    def convert(part: pa.Array) -> pa.Array:
        return pc.cast(part, kind)

    try:
        return convert(array)
    except pa.ArrowInvalid as error:
        index = first_failure(array, convert)
        raise BadValueError(column, index, _shown(array, index), why or str(error)) from None


def _refuse_where(mask: pa.Array, array: pa.Array, column: WriteColumn, why: str) -> None:
    index = pc.index(mask, True).as_py()
    if index >= 0:
        raise BadValueError(column, index, _shown(array, index), why)


def _shown(array: pa.Array, index: int) -> str:
    try:
        return str(array[index].as_py())
    except (ValueError, OverflowError):  # Python's dates and times hold less than Arrow's
        return str(pc.cast(array.slice(index, 1), pa.string())[0].as_py())


def _real(array: pa.Array, column: WriteColumn) -> pa.Array:
    real = pc.cast(array, pa.float64())
    why = "SQLite stores NaN as NULL; replace it or leave the row out"
    _refuse_where(pc.is_nan(real), real, column, why)
    return real


def _decimal(array: pa.Array, column: WriteColumn) -> pa.Array:
    wanted = arrow_type(column.declared)
    if wanted is not None and pa.types.is_integer(wanted):
        return pc.cast(array, pa.int64())
    precise = wanted if wanted is not None and pa.types.is_decimal(wanted) else None
    array = pc.cast(array, precise or pa.decimal128(array.type.precision, array.type.scale))
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision <= EXACT_DIGITS:
        # The nearest real to each decimal, as both operands are exact; SQLite makes the same of its text.
        whole = pc.cast(array.view(pa.decimal128(array.type.precision, 0)), pa.int64())
        return pc.divide(pc.cast(whole, pa.float64()), float(10**array.type.scale))
    text = pc.cast(array, pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():
        plain = [None if value is None else format(Decimal(value), "f") for value in text.to_pylist()]
        text = pa.array(plain, pa.string())
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision > EXACT_DIGITS:
        _refuse_where(_too_many_digits(text), text, column, f"SQLite keeps {EXACT_DIGITS} digits of it in a "
                      f"column declared {column.declared}; declare it DECIMAL_TEXT")  # fmt: skip
    return text


def _too_many_digits(text: pa.Array) -> pa.Array:
    """Where a text of a decimal has more digits than a REAL keeps, and is no whole number of 64 bits."""
    digits = pc.utf8_trim(pc.replace_substring_regex(text, "[-.]", ""), "0")
    whole = pc.and_(pc.invert(pc.match_substring(text, ".")), pc.less_equal(pc.binary_length(text), 18 + 1))
    return pc.and_(pc.greater(pc.binary_length(digits), EXACT_DIGITS), pc.invert(whole))


def _date(array: pa.Array, column: WriteColumn) -> pa.Array:
    days = pc.cast(array, pa.int32())
    outside = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
    _refuse_where(outside, array, column, "dates go from year 1 to 9999")
    return pc.cast(array, pa.string())


def _timestamp(array: pa.Array, column: WriteColumn) -> pa.Array:
    zone = array.type.tz
    exact = LOCAL if zone is None else INSTANT
    array = _convert(array, exact, column, "timestamps end at microseconds, and go from year 1 to 9999")
    microseconds = pc.cast(array, pa.int64())
    outside = pc.or_(pc.less(microseconds, _FIRST_MICROSECOND), pc.greater(microseconds, _LAST_MICROSECOND))
    # Cast as local time: Arrow would look for a time zone database only to write UTC.
    local = pc.cast(microseconds, LOCAL)
    _refuse_where(outside, local, column, "timestamps go from year 1 to 9999")
    text = pc.cast(local, pa.string())
    return text if zone is None else pc.binary_join_element_wise(text, "Z", "")


def _text(array: pa.Array, column: WriteColumn) -> pa.Array:
    if affinity(column.declared) not in ("TEXT", "BLOB"):
        why = f"SQLite would turn it into a number in a column declared {column.declared}; declare it TEXT"
        _refuse_where(pc.match_substring_regex(array, _NUMBER), array, column, why)
    return array
