"""SQLite's declared types and Arrow's, in both directions. Pure; docs/sqlite.md holds it as a table.

SQLite binds types to values, not to columns: what a declared type promises is checked value by value when it
is read. Text of a number is kept as text only in a column of TEXT affinity, hence the names of some types.
"""

import re
from typing import Literal

import pyarrow as pa

from spark_channel.connectors.sql.new_types import declared_as

__all__ = ["Affinity", "affinity", "declared_type", "is_text_decimal", "sqlite_type"]

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
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 and scale <= precision else None
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


_CREATED = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "INT1",
    pa.int16(): "INT2",
    pa.uint8(): "INT2",
    pa.int32(): "INT4",
    pa.uint16(): "INT4",
    pa.int64(): "BIGINT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL_TEXT(20,0)",
    pa.float16(): "FLOAT4",
    pa.float32(): "FLOAT4",
    pa.float64(): "DOUBLE",
    pa.string(): "TEXT",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    TIME: "TIME",
    LOCAL: "TIMESTAMP",
    INSTANT: "TIMESTAMPTZ",
}


def sqlite_type(name: str, kind: pa.DataType) -> str:
    """The declared type of a new column that gives `kind` back exactly; `name` is for the message.

    Unsigned integers become the next wider signed type, and dictionaries the type of their values.

    Raises:
        SchemaError: nested types, intervals, and whatever else SQLite cannot hold.
    """
    return declared_as(name, kind, "SQLite", _CREATED, _created_decimal)


def _created_decimal(precision: int, scale: int) -> str | None:
    exact = precision <= (18 if scale == 0 else EXACT_DIGITS)
    return f"{'DECIMAL' if exact else 'DECIMAL_TEXT'}({precision},{scale})" if precision <= 38 else None
