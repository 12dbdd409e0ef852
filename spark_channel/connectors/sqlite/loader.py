"""How a SQLite task's rows get into the table: from the attempt's staged file, in one transaction.

The file's only write lock is not held while a slow source is read. When dirty rows are allowed (with `commit=task`),
batches are judged at the end, each under a savepoint.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Literal, final

import pyarrow as pa

from spark_channel.connectors.base.contract import bisect_refused
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.sql.catalog import Column, TargetTable
from spark_channel.connectors.sql.pacing import Spread
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.file_loading import FileStaging
from spark_channel.connectors.sql.write.loading import RefuseRow
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.connectors.sql.write.refused_value import refused_value
from spark_channel.connectors.sql.write.sessions import WriteSessions
from spark_channel.connectors.sql.write.sqlite_inserts import has_triggers, insert_words
from spark_channel.connectors.sql.write.table_loading import savepoint
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sqlite.dialect import SqliteWriteDialect
from spark_channel.connectors.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sqlite.session import SqliteSession, refuses_data
from spark_channel.connectors.sqlite.types import encode
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.lazy import compute as pc

__all__ = ["SqliteLoader", "encoded", "insert_files", "insert_one"]


_STAGE = "temp.spark_channel_stage"
_KEYS = "temp.spark_channel_keys"


def insert_one(session: SqliteSession, target: TargetTable, stage: str | None) -> str:
    """INSERT of one row of parameters into `stage`, as SQL, or into the table itself."""
    column_list = ", ".join(map(SqliteWriteDialect().quoted, target.staged_names))
    marks = ", ".join("?" * len(target.staged_names))
    insert = insert_words(session.rows, target.name) if stage is None else "INSERT"
    return f"{insert} INTO {stage or target.sql} ({column_list}) VALUES ({marks})"


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
        for columns in map(_values, _staged(path, options.batch_size)):
            rows += len(columns[0])
            pa.default_memory_pool().release_unused()  # as Arrow they are not needed any more
            session.insert(sql, columns)
    if stage is not None:
        _SqliteMerge(session, target, options, stage, rows).bring()
        session.execute(f"DROP TABLE {stage}")
    return rows


def _staged(path: Path, most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a staged file, at most `most` at once.

    It is read, not mapped, and no name here holds the last rows while they are away: a long value is there once.
    """
    with pa.OSFile(str(path)) as file:
        staged = pa.ipc.open_file(file)
        for number in range(staged.num_record_batches):
            yield from _divided(staged.get_batch(number), most)


