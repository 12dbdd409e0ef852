"""How the columns of rows meet a table's, where a declared type says all of what a column takes.

For a connector whose dialect's `arrow_type` is exact in both directions.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.change_feed import row_fields
from spark_channel.connectors.sql.ddl import arrow_columns, sql_columns
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.named import known_name
from spark_channel.connectors.sql.new_types import declared_as, plain_kind
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.errors import SchemaError, TargetError

__all__ = ["match_columns"]

Declare = Callable[[int, int], str | None]


def match_columns(
    dialect: Dialect,
    label: str,
    table: Table | None,
    schema: pa.Schema,
    options: SqlWriteOptions,
    types: Mapping[pa.DataType, str],
    decimal: Declare,
) -> tuple[tuple[tuple[str, Column], ...], tuple[str, ...]]:
    """((name in the rows, the table's column), ...), and the key as the table spells it.

    `table` None: it is to be made as `label`, its columns declared by `types` and `decimal`, as `declared_as` takes
    them. Of a change feed the operation is no column.

    Raises:
        SchemaError: a column that the table has not, needs, or cannot hold exactly.
        TargetError: a view, or a key that the table does not hold unique. OptionError: options that do not fit.
    """
    fields = row_fields(schema) if options.write_mode == "apply" else list(schema)
    names = [field.name for field in fields]
    twins = sorted(name for name in names if [each.lower() for each in names].count(name.lower()) > 1)
    if twins or not names:
        raise SchemaError(
            f"columns {', '.join(twins)} are one name to {dialect.product}; rename one of them"
            if twins
            else f"the rows have no columns, so table {label!r} cannot take them"
        )
    primary = None if table is None else table.primary
    key = merge_key(options, names, dialect.same_name, label, primary)
    made = (fields, key, options, types, decimal)
    found = _new(dialect, *made) if table is None else _old(dialect, fields, table)
    columns = tuple(zip(names, found, strict=True))
    spelled = tuple(column.name for each in key for name, column in columns if name == each)
    if table is not None and spelled and not any(set(each) == set(spelled) for each in table.unique):
        raise TargetError(
            f"table {label!r} does not hold ({', '.join(spelled)}) unique, so writeMode {options.write_mode} cannot "
            "tell which rows are the same: create a unique index on these columns"
        )
    return columns, spelled


def _old(dialect: Dialect, fields: Sequence[pa.Field], table: Table) -> list[Column]:
    if table.is_view:
        raise TargetError(f"{table.label!r} is a view; name the table behind it")
    by_name = {column.name: column for column in table.columns}
    found = []
    for field in fields:
        name = dialect.same_name(field.name, list(by_name))
        if name is None:
            raise SchemaError(
                f"column {field.name!r} is not in table {table.label!r}, which has {', '.join(by_name)}; rename or "
                "drop it, or add it to the table"
            )
        column = by_name[name]
        if column.generated:
            raise SchemaError(
                f"column {field.name!r} is computed by {dialect.product} in table {table.label!r}; leave it out"
            )
        kind = dialect.arrow_type(column)
        if kind is None or not fits(plain_kind(field.type), kind):
            raise SchemaError(
                f"column {field.name!r} is {field.type}, and the table's column {name!r} is {column.declared}, which "
                "cannot hold it exactly: cast it"
            )
        found.append(column)
    for column in table.columns:
        if column.not_null and column not in found and not (column.has_default or column.generated):
            raise SchemaError(
                f"table {table.label!r} needs column {column.name!r} (NOT NULL without a default), which the rows do "
                f"not have; they have {', '.join(field.name for field in fields)}"
            )
    return found


def _new(
    dialect: Dialect,
    fields: Sequence[pa.Field],
    key: Sequence[str],
    options: SqlWriteOptions,
    types: Mapping[pa.DataType, str],
    decimal: Declare,
) -> list[Column]:
    option, text = "createTableColumnTypes", options.create_table_column_types
    names = [field.name for field in fields]
    chosen = {}
    if text is not None:
        kinds = arrow_columns(text, option)
        for name, declared in sql_columns(text, option).items():
            sized = declared.upper().startswith(("VARCHAR(", "CHAR("))
            said = declared if sized else declared_as(name, kinds[name], dialect.product, types, decimal)
            chosen[known_name(name, names, dialect.same_name, option)] = said
    found = []
    for field in fields:
        declared = chosen.get(field.name) or declared_as(
            field.name, field.type, dialect.product, types, decimal
        )
        column = Column(field.name, declared, not_null=not field.nullable or field.name in key)
        kind = dialect.arrow_type(column)
        if kind is None or not fits(plain_kind(field.type), kind):
            raise SchemaError(
                f"column {field.name!r} is {field.type}, and option {option!r} declares it {declared}, which cannot "
                "hold it exactly"
            )
        found.append(column)
    return found
