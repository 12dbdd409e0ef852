"""PostgreSQL's types as Arrow's; decoding and encoding."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import first_failure, is_list, is_text
from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.base.types import fits, integer_digits, plain_kind
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable
from spark_channel.connectors.postgresql.copy_format import ELEMENT
from spark_channel.connectors.postgresql.failures import CANNOT_CARRY
from spark_channel.connectors.postgresql.session import literal_sql
from spark_channel.connectors.sql.catalog import Column, MisfitError, ReadColumn, WriteColumn
from spark_channel.connectors.sql.dialect import misfit
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import only_name
from spark_channel.connectors.sql.write.encode import (
    BadValueError,
    convert,
    first_outside,
    refuse_where,
    storage,
)
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import shortened

__all__ = [
    "ELEMENTS",
    "INSTANT",
    "LOCAL",
    "OF_SESSION",
    "SYSTEM",
    "TIME",
    "PgWriteColumn",
    "ReadType",
    "are_native",
    "check_values",
    "decode",
    "encode",
    "lenient_column",
    "native_column",
    "native_types",
    "numeric_digits",
    "numeric_size",
    "own_names",
    "read_type",
    "selected",
    "text_sql",
    "value_sql",
    "write_column",
]


# PostgreSQL's types as Arrow's. Pure; docs/postgresql.md holds it as a table.


INSTANT = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")
TIME = pa.time64("us")

NATURAL: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "json": pa.string(),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": TIME,
    "timestamp": LOCAL,
    "timestamptz": INSTANT,
}
"""Types whose values arrive from the driver as they are, by their names in pg_type."""

ELEMENTS: dict[str, int] = {
    "bool": 16,
    "bytea": 17,
    "char": 18,
    "name": 19,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "xml": 142,
    "float4": 700,
    "float8": 701,
    "bpchar": 1042,
    "varchar": 1043,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "interval": 1186,
    "numeric": 1700,
}
"""The numbers (oids) of the types whose arrays are sent as arrays: the same on every server."""

_ARRAY_TEXTS = frozenset({"json", "jsonb"})


@dataclass(frozen=True, slots=True)
class ReadType:
    """How a column is read: its Arrow type, and whether it is selected as `::text` or `::text[]`."""

    kind: pa.DataType
    cast: str | None = None
    is_array: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether it is read as PostgreSQL's text, since Arrow has no type for it. The text may sort differently."""
        return self.cast is not None and not pa.types.is_decimal(self.kind)


def numeric_digits(typmod: int) -> tuple[int, int]:
    """(precision, scale) as a numeric was declared; the scale may be negative, or above the precision."""
    precision, scale = (typmod - 4) >> 16, (typmod - 4) & 0x7FF
    return precision, scale - 0x800 if scale & 0x400 else scale


