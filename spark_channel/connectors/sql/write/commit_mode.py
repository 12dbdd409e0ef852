"""`commit=job` or `task`: what the user, the scripts and the role's rights leave, and what a source that is the target.

With `commit=job` the rows of a write whose source is its own target are staged; with `commit=task` it is refused.
"""

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.base.overlap import Overlap, Stored, most_overlap
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.stored_tables import stored_table
from spark_channel.connectors.sql.write.database import WriteDatabase, ledger_options
from spark_channel.connectors.sql.write.plan import WAYS, WriteTarget
from spark_channel.connectors.sql.write.rights import lacking_to_stage
from spark_channel.errors import OptionError
from spark_channel.options import CommitMode
from spark_channel.plain_text import log_of

__all__ = ["commit_mode", "stored_at"]

_log = log_of(__name__)

_SOURCES = {
    (Overlap.SURE, True): "its source is",
    (Overlap.PERHAPS, True): "its source may be",
    (Overlap.PERHAPS, False): "its source may be, since this application has planned a read of",
}


def stored_at(database: WriteDatabase[S], session: S, place: WriteTarget) -> Stored | None:
    """Where the table's rows are; None = it is not there."""
    table = place.table
    if table is None:
        return None
    is_view = getattr(table, "is_view", False)
    return stored_table(session, database.dialect, place.schema, place.name, is_view=is_view)


def commit_mode(
    database: WriteDatabase[S], session: S, place: WriteTarget, context: WriteContext
) -> tuple[CommitMode, Stored | None]:
    """The commit mode, which keeps the write's rows from its own source; and what a task must not read.

    Raises:
        OptionError: the source is the target, and the user or the role's rights leave only `task`.
    """
    commit = context.commit or _usual(database, session, place, context)
    target = None
    if commit == "task" and context.reads:
        target = stored_at(database, session, place)
    if target is None:
        return commit, None
    overlap = most_overlap(context.reads, target)
    if not context.reads_surely:
        overlap = min(overlap, Overlap.PERHAPS)
    if overlap is Overlap.NONE:
        return commit, None
    _refuse(database.options, place, context, overlap)
    return commit, target


def _usual(
    database: WriteDatabase[S], session: S, place: WriteTarget, context: WriteContext
) -> CommitMode:
    """That of a write which asks for none."""
    if not (database.traits.stages and place.has_ledger):
        return "task"
    if context.stream is not None:
        return "job"
    if not context.overwrite and _commits_in_script(database, context):
        return "task"
    options = ledger_options(database.options)
    if database.options.tolerates_dirty_rows:  # they are judged one by one
        return "task"
    if options is None or options.ledger != "optional":
        return "job"
    advice = lacking_to_stage(database.dialect, session, place)
    if not advice:
        return "job"
    _log.warning(
        "job %s: each task's rows stay in %s when the job fails (commit=task): for all rows or none, %s",
        context.job,
        place.label,
        advice,
    )
    return "task"


def _commits_in_script(database: WriteDatabase[S], context: WriteContext) -> bool:
    """Whether a script of an append holds DDL that commits, so that nothing else may be in its transaction."""
    options, dialect = database.options, database.dialect
    for option, texts in (("preSql", options.pre_sql), ("postSql", options.post_sql)):
        if dialect.commits(texts, option):
            _log.warning(
                "job %s: option %r holds a statement that commits in %s, so each task's rows stay when the job fails "
                "(commit=task). For all rows or none, write it without DDL: DELETE instead of TRUNCATE",
                context.job,
                option,
                dialect.product,
            )
            return True
    return False


def _refuse(
    options: SqlWriteOptions, place: WriteTarget, context: WriteContext, overlap: Overlap
) -> None:
    """Refuse also a source that may be the target, if the write empties it. Tasks detect only rows they add."""
    first = (
        "an overwrite with commit=task empties it"
        if context.overwrite
        else "with commit=task, 'preSql' changes it"
        if options.pre_sql
        else ""
    )
    if overlap is Overlap.PERHAPS and not first:
        return
    reason = (
        f"{first} before its rows are read"
        if first
        else "with commit=task, rows that its tasks commit would be read and written again"
    )
    advice = (
        "omit 'maxDirtyRows' and 'maxDirtyFraction', which need commit=task"
        if options.tolerates_dirty_rows
        else f"give the job what commit=job needs ({WAYS})"
        if not place.has_ledger
        else "set 'commit' to job, or omit it"
        if context.commit is not None
        else "omit what needs commit=task"
    )
    raise OptionError(
        f"{_SOURCES[overlap, context.reads_surely]} the target, table {place.label!r}: {reason}. "
        f"To write into the table that is read, {advice}; or write into another table",
        option="commit",
        got="task",
        takes="job",
    )
