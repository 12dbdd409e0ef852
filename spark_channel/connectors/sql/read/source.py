"""Resolves the table or query of a read, its columns with their Arrow types, and its predicate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths
from spark_channel.connectors.base.types import Node, exp
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import Column, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import (
    custom_kinds,
    known_name,
    missing_table,
    pick_columns,
)
from spark_channel.errors import SchemaError, SourceError

__all__ = ["ReadSource", "column_types", "read_source"]


_KNOWN = frozenset({"duckdb", "mysql", "postgres"})
"""Dialects of which it is known how names without quotes are read."""


@dataclass(frozen=True)
class ReadSource:
    """`columns` are those delivered, `all_columns` those there are. `table` is None for a query.

    `origin` follows FROM, and `name` qualifies its columns.
    """

    dialect: Dialect
    origin: str
    name: str
    table: Table | None
    all_columns: tuple[Column, ...]
    columns: tuple[ReadColumn, ...] = ()
    condition: str | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    @cached_property
    def text_lengths(self) -> TextLengths:
        """How long the texts of its columns may be, where their declarations have a length."""
        lengths = {}
        for read in self.columns:
            about = self.about(read.name) if pa.types.is_string(read.kind) else None
            length = None if about is None else self.dialect.text_length(about)
            if length is not None:
                lengths[read.name] = length
        return lengths

    @cached_property
    def same_table(self) -> str | None:
        """The condition under which each statement reads the table that was looked up; None = without one."""
        return None if self.table is None else self.dialect.same_table(self.table)

    @property
    def label(self) -> str:
        """The source, for people."""
        if self.table is None:
            return "the query"
        return f"{'view' if self.table.is_view else 'table'} {self.table.label!r}"

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.all_columns]

    def column(self, name: str) -> str:
        """A column in a statement, in the form that is compared with literals."""
        return self.dialect.compared(self.about(name), self.bare(name))

    def bare(self, name: str) -> str:
        """A column unchanged. Qualified: SQLite reads a quoted name without such a column as a text."""
        return f"{self.dialect.quoted(self.name)}.{self.dialect.quoted(name)}"

    def about(self, name: str) -> Column | None:
        """The declaration of a column; None if it has none."""
        return next((column for column in self.all_columns if column.name == name), None)

    def read_as(self, name: str) -> ReadColumn | None:
        """How a column is read; None if it is not read."""
        return next((column for column in self.columns if column.name == name), None)

    def ordered(self, name: str) -> str:
        """A column as what its ranges are made of."""
        return self.dialect.ordered(self.about(name), self.column(name))

    def is_null(self, name: str) -> str:
        """The condition of the rows with NULL in a column; NOT before it is that of all others."""
        return self.dialect.is_null(self.about(name), self.column(name))

    def literal(self, name: str, value: object) -> str:
        """A value that is compared with a column."""
        return self.dialect.literal(value, self.about(name))

    def sql(self, expressions: Sequence[str], conditions: Sequence[str] = ()) -> str:
        """SELECT of texts that this package made of quoted names and literals, under the user's condition."""
        return f"SELECT {', '.join(expressions)} {self.behind(conditions)}"

    def behind(self, conditions: Sequence[str] = ()) -> str:
        """FROM the source under the user's condition and `conditions`."""
        all_of = (self.same_table, self.condition, *conditions)
        conditions_sql = [f"({condition})" for condition in all_of if condition is not None]
        return (
            f"FROM {self.origin} WHERE {' AND '.join(conditions_sql)}"
            if conditions_sql
            else f"FROM {self.origin}"
        )


