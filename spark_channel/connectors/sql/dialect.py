"""The dialect of a database: SQL text and types, without a connection.

A new database subclasses `Dialect` and `Session`, and names both in a subclass of `SqlReader`. What has a default here
is standard SQL; override what the database says in another way, or can do faster.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.definition import ConstraintDefinition, ForeignKeyDefinition
from spark_channel.connectors.base.types import Node, fits, is_longer, plain_kind, widened
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import (
    TABLE,
    Column,
    Declared,
    KeyColumn,
    MisfitError,
    ReadColumn,
    Table,
    WriteColumn,
    declared_columns,
)
from spark_channel.connectors.sql.catalog.rights import MissingRights, Right
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session, split_script
from spark_channel.errors import ChannelError, OptionError, SchemaError, TargetError

__all__ = [
    "Dialect",
    "WriteDialect",
    "marked",
    "misfit",
    "wrong_table_options",
]


class Dialect(ABC):
    """Plain data, pickled with its reader. Methods that take a session ask the database through it, and keep nothing.

    Column texts are made by `ReadSource.column`: quoted and qualified.
    """

    product: ClassVar[str]
    """The database's name, for messages."""
    sql: str = ""
    """sqlglot's name of the SQL in which users write `query` and `where`; "" is standard SQL."""
    tables_sql: ClassVar[str] = ""
    """A query for the tables that are there: schema ("" = the only one), name, estimated rows and bytes, or NULL.

    A fifth and a sixth column are `SourceTable.own_rows` and `is_elsewhere`. `{named}` is where `only_named` is added.
    """
    referring_sql: ClassVar[str] = ""
    """A query for the tables of a schema that have foreign keys: schema and name. `{schema}` is a literal."""
    of_new_tables: ClassVar[tuple[str, ...]] = ()
    """Rights on a schema in which a write makes tables; () = `lacking` cannot ask the database for rights."""
    to_alter: ClassVar[str] = "ALTER"
    """The right to add a column to a table."""
    cuts_names_at: ClassVar[int | None] = None
    """Bytes after which the database silently cuts a name; None = it refuses one that is too long."""
    times_are_texts: ClassVar[bool] = False
    """Whether dates and times are compared as the texts that they are stored as: one moment may have several."""
    hides_tables: ClassVar[bool] = False
    """Whether the catalog leaves out tables on which the login has no right."""
    alias: ClassVar[str | None] = None
    """The name of a table in FROM; None = its own name, which conditions of users may name too."""
    whole_rows: ClassVar[bool] = False
    """Whether conditions may name a row as one value, by the table's name."""
    row_values: ClassVar[bool] = False
    """Whether (a, b) >= (1, 2) can use an index."""
    late_seconds: ClassVar[float] = 10.0
    """How long after a higher id a lower one may be committed, where many sessions write at once."""
    moves_rows: ClassVar[bool] = False
    """Whether a write moves rows from one split into another; a feed then cuts its base by the cursor."""

    no_keys: ClassVar[str] = ""
    """Why a table whose `keys` are none can get none by a new index; "" = it can."""

    batch_rows: ClassVar[int] = 65_536
    cuts_by_bytes: ClassVar[bool] = False
    """Whether `Session.stream` keeps to a batch's bytes by itself, without an estimate of how many rows they are."""
    batch_bytes: ClassVar[int] = 8 << 20

    # Names and values

    def spelled(self, name: str) -> str:
        """A name as its catalog has it: another one where the connector shows names in another case."""
        return name

    def quoted(self, name: str) -> str:
        """A name in a statement."""
        return '"' + self.spelled(name).replace('"', '""') + '"'

    def literal(self, value: object, column: Column | None) -> str:
        """A value that is compared with `column`; None for a column that the table does not declare (a row's number).

        Takes what `quantiles` and `cursor_text` return, and the bounds that `bound` makes.
        """
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        return self.literal(str(value), column) if isinstance(value, date) else str(value)

    def bound(self, value: int | date | datetime, column: Column) -> Any:
        """A number, a day or a moment as `literal` takes it to compare it with `column`.

        A moment is in UTC where it has a zone, which a column without one does not keep.

        Raises:
            OptionError: the column holds values of its type in a form without their order.
        """
        if isinstance(value, datetime):
            return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return value.isoformat() if isinstance(value, date) else value

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        """The one of `names` that the database takes `name` for: the exact one, else one that differs in case only."""
        if name in names:
            return name
        return next((candidate for candidate in names if candidate.lower() == name.lower()), None)

    def limited(self, query: str, rows: int, after: int = 0) -> str:
        """`query` for its first `rows` rows behind `after` others."""
        return f"{query} LIMIT {rows} OFFSET {after}" if after else f"{query} LIMIT {rows}"

    # The catalog

    def only_named(self, names: Sequence[tuple[str, str]]) -> str:
        """The condition, with AND before it, by which `tables_sql` finds tables of these schemas and names alone.

        "": the query finds all tables.
        """
        return ""

    def list_tables(self, names: Sequence[tuple[str, str]] = ()) -> str:
        """The query for all tables, or for the tables of these schemas and names, among which others may be."""
        return self.tables_sql.replace("{named}", self.only_named(names) if names else "")

    @abstractmethod
    def find_table(self, session: Session, text: str) -> Table | None:
        """The table or view that `dbtable` names, the whole text as a name first; None when there is none."""

    def lacking(self, session: Session, rights: Sequence[Right]) -> MissingRights:
        """What the session's login lacks of `rights`, by one query; nothing that the database does not say surely."""
        return MissingRights("", {})

    def lacking_on_hidden(self, session: Session, text: str) -> str:
        """What to run for the login to see the table that `text` names; "" where that is not known."""
        return ""

    @abstractmethod
    def table_names(self, session: Session) -> list[str]:
        """Some names of tables and views that there are, for messages."""

    @abstractmethod
    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """The columns of the result of `query`, a SELECT; should cost no scan."""

    def derived(self, query: str) -> str:
        """The text of the user's `query` that is put in parentheses.

        Raises:
            OptionError: anything but one SELECT.
        """
        statements.query(query, self.sql, "query")
        return statements.text_of(query, self.sql)

    def result_names(self, session: Session, query: str) -> list[str]:
        """The names in the result of `query`, in order, also where one occurs twice."""
        return [column.name for column in self.describe(session, query)]

    # Types

    @abstractmethod
    def arrow_type(self, column: Column) -> pa.DataType | None:
        """The Arrow type of a column; None if its declaration does not determine it.

        Raises:
            SchemaError: a type that Spark cannot hold; names the column and says what to do.
        """

    def text_length(self, column: Column) -> str | None:
        """The note of `text_length.py` for a column that is read as text; None = its declaration has no length."""
        return None

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        """The expression that reads the column `text` as `kind`."""
        return text

    def types(
        self, session: Session, columns: Sequence[tuple[Column, str]], origin: str
    ) -> list[pa.DataType | None]:
        """The types of columns, given with their texts, by their declarations.

        A database whose declarations have no types may look at rows: `origin` is FROM and what follows.
        """
        return [self.arrow_type(column) for column, _ in columns]

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
        """A batch as `Session.stream` returned it, in the types of `schema`, exactly.

        Raises:
            MisfitError: a value that its column's type cannot hold.
        """
        arrays = []
        for array, column in zip(raw.columns, columns, strict=True):
            try:
                arrays.append(array if array.type.equals(column.kind) else array.cast(column.kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise MisfitError(column, f"a value that is not {column.kind} ({error})") from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def misfit_advice(self, column: ReadColumn) -> str:
        """Advice for a value that does not fit."""
        return (
            f"Name another type with 'customSchema' (such as {column.name} STRING), leave those rows out with 'where', "
            "or convert the column with 'query'"
        )

    def same_table(self, table: Table) -> str | None:
        """The condition that the table's name still means `table`, as it was looked up: else the statement fails.

        It is worked out once in a statement, while the statement keeps the table from being changed. None = `is_same`
        says so, behind the last statement of a split.
        """
        return None

    def is_same(self, session: Session, table: Table) -> bool:
        """Whether the table's name still means `table`, as it was looked up, as far as the database tells."""
        condition = self.same_table(table)
        if condition is None:
            return True
        try:
            session.rows(f"SELECT ({condition})")
        except ChannelError as error:
            if self.is_passing(error) or error.is_of_input:  # the login may not read it
                raise
            return False
        return True

    def change_of(self, was: Table, now: Table) -> str:
        """What became of `was`, of which `same_table` no longer holds, and in whose place `now` is found."""
        before = {column.name: column.declared for column in was.columns}
        after = {column.name: column.declared for column in now.columns}
        for name, declared in before.items():
            if name not in after:
                return f"column {name!r} was dropped or renamed"
            if after[name] != declared:
                return f"the type of column {name!r} was changed from {declared} to {after[name]}"
        return "another table took its name, or it was emptied by TRUNCATE or made again"

    # What a read asks

    def statement(self, columns: Sequence[ReadColumn], origin: str) -> str:
        """The SELECT of a split, whose result `decode` takes; `origin` is FROM and what follows."""
        return f"SELECT {', '.join(column.expression for column in columns)} {origin}"

    def hidden_columns(self, table: Table) -> Collection[str]:
        """Columns that the table does not declare and conditions may name, in lower case, such as SQLite's rowid."""
        return ()

    def check_condition(self, column: Column, compared: Node) -> None:  # noqa: B027 - optional
        """Refuse a condition on a column that would not mean what it says; `compared` is the column in its place."""

    def compared(self, column: Column | None, text: str) -> str:
        """`text`, a column, as what is compared with literals, whatever the session's settings are."""
        return text

    def ordered(self, column: Column | None, text: str) -> str:
        """`text`, a column, as what comparisons with literals and ORDER BY agree on."""
        return text

    def remainder(self, text: str, parts: int) -> str:
        """What is left of `text`, a whole number, by `parts`; negative where the number is, or not."""
        return f"MOD({text}, {parts})"

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        """The type by whose order a column's ranges are made; None = it has no ranges. `read`: as it was read."""
        return self.arrow_type(column)

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        """The type by whose order a column can be followed; None where its values' order is not its type's."""
        return self.key_type(column, read)

    def is_never_null(self, table: Table, column: Column) -> bool:
        """Whether the table itself keeps NULL out of the column."""
        return column.not_null and not table.is_view

    def read_as_null(self, table: Table | None, column: Column, text: str) -> str | None:
        """The condition of the rows whose value of the column `text` is read as NULL; None = there are none."""
        never = table is not None and self.is_never_null(table, column)
        return None if never else self.is_null(column, text)

    def is_null(self, column: Column | None, text: str) -> str:
        """The condition of the rows with NULL in the column `text`; NOT before it is that of all others."""
        return f"{text} IS NULL"

    def beside_instant(self, column: Column, text: str, compare: str, micros: int) -> str | None:
        """The condition of the values of the column `text` beside an instant, in microseconds since 1970.

        It holds whatever the zone of the session is, and an index finds the rows. None = `literal` does so.
        """
        return None

    def is_unique(self, table: Table, name: str) -> bool:
        """Whether the table itself keeps two of its rows from one value in the column, as values are compared."""
        return (name,) in table.held

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        """The expression that returns a cursor value as an integer or a text, which `literal` accepts."""
        plain = pa.types.is_integer(kind) or pa.types.is_string(kind)
        return text if plain else f"CAST({text} AS VARCHAR(100))"

    def is_cursor_value(self, value: object, kind: pa.DataType | None) -> bool:
        """Whether a token's value can be what `cursor_text` gave of such a column."""
        is_integer = kind is not None and pa.types.is_integer(kind)
        return isinstance(value, int) if is_integer else isinstance(value, str)

    def size(self, text: str) -> str | None:
        """The bytes of a column of varying width; None = the database has no function for it: no estimate of sizes."""
        return f"OCTET_LENGTH({text})"

    def is_passing(self, error: BaseException) -> bool:
        """Whether `error`, of a session, is of the moment: the connection was lost, none is left, or a lock is held."""
        return False

    def is_timeout(self, error: BaseException) -> bool:
        """Whether a time limit of the server ended the statement: a shorter one may succeed."""
        return False

    # Short statements

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        """Unique keys that an index holds in this order, by whose comparison with literals no two rows are equal.

        No column may be NULL. The best one first; () = rows cannot be read in short statements.
        """
        never_null = {column.name for column in table.columns if self.is_never_null(table, column)}
        return [
            tuple(map(KeyColumn, key)) for key in table.unique if key and never_null.issuperset(key)
        ]

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """Whether an index finds the rows behind values of `columns`, ascending, without those that have fewer of them.

        The first column may be NULL and is not unique; the others are of `keys`.
        """
        return False

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        """(type, what is selected) to read a key's exact value as a whole number or a text; None = it cannot be.

        `column` is None for one that the table does not declare. `key_literal` takes the value.
        """
        kind = None if column is None else self.arrow_type(column)
        is_plain = kind is not None and (pa.types.is_integer(kind) or pa.types.is_string(kind))
        return (kind, text) if is_plain else None

    def key_literal(self, value: object, column: Column | None) -> str:
        """A key's value, as `key_read` returned it, that is compared with its column."""
        return self.literal(value, column)

    def short_statement(
        self, columns: Sequence[ReadColumn], origin: str, order: str, rows: int
    ) -> str:
        """The first `rows` rows of a SELECT in the `order` of a key."""
        return self.limited(f"{self.statement(columns, origin)} ORDER BY {order}", rows)

    # Checksums

    hash_type: ClassVar[tuple[str, pa.DataType]] = ("bigint", pa.int64())
    """The type of `row_hash`, in the database and in Arrow."""

    def row_hash(self, columns: Sequence[tuple[Column, str]]) -> str | None:
        """A whole number of 64 bits for a row of these columns (what is declared, and the text in a statement).

        Rows for which it is equal are equal, if `hash_facts` of both servers and the declared types are. None = the
        database has no such expression for one of these types.
        """
        return None

    def hash_facts(self, session: Session) -> object:
        """What `row_hash` depends on beside the rows; None = the server lacks it."""
        return None

    def range_number(self, text: str, edges: Sequence[int]) -> str:
        """The number of `edges`, which are ascending, up to a whole number `text`."""
        raise NotImplementedError

    # Splits

    def split_key(self, table: Table) -> tuple[str, ...]:
        """The unique columns, none of them NULL, whose ranges cut the table; () = none."""
        return table.primary


# Placeholders: the `?` of a statement in the database's own syntax.


_MARK = re.compile(r"""("[^"]*"|`[^`]*`|'[^']*')|\?""")


def marked(sql: str, mark: Callable[[int], str]) -> str:
    """`sql` with `mark(n)` for its n-th `?`, counted from 1; names and texts in quotes keep theirs."""
    numbers = itertools.count(1)
    return _MARK.sub(lambda match: match[1] or mark(next(numbers)), sql)


# The dialect of a database for writing: types, CREATE TABLE, and the values that a column holds.


class WriteDialect(Dialect):
    """For databases written through `target_columns` and `publish`: how new columns are declared, and whatever is said
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

    def stated(self, constraint: ConstraintDefinition, name: str, table: str, indexed: str) -> str:
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

    def added_key(self, table: str, key: ForeignKeyDefinition, referenced: str) -> str:
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
