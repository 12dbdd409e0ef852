"""Inserts staged rows into the table, inside the caller's transaction."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.sqlite.database import SqliteSession
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.target import SqliteWriteDialect
from spark_channel.connectors.sql.target import TargetTable

__all__ = ["insert_files", "insert_one", "make_stage", "merge"]

_STAGE = "temp.spark_channel_stage"


def insert_one(table: str, names: Sequence[str]) -> str:
    """INSERT of one row of parameters into `table`, as SQL."""
    listed = ", ".join(map(SqliteWriteDialect().quoted, names))
    return f"INSERT INTO {table} ({listed}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - quoted names


def insert_files(
    session: SqliteSession, target: TargetTable, options: SqliteWriteOptions, files: Iterable[Path]
) -> int:
    """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

    Raises:
        TargetError: SQLite refused a row, or two rows have one key.
    """
    keyed = options.write_mode != "insert"
    into = make_stage(session, target) if keyed else target.sql
    sql = insert_one(into, target.staged_names)
    rows = 0
    for path in files:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            rows += table.num_rows
            for start in range(0, table.num_rows, options.batch_size):
                session.insert(sql, table.slice(start, options.batch_size))
            del table
    if keyed:
        merge(session, target, options, into)
        session.rows(f"DROP TABLE {into}")
    return rows


def make_stage(session: SqliteSession, target: TargetTable) -> str:
    """A temporary table with the same columns, as SQL: keys are compared in it before the table sees them."""
    columns = [Column(column.target, column.declared) for column in target.columns]
    key: tuple[str, ...] = ()
    if target.operation is not None:
        columns += [Column(OPERATION, "TEXT"), Column(PLACE, "INTEGER")]
        key = (PLACE,)
    session.rows(SqliteWriteDialect().created(_STAGE, columns, key))
    return _STAGE


def merge(session: SqliteSession, target: TargetTable, options: SqliteWriteOptions, stage: str) -> None:
    """Bring the rows of `stage` (SQL) into the table.

    Raises:
        TargetError: SQLite refused a row, a key holds NULL, two rows have one key, or `_op` says nothing known.
    """
    Merge(session.rows, SqliteWriteDialect(), target, stage, options.write_mode).bring()
