"""From SQLite's values to Arrow's: columns are selected so that only values that fit come through.

A value that does not fit stops the statement (the driver takes a column's type from its first rows and trips
over another one, or the selected expression overflows on purpose); `misfit` then finds it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.search import first_failure
from spark_channel.connectors.sql.sqlite.column_types import EXACT_DIGITS, affinity
from spark_channel.connectors.sql.statements import Node

__all__ = ["MisfitError", "ReadColumn", "decode", "misfit", "raw_type", "sentinel", "value_expression"]

_STOP = "abs(-9223372036854775808)"
_WHOLE = "BETWEEN -9007199254740992 AND 9007199254740992"


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column that is read: SQLite's name and declared type, and the Arrow type it is delivered in."""

    name: str
    declared: str
    kind: pa.DataType


class MisfitError(Exception):
    """Row `index` of a batch holds `value` in `column`, which is not of its type."""

    def __init__(self, column: ReadColumn, index: int, value: Any) -> None:
        super().__init__(column.name)
        self.column, self.index, self.value = column, index, value


def raw_type(about: ReadColumn) -> pa.DataType:
    """The Arrow type in which the driver delivers the column."""
    kind = about.kind
    if _is_real_decimal(about):
        return pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_binary(kind):
        return pa.binary()
    return pa.string()


def _is_real_decimal(about: ReadColumn) -> bool:
    """Whether SQLite holds the decimals as numbers, few enough of digits to come back from them exactly."""
    kind = about.kind
    numbers = affinity(about.declared) not in ("TEXT", "BLOB")
    return bool(numbers and pa.types.is_decimal(kind) and kind.precision <= EXACT_DIGITS)


def sentinel(about: ReadColumn) -> Node:
    """A value of the raw type, which stands in the first row so that the driver takes that type."""
    texts = {pa.int64(): "0", pa.float64(): "0.0", pa.binary(): "empty_blob", pa.string(): "''"}
    return _fill(texts[raw_type(about)], exp.column("c"))


def value_expression(column: exp.Column, about: ReadColumn) -> Node:
    """What is selected for `column`: its value, or a failing statement for one that does not fit."""
    return _fill(_value_template(about), column)


def misfit(column: exp.Column, about: ReadColumn) -> Node:
    """The condition that holds for values whose storage class does not fit."""
    kind = about.kind
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        text = "typeof(c) NOT IN ('integer', 'null')"
    elif pa.types.is_floating(kind):
        text = f"typeof(c) NOT IN ('real', 'integer', 'null') OR (typeof(c) = 'integer' AND NOT c {_WHOLE})"
    elif _is_real_decimal(about):
        text = "typeof(c) NOT IN ('real', 'integer', 'null')"
    elif pa.types.is_binary(kind):
        text = "typeof(c) NOT IN ('blob', 'null')"
    elif pa.types.is_string(kind) or pa.types.is_decimal(kind):
        text = "typeof(c) = 'blob'"
    else:
        text = "typeof(c) NOT IN ('text', 'null')"
    return _fill(text, column)


def _value_template(about: ReadColumn) -> str:
    kind, stored = about.kind, affinity(about.declared)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "c"
    if pa.types.is_floating(kind):
        if stored == "REAL":
            return "c"
        return f"CASE WHEN typeof(c) IN ('real', 'null') OR c {_WHOLE} THEN c ELSE {_STOP} END"
    if pa.types.is_binary(kind):
        return f"CASE WHEN c IS NULL OR c >= empty_blob THEN c ELSE {_STOP} END"
    if _is_real_decimal(about):
        return "c"
    if pa.types.is_decimal(kind):
        return (
            "CASE typeof(c) WHEN 'text' THEN c WHEN 'integer' THEN CAST(c AS TEXT) "
            f"WHEN 'real' THEN printf('%!.15g', c) WHEN 'null' THEN NULL ELSE {_STOP} END"
        )
    if stored == "TEXT":
        return f"CASE WHEN c >= empty_blob THEN {_STOP} ELSE c END"
    if pa.types.is_string(kind):
        return (
            "CASE typeof(c) WHEN 'text' THEN c WHEN 'integer' THEN CAST(c AS TEXT) "
            f"WHEN 'real' THEN printf('%!.17g', c) WHEN 'null' THEN NULL ELSE {_STOP} END"
        )
    return f"CASE WHEN c IS NULL OR (c >= '' AND c < empty_blob) THEN c ELSE {_STOP} END"


@cache
def _parsed(text: str) -> Node:
    return sqlglot.parse_one(text, read="sqlite")


def _fill(text: str, column: exp.Column) -> Node:
    holder = exp.Paren(this=_parsed(text).copy())
    for place in list(holder.find_all(exp.Column)):
        # Releases of sqlglot before 27 cannot read x'', and all can write it.
        place.replace(exp.HexString(this="") if place.name == "empty_blob" else column.copy())
    return cast(Node, holder.this)


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
        raise MisfitError(about, index, value) from None


def _converter(about: ReadColumn) -> Callable[[pa.Array], pa.Array]:
    kind = about.kind
    if _is_real_decimal(about):
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
