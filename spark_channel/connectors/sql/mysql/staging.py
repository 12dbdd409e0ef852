"""Staging tables without keys, beside the target."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from spark_channel.clock import utc_now
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.mysql.session import code_of, quoted
from spark_channel.connectors.sql.mysql.target import MysqlWriteDialect
from spark_channel.connectors.sql.mysql.write_session import MysqlWriteSession
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.connectors.sql.writer import SqlPlan
from spark_channel.errors import TargetError

__all__ = ["create_stage", "drop_tables", "new_stage", "stage_names", "table_in"]

_DROP_SECONDS = 2
"""How long a drop waits for those who use the table."""
_LOCK_TIMEOUT = 1205


def create_stage(
    session: MysqlWriteSession,
    name: str,
    columns: tuple[WriteColumn, ...],
    *,
    temporary: bool,
    key: tuple[str, ...] = (),
) -> None:
    """A table of `columns`, each of which may be NULL, and `PLACE`; indexed by `key`. `name` is SQL."""
    define = MysqlWriteDialect().definition
    lines = [
        f"{PLACE} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        *(define(replace(column.column, not_null=False)) for column in columns),
    ]
    if key:
        lines.append(f"KEY ({', '.join(map(quoted, key))})")
    word = "TEMPORARY " if temporary else ""
    comment = "" if temporary else f" COMMENT='spark-channel, {utc_now():%Y-%m-%dT%H:%M:%SZ}'"
    session.rows(f"CREATE {word}TABLE {name} ({', '.join(lines)}) ENGINE=InnoDB{comment}")


def new_stage(plan: SqlPlan, task: int, attempt: int) -> str:
    return f"{plan.stage}{task}_{attempt}_{secrets.token_hex(2)}"


def table_in(database: str, table: str) -> str:
    return f"{quoted(database)}.{quoted(table)}"


def stage_names(session: MysqlWriteSession, database: str, beginning: str) -> list[str]:
    like = beginning.replace("_", "\\_") + "%"
    rows = session.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
        (database, like),
    )
    return [str(name) for (name,) in rows]


def drop_tables(session: MysqlWriteSession, tables: Sequence[str]) -> list[str]:
    """Drop `tables` (SQL). Returns those that a transaction uses, so that they stay for now."""
    left = []
    session.rows(f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}")
    try:
        for table in tables:
            try:
                session.rows(f"DROP TABLE IF EXISTS {table}")
            except TargetError as error:
                if code_of(error) != _LOCK_TIMEOUT:
                    raise
                left.append(table)
    finally:
        session.rows("SET SESSION lock_wait_timeout = DEFAULT")
    return left
