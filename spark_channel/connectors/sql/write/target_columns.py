"""Matches a DataFrame's columns to a table's by name, or to those of a new table. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths, is_text, plain_type
from spark_channel.connectors.base.feed import OPERATION, row_fields
from spark_channel.connectors.base.types import arrow_columns, plain_kind, sql_columns
from spark_channel.connectors.sql.catalog import (
    TABLE,
    Column,
    Table,
    TargetTable,
    WriteColumn,
    declared_columns,
)
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.write.checks import holds_unique
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.merge_key import merge_key
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.lazy import compute as pc

if TYPE_CHECKING:
    from spark_channel.connectors.sql.definition import NewTable

__all__ = [
    "NO_TYPES",
    "ColumnCheck",
    "added_columns",
    "create_table",
    "new_target",
    "old_target",
    "wider_columns",
]

NO_TYPES: Mapping[str, str] = {}


def old_target(
    dialect: WriteDialect,
    table: Table,
    schema: pa.Schema,
    options: SqlWriteOptions,
    *,
    made_as: str | None = None,
    computed: Collection[str] = (),
    column: Callable[[pa.Field, Column], WriteColumn] | None = None,
) -> TargetTable:
    """The columns of `schema` in a table that is there, by name. `column`: instead of the dialect's `write_column`.

    `made_as`: the table was made for this write, and will be called so; its key follows when the rows are in.
    `computed`: generated columns whose values the table computes as the rows have them.

    Raises:
        SchemaError: a column that the table has not, one that it needs, or one that does not fit.
        TargetError: a view, or keys that the table does not hold unique.
    """
    dialect.check_table(table)
    make = column or _maker(dialect, options)
    table_sql = dialect.place(table.schema, table.name)
    fields = _row_fields(dialect, schema, options)
    by_name = {table_column.name: table_column for table_column in table.columns}
    columns: list[WriteColumn] = []
    for field in fields:
        name = dialect.same_name(field.name, list(by_name))
        if name is None and options.on_schema_change == "ignore":
            continue
        if name is None:
            raise SchemaError(
                f"column {field.name!r} is not in table {table.label!r}, which has {', '.join(by_name)}; "
                "rename or drop it, or add it to the table (onSchemaChange=evolve adds it, ignore leaves it out)"
            )
        if by_name[name].generated and (made_as is not None or name in computed):
            continue  # the table computes it, as its source does
        if by_name[name].generated:
            raise SchemaError(
                f"column {field.name!r} is computed by {dialect.product} (generated) in table {table.label!r}; "
                "omit it"
            )
        if name in (write_column.target for write_column in columns):
            raise SchemaError(
                f"two columns of the rows are column {name!r} of table {table.label!r}; rename one"
            )
        try:
            columns.append(make(field, by_name[name]))
        except SchemaError as error:
            advice = _widening_advice(dialect, table, field, by_name[name], options)
            raise SchemaError(f"{error}{advice}") from None
    if not columns and options.on_schema_change == "ignore":
        raise SchemaError(
            f"table {table.label!r} has none of the rows' columns, which are {', '.join(schema.names)}: "
            "correct the table's name, or rename the columns"
        )
    targets = {write_column.target for write_column in columns}
    for needed in table.columns:
        if needed.not_null and needed.name not in targets and not dialect.is_filled(table, needed):
            takes_null = needed.name not in table.primary and options.on_schema_change != "fail"
            advice = (
                f". To have NULL there, run {dialect.nullable(table_sql, needed)}"
                if takes_null
                else ""
            )
            raise SchemaError(
                f"table {table.label!r} needs column {needed.name!r} (NOT NULL without a default), which the rows "
                f"do not have; they have {', '.join(schema.names)}{advice}"
            )
    return TargetTable(
        table.schema,
        table.name,
        table.label,
        table_sql,
        tuple(columns),
        declared_columns(table),
        key=_old_key(dialect, table, columns, options, made_as),
        operation=_operation(options),
        indexed=table.indexed,
    )


def new_target(
    dialect: WriteDialect,
    schema: str,
    name: str,
    label: str,
    rows: pa.Schema,
    options: SqlWriteOptions,
    new: "NewTable | None" = None,
) -> TargetTable:
    """A table to be created for `rows`; with `keyColumns` as its primary key, or that of `new`.

    Raises:
        SchemaError: a type that the database cannot hold, or names that it takes for the same.
        OptionError: createTableColumnTypes or createTableOptions that do not fit.
    """
    fields = _row_fields(dialect, rows, options)
    key = merge_key(options, [field.name for field in fields], dialect.same_name, label)
    primary = key or (new.key if new is not None else ())
    new_columns = _new_columns(dialect, rows if new is None else new.rows, options, primary)
    columns = tuple(
        dialect.write_column(field, column)
        for field, column in zip(fields, new_columns, strict=True)
    )
    table_sql = dialect.place(schema, name)
    return TargetTable(
        schema,
        name,
        label,
        table_sql,
        columns,
        tuple((column.name, column.declared) for column in new_columns),
        _created(dialect, table_sql, new_columns, primary, new) + dialect.after_create(options),
        key,
        _operation(options),
        steps=() if new is None else new.steps,
        indexed=frozenset(primary),
    )


def _created(
    dialect: WriteDialect,
    table_sql: str,
    columns: Sequence[Column],
    key: Sequence[str],
    new: "NewTable | None",
) -> str:
    if new is None:
        return dialect.created(table_sql, columns, key)
    return dialect.created(table_sql, columns, key, new.defaults, new.stated_checks(dialect))


def create_table(
    dialect: WriteDialect,
    table_sql: str,
    schema: pa.Schema,
    options: SqlWriteOptions,
    key: Sequence[str] = (),
    types: Mapping[str, str] = NO_TYPES,
) -> str:
    """CREATE TABLE for the rows. `table_sql` is SQL, `key` a primary key that is not made when the rows are in.

    `types`, as SQL, are those of columns that get another than their rows have, unless the user chooses it.

    Raises:
        SchemaError, OptionError: as `new_target`.
    """
    return dialect.created(
        table_sql, _new_columns(dialect, schema, options, key, types), key
    ) + dialect.after_create(options)


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """What the columns of a table hold. `members` are the texts of its enumerated types, by column."""

    dialect: WriteDialect
    columns: Mapping[str, WriteColumn]
    members: Mapping[str, tuple[str, ...]]

    def holds(self, name: str, values: pa.Array) -> bool:
        column = self.columns.get(name)
        if column is None or values.null_count == len(values):
            return True
        members = self.members.get(column.target)
        if members is not None and is_text(plain_type(values.type)):
            texts = pc.drop_null(pc.cast(values, pa.string()))
            return bool(pc.all(pc.is_in(texts, value_set=pa.array(members, pa.string()))).as_py())
        try:
            self.dialect.check_values(values, column)
        except (BadValueError, pa.ArrowInvalid):
            return False
        return True


def added_columns(
    dialect: WriteDialect, rows: pa.Schema, fields: Sequence[pa.Field], options: SqlWriteOptions
) -> list[Column]:
    """Columns for `fields` of `rows`, to be added to a table that is there: nullable, as its rows have none.

    Raises:
        SchemaError: a type that the database cannot hold, or names that it takes for the same.
        OptionError: createTableColumnTypes that do not fit.
    """
    _row_fields(dialect, rows, options)
    chosen = _chosen(dialect, rows.names, options)
    return [
        dialect.new_column(
            field.name,
            chosen.get(field.name) or dialect.created_type(field.name, field.type, key=False),
            not_null=False,
        )
        for field in fields
    ]


def wider_columns(
    dialect: WriteDialect,
    table: Table,
    rows: pa.Schema,
    options: SqlWriteOptions,
    lengths: TextLengths,
) -> list[tuple[Column, Column]]:
    """(now, afterwards) of each column of the table that must widen to hold the rows, and can.

    `lengths`: how long their texts may be. A type of `createTableColumnTypes` counts instead.
    """
    chosen = _chosen(dialect, rows.names, options)
    by_name = {column.name: column for column in table.columns}
    make, widened = _maker(dialect, options), []
    for field in _row_fields(dialect, rows, options):
        name = dialect.same_name(field.name, list(by_name))
        if name is None or by_name[name].generated:
            continue
        column = by_name[name]
        chosen_type = chosen.get(field.name)
        if (
            chosen_type is None
            and field.name in lengths
            and pa.types.is_string(plain_kind(field.type))
        ):
            chosen_type = dialect.text_type(table, column, lengths[field.name])
        try:
            make(field, column)
            wider = None if chosen_type is None else dialect.wider(field, column, chosen_type)
        except SchemaError:
            wider = dialect.wider(field, column)
        if wider is not None:
            widened.append((column, wider))
    return widened


def _maker(
    dialect: WriteDialect, options: SqlWriteOptions
) -> Callable[[pa.Field, Column], WriteColumn]:
    return dialect.lenient_column if options.convert == "lenient" else dialect.write_column


def _widening_advice(
    dialect: WriteDialect, table: Table, field: pa.Field, column: Column, options: SqlWriteOptions
) -> str:
    """What to do for a column whose type does not hold the rows' values."""
    if options.on_schema_change != "evolve":
        wider = dialect.wider(field, column)
        return (
            ""
            if wider is None
            else f"; onSchemaChange=evolve widens the column to {wider.declared}"
        )
    try:
        wanted_type = dialect.created_type(field.name, field.type, key=column.name in table.indexed)
    except SchemaError:
        return ""
    table_sql = dialect.place(table.schema, table.name)
    return (
        f". onSchemaChange=evolve changes a type only where {dialect.product} can, "
        f"and each value stays the same. To change it, run {dialect.retyped(table_sql, column, wanted_type)}"
    )


