"""Transactions that run, as other sessions can see them."""

from collections.abc import Collection

from spark_channel.connectors.sql.postgresql.session import PgSession

__all__ = ["oldest_of"]

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
    """The oldest of these transactions in words, with what ends it; empty when none of them runs any more."""
    if not transactions:
        return ""
    numbers = ", ".join(str(each & _WIDTH) for each in transactions)
    found = session.rows(_RUNNING.format(numbers=numbers))
    if not found:
        return ""
    number, pid, gid, user, application, state, seconds = found[0]
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
    others = f", and for {len(found) - 1} younger ones" if len(found) > 1 else ""
    return f"transaction {number} {who}{described}{age}{others}. {ends}"
