"""Resolves the tables and columns that options name."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from spark_channel.connectors.sql.ddl import arrow_columns
from spark_channel.connectors.sql.parser import exp
from spark_channel.errors import OptionError, SourceError

__all__ = [
    "SameName",
    "custom_kinds",
    "is_plain_name",
    "known_name",
    "missing_table",
    "name_readings",
    "only_name",
    "parsed_name",
    "pick_columns",
]

SameName = Callable[[str, Sequence[str]], str | None]
"""The one of several names that a database takes a name for; None = none of them."""

_SHOWN = 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED_NAME = re.compile(r'(?:"([^"]+)"\.)?"([^"]+)"')
_BY_DOUBLE_QUOTES = frozenset({"sqlite", "duckdb", "postgres"})


class Named(Protocol):
    """A column."""

    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=Named)


def known_name(wanted: str, names: Sequence[str], same_name: SameName, option: str) -> str:
    """The one of `names` that `option` means by `wanted`.

    Raises:
        OptionError: none of them.
    """
    name = same_name(wanted, names)
    if name is None:
        hint = ". Put a text in single quotes" if option == "where" else ""
        raise OptionError(
            f"option {option!r} names column {wanted!r}, which is not there; columns: {', '.join(names)}{hint}",
            option=option,
            got=wanted,
            takes=", ".join(names),
        )
    return name


def pick_columns(
    found: Sequence[_Column], wanted: Sequence[str] | None, same_name: SameName
) -> tuple[_Column, ...]:
    """The columns that option `columns` names, in its order; all of them without it.

    Raises:
        OptionError: a column that is not there.
    """
    if wanted is None:
        return tuple(found)
    by_name = {column.name: column for column in found}
    return tuple(by_name[known_name(each, list(by_name), same_name, "columns")] for each in wanted)


def custom_kinds(text: str | None, names: Sequence[str], same_name: SameName) -> dict[str, pa.DataType]:
    """The types that option `customSchema` chooses, by column.

    Raises:
        OptionError: a column that does not exist, or text that is not a schema.
    """
    kinds = {} if text is None else arrow_columns(text, "customSchema")
    return {known_name(name, names, same_name, "customSchema"): kind for name, kind in kinds.items()}


def missing_table(dbtable: str, names: Sequence[str], place: object) -> SourceError:
    """The error for a table that does not exist, with the names of some that do, without those of this project."""
    more = ", ..." if len(names) > _SHOWN else ""
    theirs = [name for name in names if not name.rpartition(".")[2].startswith("spark_channel_")]
    there = ", ".join(theirs[:_SHOWN]) + more if theirs else "none"
    return SourceError(f"there is no table {dbtable!r} in {place}; its tables: {there}")


def only_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is meant: the exact one, else the only one that differs in case."""
    if name in names:
        return name
    near = [each for each in names if each.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def parsed_name(text: str, dialect: str) -> "exp.Table | None":
    """`schema.name` as the database's SQL reads it; None for a text that it cannot read as a name."""
    try:
        tree = exp.to_table(text, dialect=dialect or None)
    except Exception:  # sqlglot raises several kinds
        return None
    return tree if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias else None


def is_plain_name(text: str) -> bool:
    """Whether every database reads `text` as one name without a schema, which needs no parser."""
    return _PLAIN_NAME.fullmatch(text) is not None


def name_readings(text: str, dialect: str, schema: str) -> list[tuple[str, str]]:
    """(schema, name) that `dbtable` may mean: the whole text as a name first, then `schema.name`.

    `schema` is where names without one are looked up.
    """
    if is_plain_name(text):
        return [(schema, text)]
    quoted = _QUOTED_NAME.fullmatch(text) if dialect in _BY_DOUBLE_QUOTES else None
    if quoted:  # as this project writes the names of tables that it has found
        return [(schema, text), (quoted[1] or schema, quoted[2])]
    tree = parsed_name(text, dialect)
    return [(schema, text)] if tree is None else [(schema, text), (tree.db or schema, tree.name)]
