"""What a DuckDB file says about a table, a view or a query: columns, keys, and whether rows have numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.duckdb.database import Session
from spark_channel.connectors.sql.statements import Source, identifier

__all__ = ["Column", "Table", "describe", "find_table", "same_name", "table_names"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column as DuckDB declares it."""

    name: str
    declared: str
    not_null: bool = False
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. `unique` are the column sets that a key or a full unique index holds unique."""

    schema: str
    name: str
    is_view: bool
    columns: tuple[Column, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    primary: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        return Source(exp.Table(this=identifier(self.name), db=identifier(self.schema)), self.name)

    @property
    def label(self) -> str:
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"


_MINE = "database_name = current_database() AND NOT internal"


def table_names(session: Session) -> list[str]:
    """Tables and views of the file."""
    rows = session.rows(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE {_MINE} UNION ALL "  # noqa: S608 - a constant
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE {_MINE} ORDER BY ALL"
    )
    return [str(name) if schema == "main" else f"{schema}.{name}" for schema, name in rows]


def readings(text: str) -> list[tuple[str, str]]:
    """(schema, name) that `dbtable` may mean: the whole text as a name first, then `schema.name`."""
    found = [("main", text)]
    try:
        tree = exp.to_table(text, dialect="duckdb")
    except Exception:  # sqlglot raises several kinds; a text that it cannot read is a name as it stands
        return found
    if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias:
        found.append((tree.db or "main", tree.name))
    return found


def find_table(session: Session, text: str) -> Table | None:
    """The table or view that `dbtable` names."""
    for schema, name in readings(text):
        for function, column in (("duckdb_tables", "table_name"), ("duckdb_views", "view_name")):
            rows = session.rows(
                f"SELECT schema_name, {column} FROM {function}() WHERE {_MINE} AND "  # noqa: S608 - constants
                f"lower(schema_name) = lower(?) AND lower({column}) = lower(?)",
                (schema, name),
            )
            if rows:
                return _describe(session, str(rows[0][0]), str(rows[0][1]), function == "duckdb_views")
    return None


def _describe(session: Session, schema: str, name: str, is_view: bool) -> Table:
    if is_view:
        bare = Table(schema, name, True, ())
        return Table(schema, name, True, describe(session, bare.source))
    rows = session.rows(
        "SELECT column_name, data_type, NOT is_nullable, column_default IS NOT NULL FROM duckdb_columns() "
        "WHERE database_name = current_database() AND schema_name = ? AND table_name = ? ORDER BY column_index",
        (schema, name),
    )
    columns = tuple(
        Column(str(each), str(kind), bool(needed), bool(filled)) for each, kind, needed, filled in rows
    )
    return Table(schema, name, False, columns, *_unique(session, schema, name))


def _unique(session: Session, schema: str, name: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Column sets that are held unique, and which of them is the primary key."""
    rows = session.rows(
        "SELECT constraint_type, constraint_column_names FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND schema_name = ? AND table_name = ? "
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_type",
        (schema, name),
    )
    found = [tuple(str(column) for column in columns) for _, columns in rows]
    primary = found[0] if rows and rows[0][0] == "PRIMARY KEY" else ()
    indexes = session.rows(
        "SELECT sql FROM duckdb_indexes() WHERE database_name = current_database() AND schema_name = ? AND "
        "table_name = ? AND is_unique",
        (schema, name),
    )
    for (sql,) in indexes:
        tree = sqlglot.parse_one(str(sql), read="duckdb")
        index = tree.find(exp.Index)
        parameters = index.args.get("params") if index is not None else None
        keys = (
            [each.find(exp.Column) or each.this for each in (parameters.args.get("columns") or [])]
            if parameters
            else []
        )
        if keys and all(isinstance(key, exp.Column | exp.Identifier) for key in keys):
            found.append(tuple(key.name for key in keys))
    return tuple(found), primary


def describe(session: Session, source: Source) -> tuple[Column, ...]:
    """The columns of a view or query. Costs no scan."""
    query = exp.select("*").from_(source.expression.copy()).sql("duckdb")
    rows = session.rows(f"DESCRIBE {query}")
    return tuple(Column(str(row[0]), str(row[1])) for row in rows)


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that DuckDB takes `name` for: the exact one, else one that differs in case only."""
    if name in names:
        return name
    return next((each for each in names if each.lower() == name.lower()), None)
