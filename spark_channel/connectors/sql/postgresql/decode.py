"""Casts the driver's Arrow to the declared schema without loss; a value that does not fit is refused."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.postgresql.column_types import ReadType
from spark_channel.connectors.sql.postgresql.failures import CANNOT_CARRY
from spark_channel.connectors.sql.postgresql.session import literal_sql
from spark_channel.connectors.sql.search import first_failure
from spark_channel.connectors.sql.spans import first_outside

__all__ = ["decode", "selected"]

_SHOWN = 80


def selected(text: str, name: str, typname: str, read: ReadType) -> str:
    """The expression that reads `text`, column `name`; an array of another shape fails with its value."""
    if read.cast is not None:
        text = f"CAST({text} AS {read.cast})"
    if not read.is_array:
        return text
    array = "bpchar[]" if typname == "_bpchar" else read.cast or f"{typname[1:]}[]"
    told = literal_sql(f"{CANNOT_CARRY} column {name!r} holds the array ")
    return (
        f"CASE WHEN array_ndims({text}) > 1 OR array_lower({text}, 1) <> 1 "
        f"THEN CAST({told} || CAST({text} AS TEXT) AS {array}) ELSE {text} END"
    )


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
        bad = _first_bad(array, about.kind)
        what = "a value that" if bad is None else f"{str(bad)[:_SHOWN]!r}, which"
        raise MisfitError(about, f"{what} does not fit {about.kind}: {error}") from None


def _first_bad(array: pa.Array, kind: pa.DataType) -> Any:
    try:
        return array[first_failure(array, lambda part: pc.cast(part, kind))].as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _refuse_outside(values: pa.Array, about: ReadColumn) -> None:
    """Infinite dates, years before 1 or after 9999, and 24:00:00 are no values of Spark's."""
    if first_outside(values) < 0:
        return
    if pa.types.is_time(values.type):
        why = "a day ends before 24:00:00"
    else:
        of = "dates" if pa.types.is_date(values.type) else "timestamps"
        why = f"{of} go from year 1 to 9999, and are never infinite"
    raise MisfitError(about, f"a value that does not fit {about.kind}: {why}")