def numeric_size(typmod: int) -> tuple[int, int] | None:
    """(precision, scale) of a numeric that Arrow's decimal128 can hold; None for others."""
    if typmod < 4:
        return None
    precision, scale = numeric_digits(typmod)
    return (precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None


def read_type(name: str, typmod: int = -1) -> ReadType:
    """How a column of the type that pg_type calls `name` is read; `_int4` is an array of int4.

    What Arrow has no exact type for is read as the text that PostgreSQL itself shows of it.
    """
    if name in NATURAL:
        return ReadType(NATURAL[name])
    if name == "numeric":
        size = numeric_size(typmod)
        # As text either way: the server writes it in half the time in which the driver reads its base 10 000.
        return ReadType(pa.string() if size is None else pa.decimal128(*size), "text")
    if name.startswith("_"):
        element = name[1:]
        if element in NATURAL and element not in _ARRAY_TEXTS:
            return ReadType(pa.list_(NATURAL[element]), is_array=True)
        return ReadType(pa.list_(pa.string()), "text[]", is_array=True)
    return ReadType(pa.string(), "text")


# Casts the driver's Arrow to the declared schema without loss; a value that does not fit is
# refused.


_SHOWN = 80


def selected(text: str, name: str, typname: str, read: ReadType) -> str:
    """The expression that reads `text`, column `name`; an array of another shape fails with its value."""
    if not read.is_array:
        if read.cast != "text":
            return text if read.cast is None else f"CAST({text} AS {read.cast})"
        if not typname.startswith("_"):
            return text_sql(text, typname)
        return f"CAST({f'CAST({text} AS numeric[])' if typname == '_money' else text} AS text)"
    array = "bpchar[]" if typname == "_bpchar" else read.cast or f"{typname[1:]}[]"
    read_as = text if read.cast is None else text_sql(text, typname)
    message = literal_sql(f"{CANNOT_CARRY} column {name!r} holds the array ")
    return (
        f"CASE WHEN array_ndims({text}) > 1 OR array_lower({text}, 1) <> 1 "
        f"THEN CAST({message} || CAST({text} AS TEXT) AS {array}) ELSE {read_as} END"
    )


# Types that a cast to text does not show as the server's output does, or not in one way on every
# server.


_CATALOGS = {
    "regclass": ("pg_class", "relname", "relnamespace"),
    "regproc": ("pg_proc", "proname", "pronamespace"),
    "regoper": ("pg_operator", "oprname", "oprnamespace"),
    "regcollation": ("pg_collation", "collname", "collnamespace"),
    "regconfig": ("pg_ts_config", "cfgname", "cfgnamespace"),
    "regdictionary": ("pg_ts_dict", "dictname", "dictnamespace"),
}
_IDENTIFIED = {"regtype": "pg_type", "regprocedure": "pg_proc", "regoperator": "pg_operator"}
_OUTPUT = frozenset({"inet", "xml"})
OF_SESSION = frozenset({"money", *_CATALOGS, *_IDENTIFIED})
"""Types of which a session's settings decide what the server's output means."""


def text_sql(text: str, typname: str) -> str:
    """The expression for the text of `text`, a value of the type `typname` or an array of such: the server's output.

    `money` is a number, as lc_monetary decides how it is shown, and what is shown is another amount elsewhere. A name
    of an object has its schema, as search_path decides what it means without.
    """
    element = typname.removeprefix("_")
    if typname == element:
        return _shown_as(text, element)
    if _shown_as("e", element) == "CAST(e AS text)":
        return f"CAST({text} AS text[])"
    return (
        f"CASE WHEN {text} IS NOT NULL THEN ARRAY(SELECT {_shown_as('e', element)} "  # noqa: S608 - made of quoted names
        f"FROM unnest({text}) WITH ORDINALITY AS each_of (e, n) ORDER BY n) END"
    )


def _shown_as(text: str, typname: str) -> str:
    if typname == "money":
        return f"CAST(CAST({text} AS numeric) AS text)"
    if typname in _OUTPUT:
        return f"textin({typname}_out({text}))"
    if typname in _CATALOGS:
        catalog, name, space = _CATALOGS[typname]
        sign = "c.oprname" if typname == "regoper" else f"quote_ident(c.{name})"
        return (
            f"coalesce((SELECT quote_ident(s.nspname) || '.' || {sign} FROM pg_catalog.{catalog} c "  # noqa: S608 - constants
            f"JOIN pg_catalog.pg_namespace s ON s.oid = c.{space} WHERE c.oid = {text}), CAST({text} AS text))"
        )
    if typname in _IDENTIFIED:
        return (
            f"coalesce((pg_identify_object('pg_catalog.{_IDENTIFIED[typname]}'::regclass, {text}, 0)).identity, "
            f"CAST({text} AS text))"
        )
    return f"CAST({text} AS text)"


def value_sql(text: str, column: PgColumn) -> str:
    """The expression for a value of `column`, whose text is `text`: as `text_sql` shows it."""
    if (column.element if column.category == "A" else column.base) != "money":
        return f"CAST({text} AS {column.declared})"
    array = "[]" if column.category == "A" else ""
    number = f"CAST({text} AS numeric{array})"
    message = literal_sql(f"column {column.name!r} is money, whose digits here would round ")
    return (
        f"CASE WHEN CAST(CAST({number} AS money{array}) AS numeric{array}) = {number} "
        f"THEN CAST({number} AS {column.declared}) "
        f"WHEN {text} IS NOT NULL THEN CAST({message} || CAST({text} AS text) AS {column.declared}) END"
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
        array = (
            pa.ListArray.from_arrays(array.offsets, values, mask=mask)
            if array.offset == 0
            else array
        )
    else:
        _refuse_outside(array, about)
    if array.type.equals(about.kind):
        return array
    try:
        return pc.cast(array, about.kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        bad = _first_bad(array, about.kind)
        value_text = "a value that" if bad is None else f"{shortened(str(bad), _SHOWN)!r}, which"
        raise MisfitError(about, f"{value_text} does not fit {about.kind}: {error}") from None


def _first_bad(array: pa.Array, kind: pa.DataType) -> object:
    try:
        return array[first_failure(array, lambda part: pc.cast(part, kind))].as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _refuse_outside(values: pa.Array, about: ReadColumn) -> None:
    """Infinite dates, years before 1 or after 9999, and 24:00:00 are no values of Spark's. The driver makes an infinite
    date another one (findings/adbc-postgresql-infinite-dates.sh), which is outside, too.
    """
    if first_outside(values) < 0:
        return
    if pa.types.is_time(values.type):
        reason = "a day ends before 24:00:00"
    else:
        of = "dates" if pa.types.is_date(values.type) else "timestamps"
        reason = f"{of} go from year 1 to 9999, and are never infinite"
    raise MisfitError(about, f"a value that does not fit {about.kind}: {reason}")


# Encodes Arrow values for COPY in the types of the table's columns, or refuses the row.


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


# Whether another PostgreSQL table accepts the rows of a table in COPY's binary format, unchanged.


SYSTEM = "PostgreSQL, COPY in binary form"

_PLAIN = frozenset(
    {
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "bytea",
        "date",
        "uuid",
        "json",
        "jsonb",
        "name",
        "text",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "oid",
        "point",
        "line",
        "lseg",
        "box",
        "path",
        "polygon",
        "circle",
        "int4range",
        "int8range",
        "numrange",
        "daterange",
        "tsrange",
        "tstzrange",
        "tsvector",
        "pg_lsn",
    }
)
"""Types whose bytes mean the same on every server, and which take no modifier."""
_SIZED = frozenset(
    {"varchar", "bpchar", "numeric", "time", "timetz", "timestamp", "timestamptz", "bit", "varbit"}
)
"""The same, of types that may be declared with a size: a smaller one would cut or round without a word.

Not `interval`: what is infinite since PostgreSQL 17 is a long time before.
"""

_NO_SIZE = -1


def own_names(session: Session) -> bool:
    """Whether a user has named a type like one of PostgreSQL's: a name then does not determine its bytes."""
    names = ", ".join(literal_sql(name) for name in sorted(_PLAIN | _SIZED))
    query = (
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_type "  # noqa: S608 - texts are quoted
        f"WHERE typnamespace <> 'pg_catalog'::regnamespace AND typname IN ({names}))"
    )
    return bool(session.value(query))


def native_types(columns: Iterable[PgColumn]) -> tuple[tuple[str, int], ...] | None:
    """(type, modifier) of each column; None where one is read as something else than it is, or is of another type."""
    types = tuple((column.base, column.typmod) for column in columns)
    carried = _PLAIN | _SIZED
    return types if all(name.removeprefix("_") in carried for name, _ in types) else None


def are_native(rows: NativeRows, table: PgTable) -> bool:
    """Whether `table` holds every value of `rows` as it comes."""
    if rows.system != SYSTEM:
        return False
    by_name = {column.name: column for column in table.columns}
    for name, (typname, typmod) in zip(rows.schema.names, rows.types, strict=True):
        column_name = only_name(name, list(by_name))
        if column_name is None or not _fits(typname, typmod, by_name[column_name]):
            return False
    return True


def _fits(typname: str, typmod: int, column: PgColumn) -> bool:
    if not column.builtin:
        return False
    if column.base != typname:
        return column.base == "text" and typname == "varchar"
    return typname.removeprefix("_") in _PLAIN or column.typmod in (typmod, _NO_SIZE)
