"""Resolves the tables and columns that options name."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.types import arrow_columns, exp
from spark_channel.errors import OptionError, SourceError
from spark_channel.final_errors import of_input

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
    "quoted_parts",
]


SameName = Callable[[str, Sequence[str]], str | None]
"""The one of several names that a database takes a name for; None = none of them."""

_SHOWN = 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED_NAMES = {
    "mysql": re.compile(r"(?:`([^`]+)`\.)?`([^`]+)`"),
    **dict.fromkeys(("sqlite", "duckdb", "postgres"), re.compile(r'(?:"([^"]+)"\.)?"([^"]+)"')),
}
"""By sqlglot's name of the dialect."""


class Named(Protocol):
    """A column."""

    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=Named)


def known_name(name_given: str, names: Sequence[str], same_name: SameName, option: str) -> str:
    """The one of `names` that `option` means by `name_given`.

    Raises:
        OptionError: none of them.
    """
    name = same_name(name_given, names)
    if name is None:
        hint = ". Put a text in single quotes" if option == "where" else ""
        raise OptionError(
            f"option {option!r} names column {name_given!r}, which is not there; columns: {', '.join(names)}{hint}",
            option=option,
            got=name_given,
            takes=", ".join(names),
        )
    return name


def pick_columns(
    columns: Sequence[_Column], names: Sequence[str] | None, same_name: SameName
) -> tuple[_Column, ...]:
    """The columns that option `columns` names, in its order; all of them without it.

    Raises:
        OptionError: a column that is not there.
    """
    if names is None:
        return tuple(columns)
    by_name = {column.name: column for column in columns}
    return tuple(by_name[known_name(name, list(by_name), same_name, "columns")] for name in names)


def custom_kinds(
    text: str | None, names: Sequence[str], same_name: SameName
) -> dict[str, pa.DataType]:
    """The types that option `customSchema` chooses, by column.

    Raises:
        OptionError: a column that does not exist, or text that is not a schema.
    """
    kinds = {} if text is None else arrow_columns(text, "customSchema")
    return {
        known_name(name, names, same_name, "customSchema"): kind for name, kind in kinds.items()
    }


def missing_table(
    dbtable: str, names: Sequence[str], location: object, *, may_hide: bool = False, lacks: str = ""
) -> SourceError:
    """The error for a table that does not exist, with the names of some that do, without those of this project.

    `may_hide`: the table may be there, where the login has no right on it; `lacks`: how it gets one.
    """
    ellipsis = ", ..." if len(names) > _SHOWN else ""
    theirs = [name for name in names if not name.rpartition(".")[2].startswith("spark_channel_")]
    names_shown = ", ".join(theirs[:_SHOWN]) + ellipsis if theirs else "none"
    hidden = f", or this user may not see it{f' ({lacks})' if lacks else ''}" if may_hide else ""
    return of_input(
        SourceError(
            f"table {dbtable!r} does not exist in {location}{hidden}; its tables: {names_shown}"
        )
    )


def only_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is meant: the exact one, else the only one that differs in case."""
    if name in names:
        return name
    near = [candidate for candidate in names if candidate.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def parsed_name(text: str, dialect: str) -> "exp.Table | None":
    """`schema.name` as the database's SQL reads it; None for a text that it cannot read as a name."""
    try:
        tree = exp.to_table(text, dialect=dialect or None)
    except Exception:  # sqlglot raises several kinds
        return None
    return (
        tree
        if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias
        else None
    )


def is_plain_name(text: str) -> bool:
    """Whether every database reads `text` as one name without a schema, which needs no parser."""
    return _PLAIN_NAME.fullmatch(text) is not None


def quoted_parts(text: str, dialect: str) -> tuple[str | None, str] | None:
    """(schema, table) of a name in quotes, as this project writes those of tables that it has found.

    None for any other text, which needs a parser: that takes longer than some statements.
    """
    quoted = _QUOTED_NAMES.get(dialect)
    match = quoted.fullmatch(text) if quoted else None
    return None if match is None else (match[1], match[2])


def name_readings(text: str, dialect: str, schema: str) -> list[tuple[str, str]]:
    """(schema, name) that `dbtable` may mean: the whole text as a name first, then `schema.name`.

    `schema` is where names without one are looked up.
    """
    if is_plain_name(text):
        return [(schema, text)]
    quoted = quoted_parts(text, dialect)
    if quoted is not None:
        return [(schema, text), (quoted[0] or schema, quoted[1])]
    tree = parsed_name(text, dialect)
    return [(schema, text)] if tree is None else [(schema, text), (tree.db or schema, tree.name)]
