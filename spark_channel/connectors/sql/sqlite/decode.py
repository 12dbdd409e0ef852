"""Decodes SQLite's values to Arrow, without loss."""

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.search import first_failure
from spark_channel.connectors.sql.sqlite.column_types import EXACT_DIGITS, affinity

__all__ = ["SHOWN", "decode", "is_real_decimal", "raw_type"]

SHOWN = 80
"""Letters of a value that a message shows."""


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
            array.cast(pa.binary())[index].as_py() if pa.types.is_string(array.type) else array[index].as_py()
        )
        shown = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        what = f"{shown[:SHOWN]!r}, which is not {about.kind}"
        raise MisfitError(about, what, index=index, value=value) from None


def _converter(about: ReadColumn) -> Callable[[pa.Array], pa.Array]:
    kind = about.kind
    if is_real_decimal(about.declared, kind):
        return partial(_decimal_of_reals, kind=kind)
    if pa.types.is_string(kind):
        return _valid_text
    if pa.types.is_boolean(kind):
        return _boolean
    if kind == pa.float32():
        return _single
    if pa.types.is_time(kind):
        return _time
    return lambda array: array if array.type.equals(kind) else pc.cast(array, kind)


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
    gives just that. Others (sums, such as 0.30000000000000004) count as what SQLite shows of them, 15 digits.
    """
    unit = float(10**kind.scale)
    whole = pc.cast(pc.round(pc.multiply(array, unit)), pa.int64())
    if not pc.all(pc.equal(pc.divide(pc.cast(whole, pa.float64()), unit), array)).as_py():
        shown = [None if value is None else format(value, ".15g") for value in array.to_pylist()]
        return pc.cast(pa.array(shown, pa.string()), kind)
    if pc.any(pc.greater_equal(pc.abs(whole), 10**kind.precision)).as_py():
        raise pa.ArrowInvalid(f"more than {kind.precision} digits")
    return pc.cast(whole, pa.decimal128(19, 0)).view(kind)


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
