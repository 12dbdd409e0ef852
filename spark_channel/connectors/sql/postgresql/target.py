"""PostgreSQL's SQL for writing, and how a DataFrame's columns match a table's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.native import NativeRows
from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.fits import is_list
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.postgresql.catalog import PgColumn, PgTable, name_parts
from spark_channel.connectors.sql.postgresql.column_types import INSTANT, LOCAL, TIME, read_type
from spark_channel.connectors.sql.postgresql.dialect import PostgresDialect
from spark_channel.connectors.sql.postgresql.encode import (
    PgWriteColumn,
    lenient_column,
    native_column,
    write_column,
)
from spark_channel.connectors.sql.postgresql.native import are_native
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.target import TargetTable, WriteColumn
from spark_channel.connectors.sql.target_columns import create_table, old_target
from spark_channel.connectors.sql.write_dialect import WriteDialect, wrong_table_options
from spark_channel.connectors.sql.writer import SqlPlan
from spark_channel.errors import TargetError
from spark_channel.text_length import UNLIMITED

__all__ = ["DIALECT", "PostgresPlan", "create_statement", "match_target", "new_name", "written_columns"]


@dataclass(frozen=True)
class PostgresPlan(SqlPlan):
    """A write plan, with PostgreSQL's additions."""

    is_parent: bool = False
    """`PgTable.is_parent` of the target."""

    @property
    def staging(self) -> str:
        """The table that takes the rows of a `commit=job`, in the target's schema."""
        return f"{self.stage}rows"


class PostgresWriteDialect(PostgresDialect, WriteDialect):
    """See `WriteDialect`."""

    folds_names = False
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    """Whatever the role's default is: a row that another transaction held is read as that one left it."""

    new_types: ClassVar = {
        pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer",
        pa.int64(): "bigint", pa.uint8(): "smallint", pa.uint16(): "integer", pa.uint32(): "bigint",
        pa.uint64(): "numeric(20,0)", pa.float16(): "real", pa.float32(): "real", pa.float64(): "double precision",
        pa.string(): "text", pa.binary(): "bytea", pa.date32(): "date", TIME: "time", LOCAL: "timestamp",
        INSTANT: "timestamptz",
    }  # fmt: skip

    def new_decimal(self, digits: int, scale: int) -> str:
        return f"numeric({digits},{scale})"

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        if pa.types.is_duration(kind):
            return "interval"
        if is_list(kind) and not (pa.types.is_nested(kind.value_type) or pa.types.is_null(kind.value_type)):
            return self.created_type(name, kind.value_type, key=key) + "[]"
        return super().created_type(name, kind, key=key)

    def no_nested(self, kind: pa.DataType) -> str:
        if is_list(kind):
            return "PostgreSQL's arrays of arrays must be rectangular"
        return "PostgreSQL holds no such nested values"

    def spark_type(self, text: str) -> str | None:
        return exp.DataType.build(text, dialect="spark").sql("postgres")

    def check_table(self, table: Table) -> None:
        if cast(PgTable, table).kind not in ("r", "p"):
            raise TargetError(
                f"COPY cannot write to {table.label}, which is not a table; name the table behind it"
            )

    def is_filled(self, table: Table, column: Column) -> bool:
        return super().is_filled(table, column) or bool(cast(PgColumn, column).identity)

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        return write_column(field, cast(PgColumn, column))

    def lenient_column(self, field: pa.Field, column: Column) -> WriteColumn:
        return lenient_column(field, cast(PgColumn, column))

    def number_type(self, column: Column) -> pa.DataType | None:
        """Not of a domain, whose checks the column would lose."""
        about = cast(PgColumn, column)
        words = _NUMBERS.get(about.base, "")
        is_plain = bool(words) and about.builtin and about.declared.partition("(")[0] == words
        kind = read_type(about.base, about.typmod).kind
        return kind if is_plain and not pa.types.is_string(kind) else None

    def text_type(self, table: Table, column: Column, length: str) -> str:
        return "text" if length == UNLIMITED or int(length) > _MOST_LETTERS else f"varchar({length})"

    def declared_as(self, column: Column, declared: str) -> Column:
        words, _, sizes = declared.partition("(")
        base = next((base for base, each in _NUMBERS.items() if each == words), None)
        if base is None:
            is_sized = bool(sizes)
            typmod = int(sizes.rstrip(") ")) + 4 if is_sized else -1
            return replace(
                cast(PgColumn, column),
                declared=declared,
                base="varchar" if is_sized else "text",
                typmod=typmod,
            )
        typmod = -1
        if sizes:
            precision, scale = map(int, sizes.rstrip(")").split(","))
            typmod = ((precision << 16) | scale) + 4
        return replace(cast(PgColumn, column), declared=declared, base=base, typmod=typmod)

    def emptied(self, table: str, options: SqlWriteOptions) -> str:
        return f"TRUNCATE {table}{' CASCADE' if cast(PostgresWriteOptions, options).cascade_truncate else ''}"

    def after_create(self, options: SqlWriteOptions) -> str:
        text = options.create_table_options
        if text is None:
            return ""
        takes = "what may follow the columns of CREATE TABLE, such as WITH (fillfactor=70) or TABLESPACE fast"
        try:
            tokens = sqlglot.tokenize(text, read="postgres")
        except sqlglot.errors.SqlglotError:
            tokens = []
        words = {token.text.upper() for token in tokens}
        if (
            not tokens
            or tokens[0].text.upper() not in ("WITH", "TABLESPACE")
            or words & {";", "AS", "SELECT"}
        ):
            raise wrong_table_options(text, takes)
        return " " + text.strip()


_MOST_LETTERS = 10_485_760
_NUMBERS = {
    "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "numeric": "numeric",
}  # fmt: skip
"""Their names in declarations."""

DIALECT = PostgresWriteDialect()


def match_target(
    table: PgTable,
    schema: pa.Schema,
    options: PostgresWriteOptions,
    *,
    made_as: tuple[str, str] | None = None,
    native: NativeRows | None = None,
) -> tuple[TargetTable, bool]:
    """The columns of `schema` in a table that is there. `made_as`: it was made for them, and gets this schema and name.

    With `native`, and where the table takes them, rows come as COPY writes them: whether they do.

    Raises:
        SchemaError, TargetError: as `old_target`.
    """
    is_native = native is not None and options.write_mode != "apply" and are_native(native, table)
    column = native_column if is_native else None
    if made_as is None:
        return old_target(DIALECT, table, schema, options, column=column), is_native
    place, name = made_as
    label = f"{place}.{name}"
    target = old_target(DIALECT, table, schema, options, made_as=label, column=column)
    sql = DIALECT.place(place, name)
    create = create_statement(sql, schema, options)
    return replace(target, schema=place, name=name, label=label, sql=sql, create=create), is_native


def create_statement(place: str, schema: pa.Schema, options: PostgresWriteOptions) -> str:
    """CREATE TABLE for the rows, without its key, which is made when the rows are in. `place` is SQL."""
    return create_table(DIALECT, place, schema, options)


def written_columns(target: TargetTable) -> Sequence[PgWriteColumn]:
    return cast(Sequence[PgWriteColumn], target.columns)


def new_name(options: PostgresWriteOptions) -> tuple[str | None, str]:
    """(schema, name) of a table that is not there yet."""
    return name_parts(options.dbtable) or (None, options.dbtable)
