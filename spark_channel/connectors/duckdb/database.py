"""Writes a table of a DuckDB file atomically: tasks stage Arrow files, one transaction inserts them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.base.definition import SequenceDefinition, TableDefinition
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.duckdb.definition import (
    comments_of,
    counted_on,
    read_definition,
    same_sequence,
    tried,
)
from spark_channel.connectors.duckdb.dialect import (
    DuckdbTable,
    DuckdbWriteDialect,
    staged_schema,
)
from spark_channel.connectors.duckdb.options import DuckdbWriteOptions
from spark_channel.connectors.duckdb.session import DuckdbSession, check_file
from spark_channel.connectors.sql.catalog import Table, TargetTable, WriteColumn
from spark_channel.connectors.sql.definition import NewTable, free_names
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import session_script
from spark_channel.connectors.sql.statements import name_readings
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.file_database import FileDatabase
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.refused_value import refused_value
from spark_channel.connectors.sql.write.sessions import Tell, Traits, Verdict
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import OptionError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "DuckdbDatabase",
    "insert_files",
]


_log = log_of(__name__)

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
    names, staged = ", ".join(map(quoted, target.names)), staged_schema(target)
    counted = _Counted(files)
    if options.write_mode == "insert":
        stored = session.insert(
            f"INSERT INTO {target.sql} ({names}) SELECT {names} FROM {_ROWS}",  # noqa: S608 - quoted names
            _ROWS,
            staged,
            counted.batches(),
        )
        check_stored(target.label, counted.rows, stored)
        return counted.rows
    typed = [
        f"CAST({quoted(column.target)} AS {column.declared}) AS {quoted(column.target)}"
        for column in target.columns
    ]
    if target.operation is not None:
        typed.append(OPERATION)
    session.insert(
        f"CREATE OR REPLACE TEMP TABLE {_STAGE} AS SELECT {', '.join(typed)}, "  # noqa: S608 - quoted names
        f"row_number() OVER () AS {PLACE} FROM {_ROWS}",
        _ROWS,
        staged,
        counted.batches(),
    )
    try:
        _DuckdbMerge(session, DuckdbWriteDialect(), target, _STAGE, options.write_mode).bring()
    finally:
        try:
            session.execute(f"DROP TABLE IF EXISTS {_STAGE}")
        except TargetError:
            pass  # the transaction has failed, and takes the stage with it
    return counted.rows


class _DuckdbMerge(Merge):
    may_skip = False  # DuckDB has no triggers and no rules

    def _affected(self, statement: str) -> None:
        self._run(statement)


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


def encoded(claim: TaskClaim[DuckdbSession], batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
    """A batch as it is staged: values as the table's columns take them, and the operation.

    Raises:
        BatchRefusedError: a value that the table would change.
    """
    target = claim.plan.target

    def checked(column: WriteColumn) -> pa.Array:
        try:
            return DuckdbWriteDialect.checked(batch.column(column.name), column)
        except BadValueError as error:
            raise refused_value(DuckdbWriteDialect(), claim, error, before) from None

    arrays = [checked(column) for column in target.columns]
    if target.operation is not None:
        arrays.append(pc.cast(batch.column(OPERATION), pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=staged_schema(target))


class DuckdbDatabase(FileDatabase[DuckdbSession]):
    """Tasks stage Arrow files beside the database; the driver's host inserts them all in one transaction.

    No task opens the database: DuckDB lets one process write it at a time.
    """

    Options: ClassVar[type[WriteOptions]] = DuckdbWriteOptions
    options: DuckdbWriteOptions
    dialect: WriteDialect = DuckdbWriteDialect()
    beside = "log"

    def __init__(self, options: DuckdbWriteOptions) -> None:
        # Transactions of one process meet at their ends: the one that ends last is refused, and begins again.
        retry = Retry(options.lock_timeout, first=0.02, longest=0.5)
        traits = Traits(None, has_numbers=True, retry=retry, passes=Verdict.CONFLICT)
        super().__init__(options, traits)

    def check_file(self) -> None:
        check_file(self.path, TargetError)

    def check(self, context: WriteContext) -> None:
        if context.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is written in one transaction: it takes 'job'",
                option="commit",
                got="task",
                takes="job",
            )
        super().check(context)

    def new_place(self, session: DuckdbSession | None) -> tuple[str, str]:
        return name_readings(self.options.dbtable, "duckdb", "main")[-1]

    def tried(
        self,
        session: DuckdbSession | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
    ) -> NewTable | str:
        used_names = (
            set() if session is None else set(self.dialect.index_names(session, place.schema))
        )
        name_of, other_name = (
            free_names(used_names, None, folds=True),
            free_names((), None, folds=True),
        )

        def sequence_of(sequence: SequenceDefinition) -> str:
            name = other_name(sequence.name)
            while session is not None and not same_sequence(session, place.schema, name, sequence):
                name = other_name(sequence.name)
            return name

        return tried(definition, rows, place.schema, place.name, name_of, sequence_of)

    def new_table(
        self,
        session: DuckdbSession | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
        whole: TableDefinition,
        *,
        is_full: bool,
    ) -> NewTable:
        new = super().new_table(session, place, definition, rows, whole, is_full=is_full)
        if not is_full or new.create:
            return new
        return new.with_carried([*comments_of(definition, rows)])

    def read_definition(self, session: DuckdbSession, table: Table) -> TableDefinition:
        assert isinstance(table, DuckdbTable)
        return read_definition(session, table)

    def complete(self, session: DuckdbSession, plan: SqlPlan, tell: Tell) -> None:
        super().complete(session, plan, tell)
        for statement in counted_on(plan.place, plan.numbers):
            went, gap = session.rows(statement)[0]
            if gap and went < gap:
                _log.warning(
                    "table %s may give numbers that its rows have: its sequence is %d numbers behind, which DuckDB "
                    "takes one by one. Make a new sequence, and set it as the column's default",
                    plan.place.label,
                    gap,
                )

    def loading(
        self, claim: TaskClaim[DuckdbSession], *, stages: bool = True
    ) -> Loading[DuckdbSession]:
        staging = self.staging_of(claim, partial(encoded, claim))
        return Loading(
            lambda: self.open_file(self.path, TargetError),
            staging=staging,
            flush=staging.flush,
            seconds=0.0,
            shows_life=False,  # the file's own does
            judges_last=True,
        )

    def insert_files(self, session: DuckdbSession, plan: SqlPlan, files: Sequence[Path]) -> int:
        return insert_files(session, plan.target, self.options, files)

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> DuckdbSession:
        if not (purpose == "look" and sessions.only_looks and self.path.exists()):
            return super().connect(failure, purpose, patient=patient)
        # A plan reads the target by the readers' session: a file is not open for reading and for writing.
        return DuckdbSession.kept(
            self.path,
            lock_timeout=self.options.lock_timeout,
            failure=failure,
            init=session_script(self.options, "duckdb"),
            external_access=self.options.external_access,
        )

    def open_file(
        self, path: Path, failure: type[TargetError], *, new: bool = False
    ) -> DuckdbSession:
        return DuckdbSession(
            path,
            read_only=False,
            lock_timeout=self.options.lock_timeout,
            failure=failure,
            init=session_script(self.options, "duckdb"),
            external_access=self.options.external_access,
        )

    def verdict(self, error: BaseException) -> Verdict:
        """CONFLICT: another transaction of this process was first."""
        text = str(error)
        is_conflict = "ransaction" in text and "onflict" in text
        is_conflict = is_conflict or "write-write conflict" in text
        return Verdict.CONFLICT if is_conflict else Verdict.OTHER

    def claim_dialect(self, session: DuckdbSession, place: WriteTarget) -> ClaimDialect:
        def exists(name: str) -> bool:
            query = (
                f"SELECT 1 FROM {session.catalog('duckdb_tables')} WHERE database_name = current_database() "  # noqa: S608 - a constant
                "AND schema_name = 'main' AND table_name = ?"
            )
            return bool(session.rows(query, (name,)))

        return ClaimDialect(table=lambda name: f"main.{name}", exists=exists)