def _operation(options: SqlWriteOptions) -> str | None:
    return OPERATION if options.write_mode == "apply" else None


def _row_fields(
    dialect: WriteDialect, schema: pa.Schema, options: SqlWriteOptions
) -> list[pa.Field]:
    """The columns that are the table's: all but the operation of a change feed."""
    spelled: dict[str, str] = {}
    for name in schema.names:
        folded = name.lower() if dialect.folds_names else name
        if folded in spelled:
            raise SchemaError(
                f"columns {spelled[folded]!r} and {name!r} are one name to {dialect.product}; rename one of them"
            )
        spelled[folded] = name
    return list(schema) if _operation(options) is None else row_fields(schema)


def _new_columns(
    dialect: WriteDialect,
    schema: pa.Schema,
    options: SqlWriteOptions,
    key: Sequence[str],
    types: Mapping[str, str] = NO_TYPES,
) -> list[Column]:
    fields = _row_fields(dialect, schema, options)
    most = dialect.most_columns
    if most is not None and len(fields) > most:
        raise SchemaError(
            f"a table of {dialect.product} has at most {most} columns, and the rows have {len(fields)}: select fewer "
            "with option 'columns', or write them into several tables"
        )
    if not fields:
        raise SchemaError(
            f"the rows have no columns, so table {options.dbtable!r} cannot be created: "
            "select at least one column"
        )
    chosen = {**types, **_chosen(dialect, schema.names, options)}
    columns = []
    for field in fields:
        in_key = field.name in key
        declared = chosen.get(field.name) or dialect.created_type(
            field.name, field.type, key=in_key
        )
        columns.append(
            dialect.new_column(field.name, declared, not_null=in_key or not field.nullable)
        )
    return columns


