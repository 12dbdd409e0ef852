"""PostgreSQL's SQL: the expression that reads each type, and values as the server's text output.

A quoted literal takes the type of the column that it is compared with.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, KeyColumn, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.named import only_name
from spark_channel.connectors.sql.postgresql.catalog import PgColumn, PgTable, find_table, table_names
from spark_channel.connectors.sql.postgresql.column_types import INSTANT, LOCAL, ReadType, read_type
from spark_channel.connectors.sql.postgresql.decode import decode, selected
from spark_channel.connectors.sql.postgresql.failures import is_ended, is_gone, is_locked
from spark_channel.connectors.sql.session import Session

if TYPE_CHECKING:  # its driver is loaded only to read
    from spark_channel.connectors.sql.postgresql.read_session import PgReadSession

from spark_channel.text_length import UNLIMITED

__all__ = ["PostgresDialect"]


_TYPMOD_HEAD = 4
"""What a `varchar(n)` has more than n as its typmod."""
_WHOLE = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_EXACT_TEXTS = frozenset({
    "numeric", "text", "varchar", "bpchar", "name", "uuid", "bytea", "bool", "date", "time", "timetz", "timestamp",
    "timestamptz", "oid", "inet", "macaddr",
})  # fmt: skip
"""Types of keys that are read as texts, of which none reads as another value: not so floats and money."""


class PostgresDialect(Dialect):
    """See `Dialect`. `local`: a timestamptz is read as the session shows it, without its zone."""

    product = "PostgreSQL"
    sql = "postgres"
    alias = "source"  # a table and one of its columns may be called the same
    row_values = True
    cuts_by_bytes = True

    def __init__(self, *, local: bool = False) -> None:
        self.local = local

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def find_table(self, session: Session, text: str) -> PgTable | None:
        return find_table(session, text)

    def table_names(self, session: Session) -> list[str]:
        return table_names(session)

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """The driver knows most types of a query's columns, and a numeric's size."""
        schema = cast("PgReadSession", session).schema_of(f"SELECT * FROM ({query}) AS source LIMIT 0")  # noqa: S608
        found = []
        for field in schema:
            notes = field.metadata or {}
            name = notes.get(b"POSTGRESQL:type", b"text").decode()
            typmod = int(notes.get(b"POSTGRESQL:typmod", b"-1"))
            found.append(PgColumn(field.name, name, base=name, typmod=typmod))
        return tuple(found)

    def arrow_type(self, column: Column) -> pa.DataType:
        kind = _read_type(column).kind
        return LOCAL if self.local and kind == INSTANT else kind

    def text_length(self, column: Column) -> str | None:
        about = cast(PgColumn, column)
        if about.base in ("varchar", "bpchar") and about.typmod > _TYPMOD_HEAD:
            return str(about.typmod - _TYPMOD_HEAD)
        return UNLIMITED if about.base in ("text", "varchar") else None

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        return selected(text, column.name, cast(PgColumn, column).base, _read_as(column, kind))

    def decode(self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
        return decode(raw, columns, schema)

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        if cast(PgColumn, column).base == "numeric":
            return pa.int64()
        return self.arrow_type(column) if read is None else read.kind

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind = self.arrow_type(column) if read is None else read.kind
        read_as = _read_as(column, kind)
        if read_as.is_shown:
            return None
        return read_as.kind if pa.types.is_string(read_as.kind) else kind

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        return f"CAST({text} AS text)"

    def is_cursor_value(self, value: Any, kind: pa.DataType | None) -> bool:
        return isinstance(value, str | int)

    def size(self, text: str) -> str:
        return f"octet_length(CAST({text} AS text))"

    def is_passing(self, error: BaseException) -> bool:
        return is_gone(error) or is_locked(error)

    def is_timeout(self, error: BaseException) -> bool:
        return is_ended(error)

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        assert isinstance(table, PgTable)
        return table.keys

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """By an index that begins with all of them, or holds the first of them unique."""
        assert isinstance(table, PgTable)
        wanted = tuple(columns)
        return any(
            names[: len(wanted)] == wanted or (is_unique and names == wanted[: len(names)])
            for names, is_unique in table.indexes
        )

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        """Whole numbers as they are; all else as the server's own text, from which it makes the same value again."""
        if not isinstance(column, PgColumn):
            return None
        if column.builtin and column.base in _WHOLE:
            return _WHOLE[column.base], text
        is_exact = (column.builtin and column.base in _EXACT_TEXTS) or column.category == "E"
        return (pa.string(), f"CAST({text} AS text)") if is_exact or column.base == "citext" else None

    def split_key(self, table: Table) -> tuple[str, ...]:
        """A unique key, or else the first column of an index, which may be NULL."""
        assert isinstance(table, PgTable)
        return table.key or ((table.nullable_key,) if table.nullable_key is not None else ())


def _read_type(column: Column) -> ReadType:
    about = cast(PgColumn, column)
    return read_type(about.base, about.typmod)


def _read_as(column: Column, kind: pa.DataType) -> ReadType:
    """How the column is read to be of `kind`, which the user may have chosen."""
    read = _read_type(column)
    if read.kind == INSTANT and kind == LOCAL:
        return ReadType(LOCAL, "timestamp")
    as_text = pa.types.is_string(kind) and not pa.types.is_string(read.kind)
    return ReadType(pa.string(), "text") if as_text else read
