"""SQLite's declared types as Arrow's. Pure; docs/embedded.md holds it as a table.

SQLite binds types to values, not to columns: the reader checks each value against the declared type. A number's text
is kept as text only in a column of TEXT affinity, hence the names of some types.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Literal

import pyarrow as pa

from spark_channel.arrow_schema import first_failure, is_text
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn, WriteColumn
from spark_channel.connectors.sql.write.encode import (
    convert,
    dates,
    decimal_text,
    first_outside,
    local_timestamps,
    refuse_where,
    storage,
)
from spark_channel.lazy import compute as pc

__all__ = [
    "SHOWN",
    "affinity",
    "declared_type",
    "decode",
    "encode",
    "is_real_decimal",
    "is_text_decimal",
    "raw_type",
]


Affinity = Literal["INTEGER", "TEXT", "BLOB", "REAL", "NUMERIC"]

LOCAL = pa.timestamp("us")
INSTANT = pa.timestamp("us", "UTC")
TIME = pa.time64("us")

EXACT_DIGITS = 15
"""Decimal digits that a REAL gives back unchanged."""

_DECLARED = re.compile(r"\s*([^()]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*([^()]*)")
_INTEGERS = re.compile(r"(UNSIGNED )?(TINY|SMALL|MEDIUM|BIG)? ?INT(EGER)?( UNSIGNED| SIGNED)?")
_DECIMALS = frozenset({"DECIMAL", "NUMERIC", "NUMBER", "DEC", "DECIMAL_TEXT"})
_NAMED: dict[str, pa.DataType] = {
    "INT1": pa.int8(),
    "INT2": pa.int16(),
    "INT4": pa.int32(),
    "INT8": pa.int64(),
    "FLOAT4": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "BIT": pa.bool_(),
    "DATE": pa.date32(),
    "TIME": TIME,
    "DATETIME": LOCAL,
    "TIMESTAMP": LOCAL,
    "TIMESTAMP_NTZ": LOCAL,
    "TIMESTAMP WITHOUT TIME ZONE": LOCAL,
    "TIMESTAMPTZ": INSTANT,
    "TIMESTAMP WITH TIME ZONE": INSTANT,
    "STRING": pa.string(),
    "JSON": pa.string(),
    "UUID": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BYTEA": pa.binary(),
}
_ERROR_OF_REALS, _ERROR_OF_UNITS = Decimal("1e-15"), Decimal("0.01")
"""How far a sum of reals may be from its decimal: this part of it, and of the last digit."""
SHOWN = 80
"""Letters of a value that a message shows."""
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


def _split(declared: str) -> tuple[str, tuple[int, ...]]:
    match = _DECLARED.fullmatch(declared.upper())
    if match is None:
        return declared.upper(), ()
    name = re.sub(r"\s+", " ", f"{match.group(1)} {match.group(4)}").strip()
    return name, tuple(int(size) for size in match.group(2, 3) if size is not None)


def affinity(declared: str) -> Affinity:
    """SQLite's own rule, https://www.sqlite.org/datatype3.html section 3.1."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if "CHAR" in text or "CLOB" in text or "TEXT" in text:
        return "TEXT"
    if "BLOB" in text or not text:
        return "BLOB"
    if "REAL" in text or "FLOA" in text or "DOUB" in text:
        return "REAL"
    return "NUMERIC"


def declared_type(declared: str) -> pa.DataType | None:
    """The Arrow type of a declared type; None if only the values determine it (no type, or an unknown one)."""
    name, sizes = _split(declared)
    if name in _DECIMALS:
        precision, scale = (*sizes, 0)[:2] if sizes else (0, 0)
        return (
            pa.decimal128(precision, scale) if 1 <= precision <= 38 and scale <= precision else None
        )
    if name in _NAMED:
        return _NAMED[name]
    if _INTEGERS.fullmatch(name):
        return pa.int64()
    kind = affinity(declared)
    if kind == "TEXT":
        return pa.string()
    if kind == "REAL":
        return pa.float64()
    if kind == "BLOB" and name:
        return pa.binary()
    return None


