"""The rights that a login needs to follow the log, and what the server keeps for it."""

from spark_channel.connectors.base.feed import LogFacts
from spark_channel.connectors.postgresql.log.slot import lacks_slots
from spark_channel.connectors.postgresql.log.table_list import quoted
from spark_channel.connectors.postgresql.session import PgSession

__all__ = ["log_facts"]


_FACTS = """
SELECT current_setting('max_slot_wal_keep_size', true), quote_ident(current_user),
  (SELECT rolsuper OR rolreplication FROM pg_catalog.pg_roles WHERE rolname = current_user)
    OR EXISTS (SELECT FROM pg_catalog.pg_roles r
               WHERE r.rolname = 'rds_replication' AND pg_has_role(current_user, r.oid, 'MEMBER')),
  EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}),
  (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int, current_setting('max_replication_slots')::int,
  current_setting('idle_replication_slot_timeout', true), current_setting('wal_level')
"""
_RATE = """
SELECT (wal_bytes / greatest(extract(epoch FROM now() - stats_reset), 1))::float8 FROM pg_catalog.pg_stat_wal
"""
_RATES_SINCE = 140_000


def log_facts(session: PgSession, slot: str) -> LogFacts:
    most, role, may_use_slots, is_there, used, slots, idle, level = session.rows(
        _FACTS.format(slot=quoted(slot))
    )[0]
    missing = []
    if level != "logical":
        missing.append(
            f"wal_level is {level}: run ALTER SYSTEM SET wal_level = logical, and restart the server"
        )
    if not may_use_slots:
        missing.append(lacks_slots(role))
    if not is_there and int(used) >= int(slots):
        missing.append(
            f"all {slots} replication slots are used: drop one that no client reads, or raise max_replication_slots, "
            "which takes a restart"
        )
    bound = (
        "without a bound (max_slot_wal_keep_size = -1)"
        if str(most) in ("-1", "None")
        else f"at most {most} (max_slot_wal_keep_size), after which the slot is lost and all rows are read again"
    )
    if idle not in (None, "0"):  # since PostgreSQL 18
        bound += f", and at most {idle} without a reader (idle_replication_slot_timeout), after which it is lost, too"
    rate = session.value(_RATE) if session.version >= _RATES_SINCE else None
    state = "keeps" if is_there else "will be made, and keeps"
    return LogFacts(
        tuple(missing),
        f"slot {slot} {state} the WAL that no run has read yet, also while none runs, {bound}",
        None if rate is None else float(rate),
    )
