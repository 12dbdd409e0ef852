"""`preSql` and `postSql`: in the transaction of a write, and where their DDL commits, as the commit mode allows it."""

from collections.abc import Sequence

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.sql.session import S, run_in_transaction
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sessions import WriteSessions
from spark_channel.options import CommitMode
from spark_channel.plain_text import log_of

__all__ = ["default_commit", "hold_appends", "run_script"]

_log = log_of(__name__)


def default_commit(database: WriteSessions[S], context: WriteContext) -> CommitMode:
    """`task` where rows cannot be staged, or are judged one by one; also for an append whose scripts hold DDL that
    commits, so that nothing else is in its transaction. Else `job`.
    """
    options = database.options
    if not database.traits.stages:
        return "task"
    if context.stream is not None:
        return "job"
    scripts = {"preSql": options.pre_sql, "postSql": options.post_sql}
    commits = (name for name, texts in scripts.items() if database.dialect.commits(texts, name))
    script = None if context.overwrite else next(commits, None)
    if script is None:
        return "task" if options.tolerates_dirty_rows else "job"
    _log.warning(
        "job %s: option %r holds a statement that commits in %s, so each task's rows stay when the job fails "
        "(commit=task). For all rows or none, write it without DDL: DELETE instead of TRUNCATE",
        context.job,
        script,
        database.dialect.product,
    )
    return "task"


def hold_appends(database: WriteSessions[S], plan: SqlPlan, claims: Claims) -> None:
    """Wait for appends in one pass: a DELETE waits for the first row of one, and then misses those before it."""
    options = database.options
    if database.traits.holds_appends and (
        options.pre_sql or options.post_sql or options.write_mode == "apply"
    ):
        claims.hold_table(plan.claim)


def run_script(
    database: WriteSessions[S],
    session: S,
    texts: Sequence[str],
    option: str,
    *,
    written: bool = False,
) -> None:
    """Run what the user gave as `preSql` or `postSql`, inside the transaction; see `run_in_transaction`.

    DDL that commits ran before the transaction if it is in `preSql`, and finds it complete in `postSql`.
    """
    dialect = database.dialect
    commits = dialect.commits(texts, option)
    if commits and not written:
        return
    statements = dialect.script(texts, option)
    if dialect.has_savepoints and not commits:
        run_in_transaction(session, statements, option, written=written)
        return
    for statement in statements:
        session.execute(statement)
