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


def advice(missing: MissingRights, rights: Sequence[Right], end: str) -> str:
    words: dict[str, list[str]] = {}
    for right in rights:
        if right in missing.rights:
            words.setdefault(missing.rights[right], []).append(right.word)
    statements = []
    for table_sql, every in words.items():
        if granted := ", ".join(word for word in every if word != OWNER):
            statements.append(f"GRANT {granted} ON {table_sql} TO {missing.role}")
        if OWNER in every:
            statements.append(f"ALTER TABLE {table_sql} OWNER TO {missing.role}")
    return (
        f"the {end}'s role {missing.role} lacks rights: run {'; '.join(statements)}"
        if statements
        else ""
    )
