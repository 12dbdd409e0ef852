"""Rights that a read or a write needs and its login lacks, as the statements that grant them. Changes nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_channel.connectors.sql.session import S
from spark_channel.errors import TargetError
from spark_channel.final_errors import of_input

if TYPE_CHECKING:
    from spark_channel.connectors.sql.write.protocol import WriteTarget
    from spark_channel.connectors.sql.write.writer import SqlWriter

__all__ = [
    "OF_MODES",
    "OWNER",
    "MissingRights",
    "Right",
    "advice",
    "check_rights_of_table",
    "to_empty",
]

OWNER = "OWNER"
"""Stands for what only the table's owner may do."""
OF_MODES = {
    "insert": ("INSERT",),
    "skipExisting": ("SELECT", "INSERT"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "apply": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


_BEFORE_ROWS = {
    **OF_MODES,
    "skipExisting": ("INSERT",),
    "upsert": ("INSERT",),
    "apply": (),
}
"""Without those that a write may do without: SELECT, as by columns, UPDATE where all columns are the key, and what only
some changes ask for."""


class Right(NamedTuple):
    """What a statement asks for: `word` on a table, or on a schema where `name` is empty."""

    schema: str
    name: str
    word: str


class MissingRights(NamedTuple):
    """The login, and those of the rights asked for that it lacks, with the table or schema as GRANT names it."""

    role: str
    rights: Mapping[Right, str]


def check_rights_of_table(
    writer: "SqlWriter[S]", session: S, place: "WriteTarget", *, overwrite: bool
) -> None:
    """Check, before a row is read, for the rights on an existing table that a write of any rows needs.

    Raises:
        TargetError: the login lacks one; says which statement grants it.
    """
    if place.table is None or not writer.dialect.of_new_tables:
        return
    words = list(_BEFORE_ROWS[writer.options.write_mode])
    if overwrite and (emptied := to_empty(writer)) == OWNER:
        return  # the schema's owner may drop it, too, and has each right on the new one
    if overwrite:
        words.append(emptied)
    asked = [Right(place.schema, place.table.name, word) for word in words]
    said = advice(writer.dialect.lacking(session, asked), asked, "target") if asked else ""
    if said:
        raise of_input(TargetError(f"{writer.shown}: {said}"))


def to_empty(writer: "SqlWriter[S]") -> str:
    dialect, options = writer.dialect, writer.options
    keeps = options.truncate or dialect.ddl_commits
    return dialect.emptied("", options).split()[0] if keeps else OWNER


def advice(found: MissingRights, rights: Sequence[Right], end: str) -> str:
    words: dict[str, list[str]] = {}
    for each in rights:
        if each in found.rights:
            words.setdefault(found.rights[each], []).append(each.word)
    said = []
    for place, every in words.items():
        if granted := ", ".join(each for each in every if each != OWNER):
            said.append(f"GRANT {granted} ON {place} TO {found.role}")
        if OWNER in every:
            said.append(f"ALTER TABLE {place} OWNER TO {found.role}")
    return f"the {end}'s role {found.role} lacks rights: run {'; '.join(said)}" if said else ""
