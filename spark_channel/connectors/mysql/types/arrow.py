"""MySQL's types as Arrow's. Pure; docs/mysql.md holds it as a table."""

import re
from typing import Any

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = ["arrow_type", "declared_of", "is_text_type", "is_wide_decimal", "members", "parts"]


INSTANT, LOCAL, TIME = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("us")
MOST_SCALE, SPARK_DIGITS = 30, 38

_DECLARED = re.compile(
    r"([a-z0-9 ]+?)\s*(?:\((.*)\))?\s*((?:unsigned|zerofill|signed|\s)*)", re.DOTALL
)
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "Z": "\x1a"}
SIGNED = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
UNSIGNED = {
    "tinyint": pa.uint8(),
    "smallint": pa.uint16(),
    "mediumint": pa.uint32(),
    "int": pa.uint32(),
    "bigint": pa.uint64(),
}
_FIXED = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": LOCAL,
    "timestamp": INSTANT,
    "time": TIME,
    "year": pa.int16(),
}
_TEXTS = frozenset(
    {
        "char",
        "varchar",
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
        "enum",
        "set",
        "json",
        "uuid",
        "inet4",
        "inet6",
    }
)
_BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_UNSIGNED_FLAG, _ENUM_FLAG, _SET_FLAG = 32, 256, 2048
_BINARY_CHARSET = 63
_CODES = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    14: "date",
    245: "json",
    247: "enum",
    248: "set",
    255: "geometry",
}


def parts(declared: str) -> tuple[str, list[str], bool]:
    """(name, sizes, unsigned) of a declared type, such as `decimal(10,2) unsigned`."""
    match = _DECLARED.fullmatch(declared.strip().lower())
    if match is None:
        return declared.lower(), [], False
    name, sizes, suffix = match.group(1).strip(), match.group(2), match.group(3)
    return name, [size.strip() for size in sizes.split(",")] if sizes else [], "unsigned" in suffix


def is_text_type(declared: str) -> bool:
    return parts(declared)[0] in _TEXTS


def is_wide_decimal(declared: str) -> bool:
    """A DECIMAL of more digits than Arrow's decimals have."""
    name, sizes, _ = parts(declared)
    return name == "decimal" and bool(sizes) and int(sizes[0]) > SPARK_DIGITS


def members(declared: str) -> list[str]:
    """The texts that an `enum(...)` or `set(...)` may hold, in its order."""
    return [
        _ESCAPED.sub(lambda match: _CONTROLS.get(match[1], match[1]) if match[1] else "'", text)
        for text in _MEMBER.findall(declared)
    ]


def arrow_type(name: str, declared: str) -> pa.DataType:
    """The Arrow type of a declared type; `name` is for the message.

    Raises:
        SchemaError: a type that Spark cannot hold.
    """
    kind, sizes, unsigned = parts(declared)
    if kind == "tinyint" and sizes == ["1"] and not unsigned:
        return pa.bool_()
    if kind in SIGNED:
        return (UNSIGNED if unsigned else SIGNED)[kind]
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "decimal":
        precision, scale = (int(size) for size in (*sizes, "0")[:2]) if sizes else (10, 0)
        if precision <= SPARK_DIGITS:
            return pa.decimal128(precision, scale)
        raise SchemaError(
            f"column {name!r} is {declared}, and Spark's decimals have {SPARK_DIGITS} digits: "
            f"read it as text with customSchema ({name} STRING), or convert it with 'query'"
        )
    if kind == "bit":
        bits = int(sizes[0]) if sizes else 1
        return pa.bool_() if bits == 1 else pa.int64() if bits < 64 else pa.uint64()
    if kind in _TEXTS:
        return pa.string()
    if kind in _BINARIES:
        return pa.binary()
    is_vector = parts(declared)[0] == "vector"
    way = (
        "VECTOR_TO_STRING(...) of MySQL or VEC_ToText(...) of MariaDB"
        if is_vector
        else "ST_AsText(...)"
    )
    raise SchemaError(
        f"column {name!r} is {declared}, which Spark cannot hold: omit it with option 'columns', or convert "
        f"it with 'query', such as {way}"
    )


def declared_of(field: Any) -> str:
    """The declared type of a column of a result, from the protocol's description of it."""
    unsigned = " unsigned" if field.flags & _UNSIGNED_FLAG else ""
    code, length, scale = field.type_code, field.length, field.scale
    if field.flags & _ENUM_FLAG:
        return "enum"
    if field.flags & _SET_FLAG:
        return "set"
    if code == 1:
        return f"tinyint({length}){unsigned}"
    if code in (2, 3, 8, 9):
        return _CODES[code] + unsigned
    if code in (0, 246):
        digits = length - (1 if scale else 0) - (0 if unsigned else 1)
        return f"decimal({digits},{scale}){unsigned}"
    if code == 16:
        return f"bit({length})"
    if code in (7, 11, 12):
        return f"{_CODES[code]}({scale})" if 0 < scale <= 6 else _CODES[code]
    if code in _CODES:
        return _CODES[code]
    binary = field.charsetnr == _BINARY_CHARSET
    if code in (249, 250, 251, 252):
        return "longblob" if binary else "longtext"
    if code == 6 or (code == 254 and binary and not length):
        return (
            "varchar"  # an untyped NULL, which may become any type; as in PostgreSQL it is a text
        )
    if code == 254:
        return f"binary({length})" if binary else "char"
    return f"varbinary({length})" if binary else "varchar"
