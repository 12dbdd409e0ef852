"""Encodes Arrow values as SQLite's integers, reals, texts and blobs, or refuses the row."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.encode import (
    convert,
    dates,
    decimal_text,
    is_text,
    local_timestamps,
    refuse_where,
    storage,
)
from spark_channel.connectors.sql.sqlite.column_types import EXACT_DIGITS, TIME, affinity, declared_type
from spark_channel.connectors.sql.target import WriteColumn

__all__ = ["encode"]

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


def encode(batch: pa.RecordBatch, columns: Sequence[WriteColumn]) -> pa.RecordBatch:
    """A batch as SQLite stores it, its columns named as the table's.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    arrays = [_encode(batch.column(column.name), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.target for column in columns])


def _encode(array: pa.Array, column: WriteColumn) -> pa.Array:
    array = storage(array)
    kind = array.type
    if pa.types.is_null(kind):
        return pc.cast(array, pa.int64())
    if kind == pa.uint64():
        array, kind = convert(array, pa.decimal128(20, 0), column), pa.decimal128(20, 0)
    if pa.types.is_integer(kind) and pa.types.is_decimal(declared_type(column.declared) or pa.null()):
        array, kind = pc.cast(array, pa.decimal128(19, 0)), pa.decimal128(19, 0)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pc.cast(array, pa.int64())
    if pa.types.is_floating(kind):
        return _real(array, column)
    if pa.types.is_decimal(kind):
        return _decimal(array, column)
    if pa.types.is_date(kind):
        return pc.cast(dates(array, column), pa.string())
    if pa.types.is_time(kind):
        return pc.cast(convert(array, TIME, column, "SQLite's times end at microseconds here"), pa.string())
    if pa.types.is_timestamp(kind):
        return _moment(array, column)
    if is_text(kind):
        return _text(pc.cast(array, pa.string()), column)
    return pc.cast(array, pa.binary())


def _real(array: pa.Array, column: WriteColumn) -> pa.Array:
    real = pc.cast(array, pa.float64())
    why = "SQLite stores NaN as NULL; replace it or leave the row out"
    refuse_where(pc.is_nan(real), real, column, why)
    return real


def _decimal(array: pa.Array, column: WriteColumn) -> pa.Array:
    wanted = declared_type(column.declared)
    if wanted is not None and pa.types.is_integer(wanted):
        return pc.cast(array, pa.int64())
    precise = wanted if wanted is not None and pa.types.is_decimal(wanted) else None
    array = pc.cast(array, precise or pa.decimal128(array.type.precision, array.type.scale))
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision <= EXACT_DIGITS:
        # The nearest real to each decimal, as both operands are exact; SQLite makes the same of its text.
        whole = pc.cast(array.view(pa.decimal128(array.type.precision, 0)), pa.int64())
        return pc.divide(pc.cast(whole, pa.float64()), float(10**array.type.scale))
    text = decimal_text(array)
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision > EXACT_DIGITS:
        refuse_where(_too_many_digits(text), text, column, f"SQLite keeps {EXACT_DIGITS} digits of it in a "
                      f"column declared {column.declared}; declare it DECIMAL_TEXT")  # fmt: skip
    return text


def _too_many_digits(text: pa.Array) -> pa.Array:
    """A mask of decimal texts that have more digits than a REAL keeps, and are not whole numbers of 64 bits."""
    digits = pc.utf8_trim(pc.replace_substring_regex(text, "[-.]", ""), "0")
    whole = pc.and_(pc.invert(pc.match_substring(text, ".")), pc.less_equal(pc.binary_length(text), 18 + 1))
    return pc.and_(pc.greater(pc.binary_length(digits), EXACT_DIGITS), pc.invert(whole))


def _moment(array: pa.Array, column: WriteColumn) -> pa.Array:
    text = pc.cast(local_timestamps(array, column), pa.string())
    return text if array.type.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _text(array: pa.Array, column: WriteColumn) -> pa.Array:
    if affinity(column.declared) not in ("TEXT", "BLOB"):
        why = f"SQLite would turn it into a number in a column declared {column.declared}; declare it TEXT"
        refuse_where(pc.match_substring_regex(array, _NUMBER), array, column, why)
    return array
