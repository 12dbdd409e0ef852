"""SQLite's SQL for writing: declarations of new columns, and the values that a column holds exactly."""

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.sqlite.column_types import declared_type, sqlite_type
from spark_channel.connectors.sql.sqlite.dialect import SqliteDialect, SqliteTable
from spark_channel.connectors.sql.sqlite.script import statements_of
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.connectors.sql.write_dialect import WriteDialect, misfit
from spark_channel.errors import OptionError

__all__ = ["SqliteWriteDialect"]

_TABLE_OPTIONS = re.compile(
    r"\s*(STRICT|WITHOUT\s+ROWID)(\s*,\s*(STRICT|WITHOUT\s+ROWID))?\s*", re.IGNORECASE
)


class SqliteWriteDialect(SqliteDialect, WriteDialect):
    """See `WriteDialect`."""

    begin = "BEGIN IMMEDIATE"  # the lock is taken first, so that a transaction never fails half way for want of it

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        return sqlite_type(name, kind)

    def place(self, schema: str | None, name: str) -> str:
        return super().place("main", name)

    def is_filled(self, table: Table, column: Column) -> bool:
        assert isinstance(table, SqliteTable)
        return super().is_filled(table, column) or column.name == table.rowid_alias()

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        natural = sqlite_type(field.name, field.type) if not pa.types.is_null(field.type) else ""
        wanted = declared_type(column.declared)
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

    def script(self, texts: Iterable[str], option: str) -> Sequence[str]:
        return statements_of(texts, option)
