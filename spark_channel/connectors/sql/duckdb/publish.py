"""Inserts staged rows into the table, inside the caller's transaction."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.duckdb.database import DuckdbSession
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions
from spark_channel.connectors.sql.duckdb.target import DuckdbWriteDialect, staged_schema
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.target import TargetTable
from spark_channel.errors import TargetError

__all__ = ["insert_files"]

_ROWS = "spark_channel_rows"
_STAGE = "spark_channel_stage"


def insert_files(
    session: DuckdbSession, target: TargetTable, options: DuckdbWriteOptions, files: Iterable[Path]
) -> int:
    """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

    Raises:
        TargetError: DuckDB refused a row, or two rows have one key.
    """
    quoted = DuckdbWriteDialect().quoted
    listed, staged = ", ".join(map(quoted, target.names)), staged_schema(target)
    counted = _Counted(files)
    if options.write_mode == "insert":
        stored = session.insert(
            f"INSERT INTO {target.sql} ({listed}) SELECT {listed} FROM {_ROWS}",  # noqa: S608 - quoted names
            _ROWS, staged, counted.batches(),
        )  # fmt: skip
        hold_stored(target.label, counted.rows, stored)
        return counted.rows
    typed = [
        f"CAST({quoted(each.target)} AS {each.declared}) AS {quoted(each.target)}" for each in target.columns
    ]
    if target.operation is not None:
        typed.append(OPERATION)
    session.insert(
        f"CREATE OR REPLACE TEMP TABLE {_STAGE} AS SELECT {', '.join(typed)}, "  # noqa: S608 - quoted names
        f"row_number() OVER () AS {PLACE} FROM {_ROWS}",
        _ROWS, staged, counted.batches(),
    )  # fmt: skip
    try:
        _DuckdbMerge(session.rows, DuckdbWriteDialect(), target, _STAGE, options.write_mode).bring()
    finally:
        try:
            session.rows(f"DROP TABLE IF EXISTS {_STAGE}")
        except TargetError:
            pass  # the transaction has failed, and takes the stage with it
    return counted.rows


class _DuckdbMerge(Merge):
    may_skip = False  # DuckDB has no triggers and no rules


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
