"""Removes the staging of runs that were overtaken, have ended, or are known to be dead."""

from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.options import FileWriteOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.plain_text import log_of

__all__ = ["sweep"]

_log = log_of(__name__)


def sweep(database: WriteDatabase[S], session: S, plan: SqlPlan, claims: Claims) -> None:
    """It is in one place for all tables of a schema, so one table of a run does it for those that follow."""
    if isinstance(database.options, FileWriteOptions):
        from spark_channel.connectors.sql.write.file_database import FileDatabase

        assert isinstance(database, FileDatabase)
        database.sweep(session, plan, claims)
        return
    place = plan.place
    if not sessions.is_due(("sweep", database.shown, place.staging)):
        return
    names = database.staging_names(session, place, place.stage) if place.has_ledger else []
    if not names:
        return
    with in_transaction(database, session):
        orphans = claims.orphans(names, plan.claim)
    if orphans:  # a run that has just published removes its own
        now = database.staging_names(session, place, place.stage)
        orphans = [name for name in orphans if name in now]
    for name in orphans:
        _log.warning("removing orphaned staging %s", name)
        database.drop_staging(session, place, [name])
