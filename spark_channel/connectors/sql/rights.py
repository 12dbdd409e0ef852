"""Rights that a read or a write needs and its login lacks, as the statements that grant them. Changes nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["OWNER", "MissingRights", "Right", "advice"]

OWNER = "OWNER"
"""Stands for what only the table's owner may do."""


class Right(NamedTuple):
    """What a statement asks for: `word` on a table, or on a schema where `name` is empty.

    `whole`: on the table itself, so that a right on some of its columns is not enough.
    """

    schema: str
    name: str
    word: str
    whole: bool = False


class MissingRights(NamedTuple):
    """The login, and those of the rights asked for that it lacks, with the table or schema as GRANT names it."""

    role: str
    rights: Mapping[Right, str]


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
