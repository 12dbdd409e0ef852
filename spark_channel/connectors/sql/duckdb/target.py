"""How a DataFrame's columns meet a table's: matched by name, or made into a new table."""

from dataclasses import dataclass

import pyarrow as pa

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION, row_fields
from spark_channel.connectors.sql.ddl import arrow_columns, sql_columns
from spark_channel.connectors.sql.duckdb.column_types import (
    arrow_type,
    canonical,
    duckdb_type,
    is_text,
    same_type,
)
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions
from spark_channel.connectors.sql.duckdb.tables import Table, same_name
from spark_channel.connectors.sql.file_writer import FilePlan
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.statements import Source
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = [
    "DuckdbPlan",
    "Target",
    "WriteColumn",
    "declared_columns",
    "is_as_planned",
    "new_target",
    "old_target",
]


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One column that is written: its name in the batch, the table's column and type, and what is staged."""

    name: str
    target: str
    declared: str
    kind: pa.DataType


@dataclass(frozen=True, slots=True)
class Target:
    """The table as the plan expects it.

    `declared` are its columns and types as they stand (or will stand, with `create`); a publish that finds
    others refuses. `key` are `keyColumns` as the table spells them. `operation` is the column that says what a
    row of a change feed does.
    """

    schema: str
    name: str
    columns: tuple[WriteColumn, ...]
    declared: tuple[tuple[str, str], ...]
    create: str | None = None
    key: tuple[str, ...] = ()
    operation: str | None = None

    @property
    def source(self) -> Source:
        return statements.named_table((self.schema, self.name))

    @property
    def label(self) -> str:
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"

    @property
    def staged(self) -> pa.Schema:
        """What is staged: the columns under the table's names, and the operation."""
        fields = [pa.field(column.target, column.kind) for column in self.columns]
        return pa.schema(fields if self.operation is None else [*fields, pa.field(OPERATION, pa.string())])


@dataclass(frozen=True)
class DuckdbPlan(FilePlan):
    """`target` is the table as the plan expects it."""

    target: Target = Target("main", "", (), ())


def declared_columns(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.declared) for column in table.columns)


def is_as_planned(table: Table, target: Target) -> bool:
    """Whether the table that is found has the columns and types that the plan has."""
    found = declared_columns(table)
    return len(found) == len(target.declared) and all(
        name == planned and same_type(declared, wanted)
        for (name, declared), (planned, wanted) in zip(found, target.declared, strict=True)
    )


def old_target(table: Table, schema: pa.Schema, options: DuckdbWriteOptions) -> Target:
    """The columns of `schema` in a table that is there, by name.

    Raises:
        SchemaError: a column that the table has not, one that it needs, or one that does not fit.
        TargetError: a view, or keys that the table does not hold unique.
    """
    if table.is_view:
        raise TargetError(f"{table.label!r} is a view; name the table behind it")
    operation, fields = _fields(schema, options)
    by_name = {column.name: column for column in table.columns}
    columns = []
    for field in fields:
        name = same_name(field.name, list(by_name))
        if name is None:
            raise SchemaError(
                f"column {field.name!r} is not in table {table.label!r}, which has {', '.join(by_name)}; "
                "rename or drop it, or add it to the table"
            )
        columns.append(_fitting(field, name, by_name[name].declared))
    given = {column.target for column in columns}
    for needed in table.columns:
        if needed.not_null and needed.name not in given and not needed.has_default:
            raise SchemaError(
                f"table {table.label!r} needs column {needed.name!r} (NOT NULL without a default), which the "
                f"rows do not have; they have {', '.join(schema.names)}"
            )
    names = [field.name for field in fields]
    found = merge_key(options, names, same_name, table.label, table.primary)
    key = tuple(same_name(name, [*by_name]) or name for name in found)
    if key and not any(
        {part.lower() for part in each} == {part.lower() for part in key} for each in table.unique
    ):
        raise TargetError(
            f"table {table.label!r} does not hold ({', '.join(key)}) unique, so writeMode {options.write_mode} "
            "cannot tell which rows are the same: create a unique index on these columns"
        )
    return Target(
        table.schema, table.name, tuple(columns), declared_columns(table), key=key, operation=operation
    )


def new_target(schema_name: str, name: str, schema: pa.Schema, options: DuckdbWriteOptions) -> Target:
    """A table to be created for `schema`; with `keyColumns` as its primary key.

    Raises:
        SchemaError: a type that DuckDB cannot hold, or names that it takes for the same.
        OptionError: createTableColumnTypes that do not fit.
    """
    operation, fields = _fields(schema, options)
    if not fields:
        raise SchemaError(f"the rows have no columns, so table {name!r} cannot be created")
    types = _chosen_types(schema, options)
    columns = []
    for field in fields:
        declared = types.get(field.name) or duckdb_type(canonical(field.name, field.type))
        columns.append(_fitting(field, field.name, declared))
    key = merge_key(options, [field.name for field in fields], same_name, name)
    without_null = {field.name for field in fields if not field.nullable} | set(key)
    create = statements.create_table(
        statements.named_table((schema_name, name)),
        [(column.target, column.declared, column.name in without_null) for column in columns],
        key,
        "duckdb",
    )
    declared_all = tuple((column.target, column.declared) for column in columns)
    return Target(schema_name, name, tuple(columns), declared_all, create, key, operation)


def _fields(schema: pa.Schema, options: DuckdbWriteOptions) -> tuple[str | None, list[pa.Field]]:
    """The name of the change feed's operation column when there is one, and the other columns."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"columns {seen[name.lower()]!r} and {name!r} are one name to DuckDB; rename one of them"
            )
        seen[name.lower()] = name
    if options.write_mode != "apply":
        return None, list(schema)
    return OPERATION, row_fields(schema)


def _fitting(field: pa.Field, target: str, declared: str) -> WriteColumn:
    kind = canonical(field.name, field.type)
    wanted = arrow_type(declared)
    natural = duckdb_type(kind)
    if is_text(declared):
        fine = pa.types.is_string(kind)
    elif wanted is None:
        fine = same_type(natural, declared)
    else:
        fine = natural == declared or (arrow_type(natural) is not None and fits(kind, wanted))
    if not fine:
        hint = "cast it"
        if pa.types.is_timestamp(kind) and wanted is not None and pa.types.is_timestamp(wanted):
            hint = "one has a time zone and the other has none; cast it, or declare the column " + natural
        raise SchemaError(
            f"column {field.name!r} is {field.type}, and the table's column {target!r} is {declared}, which "
            f"cannot hold it exactly: {hint}"
        )
    return WriteColumn(field.name, target, declared, kind)


def _chosen_types(schema: pa.Schema, options: DuckdbWriteOptions) -> dict[str, str]:
    text = options.create_table_column_types
    if text is None:
        return {}
    option = "createTableColumnTypes"
    chosen = {}
    kinds = arrow_columns(text, option)
    for name in sql_columns(text, option):
        actual = same_name(name, schema.names)
        if actual is None:
            raise OptionError(
                f"option {option!r} names column {name!r}, which the rows do not have; "
                f"they have {', '.join(schema.names)}",
                option=option,
                got=text,
            )
        chosen[actual] = duckdb_type(canonical(actual, kinds[name]))
    return chosen
