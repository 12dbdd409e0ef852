"""SQLite's declared types as Arrow's. Pure; docs/sqlite.md holds it as a table.

SQLite binds types to values, not to columns: what a declared type promises is checked value by value when it
is read. Text of a number is kept as text only in a column of TEXT affinity, hence the names of some types.
"""

import re
from typing import Literal

import pyarrow as pa

__all__ = ["Affinity", "affinity", "declared_type", "is_text_decimal"]

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
