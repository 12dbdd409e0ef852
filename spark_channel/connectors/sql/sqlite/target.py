"""How a DataFrame's columns meet a table's: matched by name, or made into a new table."""

import re
from dataclasses import dataclass

import pyarrow as pa

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION, row_fields
from spark_channel.connectors.sql.ddl import arrow_columns, sql_columns
from spark_channel.connectors.sql.file_writer import FilePlan
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.sqlite.column_types import sqlite_type
from spark_channel.connectors.sql.sqlite.encode import WriteColumn, check_fit
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.tables import Table, same_name
from spark_channel.connectors.sql.statements import Source
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = ["SqlitePlan", "Target", "declared_columns", "new_target", "old_target"]

_TABLE_OPTIONS = re.compile(
    r"\s*(STRICT|WITHOUT\s+ROWID)(\s*,\s*(STRICT|WITHOUT\s+ROWID))?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Target:
    """The table as the plan expects it.

    `declared` are its columns and types as they stand (or will stand, with `create`); a publish that finds
    others refuses. `key` are `keyColumns` as the table spells them. `feed`: a column of the rows says what each of
    them does (`writeMode=apply`).
    """

    name: str
    columns: tuple[WriteColumn, ...]
    declared: tuple[tuple[str, str], ...]
    create: str | None = None
    key: tuple[str, ...] = ()
    feed: bool = False

    @property
    def source(self) -> Source:
        return statements.named_table(("main", self.name))

    @property
    def staged(self) -> tuple[str, ...]:
        """The columns of what is staged."""
        names = tuple(column.target for column in self.columns)
        return (*names, OPERATION) if self.feed else names


@dataclass(frozen=True)
class SqlitePlan(FilePlan):
    """`target` is the table as the plan expects it."""

    target: Target = Target("", (), ())


def declared_columns(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.declared) for column in table.columns)


def old_target(table: Table, schema: pa.Schema, options: SqliteWriteOptions) -> Target:
    """The columns of `schema` in a table that is there, by name.

    Raises:
        SchemaError: a column that the table has not, one that it needs, or one that does not fit.
        TargetError: a view, or keys that the table does not hold unique.
    """
    if table.is_view:
        raise TargetError(f"{table.name!r} is a view; name the table behind it")
    _refuse_twins(schema)
    by_name = {column.name: column for column in table.columns}
    columns = []
    feed = options.write_mode == "apply"
    for field in row_fields(schema) if feed else schema:
        name = same_name(field.name, list(by_name))
        if name is None:
            raise SchemaError(
                f"column {field.name!r} is not in table {table.name!r}, which has {', '.join(by_name)}; "
                "rename or drop it, or add it to the table"
            )
        if by_name[name].generated:
            raise SchemaError(
                f"column {field.name!r} is computed by SQLite (generated) in table {table.name!r}; "
                "leave it out"
            )
        column = WriteColumn(field.name, name, by_name[name].declared, field.type)
        check_fit(column)
        columns.append(column)
    given = {column.target for column in columns}
    for needed in table.columns:
        filled = needed.has_default or needed.generated or needed.name == table.rowid_alias()
        if needed.not_null and needed.name not in given and not filled:
            raise SchemaError(
                f"table {table.name!r} needs column {needed.name!r} (NOT NULL without a default), "
                "which the rows "
                f"do not have; they have {', '.join(schema.names)}"
            )
    key = _old_key(table, columns, options)
    return Target(table.name, tuple(columns), declared_columns(table), key=key, feed=feed)


def new_target(name: str, schema: pa.Schema, options: SqliteWriteOptions) -> Target:
    """A table to be created for `schema`; with `keyColumns` as its primary key.

    Raises:
        SchemaError: a type that SQLite cannot hold, or names that it takes for the same.
        OptionError: createTableColumnTypes or createTableOptions that do not fit.
    """
    if not schema.names:
        raise SchemaError(f"the rows have no columns, so table {name!r} cannot be created")
    _refuse_twins(schema)
    feed = options.write_mode == "apply"
    fields = row_fields(schema) if feed else list(schema)
    types = _chosen_types(schema, options)
    columns = []
    for field in fields:
        declared = types.get(field.name) or sqlite_type(field.name, field.type)
        column = WriteColumn(field.name, field.name, declared, field.type)
        check_fit(column)
        columns.append(column)
    key = merge_key(options, [field.name for field in fields], same_name, name)
    without_null = {field.name for field in fields if not field.nullable} | set(key)
    create = statements.create_table(
        statements.named_table(("main", name)),
        [(column.target, column.declared, column.name in without_null) for column in columns],
        key,
        "sqlite",
    )
    declared_all = tuple((column.target, column.declared) for column in columns)
    return Target(name, tuple(columns), declared_all, create + _table_options(options), key, feed)


def _refuse_twins(schema: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"columns {seen[name.lower()]!r} and {name!r} are one name to SQLite; rename one of them"
            )
        seen[name.lower()] = name


def _chosen_types(schema: pa.Schema, options: SqliteWriteOptions) -> dict[str, str]:
    text = options.create_table_column_types
    if text is None:
        return {}
    option = "createTableColumnTypes"
    kinds = arrow_columns(text, option)
    chosen = {}
    for name, declared in sql_columns(text, option).items():
        actual = same_name(name, schema.names)
        if actual is None:
            raise OptionError(
                f"option {option!r} names column {name!r}, which the rows do not have; "
                f"they have {', '.join(schema.names)}",
                option=option,
                got=text,
            )
        # VARCHAR and CHAR keep their lengths; Spark's other names become those that SQLite keeps exactly.
        has_length = declared.upper().startswith(("VARCHAR", "CHAR"))
        chosen[actual] = declared if has_length else sqlite_type(actual, kinds[name])
    return chosen


def _table_options(options: SqliteWriteOptions) -> str:
    text = options.create_table_options
    if text is None:
        return ""
    takes = "WITHOUT ROWID"
    if not _TABLE_OPTIONS.fullmatch(text) or "STRICT" in text.upper():
        why = (
            "STRICT tables know none of the types that keep decimals, dates and booleans"
            if ("STRICT" in text.upper())
            else "SQLite has no other"
        )
        raise OptionError(
            f"option 'createTableOptions' got {text!r}; it takes {takes}: {why}",
            option="createTableOptions",
            got=text,
            takes=takes,
        )
    if not options.key_columns:
        raise OptionError(
            "option 'createTableOptions' WITHOUT ROWID needs a primary key: name it with 'keyColumns'",
            option="createTableOptions",
            got=text,
        )
    return " WITHOUT ROWID"


def _old_key(table: Table, columns: list[WriteColumn], options: SqliteWriteOptions) -> tuple[str, ...]:
    targets = {column.name: column.target for column in columns}
    found = merge_key(options, list(targets), same_name, table.name, table.key)
    key = tuple(targets[name] for name in found)
    if key and not any(
        {part.lower() for part in unique} == {part.lower() for part in key} for unique in table.unique
    ):
        raise TargetError(
            f"table {table.name!r} does not hold ({', '.join(key)}) unique, so writeMode "
            f"{options.write_mode} cannot "
            f"tell which rows are the same: create a unique index on these columns"
        )
    return key
