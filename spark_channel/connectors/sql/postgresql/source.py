"""What a read reads: the table or query, its columns in Arrow's types, and its conditions."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.named import custom_kinds, known_name, missing_table, pick_columns
from spark_channel.connectors.sql.postgresql.catalog import Column, Table, find_table, same_name, table_names
from spark_channel.connectors.sql.postgresql.column_types import ReadType, read_type
from spark_channel.connectors.sql.postgresql.decode import ReadColumn
from spark_channel.connectors.sql.postgresql.native import own_names
from spark_channel.connectors.sql.postgresql.options import PostgresReadOptions
from spark_channel.connectors.sql.postgresql.read_session import ReadSession
from spark_channel.connectors.sql.statements import Node, Source
from spark_channel.errors import SchemaError, SourceError

__all__ = ["ReadSource", "read_source"]

_DIALECT = "postgres"


@dataclass(frozen=True)
class ReadSource:
    """`columns` are those delivered, `all_columns` those there are. `table` is None for a query.

    `is_native`: the names of the columns' types mean PostgreSQL's own, and values are delivered as those.
    """

    source: Source
    table: Table | None
    all_columns: tuple[ReadColumn, ...]
    columns: tuple[ReadColumn, ...]
    schema: pa.Schema
    condition: Node | None
    is_native: bool

    @property
    def label(self) -> str:
        if self.table is None:
            return "the query"
        return f"{'view' if self.table.is_view else 'table'} {self.table.label}"

    def column(self, name: str) -> exp.Column:
        return self.source.column(name)

    def select(self, expressions: Sequence[Node], conditions: Sequence[Node | None] = ()) -> exp.Select:
        """A SELECT from the source under the user's condition and `conditions`."""
        return statements.select(expressions, self.source, [self.condition, *conditions])


def read_source(session: ReadSession, options: PostgresReadOptions) -> ReadSource:
    """Work out what `options` read from the database of `session`.

    Raises:
        SourceError: no such table. SchemaError: columns that cannot be told apart.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source, table = _find(session, options)
    every = _all_columns(session, source, table, options)
    picked = pick_columns(every, options.columns, same_name)
    condition = _condition(source, every, options)
    schema = pa.schema([pa.field(column.name, column.kind) for column in picked])
    is_native = options.custom_schema is None and _are_builtin(session, picked, table)
    return ReadSource(source, table, every, picked, schema, condition, is_native)


def _find(session: ReadSession, options: PostgresReadOptions) -> tuple[Source, Table | None]:
    if options.query is not None:
        tree = statements.query(options.query, _DIALECT, "query")
        return statements.subquery(tree, "source"), None
    assert options.dbtable is not None
    table = find_table(session, options.dbtable)
    if table is not None:
        # A table is given a name of its own: the column and the table may be called the same.
        return Source(table.source.rename("source"), "source"), table
    if options.dbtable.lstrip().startswith("("):
        return statements.source_query(options.dbtable, _DIALECT, "dbtable"), None
    raise missing_table(options.dbtable, table_names(session), session.place)


def _are_builtin(session: ReadSession, columns: Sequence[ReadColumn], table: Table | None) -> bool:
    if table is None:
        return not own_names(session)
    builtin = {column.name for column in table.columns if column.builtin}
    return all(column.name in builtin for column in columns)


def _all_columns(
    session: ReadSession, source: Source, table: Table | None, options: PostgresReadOptions
) -> tuple[ReadColumn, ...]:
    star = exp.select("*").from_(source.expression.copy()).limit(0)
    found = session.schema_of(star.sql(_DIALECT))
    twice = {name for name in found.names if found.names.count(name) > 1}
    if twice:
        raise SchemaError(
            f"{len(twice)} columns of {_what(options)} stand there twice: {', '.join(sorted(twice))}; "
            "give each a name of its own with AS"
        )
    if not found.names:
        raise SourceError(f"{_what(options)} in {session.place} has no columns")
    custom = custom_kinds(options.custom_schema, found.names, same_name)
    known = {column.name: column for column in table.columns} if table is not None else {}
    return tuple(_read_column(field, known.get(field.name), custom.get(field.name)) for field in found)


def _read_column(field: pa.Field, column: Column | None, custom: pa.DataType | None) -> ReadColumn:
    """`column` is what the catalog says; of a query's columns the driver knows most types, and a numeric's size."""
    notes = field.metadata or {}
    if column is None:
        name = notes.get(b"POSTGRESQL:type", b"text").decode()
        typmod = int(notes.get(b"POSTGRESQL:typmod", b"-1"))
    else:
        name, typmod = column.base, column.typmod
    read = read_type(name, typmod)
    if custom is not None and pa.types.is_string(custom) and not pa.types.is_string(read.kind):
        read = ReadType(pa.string(), "text")
    return ReadColumn(field.name, name, read, custom or read.kind, typmod)


def _condition(source: Source, found: tuple[ReadColumn, ...], options: PostgresReadOptions) -> Node | None:
    if options.where is None:
        return None
    names = [column.name for column in found]
    own = (source.name.lower(), (options.dbtable or "").lower().rpartition(".")[2])

    def replace(column: exp.Column) -> Node:
        qualifier = column.table
        wanted = column.name if not qualifier or qualifier.lower() in own else f"{qualifier}.{column.name}"
        return source.column(known_name(wanted, names, same_name, "where"))

    return statements.bind_columns(statements.condition(options.where, _DIALECT, "where"), replace)


def _what(options: PostgresReadOptions) -> str:
    return repr(options.dbtable) if options.dbtable is not None else "the query"
