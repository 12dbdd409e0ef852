"""What a read reads: the table or query, its columns in Arrow's types, and its conditions."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.mysql.column_types import arrow_type, parts
from spark_channel.connectors.sql.mysql.options import MysqlReadOptions
from spark_channel.connectors.sql.mysql.session import Session
from spark_channel.connectors.sql.mysql.tables import (
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
    """One column that is read: its name and declared type, the Arrow type it is delivered in, and what is
    selected for it.
    """

    name: str
    declared: str
    kind: pa.DataType
    expression: str

    @property
    def is_raw(self) -> bool:
        """Whether its bytes come as they are, in a field of their own."""
        return bool(pa.types.is_string(self.kind) or pa.types.is_binary(self.kind))


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

    def column(self, name: str) -> str:
        """A column as it stands in a statement."""
        return self.source.column(name).sql("mysql")

    def declared(self, name: str) -> str:
        return next(column.declared for column in self.all_columns if column.name == name)

    def sql(self, expressions: Sequence[str], conditions: Sequence[str] = ()) -> str:
        """SELECT of texts that this connector made of quoted names and literals, under the user's condition."""
        wanted = [f"({each})" for each in conditions]
        if self.condition is not None:
            wanted.append(f"({self.condition.sql('mysql')})")
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        return f"SELECT {', '.join(expressions)} FROM {self.source.expression.sql('mysql')}{where}"  # noqa: S608


def read_source(session: Session, options: MysqlReadOptions) -> ReadSource:
    """Work out what `options` read from the server that `session` is connected to.

    Raises:
        SourceError: no such table or column. SchemaError: a column that cannot be carried.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source, table, found = _find(session, options)
    picked = pick_columns(found, options.columns, same_name)
    condition = _condition(source, found, options)
    custom = custom_kinds(options.custom_schema, [column.name for column in found], same_name)
    columns = []
    for column in picked:
        kind = custom.get(column.name) or arrow_type(column.name, column.declared)
        sql = source.column(column.name).sql("mysql")
        columns.append(ReadColumn(column.name, column.declared, kind, _selected(sql, column, kind, options)))
    schema = pa.schema([pa.field(column.name, column.kind) for column in columns])
    return ReadSource(source, table, found, tuple(columns), schema, condition)


def _selected(sql: str, column: Column, kind: pa.DataType, options: MysqlReadOptions) -> str:
    name = parts(column.declared)[0]
    if name in ("date", "datetime", "timestamp") and options.zero_dates == "null":
        sql = f"IF(CAST({sql} AS CHAR) LIKE '0000-00-00%', NULL, {sql})"
    if name == "bit":
        sql = f"CAST({sql} AS UNSIGNED)"
    elif name == "float":
        sql = f"({sql} + 0e0)"  # as text a float has 6 digits; as a double it has all
    if pa.types.is_string(kind) and name not in (
        "char",
        "varchar",
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
    ):
        return f"CAST({sql} AS CHAR CHARACTER SET utf8mb4)"
    return sql


def _find(session: Session, options: MysqlReadOptions) -> tuple[Source, Table | None, tuple[Column, ...]]:
    if options.query is not None:
        source = statements.subquery(statements.query(options.query, "mysql", "query"), "source")
        return source, None, describe(session, source)
    assert options.dbtable is not None
    table = find_table(session, options.dbtable)
    if table is not None:
        return table.source, table, table.columns
    if options.dbtable.lstrip().startswith("("):
        source = statements.source_query(options.dbtable, "mysql", "dbtable")
        return source, None, describe(session, source)
    raise missing_table(options.dbtable, table_names(session), session.place)


def _condition(source: Source, found: tuple[Column, ...], options: MysqlReadOptions) -> Node | None:
    if options.where is None:
        return None
    names = [column.name for column in found]

    def replace(column: exp.Column) -> Node:
        wanted = column.name
        if column.table and column.table.lower() != source.name.lower():
            wanted = f"{column.table}.{wanted}"
        return source.column(known_name(wanted, names, same_name, "where"))

    return statements.bind_columns(statements.condition(options.where, "mysql", "where"), replace)
