"""Inserts staged rows into the table, inside the caller's transaction."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.sqlite.database import SqliteSession
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.skips import has_triggers, insert_words
from spark_channel.connectors.sql.sqlite.target import SqliteWriteDialect
from spark_channel.connectors.sql.target import TargetTable

__all__ = ["bring", "goes_through_stage", "insert_files", "insert_one", "make_stage"]

_STAGE = "temp.spark_channel_stage"


def insert_one(session: SqliteSession, target: TargetTable, stage: str | None) -> str:
    """INSERT of one row of parameters into `stage`, as SQL, or into the table itself."""
    listed = ", ".join(map(SqliteWriteDialect().quoted, target.staged_names))
    marks = ", ".join("?" * len(target.staged_names))
    insert = insert_words(session.rows, target.name) if stage is None else "INSERT"
    return f"{insert} INTO {stage or target.sql} ({listed}) VALUES ({marks})"


def insert_files(
    session: SqliteSession, target: TargetTable, options: SqliteWriteOptions, files: Iterable[Path]
) -> int:
    """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

    Raises:
        TargetError: SQLite refused a row, or two rows have one key.
    """
    stage = make_stage(session, target) if goes_through_stage(session, target, options) else None
    sql = insert_one(session, target, stage)
    rows = 0
    for path in files:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            rows += table.num_rows
            for start in range(0, table.num_rows, options.batch_size):
                session.insert(sql, table.slice(start, options.batch_size))
            del table
    if stage is not None:
        bring(session, target, options, stage, rows)
        session.rows(f"DROP TABLE {stage}")
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


def goes_through_stage(session: SqliteSession, target: TargetTable, options: SqliteWriteOptions) -> bool:
    """Whether rows are staged before the table sees them: to compare keys, or since the table may skip rows.

    SQLite counts what one statement stores, and not what its parameters store one after the other.
    """
    return options.write_mode != "insert" or has_triggers(session.rows, target.name)


def bring(
    session: SqliteSession, target: TargetTable, options: SqliteWriteOptions, stage: str, rows: int
) -> None:
    """Bring the `rows` of `stage` (SQL) into the table.

    Raises:
        TargetError: SQLite refused a row or the table skipped one, a key holds NULL, two rows have one key, or `_op`
            says nothing known.
    """
    if options.write_mode != "insert":
        _SqliteMerge(session, target, stage, options.write_mode).bring()
        return
    names = ", ".join(map(SqliteWriteDialect().quoted, target.names))
    insert = insert_words(session.rows, target.name)
    session.rows(f"{insert} INTO {target.sql} ({names}) SELECT {names} FROM {stage} ORDER BY rowid")  # noqa: S608
    hold_stored(target.label, rows, int(session.value("SELECT changes()")))


class _SqliteMerge(Merge):
    def __init__(self, session: SqliteSession, target: TargetTable, rows: str, mode: str) -> None:
        super().__init__(session.rows, SqliteWriteDialect(), target, rows, mode)
        self.insert = insert_words(session.rows, target.name)

    def _affected(self, statement: str) -> int:
        self._run(statement)
        return int(self._run("SELECT changes()")[0][0])
