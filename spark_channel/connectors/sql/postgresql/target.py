"""How a DataFrame's columns meet a table's: matched by name, or made into a new table."""

from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.native import NativeRows
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.ddl import sql_columns
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.postgresql.catalog import Table, name_parts, same_name
from spark_channel.connectors.sql.postgresql.column_types import created_type
from spark_channel.connectors.sql.postgresql.encode import WriteColumn, native_column, write_column
from spark_channel.connectors.sql.postgresql.native import are_native
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.statements import Source
from spark_channel.connectors.sql.writer import SqlPlan
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = [
    "PostgresPlan",
    "Target",
    "create_statement",
    "declared_columns",
    "match_target",
    "new_name",
    "row_schema",
]


@dataclass(frozen=True, slots=True)
class Target:
    """The table as the plan expects it.

    `declared` are its columns and types as they stand (or will stand, with `create`); a publish that finds
    others refuses. `key` are `keyColumns` as the table spells them. `identity`: a column that PostgreSQL numbers by
    itself is written. `native`: rows come as COPY writes them.
    """

    schema: str
    name: str
    columns: tuple[WriteColumn, ...]
    declared: tuple[tuple[str, str], ...]
    create: bool = False
    key: tuple[str, ...] = ()
    identity: bool = False
    native: bool = False

    @property
    def source(self) -> Source:
        return statements.named_table((self.schema, self.name))

    @property
    def sql(self) -> str:
        """The table's name in a statement."""
        return self.source.expression.sql("postgres")

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def direct(self) -> bool:
        """Whether every column can be sent by COPY straight into the table."""
        return not any(column.cast for column in self.columns)


@dataclass(frozen=True)
class PostgresPlan(SqlPlan):
    """What PostgreSQL adds to a plan."""

    target: Target = Target("", "", (), ())

    @property
    def staging(self) -> str:
        """The table that takes the rows of a `commit=job`, in the target's schema."""
        return f"{self.stage}rows"


def declared_columns(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.declared) for column in table.columns)


def row_schema(schema: pa.Schema, options: PostgresWriteOptions) -> pa.Schema:
    """The columns that are the table's: all, but `_op` of a change feed."""
    if options.write_mode != "apply":
        return schema
    if OPERATION not in schema.names:
        raise SchemaError(
            f"option 'writeMode' apply needs column {OPERATION!r} in the rows, which says insert, update or "
            f"delete; they have {', '.join(schema.names)}"
        )
    return schema.remove(schema.get_field_index(OPERATION))


def match_target(
    table: Table,
    schema: pa.Schema,
    options: PostgresWriteOptions,
    *,
    name: str | None = None,
    native: NativeRows | None = None,
) -> Target:
    """The columns of `schema` in a table that is there, by name. `name`: the table is the one being made for it.

    `native`: the rows may come so, if the table takes them.

    Raises:
        SchemaError: a column that the table has not, one that it needs, or one that does not fit.
        TargetError: a view, or keys that the table does not hold unique.
    """
    if table.kind not in ("r", "p"):
        raise TargetError(f"{table.label} is no table that rows can be copied into; name the table behind it")
    by_name = {column.name: column for column in table.columns}
    columns: list[WriteColumn] = []
    takes_native = native is not None and options.write_mode != "apply" and are_native(native, table)
    for field in row_schema(schema, options):
        own = same_name(field.name, list(by_name))
        if own is None:
            raise SchemaError(
                f"column {field.name!r} is not in table {table.label}, which has {', '.join(by_name)}; "
                "rename or drop it, or add it to the table"
            )
        if by_name[own].generated:
            raise SchemaError(
                f"column {field.name!r} is computed by PostgreSQL (generated) in table {table.label}; leave it out"
            )
        if own in (column.target for column in columns):
            raise SchemaError(
                f"two columns of the rows are column {own!r} of table {table.label}; rename one"
            )
        column = native_column if takes_native else write_column
        columns.append(column(field.name, field.type, by_name[own]))
    given = {column.target for column in columns}
    for needed in table.columns:
        filled = needed.has_default or needed.generated or needed.identity
        if needed.not_null and needed.name not in given and not filled:
            raise SchemaError(
                f"table {table.label} needs column {needed.name!r} (NOT NULL without a default), which the rows "
                f"do not have; they have {', '.join(schema.names)}"
            )
    primary = table.primary if name is None else None
    names = [column.name for column in columns]
    found = merge_key(options, names, same_name, f"{table.schema}.{name or table.name}", primary)
    key = tuple(next(c.target for c in columns if c.name == each) for each in found)
    if key and name is None and not any(set(unique) == set(key) for unique in table.unique):
        raise TargetError(
            f"table {table.label} does not hold ({', '.join(key)}) unique, so writeMode {options.write_mode} "
            "cannot tell which rows are the same: create a unique index on these columns"
        )
    identity = any(column.column.identity == "a" for column in columns)
    return Target(
        table.schema,
        name or table.name,
        tuple(columns),
        declared_columns(table),
        name is not None,
        key,
        identity,
        takes_native,
    )


def new_name(options: PostgresWriteOptions) -> tuple[str | None, str]:
    """(schema, name) of a table that is not there yet."""
    return name_parts(options.dbtable) or (None, options.dbtable)


def create_statement(place: Source, schema: pa.Schema, options: PostgresWriteOptions) -> str:
    """CREATE TABLE for the rows, without its key, which is made when the rows are in.

    Raises:
        SchemaError: a type that PostgreSQL cannot hold.
        OptionError: createTableColumnTypes or createTableOptions that do not fit.
    """
    fields = row_schema(schema, options)
    if not fields.names:
        raise SchemaError(f"the rows have no columns, so table {options.dbtable!r} cannot be created")
    types = _chosen_types(fields, options)
    columns = [
        (field.name, types.get(field.name) or created_type(field.name, field.type), not field.nullable)
        for field in fields
    ]
    return statements.create_table(place, columns, (), "postgres") + _table_options(options)


def _chosen_types(schema: pa.Schema, options: PostgresWriteOptions) -> dict[str, str]:
    text = options.create_table_column_types
    if text is None:
        return {}
    chosen = {}
    for name, declared in sql_columns(text, "createTableColumnTypes").items():
        actual = same_name(name, schema.names)
        if actual is None:
            raise OptionError(
                f"option 'createTableColumnTypes' names column {name!r}, which the rows do not have; "
                f"they have {', '.join(schema.names)}",
                option="createTableColumnTypes",
                got=text,
            )
        chosen[actual] = exp.DataType.build(declared, dialect="spark").sql("postgres")
    return chosen


def _table_options(options: PostgresWriteOptions) -> str:
    text = options.create_table_options
    if text is None:
        return ""
    takes = "what may follow the columns of CREATE TABLE, such as WITH (fillfactor=70) or TABLESPACE fast"
    try:
        tokens = sqlglot.tokenize(text, read="postgres")
    except sqlglot.errors.SqlglotError:
        tokens = []
    words = {token.text.upper() for token in tokens}
    if not tokens or tokens[0].text.upper() not in ("WITH", "TABLESPACE") or words & {";", "AS", "SELECT"}:
        raise OptionError(
            f"option 'createTableOptions' got {text!r}; it takes {takes}",
            option="createTableOptions",
            got=text,
            takes=takes,
        )
    return " " + text.strip()
