"""Tables that may skip rows of an ingest: drivers report how many rows they sent, and not how many were stored."""

from spark_channel.connectors.adbc.dialect import AdbcDialect
from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.publish import Merge
from spark_channel.connectors.sql.sqlite_conflicts import has_triggers, insert_words

__all__ = ["AdbcMerge", "may_skip"]

_POSTGRES = """
WITH RECURSIVE family (oid) AS (
  SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1)
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT 1 FROM family f JOIN pg_catalog.pg_trigger g ON g.tgrelid = f.oid
WHERE NOT g.tgisinternal AND g.tgtype::int & 66 <> 0 LIMIT 1
"""
"""Triggers BEFORE a statement or INSTEAD OF one, also of partitions."""


def may_skip(session: AdbcSession, target: TargetTable, sql: str) -> bool:
    """Whether rows for the table are staged, and inserted by a statement whose rows the database counts."""
    if sql == "postgres":
        return bool(session.rows(_POSTGRES, (target.sql,)))
    if sql == "sqlite":
        return (
            has_triggers(session.rows, target.name) or insert_into(session, target, sql) != "INSERT"
        )
    return False


def insert_into(session: AdbcSession, target: TargetTable, sql: str) -> str:
    """How an INSERT into the table begins."""
    return insert_words(session.rows, target.name) if sql == "sqlite" else "INSERT"


class AdbcMerge(Merge):
    """By ON CONFLICT."""

    order = ""

    def __init__(
        self,
        session: AdbcSession,
        dialect: AdbcDialect,
        target: TargetTable,
        rows: str,
        mode: str,
        count: int = 0,
    ) -> None:
        super().__init__(session, dialect, target, rows, mode, count)
        self.insert = insert_into(session, target, dialect.sql)

    def _affected(self, statement: str) -> int | None:
        count: int = self._session.affected(statement)
        if self._dialect.sql == "sqlite":
            count = int(self._session.value("SELECT changes()"))
        return None if count < 0 else count