def read_source(
    session: Session, dialect: Dialect, options: SqlReadOptions, table: Table | None = None
) -> ReadSource:
    """Work out what `options` read from the database of `session`. `table`: what `dbtable` names, if that is known.

    Raises:
        SourceError: no such table. SchemaError: columns that cannot be carried, or told apart.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source = _find(session, dialect, options) if table is None else _of_table(dialect, table)
    subject = "the query" if options.dbtable is None else repr(options.dbtable)
    if not source.all_columns:
        raise SourceError(
            f"{subject} in {session.place} has no columns: name a table or a query with columns"
        )
    twice = sorted({name for name in source.names if source.names.count(name) > 1})
    if twice:
        raise SchemaError(
            f"{subject} has two columns of one name: {', '.join(twice)}; give each another name with AS, or let option "
            "'duplicateNames' (number) do so"
        )
    picked = pick_columns(source.all_columns, options.columns, dialect.same_name)
    custom = custom_kinds(options.custom_schema, source.names, dialect.same_name)
    source = replace(source, condition=_condition(source, options))
    columns = _read_columns(session, source, picked, custom)
    if getattr(options, "floats_as", "number") == "text":
        as_text = {
            column.name: pa.string() for column in columns if pa.types.is_floating(column.kind)
        }
        columns = _read_columns(session, source, picked, {**custom, **as_text})
    return replace(source, columns=columns)


def column_types(
    session: Session, dialect: Dialect, options: SqlReadOptions
) -> dict[str, pa.DataType]:
    """The types of all columns that have one, by name.

    Raises:
        SourceError: no such table.
    """
    source = _find(session, dialect, options)
    kinds = {}
    for column in source.all_columns:
        try:
            bare = source.bare(column.name)
            (kind,) = dialect.types(session, [(column, bare)], source.behind())
        except SchemaError:
            continue
        if kind is not None:
            kinds[column.name] = kind
    return kinds


def _read_columns(
    session: Session,
    source: ReadSource,
    picked: Sequence[Column],
    custom: Mapping[str, pa.DataType],
) -> tuple[ReadColumn, ...]:
    dialect = source.dialect
    unchosen = [
        (column, source.bare(column.name)) for column in picked if column.name not in custom
    ]
    own_kinds = dialect.types(session, unchosen, source.behind()) if unchosen else []
    kinds = {
        **{column.name: kind for (column, _), kind in zip(unchosen, own_kinds, strict=True)},
        **custom,
    }
    columns = []
    for column in picked:
        kind = kinds[column.name]
        assert kind is not None, f"{dialect.product} gives column {column.name!r} no type"
        text = dialect.selected(column, kind, source.bare(column.name))
        columns.append(ReadColumn(column.name, column.declared, kind, text))
    return tuple(columns)


def _find(session: Session, dialect: Dialect, options: SqlReadOptions) -> ReadSource:
    if options.query is not None:
        query = dialect.derived(options.query)
        if options.duplicate_names == "number":
            query = _numbered(session, dialect, query)
        return _of_query(session, dialect, query, "source")
    assert options.dbtable is not None
    table = dialect.find_table(session, options.dbtable)
    if table is not None:
        return _of_table(dialect, table)
    if options.dbtable.lstrip().startswith("("):
        parsed = statements.source_query(options.dbtable, dialect.sql, "dbtable")
        return _of_query(
            session, dialect, statements.inside(options.dbtable, dialect.sql), parsed.name
        )
    names = dialect.table_names(session)
    lacks = dialect.lacking_on_hidden(session, options.dbtable)
    hides = dialect.hides_tables
    raise missing_table(options.dbtable, names, session.place, may_hide=hides, lacks=lacks)


def _of_table(dialect: Dialect, table: Table) -> ReadSource:
    origin = ".".join(dialect.quoted(part) for part in (table.schema, table.name) if part)
    if dialect.alias is None:
        return ReadSource(dialect, origin, table.name, table, table.columns)
    origin = f"{origin} AS {dialect.quoted(dialect.alias)}"
    return ReadSource(dialect, origin, dialect.alias, table, table.columns)


def _of_query(session: Session, dialect: Dialect, query: str, name: str) -> ReadSource:
    text = statements.text_of(query)
    origin = f"({text}) AS {dialect.quoted(name)}"
    return ReadSource(dialect, origin, name, None, dialect.describe(session, text))


def _numbered(session: Session, dialect: Dialect, query: str) -> str:
    """`query`, whose later columns of one name get another; unchanged where each has its own."""
    unique_names: list[str] = []
    names = dialect.result_names(session, query)
    for number, name in enumerate(names):
        candidate = name
        while dialect.same_name(candidate, unique_names) is not None or (
            candidate != name and candidate in names
        ):
            candidate = f"{candidate}_{number}"
        unique_names.append(candidate)
    if unique_names == names:
        return query
    # Names before a WITH apply by position, in every database; a derived table of MariaDB takes none.
    columns = ", ".join(dialect.quoted(name) for name in unique_names)
    return f"WITH spark_channel_source ({columns}) AS ({query}) SELECT * FROM spark_channel_source"  # noqa: S608 - a query that was parsed


def _condition(source: ReadSource, options: SqlReadOptions) -> str | None:
    """The user's condition, its columns spelled as the database does."""
    if options.where is None:
        return None
    dialect, table, names = source.dialect, source.table, source.names
    hidden = () if table is None else dialect.hidden_columns(table)
    qualifiers = {source.name.lower(), (options.dbtable or "").lower().rpartition(".")[2]}
    qualifiers |= set() if table is None else {table.name.lower()}

    as_written = dialect.sql in _KNOWN

    def bound(column: "exp.Column") -> Node:
        nonlocal as_written
        qualifier, wanted_name = column.table, column.name
        if qualifier:
            as_written = as_written and _names_source(source, column)
        if qualifier and qualifier.lower() not in qualifiers:
            wanted_name = f"{qualifier}.{wanted_name}"
        elif wanted_name.lower() in hidden and not (
            column.this.quoted and wanted_name not in hidden
        ):
            return _node(source, wanted_name.lower())
        elif dialect.whole_rows and _is_whole_row(source, column):
            return column
        name = known_name(wanted_name, names, dialect.same_name, "where")
        about = source.about(name)
        assert about is not None
        if not column.this.quoted:
            as_written = as_written and _is_read_as(dialect, wanted_name, name)
        dialect.check_condition(about, column)
        return _node(source, name)

    tree = statements.condition(options.where, dialect.sql, "where")
    bound_tree = statements.bind_columns(tree, bound)
    return statements.text_of(options.where) if as_written else bound_tree.sql(dialect.sql)


def _names_source(source: ReadSource, column: "exp.Column") -> bool:
    """Whether the database itself takes the qualifier of `column` for the source."""
    table = column.args["table"]
    folds = source.dialect.sql == "postgres" and not table.quoted
    return bool((column.table.lower() if folds else column.table) == source.name)


def _is_whole_row(source: ReadSource, column: "exp.Column") -> bool:
    """Whether `column` is the source's name, or `name.*`: a row as one value."""
    if column.table:
        return isinstance(column.this, exp.Star)
    folds = source.dialect.sql == "postgres" and not column.this.quoted
    name = column.name.lower() if folds else column.name
    return bool(name == source.name and source.dialect.same_name(name, source.names) is None)


def _is_read_as(dialect: Dialect, name_written: str, name: str) -> bool:
    """Whether the database itself takes `name_written`, without quotes, for column `name`."""
    return (
        name_written.lower() == name
        if dialect.sql == "postgres"
        else name_written.lower() == name.lower()
    )


def _node(source: ReadSource, name: str) -> "exp.Column":
    column, table = (
        statements.identifier(source.dialect.spelled(part)) for part in (name, source.name)
    )
    return exp.column(column, table=table)
