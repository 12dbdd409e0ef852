"""What a read reads: the table or query, its columns in Arrow's types, and its conditions."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.duckdb.column_types import read_as
from spark_channel.connectors.sql.duckdb.database import Session
from spark_channel.connectors.sql.duckdb.options import DuckdbReadOptions
from spark_channel.connectors.sql.duckdb.tables import (
    Column,
    Table,
    describe,
    find_table,
    same_name,
    table_names,
)
from spark_channel.connectors.sql.named import custom_kinds, known_name, missing_table, pick_columns
from spark_channel.connectors.sql.statements import Node, Source

__all__ = ["ReadColumn", "ReadSource", "read_source"]


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column that is read: DuckDB's name and type, and the Arrow type it is delivered in."""

    name: str
    declared: str
    kind: pa.DataType


@dataclass(frozen=True)
class ReadSource:
    """`columns` are those delivered, `all_columns` those there are. `table` is None for a query."""

    source: Source
    table: Table | None
    all_columns: tuple[Column, ...]
    columns: tuple[ReadColumn, ...]
    schema: pa.Schema
    condition: Node | None

    @property
    def label(self) -> str:
        if self.table is None:
            return "the query"
        return f"{'view' if self.table.is_view else 'table'} {self.table.label!r}"

    def column(self, name: str) -> exp.Column:
        return self.source.column(name)

    def declared(self, name: str) -> str:
        return next(column.declared for column in self.all_columns if column.name == name)

    def select(self, expressions: Sequence[Node], conditions: Sequence[Node | None] = ()) -> exp.Select:
        """A SELECT from the source under the user's condition and `conditions`."""
        return statements.select(expressions, self.source, [self.condition, *conditions])

    def sql(self, expressions: Sequence[str], conditions: Sequence[str] = ()) -> str:
        """The same, of texts that this connector made of quoted names and literals."""
        parts = [f"({each})" for each in conditions]
        if self.condition is not None:
            parts.append(f"({self.condition.sql('duckdb')})")
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        return f"SELECT {', '.join(expressions)} FROM {self.source.expression.sql('duckdb')}{where}"  # noqa: S608


def read_source(session: Session, options: DuckdbReadOptions) -> ReadSource:
    """Work out what `options` read from the file that `session` is connected to.

    Raises:
        SourceError: no such table or column. SchemaError: a column that cannot be carried.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source, table, found = _find(session, options)
    picked = pick_columns(found, options.columns, same_name)
    condition = _condition(source, table, found, options)
    columns = _typed(session, source, picked, found, options)
    schema = pa.schema([pa.field(column.name, column.kind) for column in columns])
    return ReadSource(source, table, found, columns, schema, condition)


def _find(session: Session, options: DuckdbReadOptions) -> tuple[Source, Table | None, tuple[Column, ...]]:
    if options.query is not None:
        source = statements.subquery(statements.query(options.query, "duckdb", "query"), "source")
        return source, None, describe(session, source)
    assert options.dbtable is not None
    table = find_table(session, options.dbtable)
    if table is not None:
        return table.source, table, table.columns
    if options.dbtable.lstrip().startswith("("):
        source = statements.source_query(options.dbtable, "duckdb", "dbtable")
        return source, None, describe(session, source)
    raise missing_table(options.dbtable, table_names(session), session.path)


def _condition(
    source: Source, table: Table | None, found: tuple[Column, ...], options: DuckdbReadOptions
) -> Node | None:
    if options.where is None:
        return None
    names = [column.name for column in found]
    has_rowid = table is not None and not table.is_view and same_name("rowid", names) is None

    def replace(column: exp.Column) -> Node:
        qualifier, wanted = column.table, column.name
        if qualifier and qualifier.lower() != source.name.lower():
            wanted = f"{qualifier}.{wanted}"
        elif has_rowid and wanted.lower() == "rowid":
            return source.column("rowid")
        return source.column(known_name(wanted, names, same_name, "where"))

    return statements.bind_columns(statements.condition(options.where, "duckdb", "where"), replace)


def _typed(
    session: Session,
    source: Source,
    picked: Sequence[Column],
    found: tuple[Column, ...],
    options: DuckdbReadOptions,
) -> tuple[ReadColumn, ...]:
    custom = custom_kinds(options.custom_schema, [column.name for column in found], same_name)
    columns = []
    expressions = [
        read_as(column.name, column.declared, source.column(column.name).sql("duckdb")) for column in picked
    ]
    probe = f"SELECT {', '.join(expressions)} FROM {source.expression.sql('duckdb')} LIMIT 0"  # noqa: S608 - quoted
    kinds = session.stream(probe, 1).schema.types
    for column, kind in zip(picked, kinds, strict=True):
        columns.append(ReadColumn(column.name, column.declared, custom.get(column.name) or _plain(kind)))
    return tuple(columns)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Timestamps of seconds and milliseconds fit microseconds, which is what Spark holds."""
    if pa.types.is_timestamp(kind) and (kind.tz is not None or kind.unit != "ns"):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind
