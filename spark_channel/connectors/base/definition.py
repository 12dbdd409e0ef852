"""The definition of a table beside its columns' names and types: keys, defaults, indexes, constraints, comments.

A reader describes its table in this form, in the words of its system. A writer that creates the table takes what
its system has, too, and names what it leaves out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import pyarrow as pa

__all__ = [
    "KEY_NOTE",
    "ColumnDefinition",
    "ConstraintDefinition",
    "ConstraintKind",
    "Defines",
    "ForeignKeyDefinition",
    "SequenceDefinition",
    "TableDefinition",
    "notes_of",
    "with_not_null",
    "with_notes",
]

ConstraintKind = Literal[
    "primary key", "unique constraint", "exclusion constraint", "check", "index"
]
KEY_NOTE = "spark_channel.primary_key"
"""In the metadata of a column of the key: its place in it."""


@dataclass(frozen=True, slots=True)
class SequenceDefinition:
    """The numbers that a column without a value gets. `following`: the next one.

    `identity` is "" for a column whose default reads its own sequence, else ALWAYS or BY DEFAULT. `settings` are
    those of its CREATE SEQUENCE, in the system's SQL, and `declared` is its type.
    """

    name: str
    following: int
    increment: int = 1
    identity: str = ""
    settings: str = ""
    declared: str = ""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column. All texts but the comment are in the system's SQL; None = there is none.

    `is_own`: a user made its type, which another database need not have. `generated`: the expression that computes it,
    with STORED or VIRTUAL.
    """

    name: str
    declared: str
    not_null: bool = False
    is_own: bool = False
    default: str | None = None
    generated: str | None = None
    sequence: SequenceDefinition | None = None
    collation: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class ConstraintDefinition:
    """A key, a check or an index. `text` is the system's SQL after its name (of an index: after the table's).

    `columns` are those that it names, in its order. `is_plain`: nothing but these columns, ascending, whole and without
    a condition, so that every system has it.
    """

    kind: ConstraintKind
    name: str
    columns: tuple[str, ...]
    text: str = ""
    is_unique: bool = False
    is_plain: bool = True
    comment: str | None = None

    @property
    def has_name(self) -> bool:
        """Whether a user named it: a check without a name has its condition for one."""
        return self.text not in (self.name, f"CHECK {self.name}")

    @property
    def label(self) -> str:
        """The constraint, for people."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class ForeignKeyDefinition:
    """A foreign key. `behind` is the SQL after the referenced columns: what a change there does, and when.

    None: its kind has no such form, as a temporal key.
    """

    name: str
    columns: tuple[str, ...]
    schema: str
    table: str
    referenced: tuple[str, ...]
    behind: str | None = ""

    @property
    def label(self) -> str:
        """The key, for people."""
        return f"foreign key {self.name}"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table as `system` (sqlglot's name of its dialect) declares it.

    `others` names what no copy carries, such as triggers, and `own` what only its system has, which its `statement`
    carries: that is its CREATE TABLE, of a system that keeps such.
    """

    system: str
    schema: str
    name: str
    columns: tuple[ColumnDefinition, ...]
    constraints: tuple[ConstraintDefinition, ...] = ()
    foreign_keys: tuple[ForeignKeyDefinition, ...] = ()
    comment: str | None = None
    others: tuple[str, ...] = ()
    statement: str = ""
    own: tuple[str, ...] = ()

    def column(self, name: str) -> ColumnDefinition | None:
        """The column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def primary(self) -> ConstraintDefinition | None:
        """The primary key."""
        keys = (one for one in self.constraints if one.kind == "primary key")
        return next(keys, None)

    def without_primary(self) -> "TableDefinition":
        """The same, of a table whose primary key is another one."""
        others = tuple(one for one in self.constraints if one.kind != "primary key")
        return replace(self, constraints=others, statement="")

    def with_keys_to_itself(self) -> "TableDefinition":
        """The same without foreign keys to other tables."""
        itself = self.schema, self.name
        keys = (key for key in self.foreign_keys if (key.schema, key.table) == itself)
        return replace(self, foreign_keys=tuple(keys))

    def of_parts(self) -> Iterator[str]:
        """What it and its columns have beside types, NOT NULL and `constraints`, for people."""
        if self.comment is not None:
            yield "comment of the table"
        for column in self.columns:
            if column.default is not None:
                yield f"default of {column.name}"
            if column.generated is not None:
                yield f"expression of {column.name}"
            if column.sequence is not None:
                yield f"sequence of {column.name}"
            if column.collation is not None:
                yield f"collation of {column.name}"
            if column.comment is not None:
                yield f"comment of {column.name}"
        yield from self.own


class Defines(Protocol):
    """How a table is defined. `keys_only`: NOT NULL and the primary key, which a read has looked up already."""

    def __call__(self, *, keys_only: bool = False) -> TableDefinition | None: ...


def notes_of(
    definition: TableDefinition, rows: pa.Schema, *, is_full: bool
) -> tuple[tuple[str, ...], dict[str, str], list[str]]:
    """What a format without constraints notes of a table with these rows: its key, comments; and what it leaves out."""
    key, left_out = definition.primary, []
    names: tuple[str, ...] = () if key is None else key.columns
    for name in names:
        field = rows.field(name) if name in rows.names else None
        if field is None or field.nullable or pa.types.is_floating(field.type):
            left_out.append(f"the primary key: its column {name} may be NULL or is no exact value")
            names = ()
            break
    if not is_full:
        return names, {}, left_out
    comments = {
        column.name: column.comment
        for column in definition.columns
        if column.comment is not None and column.name in rows.names
    }
    left_out += [part for part in definition.of_parts() if not part.startswith("comment ")]
    left_out += [one.label for one in definition.constraints if one is not key]
    left_out += [foreign.label for foreign in definition.foreign_keys]
    left_out += definition.others
    return names, comments, left_out


def with_notes(rows: pa.Schema, key: Sequence[str], comments: Mapping[str, str]) -> pa.Schema:
    """The columns with their comments, and those of the key with their places in it."""
    fields = []
    for field in rows:
        notes = {"comment": comments[field.name]} if field.name in comments else {}
        if field.name in key:
            notes[KEY_NOTE] = str(1 + key.index(field.name))
        fields.append(field.with_metadata({**(field.metadata or {}), **notes}) if notes else field)
    return pa.schema(fields, rows.metadata)


def with_not_null(rows: pa.Schema, definition: TableDefinition) -> pa.Schema:
    """The rows' columns, those that are never NULL in the source as not nullable."""
    fields = []
    for field in rows:
        column = definition.column(field.name)
        never_null = column is not None and column.not_null
        fields.append(field.with_nullable(field.nullable and not never_null))
    return pa.schema(fields, rows.metadata)
