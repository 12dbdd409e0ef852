"""Tables and columns of a database's catalog, and how a column is read."""

from dataclasses import dataclass

import pyarrow as pa

from spark_channel.connectors.sql import statements

__all__ = ["Column", "KeyColumn", "MisfitError", "ReadColumn", "Table"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the database declares it. `generated`: computed by the database, never written."""

    name: str
    declared: str
    not_null: bool = False
    has_default: bool = False
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. `unique` are the column sets that are held unique, the primary key first."""

    schema: str
    name: str
    columns: tuple[Column, ...] = ()
    is_view: bool = False
    unique: tuple[tuple[str, ...], ...] = ()
    primary: tuple[str, ...] = ()

    @property
    def source(self) -> statements.Source:
        """The table in a statement that sqlglot builds."""
        return statements.named_table((self.schema, self.name) if self.schema else (self.name,))

    @property
    def label(self) -> str:
        """The table, for people."""
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def is_inherited(self) -> bool:
        """Other tables inherit from it, which keep their rows."""
        return False

    @property
    def no_key(self) -> str:
        """Why it has no `primary`, after its name."""
        return "has no primary key"

    @property
    def held(self) -> tuple[tuple[str, ...], ...]:
        """The column sets by which a write can identify rows."""
        return self.unique

    @property
    def indexed(self) -> frozenset[str]:
        """The columns of its indexes, as far as they are known."""
        return frozenset(name for names in self.held for name in names)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a unique key, in the order of its index."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column that is read: its name and declared type, the Arrow type it is delivered in, what is selected."""

    name: str
    declared: str
    kind: pa.DataType
    expression: str


class MisfitError(Exception):
    """A batch holds `value_text` in `column`, which its type cannot carry. `index` is the row, where it is known."""

    def __init__(
        self, column: ReadColumn, value_text: str, *, index: int | None = None, value: object = None
    ) -> None:
        super().__init__(column.name)
        self.column, self.what, self.index, self.value = column, value_text, index, value