def _divided(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    parts = [batch.slice(start, most) for start in range(0, batch.num_rows, most)][::-1]
    del batch
    while parts:
        yield parts.pop()


def _values(rows: pa.RecordBatch) -> list[list[object]]:
    return [column.to_pylist() for column in rows.columns]


def make_stage(session: SqliteSession, target: TargetTable) -> str:
    """A temporary table with the same columns, as SQL: keys are compared in it before the table sees them."""
    columns = [Column(column.target, column.declared) for column in target.columns]
    key: tuple[str, ...] = ()
    if target.operation is not None:
        columns += [Column(OPERATION, "TEXT"), Column(PLACE, "INTEGER")]
        key = (PLACE,)
    session.execute(SqliteWriteDialect().created(_STAGE, columns, key))
    return _STAGE


def goes_through_stage(
    session: SqliteSession, target: TargetTable, options: SqliteWriteOptions
) -> bool:
    """Whether rows are staged before the table sees them: to compare keys, or since the table may skip rows.

    SQLite counts what one statement stores, and not what its parameters store one after the other.
    """
    return options.write_mode != "insert" or has_triggers(session.rows, target.name)


class _SqliteMerge(Merge):
    order = " ORDER BY rowid"

    def __init__(
        self,
        session: SqliteSession,
        target: TargetTable,
        options: SqliteWriteOptions,
        stage: str,
        rows: int,
    ) -> None:
        """`stage` is SQL, and has so many `rows`."""
        super().__init__(session, SqliteWriteDialect(), target, stage, options.write_mode, rows)
        self.insert = insert_words(session.rows, target.name)

    def _affected(self, statement: str) -> int:
        self._run(statement)
        return int(self._run("SELECT changes()")[0][0])


class BatchValidator:
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
        judged: Callable[[SqliteSession], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._target = target
        self._encode, self._judged = encode, judged
        self._options = options
        self._stage: str | None = None
        self._notes = options.write_mode in ("upsert", "skipExisting")
        if goes_through_stage(session, target, options):
            self._stage = make_stage(session, target)
        if self._notes:
            declared = {column.target: column.declared for column in target.columns}
            columns = [Column(name, declared[name], not_null=True) for name in target.key]
            session.execute(SqliteWriteDialect().created(_KEYS, columns, target.key))
        self._insert = insert_one(session, target, self._stage)

    def insert(self, batch: pa.RecordBatch) -> None:
        """Insert all rows of `batch`, which is in the plan's schema.

        Raises:
            BatchRefusedError: SQLite refuses one of them, and holds none. TargetError: it cannot go on.
        """
        encoded = self._encode(batch)
        with self._judged(self._session):
            self._put(encoded)

    def close(self) -> None:
        """Drop the temporary tables."""
        if self._stage is not None:
            for table in (self._stage, _KEYS) if self._notes else (self._stage,):
                self._session.execute(f"DROP TABLE {table}")

    def _put(self, encoded: pa.RecordBatch) -> None:
        self._session.insert(self._insert, _values(encoded))
        if self._stage is None:
            return
        rows = encoded.num_rows
        try:
            _SqliteMerge(self._session, self._target, self._options, self._stage, rows).bring()
        except TargetError as error:
            if error.__cause__ is not None:  # SQLite's own trouble, not a key or an operation
                raise
            raise BatchRefusedError(str(error)) from None
        if self._notes:
            self._note_keys(self._stage)
        self._session.execute(f"DELETE FROM {self._stage}")  # noqa: S608 - a quoted name

    def _note_keys(self, stage: str) -> None:
        """Refuse a key that an earlier batch brought."""
        names = ", ".join(map(SqliteWriteDialect().quoted, self._target.key))
        try:
            self._session.execute(f"INSERT INTO {_KEYS} ({names}) SELECT {names} FROM {stage}")  # noqa: S608 - names are quoted
        except TargetError as error:
            if not refuses_data(error):
                raise
            raise BatchRefusedError(
                f"an earlier row of this write has the same key ({', '.join(self._target.key)}): keep one row per key"
            ) from error


def encoded(
    claim: TaskClaim[SqliteSession], batch: pa.RecordBatch, before: int | None
) -> pa.RecordBatch:
    """A batch as it is inserted: the table's columns, and the operation.

    Raises:
        BatchRefusedError: a value that the table would change.
    """
    target = claim.plan.target
    try:
        columns = encode(batch, target.columns)
    except BadValueError as error:
        raise refused_value(SqliteWriteDialect(), claim, error, before) from None
    if target.operation is None:
        return columns
    return columns.append_column(OPERATION, pc.cast(batch.column(OPERATION), pa.string()))


@final
class SqliteLoader:
    """`commit=task`: inserts the attempt's staged file."""

    opens: Literal["nothing"] = "nothing"
    asks_again = False

    def __init__(
        self,
        database: WriteSessions[SqliteSession],
        options: SqliteWriteOptions,
        claim: TaskClaim[SqliteSession],
        staging: FileStaging,
    ) -> None:
        self._database, self._options = database, options
        self._claim, self._staging = claim, staging
        self._files: list[Path] = []

    def ready(self, session: SqliteSession) -> None:
        pass

    def begin(self, session: SqliteSession) -> None:
        # Before the transaction, which holds the file's write lock: the disk may be slow.
        self._staging.finish()
        self._files = self._staging.paths
        session.start(self._database.dialect.begin)
        self._claim.fence(session)
        self._claim.is_done(session)

    def bring(
        self, session: SqliteSession, rows: list[pa.Table], spread: Spread, refuse: RefuseRow | None
    ) -> None:
        if refuse is not None:
            self._insert_judged(session, refuse)
        else:
            insert_files(session, self._claim.plan.target, self._options, self._files)

    def _insert_judged(self, session: SqliteSession, refuse: RefuseRow) -> None:
        """Insert what SQLite takes; every other row goes to `refuse`, and does not count as a row of this task."""
        tally = self._claim.tally
        validator = BatchValidator(
            session,
            self._claim.plan.target,
            self._options,
            lambda batch: encoded(self._claim, batch, None),
            partial(savepoint, self._database),
        )

        def refused(row: pa.RecordBatch, reason: str) -> None:
            tally.rows -= row.num_rows
            tally.nbytes -= row.nbytes
            refuse(row, reason)

        for path in self._files:
            with pa.memory_map(str(path)) as file:
                staged = pa.ipc.open_file(file)
                for number in range(staged.num_record_batches):
                    batch = staged.get_batch(number)
                    for start in range(0, batch.num_rows, self._options.batch_size):
                        piece = batch.slice(start, self._options.batch_size)
                        bisect_refused(piece, validator.insert, refused)
        validator.close()

    def clear(self, session: SqliteSession) -> None:
        pass

    def repeated(self, work: Callable[[], None]) -> None:
        work()
