"""Writes a table of a SQLite file: atomically (`commit=job`), or task by task (`commit=task`)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, TaskWriter, bisect_refused
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.sql.catalog import Column, Table, TargetTable
from spark_channel.connectors.sql.definition import NewTable, free_names
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.statements import is_plain_name, parsed_name
from spark_channel.connectors.sql.write.claim_tables import CLAIMS, PUBLISHED, ClaimDialect
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.file_database import FileTaskWriter, FileWriter, file_plan
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.publish import PLACE, Merge, has_triggers, insert_words
from spark_channel.connectors.sqlite.definition import read_definition, tried
from spark_channel.connectors.sqlite.dialect import SqliteTable, SqliteWriteDialect
from spark_channel.connectors.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sqlite.session import (
    SqliteSession,
    check_file,
    refuses_data,
    session_statements,
)
from spark_channel.connectors.sqlite.types import encode
from spark_channel.errors import BatchRefusedError, OptionError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.options import WriteOptions

__all__ = [
    "SqliteTaskWriter",
    "SqliteWriter",
    "insert_files",
    "insert_one",
]


_STAGE = "temp.spark_channel_stage"


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


_KEYS = "temp.spark_channel_keys"


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


class SqliteTaskWriter(FileTaskWriter[SqliteSession]):
    """When dirty rows are allowed (with `commit=task`), batches are staged as they come and judged in `close`, each
    under a savepoint: the file's only write lock is not held while a slow source is read.
    """

    _options: SqliteWriteOptions

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self.tolerant else self._encode(batch)

    def finish(self) -> dict[str, Any]:
        details = super().finish()
        if self._plan.commit == "task":
            self._ingest([self._file.path] if details["file"] else [])
            self._file.drop()
            return {"file": None}
        return details

    def _ingest(self, files: list[Path]) -> None:
        plan, writer = self._plan, self._writer
        with writer.open_file(writer.path, TargetError) as session:
            claims = writer.claims(session, plan.place)
            with writer.transaction(session):
                claims.fence(plan.claim)
                self._done = claims.task(plan.claim, self._task)
                if self._done is None:
                    if self.tolerant:
                        self._insert_tolerantly(session, files)
                    else:
                        insert_files(session, plan.target, self._options, files)
                    tally = self._tally
                    claims.add_task(
                        plan.claim, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes)
                    )

    def _encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        target = self._plan.target
        try:
            encoded = encode(batch, target.columns)
        except BadValueError as error:
            raise self._refused(error, None if self.tolerant else self._tally.rows) from None
        if target.operation is None:
            return encoded
        return encoded.append_column(OPERATION, pc.cast(batch.column(OPERATION), pa.string()))

    def _insert_tolerantly(self, session: SqliteSession, files: list[Path]) -> None:
        """Insert what SQLite takes; every other row goes to `refused`, and does not count as a row of this task."""
        assert self.refused is not None, "the host allows dirty rows and takes none"
        refused = self.refused
        judge = BatchValidator(
            session, self._plan.target, self._options, self._encode, self._judged
        )

        def refuse(row: pa.RecordBatch, reason: str) -> None:
            self._tally.rows -= row.num_rows
            self._tally.nbytes -= row.nbytes
            refused(row, reason)

        for path in files:
            with pa.memory_map(str(path)) as file:
                staged = pa.ipc.open_file(file)
                for number in range(staged.num_record_batches):
                    batch = staged.get_batch(number)
                    for start in range(0, batch.num_rows, self._options.batch_size):
                        bisect_refused(
                            batch.slice(start, self._options.batch_size), judge.insert, refuse
                        )
        judge.close()


class SqliteWriter(FileWriter[SqliteSession]):
    """Tasks stage Arrow files beside the database.

    `commit=job`: the driver inserts them all in one transaction. `commit=task`: each task inserts its own in one.
    """

    Options: ClassVar[type[WriteOptions]] = SqliteWriteOptions
    options: SqliteWriteOptions
    dialect: WriteDialect = SqliteWriteDialect()
    beside = "journal"

    def check_file(self) -> None:
        check_file(self.path, TargetError)

    def new_place(self, session: SqliteSession | None) -> tuple[str, str]:
        return "main", self._new_name()

    def tried(
        self,
        session: SqliteSession | None,
        target: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
    ) -> NewTable | str:
        index_names = () if session is None else self.dialect.index_names(session, target.schema)
        name_of = free_names({target.name, *index_names}, None, folds=True)
        return tried(definition, rows, target.name, name_of)

    def definition_of(self, session: SqliteSession, table: Table) -> TableDefinition:
        assert isinstance(table, SqliteTable)
        return read_definition(session, table)

    def open_task(self, plan: SqlPlan, task: int, attempt: int) -> TaskWriter:
        return SqliteTaskWriter(self, file_plan(plan), task, attempt)

    def insert_files(self, session: SqliteSession, plan: SqlPlan, files: Sequence[Path]) -> int:
        return insert_files(session, plan.target, self.options, files)

    def open_file(
        self, path: Path, failure: type[TargetError], *, new: bool = False
    ) -> SqliteSession:
        init = session_statements(self.options.session_init_statement or ())
        timeout = self.options.lock_timeout
        mode: Literal["rw", "rwc"] = "rwc" if new or not path.exists() else "rw"
        return SqliteSession(path, mode, lock_timeout=timeout, failure=failure, init=init)

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or refuses_data(error)

    def is_conflict(self, error: BaseException) -> bool:
        return False  # a transaction begins with the file's one write lock

    def claim_dialect(self, session: SqliteSession, target: WriteTarget) -> ClaimDialect:
        def listed(kind: str, column: str, name: str) -> bool:
            query = f"SELECT 1 FROM main.sqlite_master WHERE type = '{kind}' AND {column} = ?"  # noqa: S608 - constants
            return bool(session.rows(query, (name,)))

        return ClaimDialect(
            table=lambda name: f"main.{name}",
            exists=lambda name: listed("index" if name == PUBLISHED else "table", "name", name),
            after=" WITHOUT ROWID",
            share="",
            update="",
            distrust=lambda name: (
                "it has a trigger" if listed("trigger", "tbl_name", name) else None
            ),
            index=f"CREATE INDEX main.{PUBLISHED} ON {CLAIMS} (kind, published_at)",
        )

    def _new_name(self) -> str:
        """The name of a table that does not exist yet: `main.` is dropped, other schemas are refused."""
        text = self.options.dbtable
        tree = None if is_plain_name(text) else parsed_name(text, "sqlite")
        if tree is None:
            return text
        if tree.db.lower() not in ("", "main"):
            raise OptionError(
                f"option 'dbtable' got {text!r}; a SQLite file has one schema, main. A dot in a name is quoted",
                option="dbtable",
                got=text,
                takes="a table's name",
            )
        return tree.name
