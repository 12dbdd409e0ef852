"""How a DataFrame's columns meet a table's: matched by name, or made into a new table."""

from dataclasses import dataclass

import pyarrow as pa

from spark_channel.connectors.sql.change_feed import OPERATION, row_fields
from spark_channel.connectors.sql.ddl import arrow_columns, sql_columns
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.mysql.column_types import arrow_type, is_text, mysql_type, parts
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.session import quoted
from spark_channel.connectors.sql.mysql.tables import Table, same_name
from spark_channel.connectors.sql.writer import SqlPlan
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = ["MysqlPlan", "Target", "WriteColumn", "declared_columns", "new_target", "old_target"]


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One column that is written: its name in the batch, the table's column and how it is declared."""

    name: str
    target: str
    declared: str
    charset: str | None = None
    collation: str | None = None

    @property
    def definition(self) -> str:
        """The column in a staging table: the same type, and NULL allowed."""
        words = [quoted(self.target), self.declared]
        if self.charset is not None and parts(self.declared)[0] not in ("json", "uuid", "inet4", "inet6"):
            words.append(f"CHARACTER SET {self.charset} COLLATE {self.collation}")
        return " ".join([*words, "NULL"])


@dataclass(frozen=True, slots=True)
class Target:
    """The table as the plan expects it.

    `declared` are its columns and types as they stand (or will stand, with `create`); a publish that finds
    others refuses. `key` are `keyColumns` as the table spells them. `operation` is the column that says what a
    row of a change feed does.
    """

    database: str
    name: str
    columns: tuple[WriteColumn, ...]
    declared: tuple[tuple[str, str], ...]
    create: str | None = None
    key: tuple[str, ...] = ()
    operation: str | None = None

    @property
    def sql(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.name)}"

    @property
    def label(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def staged(self) -> tuple[WriteColumn, ...]:
        """What is staged: the columns, and the operation."""
        if self.operation is None:
            return self.columns
        return (*self.columns, WriteColumn(OPERATION, OPERATION, "varchar(16)", "utf8mb4", "utf8mb4_bin"))


@dataclass(frozen=True)
class MysqlPlan(SqlPlan):
    """Staging tables are in the target's database."""

    target: Target = Target("", "", (), ())


def declared_columns(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.declared) for column in table.columns)


def old_target(
    table: Table, schema: pa.Schema, options: MysqlWriteOptions, transactional: set[str]
) -> Target:
    """The columns of `schema` in a table that is there, by name.

    Raises:
        SchemaError: a column that the table has not, one that it needs, or one that does not fit.
        TargetError: a view, an engine without transactions, or keys that the table does not hold unique.
    """
    if table.is_view:
        raise TargetError(f"{table.label!r} is a view; name the table behind it")
    if table.engine is None or table.engine.lower() not in transactional:
        raise TargetError(
            f"table {table.label!r} has the engine {table.engine}, which has no transactions: a failed write would "
            "leave half of it. Make it InnoDB with ALTER TABLE ... ENGINE=InnoDB"
        )
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
        found = by_name[name]
        if found.generated:
            raise SchemaError(
                f"column {field.name!r} is computed by the server (generated) in table {table.label!r}; leave it out"
            )
        check_fit(field, name, found.declared)
        columns.append(WriteColumn(field.name, name, found.declared, found.charset, found.collation))
    given = {column.target for column in columns}
    for needed in table.columns:
        filled = needed.has_default or needed.generated
        if needed.not_null and needed.name not in given and not filled:
            raise SchemaError(
                f"table {table.label!r} needs column {needed.name!r} (NOT NULL without a default), which the rows "
                f"do not have; they have {', '.join(schema.names)}"
            )
    names = [field.name for field in fields]
    wanted = merge_key(options, names, same_name, table.label, table.primary)
    key = tuple(same_name(name, list(by_name)) or name for name in wanted)
    held = (*table.unique, *table.loose)
    if key and not any({part.lower() for part in each} == {part.lower() for part in key} for each in held):
        raise TargetError(
            f"table {table.label!r} does not hold ({', '.join(key)}) unique, so writeMode {options.write_mode} "
            "cannot tell which rows are the same: create a unique index on these columns"
        )
    return Target(
        table.database, table.name, tuple(columns), declared_columns(table), key=key, operation=operation
    )


