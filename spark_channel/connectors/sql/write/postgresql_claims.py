"""Claims in PostgreSQL: the statements, and which tables are trusted."""

from collections.abc import Callable
from typing import Any

from spark_channel.connectors.sql.postgresql_family import escaped_text
from spark_channel.connectors.sql.statements import quoted_name
from spark_channel.connectors.sql.write.claim_tables import (
    CLAIMS,
    PLANS,
    PUBLISHED,
    TASKS,
    ClaimDialect,
    Ledger,
)

__all__ = ["END_WHEN_SILENT", "claim_dialect"]

END_WHEN_SILENT = "SET LOCAL idle_in_transaction_session_timeout = '30s'"
"""The server ends a transaction whose client then says nothing, as a process that is paused, and so frees its locks."""

_ASKED = ""
_OWN = """
WITH RECURSIVE mine (oid) AS (
  SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
  UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN mine ON m.member = mine.oid)
SELECT c.relname::text, CASE
  WHEN c.relkind <> 'r' OR c.relpersistence <> 'p' THEN 'it is not an ordinary table'
  WHEN c.relowner NOT IN (SELECT oid FROM mine)
    THEN 'role "' || pg_catalog.pg_get_userbyid(c.relowner) || '" owns it, and this session''s role is "'
      || current_user || '"'
  WHEN c.relhasrules THEN 'it has a rule'
  WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid) THEN 'it has a trigger'
  WHEN c.relrowsecurity OR EXISTS (SELECT 1 FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid)
    THEN 'it has row security'
  WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent))
    THEN 'it inherits from a table, or a table inherits from it'
  ELSE '' END::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.relname IN ({names})
"""


def claim_dialect(
    rows: Callable[[str], list[tuple[Any, ...]]],
    schema: str,
    mark: Callable[[int], str] = lambda _number: "?",
    ledger: Ledger | None = None,
    *,
    takes_scripts: bool = False,
    known: dict[str, str] | None = None,
    makes_none: bool = False,
) -> ClaimDialect:
    """For one session, whose statements `rows` runs. Tables that are there are asked for once.

    `known`: those of this `ledger` that the session has asked for, with why they must not be used. `makes_none`: one
    that was not there is not asked for again.
    """
    known = {} if known is None else known
    claims_ledger = ledger or Ledger(schema, schema)
    schema = claims_ledger.schema
    names = ", ".join(
        escaped_text(claims_ledger.name(standard)) for standard in (CLAIMS, TASKS, PLANS, PUBLISHED)
    )

    def table(name: str) -> str:
        return f"{quoted_name(schema)}.{quoted_name(claims_ledger.name(name))}"

    def exists(name: str) -> bool:
        name = claims_ledger.name(name)
        if name not in known and not (makes_none and _ASKED in known):
            if makes_none:
                known[_ASKED] = ""
            known.update(
                (str(table_name), str(fault))
                for table_name, fault in rows(_OWN.format(schema=escaped_text(schema), names=names))
            )
        return name in known

    def take_turns(name: str) -> tuple[str]:
        """Two sessions that make one table at the same time would fail with a duplicate in the catalog."""
        return (
            f"SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({escaped_text(table(name))}, 0))",
        )

    return ClaimDialect(
        table=table,
        exists=exists,
        mark=mark,
        before=take_turns,
        share="FOR SHARE",
        update="FOR UPDATE",
        end_when_silent=END_WHEN_SILENT,
        takes_scripts=takes_scripts,
        distrust=lambda name: known.get(claims_ledger.name(name)) or None,
        stage=claims_ledger.stage,
        index=f"CREATE INDEX {quoted_name(claims_ledger.name(PUBLISHED))} ON {table(CLAIMS)} (kind, published_at)",
        hurry="SET LOCAL lock_timeout = '2s'",
    )
