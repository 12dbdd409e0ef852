"""Encodes Arrow values for COPY in the types of the table's columns, or refuses the row."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.encode import BadValueError, convert, is_text, refuse_where, storage
from spark_channel.connectors.sql.fits import fits, integer_digits, is_list, plain_kind
from spark_channel.connectors.sql.postgresql.catalog import PgColumn
from spark_channel.connectors.sql.postgresql.column_types import (
    ELEMENTS,
    INSTANT,
    LOCAL,
    NATURAL,
    TIME,
    numeric_digits,
    numeric_size,
)
from spark_channel.connectors.sql.postgresql.copy_rows import ELEMENT
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.connectors.sql.write_dialect import misfit

__all__ = ["PgWriteColumn", "encode", "lenient_column", "native_column", "write_column"]

_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "json", "xml", "citext", "char"})
_NAME_BYTES = 63
_FINER: dict[str, str] = {
    "money": r"^[^.,]*\.[0-9]{2}[0-9]*[1-9]",
    **dict.fromkeys(
        ("interval", "timetz", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange"),
        r"\.[0-9]{6}[0-9]*[1-9]",
    ),
    **dict.fromkeys(("oid", "xid", "cid"), r"^\s*-"),
}
"""Texts of which these types would make another value without a word: rounded, or counted down from 2^32."""


@dataclass(frozen=True, slots=True)
class PgWriteColumn(WriteColumn):
    """`wire` is the Arrow type that COPY's bytes are made of.

    `cast`: what is sent is text, in a column of the type `staged`, and PostgreSQL makes the column's own type of it.
    """

    column: PgColumn
    wire: pa.DataType
    staged: str
    cast: bool = False


def write_column(field: pa.Field, column: PgColumn) -> PgWriteColumn:
    """The conversion of `field` to the table's `column`.

    Raises:
        SchemaError: it cannot hold them exactly; names the column and both types.
    """
    name, kind = field.name, field.type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(plain, pa.BaseExtensionType):
        plain = plain.storage_type
    wire = _wire(plain, column)
    if wire is not None:
        return PgWriteColumn(name, column, kind, wire, column.declared)
    text = pa.list_(pa.string()) if column.category == "A" else pa.string()
    if _reads_text(column) and (pa.types.is_null(plain) or _same_shape(plain, text)):
        staged = "text[]" if column.category == "A" else "text"
        return PgWriteColumn(name, column, kind, text, staged, cast=True)
    raise misfit(field, column, LOCAL if column.base in ("timestamp", "timestamptz") else None)


def lenient_column(field: pa.Field, column: PgColumn) -> PgWriteColumn:
    """As `write_column`; a local time for a `timestamptz` is of the session's zone, in which the server casts it."""
    local = pa.types.is_timestamp(field.type) and field.type.tz is None
    if local and column.base == "timestamptz":
        return PgWriteColumn(field.name, column, field.type, LOCAL, "timestamp", cast=True)
    return write_column(field, column)


def native_column(field: pa.Field, column: Column) -> PgWriteColumn:
    """The same of rows that come as COPY writes them: nothing is made of their values."""
    assert isinstance(column, PgColumn)
    return PgWriteColumn(field.name, column, field.type, pa.null(), column.declared)


