"""SQLite's SQL for writing: declarations of new columns, and the values that a column holds exactly."""

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.sqlite.column_types import EXACT_DIGITS, INSTANT, LOCAL, TIME, declared_type
from spark_channel.connectors.sql.sqlite.dialect import SqliteDialect, SqliteTable
from spark_channel.connectors.sql.sqlite.script import statements_of
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.connectors.sql.write_dialect import WriteDialect, misfit, wrong_table_options
from spark_channel.errors import OptionError

__all__ = ["SqliteWriteDialect"]

_TABLE_OPTIONS = re.compile(
    r"\s*(STRICT|WITHOUT\s+ROWID)(\s*,\s*(STRICT|WITHOUT\s+ROWID))?\s*", re.IGNORECASE
)


class SqliteWriteDialect(SqliteDialect, WriteDialect):
    """See `WriteDialect`."""

    begin = "BEGIN IMMEDIATE"  # the lock is taken first, so that a transaction never fails half way for want of it

    new_types: ClassVar = {
        pa.bool_(): "BOOLEAN", pa.int8(): "INT1", pa.int16(): "INT2", pa.int32(): "INT4", pa.int64(): "BIGINT",
        pa.uint8(): "INT2", pa.uint16(): "INT4", pa.uint32(): "BIGINT", pa.uint64(): "DECIMAL_TEXT(20,0)",
        pa.float16(): "FLOAT4", pa.float32(): "FLOAT4", pa.float64(): "DOUBLE", pa.string(): "TEXT",
        pa.binary(): "BLOB", pa.date32(): "DATE", TIME: "TIME", LOCAL: "TIMESTAMP", INSTANT: "TIMESTAMPTZ",
    }  # fmt: skip

    def new_decimal(self, digits: int, scale: int) -> str | None:
        exact = digits <= (18 if scale == 0 else EXACT_DIGITS)
        return f"{'DECIMAL' if exact else 'DECIMAL_TEXT'}({digits},{scale})" if digits <= 38 else None

    def place(self, schema: str | None, name: str) -> str:
        return super().place("main", name)

    def is_filled(self, table: Table, column: Column) -> bool:
        assert isinstance(table, SqliteTable)
        return super().is_filled(table, column) or column.name == table.rowid_alias()

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        wanted = declared_type(column.declared)
        natural = "" if pa.types.is_null(field.type) else self.created_type(field.name, field.type, key=False)
        if wanted is not None and natural:
            given = declared_type(natural)
            assert given is not None
            if not fits(given, wanted):
                raise misfit(field, column, wanted, natural=natural, shown=f" ({wanted})")
        return WriteColumn(field.name, column, field.type)

    def retyped(self, table: str, column: Column, declared: str) -> str:
        """SQLite changes no declared type: by another column."""
        old, new = self.quoted(column.name), self.quoted(f"{column.name} new")
        alter = f"ALTER TABLE {table}"
        copy = f"UPDATE {table} SET {new} = {old}"  # noqa: S608 - quoted names
        return (
            f"{alter} ADD COLUMN {new} {declared}; {copy}; {alter} DROP COLUMN {old}; "
            f"{alter} RENAME COLUMN {new} TO {old}"
        )

    def nullable(self, table: str, column: Column) -> str:
        return self.retyped(table, column, column.declared)

    def after_create(self, options: SqlWriteOptions) -> str:
        text = options.create_table_options
        if text is None:
            return ""
        if not _TABLE_OPTIONS.fullmatch(text) or "STRICT" in text.upper():
            why = "SQLite has no other"
            if "STRICT" in text.upper():
                why = "STRICT tables know none of the types that keep decimals, dates and booleans"
            raise wrong_table_options(text, "WITHOUT ROWID", f": {why}")
        if not options.key_columns:
            raise OptionError(
                "option 'createTableOptions' WITHOUT ROWID needs a primary key: name it with 'keyColumns'",
                option="createTableOptions",
                got=text,
            )
        return " WITHOUT ROWID"

    def script(self, texts: Iterable[str], option: str) -> Sequence[str]:
        return statements_of(texts, option)
