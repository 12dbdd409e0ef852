"""Whether another PostgreSQL table accepts the rows of a table in COPY's binary format, unchanged."""

from collections.abc import Iterable

from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable
from spark_channel.connectors.sql.statements import only_name

__all__ = ["SYSTEM", "are_native", "native_types"]


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
