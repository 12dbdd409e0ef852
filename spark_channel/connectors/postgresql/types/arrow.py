"""PostgreSQL's types as Arrow's. Pure; docs/postgresql.md holds it as a table."""

from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "ELEMENTS",
    "INSTANT",
    "LOCAL",
    "NATURAL",
    "TIME",
    "ReadType",
    "numeric_digits",
    "numeric_size",
    "read_type",
]


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
