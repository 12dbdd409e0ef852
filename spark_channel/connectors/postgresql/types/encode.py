"""Encodes Arrow values for COPY in the types of the table's columns, or refuses the row."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import is_list, is_text
from spark_channel.connectors.base.types import fits, integer_digits, plain_kind
from spark_channel.connectors.postgresql.catalog import PgColumn
from spark_channel.connectors.postgresql.copy.format import ELEMENT
from spark_channel.connectors.postgresql.types.arrow import (
    ELEMENTS,
    INSTANT,
    LOCAL,
    NATURAL,
    TIME,
    numeric_digits,
    numeric_size,
)
from spark_channel.connectors.sql.catalog import Column, WriteColumn
from spark_channel.connectors.sql.dialect import misfit
from spark_channel.connectors.sql.write.encode import BadValueError, convert, refuse_where, storage
from spark_channel.lazy import compute as pc

__all__ = [
    "PgWriteColumn",
    "check_values",
    "encode",
    "lenient_column",
    "native_column",
    "write_column",
]


_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "json", "xml", "citext", "char"})
_NAME_BYTES = 63
_FINER: dict[str, str] = {
    **dict.fromkeys(
        ("interval", "timetz", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange"),
        r"\.[0-9]{6}[0-9]*[1-9]",
    ),
    **dict.fromkeys(("oid", "xid", "cid"), r"^\s*-"),
}
"""Texts of which these types would make another value without a word: rounded, or counted down from 2^32
(findings/postgresql-negative-oid.sh).
"""


@dataclass(frozen=True, slots=True)
class PgWriteColumn(WriteColumn):
    """`wire` is the Arrow type that COPY's bytes are made of.

    `cast`: the rows are sent as text, in a column of the type `staged`, which PostgreSQL casts to the column's type.
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


def _same_shape(kind: pa.DataType, wanted_kind: pa.DataType) -> bool:
    if pa.types.is_list(wanted_kind):
        return is_list(kind) and _same_shape(kind.value_type, pa.string())
    return is_text(kind)


def _reads_text(column: PgColumn) -> bool:
    """Whether the column is one that is read as text, and so is written as text."""
    base = column.element if column.category == "A" else column.base
    if base in ("interval", "timetz") and column.typmod != -1:
        return False  # it would be rounded without a word
    if column.category == "A":
        return True
    return column.base not in NATURAL and not (
        column.base == "numeric" and numeric_size(column.typmod)
    )


def _wire(kind: pa.DataType, column: PgColumn) -> pa.DataType | None:
    """The Arrow type that COPY takes for the column, when `kind` fits it without loss; else None."""
    if column.category == "A":
        if (
            not is_list(kind)
            or column.element not in ELEMENTS
            or pa.types.is_dictionary(kind.value_type)
        ):
            return None
        inner = PgColumn(column.name, column.declared, base=column.element, typmod=column.typmod)
        element = _wire(kind.value_type, inner)
        return None if element is None else pa.list_(element)
    base = column.base
    if pa.types.is_null(kind) and base in NATURAL:
        return pa.binary() if base == "jsonb" else NATURAL[base]
    if base == "numeric":
        return _numeric_wire(kind, column)
    if base in _TEXTS or column.category == "E":
        return pa.string() if is_text(kind) else None
    if base == "jsonb":
        return pa.binary() if is_text(kind) else None
    if base == "uuid":
        return pa.binary(16) if is_text(kind) or kind == pa.binary(16) else None
    if (
        base == "interval"
        and column.typmod == -1
        and (pa.types.is_duration(kind) or pa.types.is_interval(kind))
    ):
        return pa.duration("us") if pa.types.is_duration(kind) else kind
    if base not in NATURAL or (pa.types.is_boolean(kind) and base != "bool"):
        return None
    return NATURAL[base] if fits(plain_kind(kind), NATURAL[base]) else None


