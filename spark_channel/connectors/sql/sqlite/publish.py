"""Puts staged rows into the table, inside a transaction that the caller has begun."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.merge import make_stage, merge
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.script import statements_of
from spark_channel.connectors.sql.sqlite.tables import find_table
from spark_channel.connectors.sql.sqlite.target import Target, declared_columns
from spark_channel.errors import TargetError

__all__ = ["insert_files", "make_ready", "run_script", "transaction"]


@contextmanager
def transaction(session: Session) -> Iterator[None]:
    """A write transaction: the lock is taken first, so that it never fails half way for want of it."""
    session.rows("BEGIN IMMEDIATE")
    try:
        yield
        session.rows("COMMIT")
    except BaseException:
        try:
            session.rows("ROLLBACK")
        except TargetError:
            pass  # SQLite has rolled back itself, as it does when the disk is full
        raise


def run_script(session: Session, texts: Iterable[str], option: str) -> None:
    for statement in statements_of(texts, option):
        session.rows(statement)


def make_ready(session: Session, target: Target, options: SqliteWriteOptions, *, overwrite: bool) -> None:
    """Create the table, or empty it, or hold it to be as the plan found it.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    table = find_table(session, target.name)
    if table is not None and overwrite and not options.truncate:
        session.rows(statements.on_table("DROP TABLE t", "sqlite", target.source))
        table = None
    if table is None:
        if target.create is None:
            raise TargetError(
                f"table {target.name!r} in {session.path} was dropped while its rows were written"
            )
        session.rows(target.create)
        return
    if declared_columns(table) != target.declared:
        raise TargetError(
            f"table {target.name!r} in {session.path} was created or altered while its rows were written: "
            f"it has {_listed(declared_columns(table))}, and the plan has {_listed(target.declared)}"
        )
    if overwrite:
        session.rows(statements.on_table("DELETE FROM t", "sqlite", target.source))


def insert_files(session: Session, target: Target, options: SqliteWriteOptions, files: Iterable[Path]) -> int:
    """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

    Raises:
        TargetError: SQLite refused a row, or two rows have one key.
    """
    keyed = options.write_mode != "insert"
    into = make_stage(session, target) if keyed else target.source
    sql = statements.insert(into, target.staged, "sqlite")
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
        session.rows(statements.on_table("DROP TABLE t", "sqlite", into))
    return rows


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {declared}".strip() for name, declared in columns)
