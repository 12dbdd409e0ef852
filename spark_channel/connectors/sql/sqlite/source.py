"""What a read reads: the table or query, its columns in Arrow's types, and its conditions."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.named import custom_kinds, known_name, missing_table, pick_columns
from spark_channel.connectors.sql.sqlite.column_types import arrow_type, is_text_decimal
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.decode import ReadColumn
from spark_channel.connectors.sql.sqlite.options import SqliteReadOptions
from spark_channel.connectors.sql.sqlite.tables import (
    Column,
    Table,
    describe_query,
    find_table,
    same_name,
    table_names,
)
from spark_channel.connectors.sql.statements import Node, Source
from spark_channel.errors import OptionError, SchemaError, SourceError

__all__ = ["ReadSource", "read_source"]

_SAMPLE_ROWS = 10_000
"""Rows looked at to type a column that declares no type."""


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
        return f"{'view' if self.table.is_view else 'table'} {self.table.name!r}"

    def column(self, name: str) -> exp.Column:
        """A column, or the rowid, as it is written in a statement."""
        return self.source.column(name)

    @property
    def is_declared(self) -> bool:
        """Whether all is said by declarations, and nothing by the rows that are there."""
        is_table = self.table is not None and self.table.schema == "main" and not self.table.is_view
        return is_table and all(arrow_type(column.declared) is not None for column in self.columns)

    def select(self, expressions: Sequence[Node], conditions: Sequence[Node | None] = ()) -> exp.Select:
        """A SELECT from the source under the user's condition and `conditions`."""
        return statements.select(expressions, self.source, [self.condition, *conditions])


def read_source(session: Session, options: SqliteReadOptions) -> ReadSource:
    """Work out what `options` read from the file that `session` is connected to.

    Raises:
        SourceError: no such table or column. SchemaError: a column that cannot be typed.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source, table, found = _find(session, options)
    if not found:
        raise SourceError(f"{options.dbtable or 'the query'} in {session.path} has no columns")
    picked = pick_columns(found, options.columns, same_name)
    condition = _condition(source, table, found, options)
    columns = _typed(session, source, condition, picked, found, options)
    schema = pa.schema([pa.field(column.name, column.kind) for column in columns])
    return ReadSource(source, table, found, columns, schema, condition)


def _find(session: Session, options: SqliteReadOptions) -> tuple[Source, Table | None, tuple[Column, ...]]:
    if options.query is not None:
        tree = statements.query(options.query, "sqlite", "query")
        return statements.subquery(tree, "source"), None, describe_query(session, tree)
    assert options.dbtable is not None
    table = find_table(session, options.dbtable)
    if table is not None:
        parts = (table.schema, table.name)
        return statements.named_table(parts), table, table.columns
    if options.dbtable.lstrip().startswith("("):
        source = statements.source_query(options.dbtable, "sqlite", "dbtable")
        inner = source.expression.this
        return source, None, describe_query(session, inner)
    raise missing_table(options.dbtable, table_names(session), session.path)


def _condition(
    source: Source, table: Table | None, found: tuple[Column, ...], options: SqliteReadOptions
) -> Node | None:
    if options.where is None:
        return None
    by_name = {column.name: column for column in found}

    def replace(column: exp.Column) -> Node:
        qualifier, wanted = column.table, column.name
        if qualifier and qualifier.lower() != source.name.lower():
            wanted = f"{qualifier}.{wanted}"
        elif table is not None and table.rowid is not None and wanted.lower() == table.rowid:
            return source.column(table.rowid)
        name = known_name(wanted, list(by_name), same_name, "where")
        if is_text_decimal(by_name[name].declared) and not isinstance(column.parent, exp.Is | exp.Cast):
            raise OptionError(
                f"option 'where': column {name!r} keeps its decimals as text, which compares as text; "
                f"write CAST({name} AS REAL)",
                option="where",
                got=options.where,
            )
        return source.column(name)

    return statements.bind_columns(statements.condition(options.where, "sqlite", "where"), replace)


def _typed(
    session: Session,
    source: Source,
    condition: Node | None,
    picked: Sequence[Column],
    found: tuple[Column, ...],
    options: SqliteReadOptions,
) -> tuple[ReadColumn, ...]:
    custom = custom_kinds(options.custom_schema, [column.name for column in found], same_name)
    kinds = {column.name: custom.get(column.name) or arrow_type(column.declared) for column in picked}
    unknown = [column.name for column in picked if kinds[column.name] is None]
    kinds |= _by_values(session, source, condition, unknown)
    return tuple(ReadColumn(column.name, column.declared, kinds[column.name]) for column in picked)


def _by_values(
    session: Session, source: Source, condition: Node | None, names: list[str]
) -> dict[str, pa.DataType]:
    if not names:
        return {}
    sample = statements.select([source.column(name) for name in names], source, [condition]).limit(
        _SAMPLE_ROWS
    )
    classes = ("integer", "real", "text", "blob")
    inner = sample.subquery(statements.identifier("sample"))
    seen = [
        exp.func(
            "max",
            exp.EQ(
                this=exp.Anonymous(
                    this="typeof",
                    expressions=[exp.column(statements.identifier(name), statements.identifier("sample"))],
                ),
                expression=exp.Literal.string(each),
            ),
        )
        for name in names
        for each in classes
    ]
    flags = session.rows(exp.select(*seen).from_(inner).sql("sqlite"))[0]
    kinds = {}
    for number, name in enumerate(names):
        there = {each for each, flag in zip(classes, flags[4 * number : 4 * number + 4], strict=True) if flag}
        kinds[name] = _kind_of_values(name, there)
    return kinds


def _kind_of_values(name: str, classes: set[str]) -> pa.DataType:
    if classes == {"integer"}:
        return pa.int64()
    if classes and classes <= {"integer", "real"}:
        return pa.float64()
    if classes == {"blob"}:
        return pa.binary()
    if "blob" in classes:
        raise SchemaError(
            f"column {name!r} declares no type, and holds blobs beside "
            f"{', '.join(sorted(classes - {'blob'}))}: "
            "make it one type in a query"
        )
    return pa.string()
