"""PostgreSQL's SQL: the expression that reads each type, and values as the server's text output.

A quoted literal takes the type of the column that it is compared with.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any, cast

import pyarrow as pa

from spark_channel.arrow_schema import UNLIMITED
from spark_channel.connectors.postgresql.catalog import (
    PgColumn,
    PgTable,
    find_table,
    lacking,
    same_table,
    table_names,
)
from spark_channel.connectors.postgresql.failures import (
    is_ended,
    is_full,
    is_gone,
    is_locked,
)
from spark_channel.connectors.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.postgresql.types import (
    INSTANT,
    LOCAL,
    TIME,
    ReadType,
    decode,
    read_type,
    selected,
)
from spark_channel.connectors.sql.catalog import (
    Column,
    KeyColumn,
    ReadColumn,
    Table,
)
from spark_channel.connectors.sql.catalog.rights import OWNER, MissingRights, Right
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import only_name

__all__ = [
    "PostgresDialect",
]

_TYPMOD_HEAD = 4
"""What a `varchar(n)` has more than n as its typmod."""
_WHOLE = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_EXACT_TEXTS = frozenset(
    {
        "numeric",
        "text",
        "varchar",
        "bpchar",
        "name",
        "uuid",
        "bytea",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "oid",
        "inet",
        "macaddr",
    }
)
"""Types of keys that are read as texts, of which none reads as another value: not so floats and money."""
_HASHED = frozenset({"bool", "int2", "int4", "int8", "numeric", "float4", "float8", "uuid"})
_HASHED |= {"text", "varchar", "bpchar", "bytea", "json", "jsonb"}
_HASHED |= {"date", "time", "timestamp", "timestamptz", "interval"}
"""Types whose values have one text each, and whose texts depend on no setting but those of a transaction."""
_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_TABLES = """
WITH named AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relhassubclass, c.reltuples, c.reltoastrelid
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' AND c.relname NOT LIKE 'spark\\_channel\\_%'
    {named}
)
SELECT nspname::text, relname::text, greatest(reltuples, 0)::bigint,
  coalesce(pg_relation_size(oid), 0) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0),
  CASE WHEN relhassubclass THEN format('tableoid = %L::regclass', oid::regclass) ELSE '' END
