"""Transactions that run, as other sessions can see them."""

from collections.abc import Collection

from spark_channel.connectors.postgresql.session import PgSession
from spark_channel.connectors.sql.statements import quoted_name

__all__ = ["oldest_of", "table_sql"]


_RUNNING = """
SELECT l.transactionid::text::bigint, l.pid::bigint, p.gid::text, a.usename::text, a.application_name::text,
  a.state::text, extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::bigint
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
  AND l.transactionid::text::bigint IN ({numbers})
ORDER BY coalesce(a.xact_start, p.prepared) NULLS LAST, 1
"""
"""Locks are shown to every role; of a session of another role, its pid alone, without pg_read_all_stats."""
_WIDTH = 0xFFFFFFFF
"""A lock has a transaction's number without its epoch."""


def oldest_of(session: PgSession, transactions: Collection[int]) -> str:
    """Describe the oldest of these transactions, with the statement that ends it; "" when all of them have ended."""
    if not transactions:
        return ""
    numbers = ", ".join(str(transaction & _WIDTH) for transaction in transactions)
    rows_found = session.rows(_RUNNING.format(numbers=numbers))
    if not rows_found:
        return ""
    number, pid, gid, user, application, state, seconds = rows_found[0]
    about = [f"user {user}"] if user else []
    about += [f"application {application!r}"] if application else []
    about += [str(state)] if state else []
    who, ends = (
        (f"prepared as {gid!r}", f"ROLLBACK PREPARED '{gid}' or COMMIT PREPARED '{gid}' ends it")
        if pid is None
        else (f"of pid {pid}", f"SELECT pg_terminate_backend({pid}) ends it")
    )
    described = f" ({', '.join(about)})" if about else ""
    age = "" if seconds is None else f", which has been open for {seconds} s"
    others = f", and for {len(rows_found) - 1} younger ones" if len(rows_found) > 1 else ""
    return f"transaction {number} {who}{described}{age}{others}. {ends}"


def table_sql(schema: str, name: str) -> str:
    """`schema.name`, quoted."""
    return f"{quoted_name(schema)}.{quoted_name(name)}"
