"""The target table of a write plan, and the columns that are written."""

from dataclasses import dataclass

import pyarrow as pa

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog.tables import Column, Table

__all__ = [
    "NOWHERE",
    "TABLE",
    "Declared",
    "DefinitionStep",
    "TargetTable",
    "WriteColumn",
    "declared_columns",
    "listed",
]


TABLE = "\0"
"""Stands for the table in a statement, which may be staged under another name. No SQL has this character."""


@dataclass(frozen=True, slots=True)
class DefinitionStep:
    """Statements that give a table one part of its source's definition, and `what` that is, for people."""

    what: str
    statements: tuple[str, ...]

    def on(self, table: str) -> list[str]:
        """The statements for `table`, which is SQL."""
        return [statement.replace(TABLE, table) for statement in self.statements]


Declared = tuple[tuple[str, str], ...]
"""Columns and their types."""


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One column that is written: its name in the rows, the table's column, and the type of the rows' values."""

    name: str
    column: Column
    kind: pa.DataType

    @property
    def target(self) -> str:
        """The column's name in the table."""
        return self.column.name

    @property
    def declared(self) -> str:
        return self.column.declared


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table as the plan expects it. `sql` is its name in a statement, `label` for people.

    `declared` are its columns and types as they are (or will be, with `create`); a publish that finds others refuses.
    `key` are `keyColumns` as the table spells them. `operation` is the column that says what a row of a change feed
    does (`writeMode=apply`). `only` precedes the name where tables that inherit from it are not meant. `steps` complete
    the table's definition where the write makes it. `indexed` are the columns of its keys and other indexes.
    """

    schema: str
    name: str
    label: str = ""
    sql: str = ""
    columns: tuple[WriteColumn, ...] = ()
    declared: Declared = ()
    create: str | None = None
    key: tuple[str, ...] = ()
    operation: str | None = None
    only: str = ""
    steps: tuple[DefinitionStep, ...] = ()
    indexed: frozenset[str] = frozenset()

    @property
    def source(self) -> statements.Source:
        return statements.named_table((self.schema, self.name))

    @property
    def own_rows(self) -> str:
        """The table in a statement that changes its rows, without those of tables that inherit from it."""
        return f"{self.only}{self.sql}"

    @property
    def names(self) -> tuple[str, ...]:
        """The table's columns that are written."""
        return tuple(column.target for column in self.columns)

    @property
    def staged_names(self) -> tuple[str, ...]:
        """The columns of what is staged: these, and the operation."""
        return self.names if self.operation is None else (*self.names, self.operation)


NOWHERE = TargetTable("", "")
"""The target of a plan that is not complete."""


def declared_columns(table: Table) -> Declared:
    return tuple((column.name, column.declared) for column in table.columns)


def listed(columns: Declared) -> str:
    """For messages."""
    return ", ".join(f"{name} {declared}".strip() for name, declared in columns)