FROM named WHERE relkind = 'r'
UNION ALL
SELECT t.nspname::text, t.relname::text, coalesce(s.rows, 0)::bigint, coalesce(s.bytes, 0)::bigint, ''
FROM named t CROSS JOIN LATERAL (
  SELECT sum(l.rows) AS rows, sum(l.bytes) AS bytes
  FROM unnest(ARRAY(SELECT relid FROM pg_partition_tree(t.oid) WHERE isleaf)) p (relid) CROSS JOIN LATERAL (
    SELECT greatest(c.reltuples, 0) AS rows,
      coalesce(pg_relation_size(c.oid), 0) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) AS bytes
    FROM pg_catalog.pg_class c WHERE c.oid = p.relid OFFSET 0
  ) l
) s WHERE t.relkind = 'p'
ORDER BY 1, 2
"""
"""OFFSET 0: each partition is found by the index. A join reads the whole catalog, and more than once."""


class PostgresDialect(Dialect):
    """See `Dialect`. `local`: a timestamptz and a timetz are read as the session shows them, without their zone."""

    product = "PostgreSQL"
    sql = "postgres"
    tables_sql = _TABLES
    referring_sql = (
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_constraint k "
        "JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE k.contype = 'f' AND n.nspname = {schema}"
    )
    of_new_tables = ("USAGE", "CREATE")
    to_alter = OWNER
    cuts_names_at = 63
    whole_rows = True
    row_values = True
    cuts_by_bytes = True

    def __init__(self, *, local: bool = False) -> None:
        self.local = local

    def is_own_type(self, column: Column) -> bool:
        return not cast(PgColumn, column).builtin

    def lacking(self, session: Session, rights: Sequence[Right]) -> MissingRights:
        return lacking(cast(PgSession, session), rights)

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def find_table(self, session: Session, text: str) -> PgTable | None:
        return find_table(session, text)

    def same_table(self, table: Table) -> str | None:
        assert isinstance(table, PgTable)
        name = f"{self.quoted(table.schema)}.{self.quoted(table.name)}"
        return same_table(table, name) if table.state else None

    def only_named(self, names: Sequence[tuple[str, str]]) -> str:
        """Names of the catalog's own type: its index does not find texts."""
        names_sql = ", ".join(
            f"({literal_sql(schema)}::name, {literal_sql(name)}::name)" for schema, name in names
        )
        return f"AND (n.nspname, c.relname) IN (VALUES {names_sql})"

    def table_names(self, session: Session) -> list[str]:
        return table_names(session)

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        columns = cast(PgSession, session).result_columns(
            f"SELECT * FROM ({query}) AS source LIMIT 0"  # noqa: S608 - a query that was parsed
        )
        return tuple(
            PgColumn(
                column.name,
                column.type,
                base=column.type,
                category=column.category,
                typmod=column.typmod,
                builtin=column.is_builtin,
            )
            for column in columns
        )

    def arrow_type(self, column: Column) -> pa.DataType:
        kind = _read_type(column).kind
        if self.local and cast(PgColumn, column).base == "timetz":
            return TIME
        return LOCAL if self.local and kind == INSTANT else kind

    def text_length(self, column: Column) -> str | None:
        about = cast(PgColumn, column)
        if about.base in ("varchar", "bpchar") and about.typmod > _TYPMOD_HEAD:
            return str(about.typmod - _TYPMOD_HEAD)
        return UNLIMITED if about.base in ("text", "varchar") else None

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        if pa.types.is_time(kind) and cast(PgColumn, column).base == "timetz":
            return f"CAST({text} AT TIME ZONE current_setting('TimeZone') AS time)"
        about, read = cast(PgColumn, column), _read_as(column, kind)
        if about.category and not about.builtin and read.cast is None:  # a user's type of that name
            read = replace(read, cast="text[]" if read.is_array else "text")
        return selected(text, column.name, about.base, read)

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
        return decode(raw, columns, schema)

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        about = cast(PgColumn, column)
        if about.base == "numeric":
            return pa.int64()
        if not about.has_quantiles:
            return None
        return self.arrow_type(column) if read is None else read.kind

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind = self.arrow_type(column) if read is None else read.kind
        read_as = _read_as(column, kind)
        if read_as.is_shown:
            return None
        return read_as.kind if pa.types.is_string(read_as.kind) else kind

    def bound(self, value: int | date | datetime, column: Column) -> Any:
        """With its zone, which would be the session's."""
        bound = super().bound(value, column)
        is_instant = isinstance(value, datetime) and value.tzinfo is not None
        return (
            f"{bound}+00" if is_instant and cast(PgColumn, column).base == "timestamptz" else bound
        )

    def is_never_null(self, table: Table, column: Column) -> bool:
        """By what holds for the rows that are there, and for those of other tables that a SELECT reads."""
        is_free = isinstance(column, PgColumn) and not column.holds_null
        return is_free and not table.is_view

    def is_null(self, column: Column | None, text: str) -> str:
        """The planner takes no row for NULL where NOT NULL is declared, also where it holds for new rows only."""
        plain = super().is_null(column, text)
        return f"COALESCE({plain}, FALSE)" if column is not None and column.not_null else plain

    def is_unique(self, table: Table, name: str) -> bool:
        """By an index that compares as the column does, and holds for the rows of inheriting tables too."""
        assert isinstance(table, PgTable)
        return ((name,), True) in table.indexes

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        return f"CAST({text} AS text)"

    def is_cursor_value(self, value: object, kind: pa.DataType | None) -> bool:
        return isinstance(value, str | int)

    def size(self, text: str) -> str:
        return f"octet_length(CAST({text} AS text))"

    def is_passing(self, error: BaseException) -> bool:
        return is_gone(error) or is_locked(error) or is_full(error)

    def is_timeout(self, error: BaseException) -> bool:
        return is_ended(error)

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        assert isinstance(table, PgTable)
        return table.keys

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """By an index that begins with all of them, or holds the first of them unique."""
        assert isinstance(table, PgTable)
        prefix = tuple(columns)
        return any(
            names[: len(prefix)] == prefix or (is_unique and names == prefix[: len(names)])
            for names, is_unique in table.indexes
        )

    def hidden_columns(self, table: Table) -> Collection[str]:
        """The server says which of them a view or a foreign table lacks."""
        return _SYSTEM_COLUMNS

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        """Whole numbers as they are; all else as the server's own text, from which it makes the same value again."""
        if not isinstance(column, PgColumn):
            return None
        if column.builtin and column.base in _WHOLE:
            return _WHOLE[column.base], text
        is_exact = (column.builtin and column.base in _EXACT_TEXTS) or column.category == "E"
        return (
            (pa.string(), f"CAST({text} AS text)") if is_exact or column.base == "citext" else None
        )

    def row_hash(self, columns: Sequence[tuple[Column, str]]) -> str | None:
        """A hash of the row's text, in which values are quoted and NULL is nothing; instants are written in UTC."""
        texts = []
        for column, text in columns:
            if not isinstance(column, PgColumn) or not column.builtin or column.base not in _HASHED:
                return None
            texts.append(f"{text} AT TIME ZONE 'UTC'" if column.base == "timestamptz" else text)
        row = f'CAST(ROW({", ".join(texts)}) AS text) COLLATE "C"'
        return f"pg_catalog.hashtextextended({row}, 0)"

    def hash_facts(self, session: Session) -> object:
        """Before version 12 two doubles may have one text."""
        version, encoding = session.rows(
            "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
        )[0]
        if version < 120_000:
            return None
        constant = "SELECT pg_catalog.hashtextextended('spark-channel' COLLATE \"C\", 0)"
        return str(encoding), int(session.value(constant))

    def range_number(self, text: str, edges: Sequence[int]) -> str:
        edges_sql = ", ".join(map(str, edges))
        return (
            f"pg_catalog.width_bucket(CAST({text} AS bigint), CAST(ARRAY[{edges_sql}] AS bigint[]))"
        )

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