def _numeric_wire(kind: pa.DataType, column: PgColumn) -> pa.DataType | None:
    if column.typmod >= 4:
        precision, scale = numeric_digits(column.typmod)
    else:
        precision, scale = 1000, 500
    if pa.types.is_integer(kind):
        digits = integer_digits(kind)
        return pa.decimal128(digits, 0) if digits <= precision - scale and scale >= 0 else None
    if pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return kind if kind.scale <= scale and whole <= precision - scale else None
    if pa.types.is_null(kind):
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
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([_sent(column) for column in columns])
    )


def check_values(values: pa.Array, column: PgWriteColumn) -> None:
    """Check that PostgreSQL holds the values unchanged, as far as its columns' declarations say.

    Raises:
        BadValueError: the first one found that it does not hold.
    """
    texts = _encode(values, column, True)
    texts = texts.flatten() if pa.types.is_list(texts.type) else texts
    if pa.types.is_string(texts.type):
        zero = pc.match_substring(texts, "\0")
        refuse_where(zero, texts, column, "PostgreSQL's texts have no character of number 0")


def _sent(column: PgWriteColumn) -> pa.Field:
    if not pa.types.is_list(column.wire):
        return pa.field(column.target, column.wire)
    element = ELEMENTS["text" if column.cast else str(column.column.element)]
    return pa.field(column.target, column.wire, metadata={ELEMENT: str(element).encode()})


def _encode(array: Any, column: PgWriteColumn, exact: bool) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        # Pyarrow before 26 may keep chunks that overflow one array.
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
    uuids: list[bytes | None] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            uuids.append(None if text is None else uuid.UUID(text).bytes)
        except ValueError:
            raise BadValueError(column, index, text, "it is not a uuid") from None
    return pa.array(uuids, pa.binary(16))


def _refuse_what_would_change(array: pa.Array, column: PgWriteColumn) -> None:
    """Refuses values, or elements of an array, that PostgreSQL would cut or round silently."""
    about = column.column
    base, typmod = about.base, about.typmod
    if about.category == "A":
        array, base = array.flatten(), about.element or ""
    if base in ("varchar", "bpchar") and typmod >= 4:
        long = pc.greater(pc.utf8_length(array), typmod - 4)
        wider = "text[]" if about.category == "A" else "text"
        refuse_where(long, array, column, f"it is longer than {about.declared}", wider)
    elif base == "name":
        long = pc.greater(pc.binary_length(array), _NAME_BYTES)
        refuse_where(long, array, column, "a name has 63 bytes at most")
    elif base in ("bit", "varbit") and typmod >= 0:
        wrong = pc.not_equal if base == "bit" else pc.greater
        refuse_where(
            wrong(pc.binary_length(array), typmod),
            array,
            column,
            f"it does not fit {about.declared}",
        )
    elif base == "numeric" and typmod >= 4 and pa.types.is_string(array.type):
        scale = max(0, numeric_digits(typmod)[1])
        long = pc.match_substring_regex(array, rf"\.[0-9]{{{scale}}}[0-9]*[1-9]|[eE]")
        refuse_where(long, array, column, f"{about.declared} keeps fewer digits than the value has")
    elif base in ("time", "timestamp", "timestamptz") and 0 <= typmod < 6:
        unit = 10 ** (6 - typmod)
        plain = pc.cast(array, pa.int64())
        is_changed = pc.not_equal(pc.multiply(pc.divide(plain, unit), unit), plain)
        refuse_where(
            is_changed, array, column, f"{about.declared} keeps fewer digits than the value has"
        )
    elif pa.types.is_interval(array.type):
        finer = [value is not None and value.nanoseconds % 1000 != 0 for value in array.to_pylist()]
        refuse_where(
            pa.array(finer, pa.bool_()), array, column, "PostgreSQL's intervals end at microseconds"
        )
    elif base in _FINER and pa.types.is_string(array.type):
        other = pc.match_substring_regex(array, _FINER[base])
        refuse_where(other, array, column, f"{about.declared} would hold another value")
