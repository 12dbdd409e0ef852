"""Rights that a write needs and its login lacks, as the statements that grant them."""

from spark_channel.connectors.sql.catalog.rights import OWNER, Right, advice
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import CLAIMS
from spark_channel.connectors.sql.write.database import WriteDatabase, placed
from spark_channel.connectors.sql.write.in_session import in_session
from spark_channel.connectors.sql.write.plan import WriteTarget
from spark_channel.errors import TargetError
from spark_channel.final_errors import of_input

__all__ = ["check_rights", "check_rights_of_table", "lacking_to_stage", "lacking_to_write"]

_OF_MODES = {
    "insert": ("INSERT",),
    "skipExisting": ("SELECT", "INSERT"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "apply": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


def lacking_to_write(
    database: WriteDatabase[S], *, overwrite: bool, stages: bool = True, alters: bool = False
) -> str:
    """What to do for the rights that the writer's login lacks; "" = it has them. `stages`: it makes staging tables.

    Raises:
        TargetError: the database does not answer.
    """

    def ask(session: S) -> str:
        place = placed(database, session)
        return _to_write(
            database, session, place, overwrite=overwrite, stages=stages, alters=alters
        )

    return in_session(database, TargetError, "look", ask, begins=True)


def lacking_to_stage(dialect: WriteDialect, session: S, place: WriteTarget) -> str:
    """What to do for the rights that the session's login lacks to make staging tables; "" = it has them."""
    rights = [Right(place.staging, "", word) for word in dialect.of_new_tables]
    return advice(dialect.lacking(session, rights), rights, "target") if rights else ""


def check_rights(
    database: WriteDatabase[S],
    session: S,
    place: WriteTarget,
    *,
    overwrite: bool,
    stages: bool,
    alters: bool,
) -> None:
    """Check that the session's login has what a write into `place` needs; `stages`: it makes staging tables.

    Raises:
        TargetError: it lacks a right; says which statement grants it.
    """
    if lack := _to_write(
        database, session, place, overwrite=overwrite, stages=stages, alters=alters
    ):
        raise of_input(TargetError(f"{database.shown}: {lack}"))


def check_rights_of_table(
    database: WriteDatabase[S], session: S, place: WriteTarget, *, overwrite: bool
) -> None:
    """Check, before a row is read, for the rights on an existing table that a write of any rows needs.

    Raises:
        TargetError: the login lacks one; says which statement grants it.
    """
    if place.table is None or not database.dialect.of_new_tables:
        return
    # SELECT, UPDATE and DELETE are asked for by some rows alone, and INSERT not by each set of changes.
    words = [] if database.options.write_mode == "apply" else ["INSERT"]
    if overwrite and (emptied := _to_empty(database)) == OWNER:
        return  # the schema's owner may drop it, too, and has each right on the new one
    if overwrite:
        words.append(emptied)
    rights = [Right(place.schema, place.table.name, word) for word in words]
    lack = advice(database.dialect.lacking(session, rights), rights, "target") if rights else ""
    if lack:
        raise of_input(TargetError(f"{database.shown}: {lack}"))


def _to_write(
    database: WriteDatabase[S],
    session: S,
    place: WriteTarget,
    *,
    overwrite: bool,
    stages: bool,
    alters: bool,
) -> str:
    dialect, options = database.dialect, database.options
    if not dialect.of_new_tables:
        return ""
    makes, words = [], list(_OF_MODES[options.write_mode])
    if place.table is None:
        makes.append(place.schema)
    elif overwrite:
        words.append(_to_empty(database))
    if alters:
        words.append(dialect.to_alter)
    if getattr(options, "ledger", "") == "required":
        if stages:
            makes.append(place.staging)
        if not database.claim_dialect(session, place).exists(CLAIMS):
            makes.append(place.schema if place.ledger is None else place.ledger.schema)
    rights = [Right(schema, "", word) for schema in makes for word in dialect.of_new_tables]
    if place.table is not None:
        rights += [Right(place.schema, "", "USAGE")]
        rights += [Right(place.schema, place.table.name, word) for word in words]
    needed = list(dict.fromkeys(rights))
    return advice(dialect.lacking(session, needed), needed, "target")


def _to_empty(database: WriteDatabase[S]) -> str:
    dialect, options = database.dialect, database.options
    keeps = options.truncate or dialect.ddl_commits
    return dialect.emptied("", options).split()[0] if keeps else OWNER
