"""The dialect of a database for reading: SQL text and types, without a connection.

A new database subclasses `Dialect` and `Session`, and names both in a subclass of `SqlReader`. What has a default here
is standard SQL; override what the database says in another way, or can do faster.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.types import Node
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import (
    Column,
    KeyColumn,
    MisfitError,
    ReadColumn,
    Table,
)
from spark_channel.connectors.sql.catalog.rights import MissingRights, Right
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError

__all__ = [
    "Dialect",
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

    def is_own_type(self, column: Column) -> bool:
        """Whether a user made its type, which another database need not have."""
        return False

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
