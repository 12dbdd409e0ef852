"""Rights that a read or a write needs and its login lacks, as the statements that grant them. Changes nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import CLAIMS
from spark_channel.errors import TargetError
from spark_channel.final_errors import of_input

if TYPE_CHECKING:
    from spark_channel.connectors.sql.dialect import WriteDialect
    from spark_channel.connectors.sql.read.reader import SqlReader
    from spark_channel.connectors.sql.write.protocol import WriteTarget
    from spark_channel.connectors.sql.write.writer import SqlWriter

__all__ = [
    "OWNER",
    "MissingRights",
    "Right",
    "check_rights",
    "check_rights_of_table",
    "lacking_to_read",
    "lacking_to_stage",
    "lacking_to_write",
]

OWNER = "OWNER"
"""Stands for what only the table's owner may do."""
_OF_MODES = {
    "insert": ("INSERT",),
    "skipExisting": ("SELECT", "INSERT"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "apply": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


_BEFORE_ROWS = {
    **_OF_MODES,
    "skipExisting": ("INSERT",),
    "upsert": ("INSERT", "UPDATE"),
    "apply": (),
}
"""Without those that a write may do without: SELECT, as by columns, and what only some changes ask for."""


class Right(NamedTuple):
    """What a statement asks for: `word` on a table, or on a schema where `name` is empty."""

    schema: str
    name: str
    word: str


class MissingRights(NamedTuple):
    """The login, and those of the rights asked for that it lacks, with the table or schema as GRANT names it."""

    role: str
    rights: Mapping[Right, str]


def lacking_to_read(
    reader: "SqlReader", tables: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """The tables, by schema and name, that the login may not read, each with what to do; in one query.

    Raises:
        SourceError: the database does not answer.
    """
    asked = {
        (schema, name): [Right(schema, "", "USAGE"), Right(schema, name, "SELECT")]
        for schema, name in tables
    }
    if not asked or not reader.dialect.of_new_tables:
        return {}
    every = list(dict.fromkeys(right for rights in asked.values() for right in rights))
    with reader.connect("plan") as session:
        found = reader.dialect.lacking(session, every)
    said = {table: _advice(found, rights, "source") for table, rights in asked.items()}
    return {table: advice for table, advice in said.items() if advice}


def lacking_to_write(
    writer: "SqlWriter[S]", *, overwrite: bool, stages: bool = True, alters: bool = False
) -> str:
    """What to do for the rights that the writer's login lacks; "" = it has them. `stages`: it makes staging tables.

    Raises:
        TargetError: the database does not answer.
    """

    def ask(session: S) -> str:
        place = writer.placed(session)
        return _to_write(writer, session, place, overwrite=overwrite, stages=stages, alters=alters)

    return writer.run(TargetError, "look", ask, begins=True)


def lacking_to_stage(dialect: "WriteDialect", session: S, place: "WriteTarget") -> str:
    """What to do for the rights that the session's login lacks to make staging tables; "" = it has them."""
    asked = [Right(place.staging, "", word) for word in dialect.of_new_tables]
    return _advice(dialect.lacking(session, asked), asked, "target") if asked else ""


def check_rights(
    writer: "SqlWriter[S]",
    session: S,
    place: "WriteTarget",
    *,
    overwrite: bool,
    stages: bool,
    alters: bool,
) -> None:
    """Check that the session's login has what a write into `place` needs; `stages`: it makes staging tables.

    Raises:
        TargetError: it lacks a right; says which statement grants it.
    """
    if said := _to_write(writer, session, place, overwrite=overwrite, stages=stages, alters=alters):
        raise of_input(TargetError(f"{writer.shown}: {said}"))


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
    if overwrite:
        words.append(_to_empty(writer))
    asked = [Right(place.schema, place.table.name, word) for word in words]
    said = _advice(writer.dialect.lacking(session, asked), asked, "target") if asked else ""
    if said:
        raise of_input(TargetError(f"{writer.shown}: {said}"))


def _to_empty(writer: "SqlWriter[S]") -> str:
    dialect, options = writer.dialect, writer.options
    keeps = options.truncate or dialect.ddl_commits
    return dialect.emptied("", options).split()[0] if keeps else OWNER


def _to_write(
    writer: "SqlWriter[S]",
    session: S,
    place: "WriteTarget",
    *,
    overwrite: bool,
    stages: bool,
    alters: bool,
) -> str:
    dialect, options = writer.dialect, writer.options
    if not dialect.of_new_tables:
        return ""
    makes, words = [], list(_OF_MODES[options.write_mode])
    if place.table is None:
        makes.append(place.schema)
    elif overwrite:
        words.append(_to_empty(writer))
    if alters:
        words.append(dialect.to_alter)
    if getattr(options, "ledger", "") == "required":
        if stages:
            makes.append(place.staging)
        if not writer.claim_dialect(session, place).exists(CLAIMS):
            makes.append(place.schema if place.ledger is None else place.ledger.schema)
    rights = [Right(each, "", word) for each in makes for word in dialect.of_new_tables]
    if place.table is not None:
        rights += [Right(place.schema, "", "USAGE")]
        rights += [Right(place.schema, place.table.name, word) for word in words]
    asked = list(dict.fromkeys(rights))
    return _advice(dialect.lacking(session, asked), asked, "target")


def _advice(found: MissingRights, rights: Sequence[Right], end: str) -> str:
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
