"""From the driver's Arrow to the schema that was promised, exactly; a value that does not fit is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.postgresql.column_types import ReadType
from spark_channel.connectors.sql.postgresql.failures import CANNOT_CARRY
from spark_channel.connectors.sql.search import first_failure
from spark_channel.connectors.sql.statements import Node

__all__ = ["MisfitError", "ReadColumn", "decode", "selected"]

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_MICROSECOND, _LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
_DAY = 86_400_000_000
_ODD_ARRAY = (
    "CASE WHEN array_ndims(c) > 1 OR array_lower(c, 1) <> 1 "
    "THEN CAST('carry' || CAST(c AS TEXT) AS {array}) ELSE c END"
)


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column that is read: its name, PostgreSQL's type by name, how it is read, and what is delivered."""

    name: str
    typname: str
    read: ReadType
    kind: pa.DataType
    typmod: int = -1


class MisfitError(Exception):
    """`column` holds `value`, which its type cannot carry."""

    def __init__(self, column: ReadColumn, value: Any, why: str) -> None:
        super().__init__(column.name)
        self.column, self.value, self.why = column, value, why


def selected(column: exp.Column, about: ReadColumn) -> Node:
    """What is selected for `column`."""
    node: Node = column
    if about.read.cast is not None:
        node = exp.cast(column, about.read.cast, dialect="postgres")
    if about.read.is_array:
        array = about.read.cast or f"{about.typname[1:]}[]"
        if about.typname == "_bpchar":
            array = "bpchar[]"
        template = sqlglot.parse_one(_ODD_ARRAY.format(array=array), read="postgres")
        for place in list(template.find_all(exp.Column)):
            if place.name == "c":
                place.replace(node.copy())
        for text in template.find_all(exp.Literal):
            if text.this == "carry":
                text.set("this", f"{CANNOT_CARRY} column {about.name!r} holds the array ")
        node = template
    return node


def decode(raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
    """A batch as it came, in the types of `schema`.

    Raises:
        MisfitError: a value that its column's type cannot hold exactly.
    """
    arrays = [_decode(array, about) for array, about in zip(raw.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decode(array: pa.Array, about: ReadColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_list(array.type):
        values = array.values
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        _refuse_outside(values, about)
        mask = pc.is_null(array) if array.null_count else None
        array = pa.ListArray.from_arrays(array.offsets, values, mask=mask) if array.offset == 0 else array
    else:
        _refuse_outside(array, about)
    if array.type.equals(about.kind):
        return array
    try:
        return pc.cast(array, about.kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(about, _first_bad(array, about.kind), str(error)) from None


def _first_bad(array: pa.Array, kind: pa.DataType) -> Any:
    try:
        return array[first_failure(array, lambda part: pc.cast(part, kind))].as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _refuse_outside(values: pa.Array, about: ReadColumn) -> None:
    """Infinite dates, years before 1 or after 9999, and 24:00:00 are no values of Spark's."""
    kind = values.type
    if pa.types.is_date(kind):
        plain, first, last = pc.cast(values, pa.int32()), _FIRST_DAY, _LAST_DAY
        why = "dates go from year 1 to 9999, and are never infinite"
    elif pa.types.is_timestamp(kind):
        plain, first, last = pc.cast(values, pa.int64()), _FIRST_MICROSECOND, _LAST_MICROSECOND
        why = "timestamps go from year 1 to 9999, and are never infinite"
    elif pa.types.is_time(kind):
        plain, first, last = pc.cast(values, pa.int64()), 0, _DAY - 1
        why = "a day ends before 24:00:00"
    else:
        return
    ends = pc.min_max(plain).as_py()
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise MisfitError(about, None, why)
