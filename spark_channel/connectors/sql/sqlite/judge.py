"""Checks a batch in SQLite under a savepoint: SQLite stores all of it, or none with the reason."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.sqlite.database import SqliteSession, refuses_data
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.publish import (
    bring,
    goes_through_stage,
    insert_one,
    make_stage,
)
from spark_channel.connectors.sql.sqlite.target import SqliteWriteDialect
from spark_channel.connectors.sql.target import TargetTable
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["Judge"]

_SAVEPOINT = "spark_channel_batch"
_KEYS = "temp.spark_channel_keys"


class Judge:
    """Inserts batch after batch inside a transaction that the caller has begun.

    With `upsert` and `skipExisting` two rows of one key are refused over all the batches, as they are when a
    task is inserted as a whole. With `apply` a later batch changes what an earlier one wrote.
    """

    def __init__(
        self,
        session: SqliteSession,
        target: TargetTable,
        options: SqliteWriteOptions,
        encode: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._session = session
        self._target = target
        self._encode = encode
        self._options = options
        self._stage: str | None = None
        self._notes = options.write_mode in ("upsert", "skipExisting")
        if goes_through_stage(session, target, options):
            self._stage = make_stage(session, target)
        if self._notes:
            declared = {column.target: column.declared for column in target.columns}
            columns = [Column(name, declared[name], not_null=True) for name in target.key]
            session.rows(SqliteWriteDialect().created(_KEYS, columns, target.key))
        self._insert = insert_one(session, target, self._stage)

    def insert(self, batch: pa.RecordBatch) -> None:
        """Insert all rows of `batch`, which is in the plan's schema.

        Raises:
            BatchRefusedError: SQLite refuses one of them, and holds none. TargetError: it cannot go on.
        """
        encoded = self._encode(batch)
        self._session.rows(f"SAVEPOINT {_SAVEPOINT}")
        try:
            self._put(encoded)
        except TargetError as error:
            self._roll_back(error)
            if isinstance(error, BatchRefusedError):
                raise
            if refuses_data(error):
                raise BatchRefusedError(str(error)) from error
            raise
        self._session.rows(f"RELEASE {_SAVEPOINT}")

    def close(self) -> None:
        """Drop the temporary tables."""
        if self._stage is not None:
            for table in (self._stage, _KEYS) if self._notes else (self._stage,):
                self._session.rows(f"DROP TABLE {table}")

    def _put(self, encoded: pa.RecordBatch) -> None:
        self._session.insert(self._insert, encoded)
        if self._stage is None:
            return
        try:
            bring(self._session, self._target, self._options, self._stage, encoded.num_rows)
        except TargetError as error:
            if error.__cause__ is not None:  # SQLite's own trouble, not a key or an operation
                raise
            raise BatchRefusedError(str(error)) from None
        if self._notes:
            self._note_keys(self._stage)
        self._session.rows(f"DELETE FROM {self._stage}")  # noqa: S608 - a quoted name

    def _note_keys(self, stage: str) -> None:
        """Refuse a key that an earlier batch brought."""
        names = ", ".join(map(SqliteWriteDialect().quoted, self._target.key))
        try:
            self._session.rows(f"INSERT INTO {_KEYS} ({names}) SELECT {names} FROM {stage}")  # noqa: S608
        except TargetError as error:
            if not refuses_data(error):
                raise
            raise BatchRefusedError(
                f"another row before it has the key ({', '.join(self._target.key)}): which of them is meant? "
                "Keep one row per key"
            ) from error

    def _roll_back(self, error: TargetError) -> None:
        try:
            self._session.rows(f"ROLLBACK TO {_SAVEPOINT}")
            self._session.rows(f"RELEASE {_SAVEPOINT}")
        except TargetError:
            # SQLite has ended the transaction itself, as it does when the disk is full: that is the cause.
            raise error from None
