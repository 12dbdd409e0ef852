"""DuckDB's SQL: its catalog, and the expression that reads each type."""

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.catalog import Column, KeyColumn, MisfitError, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.duckdb.column_types import (
    OutOfRangeError,
    arrow_type,
    check_range,
    is_text,
    read_as,
)
from spark_channel.connectors.sql.duckdb.database import DuckdbSession, is_locked, text_literal
from spark_channel.connectors.sql.named import name_readings
from spark_channel.connectors.sql.session import Session

__all__ = ["DuckdbDialect", "DuckdbTable"]

_MINE = "database_name = current_database() AND NOT internal"


class DuckdbTable(Table):
    """See `Table`."""

    __slots__ = ()

    @property
    def label(self) -> str:
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"


class DuckdbDialect(Dialect):
    """See `Dialect`."""

    product = "DuckDB"
    sql = "duckdb"
    row_values = True
    late_seconds = 0.0  # a file that one process writes can be read by no other: what is seen is committed
    moves_rows = True
    no_keys = "DuckDB's indexes find single rows, and no order"

    def literal(self, value: Any, column: Column | None) -> str:
        """A text, of the type that DuckDB itself has named."""
        return str(value) if column is None else f"CAST({text_literal(str(value))} AS {column.declared})"

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        """None: its indexes find single rows, and no order."""
        return ()

    def find_table(self, session: Session, text: str) -> DuckdbTable | None:
        for schema, name in name_readings(text, "duckdb", "main"):
            for function, column in (("duckdb_tables", "table_name"), ("duckdb_views", "view_name")):
                same = f"lower(schema_name) = lower({text_literal(schema)})"
                rows = session.rows(
                    f"SELECT schema_name, {column} FROM {function}() WHERE {_MINE} AND {same} "  # noqa: S608 - quoted
                    f"AND lower({column}) = lower({text_literal(name)})"
                )
                if rows:
                    return self._described(session, *rows[0], is_view=function == "duckdb_views")
        return None

    def table_names(self, session: Session) -> list[str]:
        rows = session.rows(
            f"SELECT schema_name, table_name FROM duckdb_tables() WHERE {_MINE} UNION ALL "  # noqa: S608 - a constant
            f"SELECT schema_name, view_name FROM duckdb_views() WHERE {_MINE} ORDER BY ALL"
        )
        return [str(name) if schema == "main" else f"{schema}.{name}" for schema, name in rows]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        return tuple(Column(str(row[0]), str(row[1])) for row in session.rows(f"DESCRIBE {query}"))

    def _described(self, session: Session, schema: str, name: str, *, is_view: bool) -> DuckdbTable:
        if is_view:
            query = f"SELECT * FROM {self.quoted(schema)}.{self.quoted(name)}"  # noqa: S608 - quoted
            return DuckdbTable(schema, name, self.describe(session, query), True)
        rows = session.rows(
            "SELECT column_name, data_type, NOT is_nullable, column_default IS NOT NULL "  # noqa: S608 - quoted
            f"FROM duckdb_columns() {_named(schema, name)} ORDER BY column_index"
        )
        columns = tuple(
            Column(str(each), str(kind), bool(needed), bool(filled)) for each, kind, needed, filled in rows
        )
        return DuckdbTable(schema, name, columns, False, *_unique(session, schema, name))

    def arrow_type(self, column: Column) -> pa.DataType | None:
        return arrow_type(column.declared)

    def types(
        self, session: Session, columns: Sequence[tuple[Column, str]], origin: str
    ) -> list[pa.DataType | None]:
        """As DuckDB gives them of an empty result: declarations of nested types are not taken apart."""
        expressions = ", ".join(read_as(column.name, column.declared, text) for column, text in columns)
        empty = f"SELECT {expressions} {origin} LIMIT 0"
        return [_plain(kind) for kind in cast(DuckdbSession, session).schema_of(empty).types]

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        return read_as(column.name, column.declared, text)

    def decode(self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
        arrays = [_decoded(array, column) for array, column in zip(raw.columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def hidden_column(self, table: Table) -> str | None:
        hides = self.same_name("rowid", [column.name for column in table.columns]) is not None
        return None if table.is_view or hides else "rowid"

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        shown = is_text(column.declared) and column.declared != "VARCHAR"
        return None if shown else arrow_type(column.declared)

    def size(self, text: str) -> str:
        return f"strlen(CAST({text} AS VARCHAR))"

    def is_passing(self, error: BaseException) -> bool:
        return is_locked(error)


def _named(schema: str, name: str) -> str:
    place = f"schema_name = {text_literal(schema)} AND table_name = {text_literal(name)}"
    return f"WHERE database_name = current_database() AND {place}"


def _unique(session: Session, schema: str, name: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Column sets that are held unique, and which of them is the primary key."""
    rows = session.rows(
        f"SELECT constraint_type, constraint_column_names FROM duckdb_constraints() {_named(schema, name)} "  # noqa: S608
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_type"
    )
    found = [tuple(str(column) for column in columns) for _, columns in rows]
    primary = found[0] if rows and rows[0][0] == "PRIMARY KEY" else ()
    indexes = session.rows(f"SELECT sql FROM duckdb_indexes() {_named(schema, name)} AND is_unique")  # noqa: S608
    for (sql,) in indexes:
        index = sqlglot.parse_one(str(sql), read="duckdb").find(exp.Index)
        parameters = index.args.get("params") if index is not None else None
        listed = (parameters.args.get("columns") or []) if parameters else []
        keys = [each.find(exp.Column) or each.this for each in listed]
        if keys and all(isinstance(key, exp.Column | exp.Identifier) for key in keys):
            found.append(tuple(key.name for key in keys))
    return tuple(found), primary


def _plain(kind: pa.DataType) -> pa.DataType:
    """Timestamps of seconds and milliseconds fit microseconds, which is what Spark holds."""
    if pa.types.is_timestamp(kind) and (kind.tz is not None or kind.unit != "ns"):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind


def _decoded(array: pa.Array, column: ReadColumn) -> pa.Array:
    try:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_timestamp(array.type) and array.type.unit != column.kind.unit:
            check_range(array)
        if not array.type.equals(column.kind):
            array = pc.cast(array, column.kind)
        check_range(array)
    except OutOfRangeError:
        raise MisfitError(
            column,
            "an infinity, a date outside the years 1 to 9999, or the time 24:00:00, which Spark cannot hold",
        ) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(column, f"a value that is not {column.kind}: {error}") from error
    return array
