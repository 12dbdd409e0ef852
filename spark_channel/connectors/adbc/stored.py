"""Tables that may skip rows of an ingest: drivers report how many rows they sent, and not how many were stored."""

from spark_channel.connectors.adbc.dialect import AdbcDialect
from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.publish import Merge
from spark_channel.connectors.sql.sqlite_conflicts import has_triggers, insert_words

__all__ = ["AdbcMerge", "affected", "insert_into", "may_skip"]

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


def affected(session: AdbcSession, statement: str, sql: str) -> int | None:
    """Run an INSERT: the rows that it stored, None if the driver does not report them."""
    count = session.affected(statement)
    if sql == "sqlite":
        count = int(session.value("SELECT changes()"))
    return None if count < 0 else count


class AdbcMerge(Merge):
    """By ON CONFLICT."""

    def __init__(
        self, session: AdbcSession, dialect: AdbcDialect, target: TargetTable, rows: str, mode: str
    ) -> None:
        super().__init__(session.rows, dialect, target, rows, mode)
        self._session, self._sql = session, dialect.sql
        self.insert = insert_into(session, target, dialect.sql)

    def _affected(self, statement: str) -> int | None:
        return affected(self._session, statement, self._sql)
