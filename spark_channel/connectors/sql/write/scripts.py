"""`preSql` and `postSql` in the transaction of a write, and what they must not miss."""

from collections.abc import Sequence

from spark_channel.connectors.sql.session import S, run_in_transaction
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sessions import WriteSessions

__all__ = ["hold_appends", "run_script"]


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
