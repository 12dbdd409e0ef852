"""The dialect of a database for writing: types, CREATE TABLE, and the values that a column holds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.types import fits, is_longer, plain_kind, widened
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import (
    TABLE,
    Column,
    Declared,
    Table,
    TargetTable,
    WriteColumn,
    declared_columns,
)
from spark_channel.connectors.sql.dialect.dialect import Dialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session, split_script
from spark_channel.errors import OptionError, SchemaError, TargetError

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import ConstraintDefinition, ForeignKeyDefinition

__all__ = [
    "WriteDialect",
    "misfit",
    "wrong_table_options",
]


class WriteDialect(Dialect):
    """For databases written through `target_columns` and `merge`: how new columns are declared, and whatever is said
    in another way than standard SQL.
    """

    folds_names = True
    """Whether names of columns that differ in case only are one name."""
    begin = "BEGIN"
    """The statement that begins a transaction that writes."""
    has_savepoints = True
    ddl_commits = False
    """Whether DDL commits, or a new table can be used only after that. Then a table is made before the transaction that
    fills it, and never dropped: a write that fails leaves it, empty.
    """
    adds_keys: ClassVar[bool] = False
    """Whether a table that is there takes a foreign key."""
    index_name_bytes: ClassVar[int | None] = None
    """The longest name of an index; None = any."""
    most_columns: ClassVar[int | None] = None
    """The columns that a table can have; None = any number, or not known."""
    tick = 1
    """The microseconds that the database's times are multiples of."""

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
        if is_whole and (declared := self.new_decimal(plain.precision, plain.scale)) is not None:
            return declared
        if pa.types.is_nested(plain):
            reason = f"{self.no_nested(plain)}; write it as text, with Spark's to_json for one"
        elif pa.types.is_null(plain):
            reason = "it has no type; cast it to the type it should have"
        else:
            reason = f"{self.product} has no such type; cast it to a number or to text"
        raise SchemaError(f"column {name!r} is {kind}: {reason}")

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
        """A column in CREATE TABLE, without its default."""
        return (
            f"{self.quoted(column.name)} {column.declared}{' NOT NULL' if column.not_null else ''}"
        )

    def created(
        self,
        table: str,
        columns: Sequence[Column],
        key: Sequence[str] = (),
        defaults: Mapping[str, str] = MappingProxyType({}),
        checks: Iterable[str] = (),
    ) -> str:
        """CREATE TABLE, up to what follows the columns. `table` is SQL, `key` the primary key.

        `defaults` are those of columns by their names, and `checks` constraints, both as SQL.
        """
        lines = []
        for column in columns:
            default = defaults.get(column.name)
            behind = "" if default is None else f" DEFAULT {default}"
            lines.append(f"{self.definition(column)}{behind}")
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(map(self.quoted, key))})")
        lines += checks
        return f"CREATE TABLE {table} ({', '.join(lines)})"

    def index_names(self, session: Session, schema: str) -> Iterable[str]:
        """The names that a new index in `schema` must not have; () = an index shares names with its table alone."""
        return ()

    def half_built(self, session: Session, table: Table, names: Collection[str]) -> list[str]:
        """The statements that drop indexes of a table with these names, also numbered ones, that a build left which was
        killed.
        """
        return []

    def beside_writers(self, statement: str) -> str:
        """CREATE INDEX as it builds beside those that write the table, where the database has such a form."""
        return statement

    def stated(
        self, constraint: "ConstraintDefinition", name: str, table: str, indexed: str
    ) -> str:
        """The statement that gives a table that is there a key, a check or an index of another one of this system.

        "" = none does. `table` is SQL, and `indexed` the same in CREATE INDEX.
        """
        if constraint.kind != "index" or not constraint.text:
            return ""
        unique = "UNIQUE " if constraint.is_unique else ""
        return f"CREATE {unique}INDEX {self.quoted(name)} ON {indexed} {constraint.text}"

    def indexed_table(self, name: str) -> str:
        """The table `name` in CREATE INDEX."""
        return TABLE

    def not_indexed(self, field: pa.Field) -> str:
        """Why a new column for `field` has no index; "" = it may have one."""
        return ""

    def not_unique(self, column: Column) -> str:
        """Why a table that is there may get no unique index of a column; "" = it may."""
        return ""

    def not_keyed(self, field: pa.Field, length: str | None) -> str:
        """Why a primary key of a column for `field` might refuse rows of its source; "" = it takes them all.

        `length`: how long its texts may be, see `text_length.py`; None = it is not known.
        """
        return ""

    def after_create(self, options: SqlWriteOptions) -> str:
        """The text after the columns in CREATE TABLE.

        Raises:
            OptionError: `createTableOptions` that the database does not take.
        """
        return (
            ""
            if options.create_table_options is None
            else f" {options.create_table_options.strip()}"
        )

    def place(self, schema: str | None, name: str) -> str:
        """A table in a statement."""
        return ".".join(self.quoted(part) for part in (schema, name) if part)

    def check_table(self, table: Table) -> None:
        """Check that the table takes rows.

        Raises:
            TargetError: it is not.
        """
        if table.is_view:
            raise TargetError(f"{table.label!r} is a view; name the table behind it")

    def columns_as_created(self, table: Table) -> Declared:
        """The columns that the statement named with which a table was made."""
        return declared_columns(table)

    def columns_query(self, target: TargetTable) -> str:
        """A query for the names and types of the table's columns, which can go with other statements; "" = none."""
        return ""

    def find_columns(self, session: Session, target: TargetTable) -> Declared:
        """The columns that the table has now; () = the table does not exist."""
        if query := self.columns_query(target):
            return tuple(session.rows(query))
        table = self.find_table(session, target.sql)
        return () if table is None else declared_columns(table)

    def is_filled(self, table: Table, column: Column) -> bool:
        """Whether the database itself fills a column that the rows do not have."""
        return column.has_default or column.generated

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        """The conversion of `field` to `column`.

        Raises:
            SchemaError: it cannot hold them exactly; names the column and both types.
        """
        kind = self.arrow_type(column)
        if kind is not None and not fits(plain_kind(field.type), kind):
            raise misfit(field, column)
        return WriteColumn(field.name, column, field.type)

    def check_values(self, values: pa.Array, column: WriteColumn) -> None:
        """Check that the column holds the values, as far as the server is not needed for that.

        Raises:
            BadValueError: the first value found that would come back changed, or be refused.
        """

    def members(self, session: Session, table: Table) -> Mapping[str, tuple[str, ...]]:
        """The texts that columns of an enumerated type take, by column, where the declaration does not say them."""
        return {}

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

    def not_null(self, table: str, column: str, declared: str) -> str:
        """The statement that keeps NULL out of a column, for people; "" = there is none."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column)} SET NOT NULL"

    def keyed(self, table: str, columns: Sequence[str], name: str) -> str:
        """The statement that makes a primary key of `columns`, which are never NULL, for people."""
        return f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(map(self.quoted, columns))})"

    def added_key(self, table: str, key: "ForeignKeyDefinition", referenced: str) -> str:
        """The statement that adds a foreign key. `table` and `referenced`, the other table, are SQL."""
        columns = ", ".join(map(self.quoted, key.columns))
        theirs = ", ".join(map(self.quoted, key.referenced))
        return (
            f"ALTER TABLE {table} ADD CONSTRAINT {self.quoted(key.name)} FOREIGN KEY ({columns}) "
            f"REFERENCES {referenced} ({theirs}){key.behind}"
        )

    def dropped_key(self, table: str, name: str) -> str:
        """The statement that drops a foreign key. `table` is SQL."""
        return f"ALTER TABLE {table} DROP CONSTRAINT {self.quoted(name)}"

    def nullable(self, table: str, column: Column) -> str:
        """The statement that lets a column be NULL, for people."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column.name)} DROP NOT NULL"

    def loosen(self, session: Session, table: str, column: Column) -> Sequence[str]:
        """The same, to be run, of which nothing else of the column changes."""
        return (self.nullable(table, column),)

    def is_same_type(self, existing: str, planned: str) -> bool:
        """Whether two declared types are one, as the catalog shows them and as they were written."""
        return existing == planned

    def check_alone(self, session: Session, schema: str, name: str) -> None:
        """Check that `emptied` changes no other table.

        Raises:
            TargetError: foreign keys of other tables would do so.
        """

    def check_deletes(self, session: Session, schema: str, name: str) -> None:
        """The same of a DELETE of all rows."""
        self.check_alone(session, schema, name)

    def emptied(self, table: str, options: SqlWriteOptions) -> str:
        """The statement that empties a table inside a transaction."""
        return f"DELETE FROM {table}"  # noqa: S608 - a quoted name

    def script(self, texts: Iterable[str], option: str) -> Sequence[str]:
        """The single statements of `preSql` or `postSql`.

        Raises:
            OptionError: one that would leave the transaction in which they run.
        """
        return split_script(texts, option, self.sql)

    def commits(self, texts: Iterable[str], option: str) -> bool:
        """Whether a statement of `preSql` or `postSql` would commit the transaction in which it runs."""
        return False

    def name_parts(self, text: str) -> tuple[str | None, str]:
        """The schema and the name that `text` names, or that a table gets which is made by this name."""
        tree = statements.parsed_name(text, self.sql)
        return (None, text) if tree is None else (tree.db or None, tree.name)


def wrong_table_options(text: str, takes: str, advice: str = "") -> OptionError:
    return OptionError(
        f"option 'createTableOptions' got {text!r}; it takes {takes}{advice}",
        option="createTableOptions",
        got=text,
        takes=takes,
    )


def misfit(
    field: pa.Field,
    column: Column,
    kind: pa.DataType | None = None,
    *,
    natural: str = "",
    shown: str = "",
) -> SchemaError:
    """The error that `column`, read as `kind`, cannot hold `field`, whose own column would be declared `natural`."""
    hint = "cast it, or let option 'convert' (lenient) refuse the rows whose values do not fit"
    if kind is not None and pa.types.is_timestamp(field.type) and pa.types.is_timestamp(kind):
        alike = (field.type.tz is None) == (kind.tz is None)
        loss = (
            "its times have other digits" if alike else "one has a time zone and the other has none"
        )
        hint = f"{loss}; cast it, or " + (
            f"declare the column {natural}" if natural else "change the table's column"
        )
    return SchemaError(
        f"column {field.name!r} is {field.type}, and the table's column {column.name!r} is {column.declared}{shown}, "
        f"which cannot hold it exactly: {hint}"
    )
