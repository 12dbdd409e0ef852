"""Replication slots, and the WAL that each makes the server keep."""

from spark_channel.connectors.base.feed import RetainedLog
from spark_channel.connectors.postgresql.session import PgSession, literal_sql

__all__ = ["kept_bytes", "retained_logs"]


_SLOTS = """
SELECT slot_name::text, active, pg_wal_lsn_diff(
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots WHERE {where} ORDER BY slot_name
"""


def retained_logs(session: PgSession) -> list[RetainedLog]:
    """The logical slots of the session's database that decode with pgoutput."""
    where = "database = current_database() AND plugin = 'pgoutput' AND NOT temporary"
    return [
        RetainedLog(name, active, nbytes)
        for name, active, nbytes in session.rows(_SLOTS.format(where=where))
    ]


def kept_bytes(session: PgSession, slot: str) -> int | None:
    """The WAL that one slot makes the server keep; None = there is none, or it is not known."""
    rows = session.rows(_SLOTS.format(where=f"slot_name = {literal_sql(slot)}"))
    return None if not rows or rows[0][2] is None else max(0, int(rows[0][2]))


def restart_lsn(session: PgSession, slot: str) -> str | None:
    """Where the WAL begins that a slot makes the server keep."""
    lsn = session.value(
        f"SELECT restart_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = {literal_sql(slot)}"  # noqa: S608 - quoted
    )
    return None if lsn is None else str(lsn)
