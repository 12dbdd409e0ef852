"""Staging tables without keys, beside the target."""

from collections.abc import Sequence
from dataclasses import replace

from spark_channel.clock import utc_now
from spark_channel.connectors.mysql.session import (
    MysqlWriteSession,
    code_of,
    quoted,
)
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.sql.catalog import TargetTable, WriteColumn
from spark_channel.connectors.sql.write.merge import PLACE
from spark_channel.errors import ChannelError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "create_stage",
    "drop_if_empty",
    "drop_tables",
    "stage_names",
    "table_in",
]

DROP_SECONDS = 2
"""How long a drop waits for those who use the table."""
_LOCK_TIMEOUT = 1205
_log = log_of(__name__)
_EMPTY_SECONDS = 2


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
    session.execute(f"CREATE {word}TABLE {name} ({', '.join(lines)}) ENGINE=InnoDB{comment}")


def table_in(database: str, table: str) -> str:
    return f"{quoted(database)}.{quoted(table)}"


def stage_names(session: MysqlWriteSession, database: str, beginning: str) -> list[str]:
    """MySQL looks at these alone where the catalog is named, and at all tables of the database otherwise."""
    like = beginning.replace("_", "\\_") + "%"
    rows = session.rows(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_catalog = 'def' AND table_schema = %s AND table_name LIKE %s",
        (database, like),
    )
    return [str(name) for (name,) in rows]


def drop_tables(session: MysqlWriteSession, tables: Sequence[str]) -> list[str]:
    """Drop `tables` (SQL). Returns those that a transaction uses, so that they stay for now."""
    busy = []
    session.execute(f"SET SESSION lock_wait_timeout = {DROP_SECONDS}")
    try:
        for table in tables:
            try:
                session.execute(f"DROP TABLE IF EXISTS {table}")
            except TargetError as error:
                if code_of(error) != _LOCK_TIMEOUT:
                    raise
                busy.append(table)
    finally:
        session.execute("SET SESSION lock_wait_timeout = DEFAULT")
    return busy


def drop_if_empty(session: MysqlWriteSession, target: TargetTable) -> None:
    """Drop a table that was made for a publish which failed, unless another job has put rows into it. Commits.

    It is locked meanwhile. A table that cannot be locked soon, or by this role, stays, empty.
    """
    try:
        session.execute(f"SET SESSION lock_wait_timeout = {_EMPTY_SECONDS}")
        session.execute(f"LOCK TABLES {target.sql} WRITE")
        try:
            if not session.rows(f"SELECT 1 FROM {target.sql} LIMIT 1"):  # noqa: S608 - a quoted name
                drop_tables(session, [target.sql])
        finally:
            session.execute("UNLOCK TABLES")
    except ChannelError as error:
        _log.warning(
            "table %s, which was made for rows that were not published, stays: %s",
            target.label,
            error,
        )
