"""DuckDB's types and Arrow's, in both directions. Pure; docs/duckdb.md holds it as a table."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.fits import is_list, plain_kind
from spark_channel.connectors.sql.spans import first_outside
from spark_channel.connectors.sql.statements import identifier
from spark_channel.errors import SchemaError

__all__ = [
    "OutOfRangeError",
    "arrow_type",
    "canonical",
    "check_range",
    "duckdb_type",
    "first_rounded",
    "is_text",
    "read_as",
    "same_type",
]

_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("us"),
    "TIMESTAMP_MS": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}
_TEXTS = frozenset({"UUID", "JSON", "INTERVAL", "BIT", "TIME WITH TIME ZONE", "BIGNUM", "VARINT"})
"""Types without a counterpart in Spark, which are read as the text that DuckDB shows."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_NESTED = re.compile(r"STRUCT\(|MAP\(|.*\[\d*\]$", re.DOTALL)
_NAME = re.compile(r'"(?:[^"]|"")*"')
_UNREADABLE_INSIDE = re.compile(
    r"\b(U?HUGEINT|U?INT128|UNION|BIGNUM|VARINT|TIME WITH TIME ZONE|TIMETZ|BIT|INTERVAL|VARIANT|GEOMETRY|TIME_NS"
    r"|ENUM|UUID|JSON)\b"
)


class OutOfRangeError(Exception):
    """Row `index` holds a date or timestamp outside the years 1 to 9999, an infinity, or 24:00:00."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


_ROUNDED = {
    "INTERVAL": r"\.[0-9]{6}[0-9]*[1-9]",
    "TIME WITH TIME ZONE": r"\.[0-9]{6}[0-9]*[1-9]",
    "BIGNUM": r"\.[0-9]*[1-9]",
    "VARINT": r"\.[0-9]*[1-9]",
}


def first_rounded(texts: pa.Array, declared: str) -> int:
    """The first of `texts` of which a column that is read as text would keep fewer digits; -1 = none."""
    if declared not in _ROUNDED:
        return -1
    return int(pc.index(pc.match_substring_regex(texts, _ROUNDED[declared]), True).as_py())


def is_text(declared: str) -> bool:
    """Whether values are read as the text that DuckDB shows, and written from it."""
    return declared in _TEXTS or (declared.startswith("ENUM(") and declared.endswith(")"))


def arrow_type(declared: str) -> pa.DataType | None:
    """The Arrow type of a plain column; None for nested and unsupported types."""
    if declared in _SIMPLE:
        return _SIMPLE[declared]
    if match := _DECIMAL.fullmatch(declared):
        return pa.decimal128(int(match.group(1)), int(match.group(2)))
    return pa.string() if is_text(declared) else None


def read_as(name: str, declared: str, column: str) -> str:
    """The expression that reads a column: `column`, or a cast of it. `column` is SQL.

    Raises:
        SchemaError: a type that Spark cannot hold; names the column.
    """
    if is_text(declared):
        return f"CAST({column} AS VARCHAR)"
    if declared in ("HUGEINT", "UHUGEINT"):
        return f"CAST({column} AS DECIMAL(38,0))"
    if arrow_type(declared) is not None:
        return column
    if _NESTED.match(declared) and not _UNREADABLE_INSIDE.search(_NAME.sub("", _spelled(declared))):
        return column
    raise SchemaError(
        f"column {name!r} is {declared}, which Spark cannot hold: "
        "omit it with option 'columns', or convert it with 'query', such as CAST(... AS VARCHAR)"
    )


def canonical(name: str, kind: pa.DataType) -> pa.DataType:
    """The type in which values of `kind` are handed to DuckDB: the same values, in a type that it reads.

    Raises:
        SchemaError: DuckDB has no type for it; names the column.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return canonical(name, kind.storage_type)
    if pa.types.is_dictionary(kind):
        return canonical(name, kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit == "ns":
        return kind
    kind = pa.float32() if pa.types.is_float16(kind) else plain_kind(kind)
    if pa.types.is_map(kind):
        return pa.map_(canonical(f"{name}.key", kind.key_type), canonical(f"{name}.value", kind.item_type))
    if is_list(kind):
        return pa.list_(canonical(f"{name}.element", kind.value_type))
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, canonical(f"{name}.{each.name}", each.type)) for each in inner])
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if kind in _WRITTEN:
        return kind
    if pa.types.is_null(kind):
        why = "it has no type; cast it to the type it should have"
    else:
        why = "DuckDB has no type that returns it unchanged; cast it to a number or to text"
    raise SchemaError(f"column {name!r} is {kind}: {why}")


_WRITTEN: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}


def duckdb_type(kind: pa.DataType) -> str:
    """The type of a new column that gives the canonical `kind` back exactly."""
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{duckdb_type(kind.value_type)}[]"
    inner = (kind.field(number) for number in range(kind.num_fields))
    parts = [f"{identifier(each.name).sql('duckdb')} {duckdb_type(each.type)}" for each in inner]
    return f"STRUCT({', '.join(parts)})"


def same_type(one: str, other: str) -> bool:
    """Whether two declared types are one: DuckDB quotes the names in a STRUCT only where it must."""
    return one == other or _spelled(one) == _spelled(other)


def _spelled(declared: str) -> str:
    """The type in sqlglot's words, all names inside in quotes."""
    try:
        return exp.DataType.build(declared, dialect="duckdb").sql("duckdb", identify=True)
    except sqlglot.errors.SqlglotError:  # a type that no release of sqlglot knew
        return declared


def check_range(array: pa.Array) -> None:
    """Hold dates and timestamps, also those inside nested values, to the years 1 to 9999, and times below 24:00.

    DuckDB keeps its infinities as the largest numbers, which Arrow would take for dates.

    Raises:
        OutOfRangeError: the first row that is outside; 0 where it is inside a nested value.
    """
    kind = array.type
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            parts = [array.keys, array.items]
        else:
            parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
        for part in parts:
            try:
                check_range(part)
            except OutOfRangeError:
                raise OutOfRangeError(0) from None
        return
    if (index := first_outside(array)) >= 0:
        raise OutOfRangeError(index)