def new_target(
    database: str, name: str, schema: pa.Schema, options: MysqlWriteOptions, literal: str
) -> Target:
    """A table to be created for `schema`; with `keyColumns` as its primary key. `literal` is its comment as SQL.

    Raises:
        SchemaError: a type that MySQL cannot hold, or names that it takes for the same.
        OptionError: createTableColumnTypes or createTableOptions that do not fit.
    """
    operation, fields = _fields(schema, options)
    if not fields:
        raise SchemaError(f"the rows have no columns, so table {name!r} cannot be created")
    key = merge_key(options, [field.name for field in fields], same_name, f"{database}.{name}")
    types = _chosen_types(schema, options)
    columns, lines = [], []
    for field in fields:
        declared = types.get(field.name) or mysql_type(field.name, field.type, key=field.name in key)
        check_fit(field, field.name, declared)
        text = is_text(declared)
        column = WriteColumn(
            field.name, field.name, declared, "utf8mb4" if text else None, "utf8mb4_bin" if text else None
        )
        columns.append(column)
        null = "NOT NULL" if not field.nullable or field.name in key else "NULL"
        lines.append(column.definition.removesuffix("NULL") + null)
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    place = f"{quoted(database)}.{quoted(name)}"
    create = f"CREATE TABLE {place} ({', '.join(lines)}) ENGINE=InnoDB CHARACTER SET utf8mb4"
    if options.table_comment is not None:
        create += f" COMMENT={literal}"
    declared_all = tuple((column.target, column.declared) for column in columns)
    return Target(
        database, name, tuple(columns), declared_all, create + _table_options(options), key, operation
    )


def check_fit(field: pa.Field, target: str, declared: str) -> None:
    """Hold the rows' type to fit the table's column without loss.

    Raises:
        SchemaError: it does not; names the column and both types.
    """
    natural = mysql_type(field.name, field.type)
    name, sizes, _ = parts(declared)
    given = arrow_type(field.name, natural)
    if name == "decimal":
        precision, scale = (int(size) for size in (*sizes, "0")[:2]) if sizes else (10, 0)
        wanted: pa.DataType = pa.decimal256(precision, scale)
        if pa.types.is_decimal(given):
            given = pa.decimal256(given.precision, given.scale)
    else:
        wanted = arrow_type(target, declared)
    fine = fits(given, wanted) and not (name in ("float", "double") and sizes)
    if not fine:
        hint = "cast it"
        if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
            hint = "one has a time zone and the other has none; cast it, or declare the column " + natural
        raise SchemaError(
            f"column {field.name!r} is {field.type}, and the table's column {target!r} is {declared}, which cannot "
            f"hold it exactly: {hint}"
        )


def _fields(schema: pa.Schema, options: MysqlWriteOptions) -> tuple[str | None, list[pa.Field]]:
    """The name of the change feed's operation column when there is one, and the other columns."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"columns {seen[name.lower()]!r} and {name!r} are one name to MySQL; rename one of them"
            )
        if len(name) > 64:
            raise SchemaError(f"column {name!r} has a name of more than 64 letters; rename it")
        seen[name.lower()] = name
    if options.write_mode != "apply":
        return None, list(schema)
    return OPERATION, row_fields(schema)


def _chosen_types(schema: pa.Schema, options: MysqlWriteOptions) -> dict[str, str]:
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
        has_length = declared.upper().startswith(("VARCHAR(", "CHAR("))
        chosen[actual] = declared.lower() if has_length else mysql_type(actual, kinds[name])
    return chosen


_OPTION_WORDS = frozenset({
    "ROW_FORMAT", "KEY_BLOCK_SIZE", "AUTO_INCREMENT", "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES",
    "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ENCRYPTED", "ENCRYPTION_KEY_ID", "COMPRESSION", "DATA", "INDEX",
})  # fmt: skip


def _table_options(options: MysqlWriteOptions) -> str:
    """`createTableOptions`, when it is a list of NAME=word."""
    import re

    text = options.create_table_options
    if text is None:
        return ""
    pairs = re.findall(r"\s*([A-Za-z_]+)\s*=\s*([A-Za-z0-9_]+)\s*,?", text)
    rebuilt = re.sub(r"\s*([A-Za-z_]+)\s*=\s*([A-Za-z0-9_]+)\s*,?", "", text)
    if rebuilt.strip() or any(name.upper() not in _OPTION_WORDS for name, _ in pairs):
        takes = "NAME=value of " + ", ".join(sorted(_OPTION_WORDS))
        raise OptionError(
            f"option 'createTableOptions' got {text!r}; it takes {takes}. New tables are InnoDB and utf8mb4",
            option="createTableOptions",
            got=text,
            takes=takes,
        )
    return "".join(f" {name}={value}" for name, value in pairs)