def _chosen(
    dialect: WriteDialect, names: Sequence[str], options: SqlWriteOptions
) -> dict[str, str]:
    """The types that option `createTableColumnTypes` chooses, by column."""
    text, option = options.create_table_column_types, "createTableColumnTypes"
    if text is None:
        return {}
    chosen = {}
    for name, words in sql_columns(text, option).items():
        actual = dialect.same_name(name, names)
        if actual is None:
            raise OptionError(
                f"option {option!r} names column {name!r}, which the rows do not have; they have {', '.join(names)}",
                option=option,
                got=text,
            )
        declared = dialect.spark_type(words)
        chosen[actual] = declared or dialect.created_type(
            actual, arrow_columns(text, option)[name], key=False
        )
    return chosen


def _old_key(
    dialect: WriteDialect,
    table: Table,
    columns: Sequence[WriteColumn],
    options: SqlWriteOptions,
    made_as: str | None,
) -> tuple[str, ...]:
    targets = {column.name: column.target for column in columns}
    primary = table.primary if made_as is None else None
    key_names = merge_key(
        options, list(targets), dialect.same_name, made_as or table.label, primary, table.no_key
    )
    key = tuple(targets[name] for name in key_names)
    if key and made_as is None and not holds_unique(dialect, table, key):
        by_name = {column.name: column for column in table.columns}
        reasons = [dialect.not_unique(by_name[name]) for name in key]
        if not table.primary:
            reasons.append(f"It {table.no_key}")
        reason_text = "".join(f". {reason}" for reason in reasons if reason)
        raise of_input(
            TargetError(
                f"table {table.label!r} does not hold ({', '.join(key)}) unique, so writeMode {options.write_mode} "
                f"cannot match rows by them: create a unique index ({_unique_index(dialect, table, key)}){reason_text}"
            )
        )
    return key


def _unique_index(dialect: WriteDialect, table: Table, key: Sequence[str]) -> str:
    from spark_channel.connectors.base.definition import ConstraintDefinition
    from spark_channel.connectors.sql.definition import create_index, free_names

    index = ConstraintDefinition("index", "_".join((table.name, *key)), tuple(key), is_unique=True)
    name = free_names((), dialect.index_name_bytes)(index.name)
    table_sql = dialect.place(table.schema, table.name)
    on = dialect.indexed_table(table.name).replace(TABLE, table_sql)
    return create_index(dialect, index, name, on, key)