def _same_shape(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        return is_list(given) and _same_shape(given.value_type, pa.string())
    return is_text(given)


def _reads_text(column: PgColumn) -> bool:
    """Whether the column is one that is read as text, and so is written as text."""
    base = column.element if column.category == "A" else column.base
    if base in ("interval", "timetz") and column.typmod != -1:
        return False  # it would be rounded without a word
    if column.category == "A":
        return True
    return column.base not in NATURAL and not (column.base == "numeric" and numeric_size(column.typmod))


def _wire(given: pa.DataType, column: PgColumn) -> pa.DataType | None:
    """The Arrow type that COPY takes for the column, when `given` fits it without loss; else None."""
    if column.category == "A":
        if not is_list(given) or column.element not in ELEMENTS or pa.types.is_dictionary(given.value_type):
            return None
        inner = PgColumn(column.name, column.declared, base=column.element, typmod=column.typmod)
        element = _wire(given.value_type, inner)
        return None if element is None else pa.list_(element)
    base = column.base
    if pa.types.is_null(given) and base in NATURAL:
        return pa.binary() if base == "jsonb" else NATURAL[base]
    if base == "numeric":
        return _numeric_wire(given, column)
    if base in _TEXTS or column.category == "E":
        return pa.string() if is_text(given) else None
    if base == "jsonb":
        return pa.binary() if is_text(given) else None
    if base == "uuid":
        return pa.binary(16) if is_text(given) or given == pa.binary(16) else None
    if (
        base == "interval"
        and column.typmod == -1
        and (pa.types.is_duration(given) or pa.types.is_interval(given))
    ):
        return pa.duration("us") if pa.types.is_duration(given) else given
    if base not in NATURAL or (pa.types.is_boolean(given) and base != "bool"):
        return None
    return NATURAL[base] if fits(plain_kind(given), NATURAL[base]) else None


def _numeric_wire(given: pa.DataType, column: PgColumn) -> pa.DataType | None:
    if column.typmod >= 4:
        precision, scale = numeric_digits(column.typmod)
    else:
        precision, scale = 1000, 500
    if pa.types.is_integer(given):
        digits = integer_digits(given)
        return pa.decimal128(digits, 0) if digits <= precision - scale and scale >= 0 else None
    if pa.types.is_decimal(given):
        whole = given.precision - given.scale
        return given if given.scale <= scale and whole <= precision - scale else None
    if pa.types.is_null(given):
        return pa.decimal128(1, 0)
    return None


def encode(
    batch: pa.RecordBatch | pa.Table, columns: Sequence[PgWriteColumn], *, exact: bool = True
) -> pa.RecordBatch:
    """A batch as COPY sends it, its columns named as the table's; unless `exact`, the server may round times.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    arrays = [_encode(batch.column(column.name), column, exact) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([_sent(column) for column in columns]))


def _sent(column: PgWriteColumn) -> pa.Field:
    if not pa.types.is_list(column.wire):
        return pa.field(column.target, column.wire)
    element = ELEMENTS["text" if column.cast else str(column.column.element)]
    return pa.field(column.target, column.wire, metadata={ELEMENT: str(element).encode()})


def _encode(array: Any, column: PgWriteColumn, exact: bool) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # pyarrow before 26 may keep chunks that overflow one array
        array = pa.concat_arrays(array.chunks)
    array = storage(array)
    base = column.column.base
    if base == "uuid" and not column.cast and not array.type.equals(pa.binary(16)):
        return _uuids(array, column)
    if base == "jsonb" and not column.cast:
        texts = convert(array, pa.string(), column, "")
        return pc.cast(pc.binary_join_element_wise("\x01", texts, ""), pa.binary())
    array = convert(array, column.wire, column, _why(column.wire))
    if exact or not (pa.types.is_timestamp(array.type) or pa.types.is_time(array.type)):
        _refuse_what_would_change(array, column)
    return array


def _why(kind: pa.DataType) -> str:
    if kind in (LOCAL, INSTANT, TIME):
        return "PostgreSQL's times end at microseconds"
    return "a date has no time of day" if pa.types.is_date(kind) else ""


def _uuids(array: pa.Array, column: PgWriteColumn) -> pa.Array:
    """Texts as the 16 bytes of a uuid."""
    found: list[bytes | None] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            found.append(None if text is None else uuid.UUID(text).bytes)
        except ValueError:
            raise BadValueError(column, index, text, "it is not a uuid") from None
    return pa.array(found, pa.binary(16))


def _refuse_what_would_change(array: pa.Array, column: PgWriteColumn) -> None:
    """Refuses values, or elements of an array, that PostgreSQL would cut or round silently."""
    about = column.column
    base, typmod = about.base, about.typmod
    if about.category == "A":
        array, base = array.flatten(), about.element or ""
    if base in ("varchar", "bpchar") and typmod >= 4:
        long = pc.greater(pc.utf8_length(array), typmod - 4)
        refuse_where(long, array, column, f"it is longer than {about.declared}")
    elif base == "name":
        long = pc.greater(pc.binary_length(array), _NAME_BYTES)
        refuse_where(long, array, column, "a name has 63 bytes at most")
    elif base in ("bit", "varbit") and typmod >= 0:
        wrong = pc.not_equal if base == "bit" else pc.greater
        refuse_where(
            wrong(pc.binary_length(array), typmod), array, column, f"it does not fit {about.declared}"
        )
    elif base == "numeric" and typmod >= 4 and pa.types.is_string(array.type):
        scale = max(0, numeric_digits(typmod)[1])
        long = pc.match_substring_regex(array, rf"\.[0-9]{{{scale}}}[0-9]*[1-9]|[eE]")
        refuse_where(long, array, column, f"{about.declared} would round it")
    elif base in ("time", "timestamp", "timestamptz") and 0 <= typmod < 6:
        unit = 10 ** (6 - typmod)
        plain = pc.cast(array, pa.int64())
        rest = pc.not_equal(pc.multiply(pc.divide(plain, unit), unit), plain)
        refuse_where(rest, array, column, f"{about.declared} would round it")
    elif pa.types.is_interval(array.type):
        finer = [value is not None and value.nanoseconds % 1000 != 0 for value in array.to_pylist()]
        refuse_where(pa.array(finer, pa.bool_()), array, column, "PostgreSQL's intervals end at microseconds")
    elif base in _FINER and pa.types.is_string(array.type):
        other = pc.match_substring_regex(array, _FINER[base])
        refuse_where(other, array, column, f"{about.declared} would hold another value")
