"""The dialect of a database for writing: types, CREATE TABLE, and the values that a column holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.fits import fits, plain_kind
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.script import split_script
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.connectors.sql.widen import is_longer, widened
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = ["WriteDialect", "misfit", "wrong_table_options"]


class WriteDialect(Dialect):
    """For databases written through `target_columns` and `publish`: how new columns are declared, and whatever is said
    in another way than standard SQL.
    """

    folds_names = True
    """Whether names of columns that differ in case only are one name."""
    begin = "BEGIN"
    """The statement that begins a transaction that writes."""
    has_savepoints = True

    new_types: ClassVar[Mapping[pa.DataType, str]] = {}
    """The declared types of new columns, by `plain_kind`."""
    new_key_types: ClassVar[Mapping[pa.DataType, str]] = {}
    """Those of the columns of a primary key, where they differ."""

    def new_decimal(self, digits: int, scale: int) -> str | None:
        """The type of a new column of decimals; None = it has none that wide."""
        return None

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        """The type of a new column that gives values of `kind` back exactly; `key`: it is in the primary key.

        Raises:
            SchemaError: there is none; names the column.
        """
        plain = plain_kind(kind)
        types = {**self.new_types, **self.new_key_types} if key else self.new_types
        if plain in types:
            return types[plain]
        is_whole = pa.types.is_decimal(plain) and 0 <= plain.scale <= plain.precision
        if is_whole and (found := self.new_decimal(plain.precision, plain.scale)) is not None:
            return found
        if pa.types.is_nested(plain):
            why = f"{self.no_nested(plain)}; write it as text, with Spark's to_json for one"
        elif pa.types.is_null(plain):
            why = "it has no type; cast it to the type it should have"
        else:
            why = f"{self.product} has no such type; cast it to a number or to text"
        raise SchemaError(f"column {name!r} is {kind}: {why}")

    def no_nested(self, kind: pa.DataType) -> str:
        """Why no column holds values of the nested type `kind`."""
        return f"{self.product} holds no nested values"

    def spark_type(self, text: str) -> str | None:
        """The declared type for a type of `createTableColumnTypes`, if its text says more than its Arrow type."""
        return text if text.upper().startswith(("VARCHAR(", "CHAR(")) else None

    def new_column(self, name: str, declared: str, *, not_null: bool) -> Column:
        """A column that is to be made."""
        return Column(name, declared, not_null)

    def definition(self, column: Column) -> str:
        """A column in CREATE TABLE."""
        return f"{self.quoted(column.name)} {column.declared}{' NOT NULL' if column.not_null else ''}"

    def created(self, table: str, columns: Sequence[Column], key: Sequence[str] = ()) -> str:
        """CREATE TABLE, up to what follows the columns. `table` is SQL, `key` the primary key."""
        lines = [self.definition(column) for column in columns]
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(map(self.quoted, key))})")
        return f"CREATE TABLE {table} ({', '.join(lines)})"

    def after_create(self, options: SqlWriteOptions) -> str:
        """The text after the columns in CREATE TABLE.

        Raises:
            OptionError: `createTableOptions` that the database does not take.
        """
        return "" if options.create_table_options is None else f" {options.create_table_options.strip()}"

    def place(self, schema: str | None, name: str) -> str:
        """A table in a statement."""
        return ".".join(self.quoted(part) for part in (schema, name) if part)

    def check_table(self, table: Table) -> None:
        """Hold the table to be one that takes rows.

        Raises:
            TargetError: it is not.
        """
        if table.is_view:
            raise TargetError(f"{table.label!r} is a view; name the table behind it")

    def is_filled(self, table: Table, column: Column) -> bool:
        """Whether the database itself fills a column that the rows do not have."""
        return column.has_default or column.generated

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        """The conversion of `field` to `column`.

        Raises:
            SchemaError: it cannot hold them exactly; names the column and both types.
        """
        wanted = self.arrow_type(column)
        if wanted is not None and not fits(plain_kind(field.type), wanted):
            raise misfit(field, column)
        return WriteColumn(field.name, column, field.type)

    def lenient_column(self, field: pa.Field, column: Column) -> WriteColumn:
        """As `write_column`, with `convert=lenient`: a local time may be written where the column holds instants."""
        return self.write_column(field, column)

    def number_type(self, column: Column) -> pa.DataType | None:
        """The type of a column of plain numbers, whose type the database can change; None = it is none."""
        return None

    def wider(self, field: pa.Field, column: Column, chosen: str | None = None) -> Column | None:
        """`column` of a type that holds its values and those of `field`; None = there is none, or it holds them.

        `chosen`: the type that `createTableColumnTypes` chooses for it, or that its source's texts need.
        """
        if chosen is not None and is_longer(column.declared, chosen):
            return self.declared_as(column, chosen)
        was = self.number_type(column)
        kind = None if was is None else widened(was, field.type)
        if was is None or kind is None or kind.equals(was):
            return None
        try:
            return self.declared_as(column, self.created_type(field.name, kind, key=False))
        except SchemaError:
            return None  # no type of the database has that many digits

    def text_type(self, table: Table, column: Column, length: str) -> str | None:
        """The type for texts of `length` (see `text_length.py`) in place of a shorter one; None = it stays."""
        return None

    def instead(self, error: BaseException, declared: str) -> str:
        """The type to name in the statement for people, where the server refused `declared` with `error`."""
        return declared

    def declared_as(self, column: Column, declared: str) -> Column:
        """The column with another type."""
        return replace(column, declared=declared)

    def retyped(self, table: str, column: Column, declared: str) -> str:
        """The statement that changes a column's type, for people. `table` is SQL."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column.name)} TYPE {declared}"

    def retype(self, session: Session, table: str, column: Column, declared: str) -> str | None:
        """The same, to be run, of which nothing else of the column changes; None = it cannot be made."""
        return self.retyped(table, column, declared)

    def nullable(self, table: str, column: Column) -> str:
        """The statement that lets a column be NULL, for people."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column.name)} DROP NOT NULL"

    def is_same_type(self, found: str, planned: str) -> bool:
        """Whether two declared types are one, as the catalog shows them and as they were written."""
        return found == planned

    def emptied(self, table: str, options: SqlWriteOptions) -> str:
        """The statement that empties a table inside a transaction."""
        return f"DELETE FROM {table}"  # noqa: S608 - a quoted name

    def script(self, texts: Iterable[str], option: str) -> Sequence[str]:
        """The single statements of `preSql` or `postSql`.

        Raises:
            OptionError: one that would leave the transaction in which they run.
        """
        return split_script(texts, option, self.sql)


def wrong_table_options(text: str, takes: str, more: str = "") -> OptionError:
    return OptionError(
        f"option 'createTableOptions' got {text!r}; it takes {takes}{more}",
        option="createTableOptions", got=text, takes=takes,
    )  # fmt: skip


def misfit(
    field: pa.Field, column: Column, wanted: pa.DataType | None = None, *, natural: str = "", shown: str = ""
) -> SchemaError:
    """The error that `column`, read as `wanted`, cannot hold `field`, whose own column would be declared `natural`."""
    hint = "cast it"
    if wanted is not None and pa.types.is_timestamp(field.type) and pa.types.is_timestamp(wanted):
        hint = "one has a time zone and the other has none; cast it, or " + (
            f"declare the column {natural}" if natural else "change the table's column"
        )
    return SchemaError(
        f"column {field.name!r} is {field.type}, and the table's column {column.name!r} is {column.declared}{shown}, "
        f"which cannot hold it exactly: {hint}"
    )