def is_text_decimal(declared: str) -> bool:
    """Whether its decimals are kept as text, which compares as text."""
    return _split(declared)[0] in _DECIMALS and affinity(declared) == "TEXT"


def raw_type(about: ReadColumn) -> pa.DataType:
    """The Arrow type in which the driver delivers the column."""
    kind = about.kind
    if is_real_decimal(about.declared, kind):
        return pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_binary(kind):
        return pa.binary()
    return pa.string()


def is_real_decimal(declared: str, kind: pa.DataType) -> bool:
    """Whether SQLite holds the decimals as numbers, few enough of digits to come back from them exactly."""
    numbers = affinity(declared) not in ("TEXT", "BLOB")
    return bool(numbers and pa.types.is_decimal(kind) and kind.precision <= EXACT_DIGITS)


def decode(raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of raw values in the types of `schema`.

    Raises:
        MisfitError: the first value found that its column's type cannot hold exactly.
    """
    arrays = [_cast(array, about) for array, about in zip(raw.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, about: ReadColumn) -> pa.Array:
    convert = _converter(about)
    try:
        return convert(array)
    except pa.ArrowInvalid:
        index = first_failure(array, convert)
        value = (
            array.cast(pa.binary())[index].as_py()
            if pa.types.is_string(array.type)
            else array[index].as_py()
        )
        value_shown = (
            value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        )
        problem = f"{value_shown[:SHOWN]!r}, which is not {about.kind}"
        raise MisfitError(about, problem, index=index, value=value) from None


def _converter(about: ReadColumn) -> Callable[[pa.Array], pa.Array]:
    kind = about.kind
    if is_real_decimal(about.declared, kind):
        return partial(_decimal_of_reals, kind=kind)
    if pa.types.is_decimal(kind) and affinity(about.declared) != "TEXT":
        return partial(_decimal_of_texts, kind=kind)
    if pa.types.is_string(kind):
        return _valid_text
    if pa.types.is_boolean(kind):
        return _boolean
    if kind == pa.float32():
        return _single
    if pa.types.is_time(kind):
        return _time
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return partial(_of_years, kind=kind)
    return lambda array: array if array.type.equals(kind) else pc.cast(array, kind)


def _of_years(array: pa.Array, kind: pa.DataType) -> pa.Array:
    array = pc.cast(array, kind)
    if first_outside(array) >= 0:
        raise pa.ArrowInvalid("years go from 1 to 9999")
    return array


def _valid_text(array: pa.Array) -> pa.Array:
    array.validate(full=True)
    return array


def _boolean(array: pa.Array) -> pa.Array:
    if pc.any(pc.greater(pc.cast(array, pa.uint64(), safe=False), 1)).as_py():
        raise pa.ArrowInvalid("neither 0 nor 1")
    return pc.cast(array, pa.bool_())


def _decimal_of_reals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Reals that stand for decimals of at most 15 digits, as `kind`.

    A real stands for whole / 10**scale when it is the nearest one to it; both are exact, so the division
    gives just that. For others see `_near`.
    """
    unit = float(10**kind.scale)
    whole = pc.cast(pc.round(pc.multiply(array, unit)), pa.int64())
    if not pc.all(pc.equal(pc.divide(pc.cast(whole, pa.float64()), unit), array)).as_py():
        texts = [None if value is None else repr(value) for value in array.to_pylist()]
        return _decimal_of_texts(pa.array(texts, pa.string()), kind)
    if pc.any(pc.greater_equal(pc.abs(whole), 10**kind.precision)).as_py():
        raise pa.ArrowInvalid(f"more than {kind.precision} digits")
    return pc.cast(whole, pa.decimal128(19, 0)).view(kind)


def _decimal_of_texts(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts of numbers, of reals the shortest that gives the real back, as `kind`."""
    try:
        return pc.cast(array, kind)
    except pa.ArrowInvalid:
        return pa.array([_near(text, kind.scale) for text in array.to_pylist()], kind)


def _near(text: str | None, scale: int) -> Decimal | None:
    """The decimal that a number stands for: itself, or, of a sum such as 0.30000000000000004, the one within the error
    of reals.

    Raises:
        pa.ArrowInvalid: it has more digits than the decimals, or is not a number.
    """
    if text is None:
        return None
    try:
        number, unit = Decimal(text), Decimal(1).scaleb(-scale)
        near = number.quantize(unit)
    except InvalidOperation:
        raise pa.ArrowInvalid("no such decimal") from None
    if abs(near - number) > min(abs(number) * _ERROR_OF_REALS, unit * _ERROR_OF_UNITS):
        raise pa.ArrowInvalid(f"more than {scale} digits behind the point")
    return near


def _single(array: pa.Array) -> pa.Array:
    single = pc.cast(array, pa.float32(), safe=False)
    if not pc.cast(single, pa.float64()).equals(array):
        raise pa.ArrowInvalid("more digits than a float has")
    return single


def _time(array: pa.Array) -> pa.Array:
    moments = pc.cast(pc.binary_join_element_wise("1970-01-01", array, " "), pa.timestamp("us"))
    if pc.any(pc.less_equal(pc.binary_length(array), 2)).as_py():
        raise pa.ArrowInvalid("an hour alone")
    return pc.cast(moments, pa.time64("us"))


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
    if pa.types.is_integer(kind) and pa.types.is_decimal(
        declared_type(column.declared) or pa.null()
    ):
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
        return pc.cast(
            convert(array, TIME, column, "SQLite's times end at microseconds here"), pa.string()
        )
    if pa.types.is_timestamp(kind):
        return _moment(array, column)
    if is_text(kind):
        return _text(pc.cast(array, pa.string()), column)
    return pc.cast(array, pa.binary())


def _real(array: pa.Array, column: WriteColumn) -> pa.Array:
    real = pc.cast(array, pa.float64())
    reason = "SQLite stores NaN as NULL; replace it or leave the row out"
    refuse_where(pc.is_nan(real), real, column, reason)
    return real


def _decimal(array: pa.Array, column: WriteColumn) -> pa.Array:
    column_type = declared_type(column.declared)
    if column_type is not None and pa.types.is_integer(column_type):
        return pc.cast(array, pa.int64())
    precise = column_type if column_type is not None and pa.types.is_decimal(column_type) else None
    array = pc.cast(array, precise or pa.decimal128(array.type.precision, array.type.scale))
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision <= EXACT_DIGITS:
        # The nearest real to each decimal, as both operands are exact; SQLite makes the same of its text.
        whole = pc.cast(array.view(pa.decimal128(array.type.precision, 0)), pa.int64())
        return pc.divide(pc.cast(whole, pa.float64()), float(10**array.type.scale))
    text = decimal_text(array)
    if affinity(column.declared) not in ("TEXT", "BLOB") and array.type.precision > EXACT_DIGITS:
        refuse_where(
            _too_many_digits(text),
            text,
            column,
            f"SQLite keeps {EXACT_DIGITS} digits of it in a "
            f"column declared {column.declared}; declare it DECIMAL_TEXT",
        )
    return text


def _too_many_digits(text: pa.Array) -> pa.Array:
    """A mask of decimal texts that have more digits than a REAL keeps, and are not whole numbers of 64 bits."""
    digits = pc.utf8_trim(pc.replace_substring_regex(text, "[-.]", ""), "0")
    whole = pc.and_(
        pc.invert(pc.match_substring(text, ".")), pc.less_equal(pc.binary_length(text), 18 + 1)
    )
    return pc.and_(pc.greater(pc.binary_length(digits), EXACT_DIGITS), pc.invert(whole))


def _moment(array: pa.Array, column: WriteColumn) -> pa.Array:
    text = pc.cast(local_timestamps(array, column), pa.string())
    return text if array.type.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _text(array: pa.Array, column: WriteColumn) -> pa.Array:
    if affinity(column.declared) not in ("TEXT", "BLOB"):
        reason = f"SQLite would turn it into a number in a column declared {column.declared}; declare it TEXT"
        refuse_where(pc.match_substring_regex(array, _NUMBER), array, column, reason)
    return array
