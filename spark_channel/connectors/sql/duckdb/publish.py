"""Puts staged rows into the table, inside a transaction that the caller has begun."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.duckdb.database import Session
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions
from spark_channel.connectors.sql.duckdb.tables import find_table
from spark_channel.connectors.sql.duckdb.target import Target, declared_columns, is_as_planned
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.script import split_script
from spark_channel.errors import TargetError

__all__ = ["insert_files", "make_ready", "run_script", "transaction"]

_ROWS = "spark_channel_rows"
_STAGE = "spark_channel_stage"


@contextmanager
def transaction(session: Session) -> Iterator[None]:
    session.rows("BEGIN TRANSACTION")
    try:
        yield
        session.rows("COMMIT")
    except BaseException:
        try:
            session.rows("ROLLBACK")
        except TargetError:
            pass  # a failed COMMIT has ended the transaction itself
        raise


def run_script(session: Session, texts: Iterable[str], option: str) -> None:
    for statement in split_script(texts, option, "duckdb"):
        session.rows(statement)


def make_ready(session: Session, target: Target, options: DuckdbWriteOptions, *, overwrite: bool) -> None:
    """Create the table, or empty it, or hold it to be as the plan found it.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    table = find_table(session, target.label)
    if table is not None and overwrite and not options.truncate:
        session.rows(statements.on_table("DROP TABLE t", "duckdb", target.source))
        table = None
    if table is None:
        if target.create is None:
            raise TargetError(
                f"table {target.label!r} in {session.path} was dropped while its rows were written"
            )
        session.rows(target.create)
        return
    if not is_as_planned(table, target):
        raise TargetError(
            f"table {target.label!r} in {session.path} was created or altered while its rows were written: it "
            f"has {_listed(declared_columns(table))}, and the plan has {_listed(target.declared)}"
        )
    if overwrite:
        session.rows(statements.on_table("DELETE FROM t", "duckdb", target.source))


def insert_files(session: Session, target: Target, options: DuckdbWriteOptions, files: Iterable[Path]) -> int:
    """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

    Raises:
        TargetError: DuckDB refused a row, or two rows have one key.
    """
    listed = ", ".join(_name(column.target) for column in target.columns)
    counted = _Counted(files)
    table = target.source.expression.sql("duckdb")
    if options.write_mode == "insert":
        session.insert(
            f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {_ROWS}",  # noqa: S608 - quoted names
            _ROWS, target.staged, counted.batches(),
        )  # fmt: skip
        return counted.rows
    typed = [
        f"CAST({_name(each.target)} AS {each.declared}) AS {_name(each.target)}" for each in target.columns
    ]
    if target.operation is not None:
        typed.append(OPERATION)
    session.insert(
        f"CREATE OR REPLACE TEMP TABLE {_STAGE} AS SELECT {', '.join(typed)}, "  # noqa: S608 - quoted names
        f"row_number() OVER () AS {PLACE} FROM {_ROWS}",
        _ROWS, target.staged, counted.batches(),
    )  # fmt: skip
    columns = [column.target for column in target.columns]
    try:
        Merge(session.rows, table, _STAGE, columns, target.key, options.write_mode, "duckdb").bring()
    finally:
        try:
            session.rows(f"DROP TABLE IF EXISTS {_STAGE}")
        except TargetError:
            pass  # the transaction has failed, and takes the stage with it
    return counted.rows


class _Counted:
    """The batches of Arrow files, one file open at a time, and how many rows passed."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = files
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for path in self._files:
            with pa.memory_map(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    self.rows += batch.num_rows
                    yield batch


def _name(name: str) -> str:
    return statements.identifier(name).sql("duckdb")


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {declared}".strip() for name, declared in columns)
