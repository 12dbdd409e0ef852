"""One attempt of one task: rows go to a staged file, and with `commit=task` into the table at the end."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sieve import sift
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.file_writer import FilePlan, FileWriter
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.encode import encode
from spark_channel.connectors.sql.sqlite.judge import Judge
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.publish import insert_files
from spark_channel.connectors.sql.staged_file import StagedFile
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["SqliteTaskWriter"]


class SqliteTaskWriter(TaskWriter):
    """Stages under a name of its own; an attempt without rows stages nothing.

    When dirty rows are allowed (with `commit=task`), batches are staged as they come and judged in `close`, each
    under a savepoint: the file's only write lock is not held while a slow source is read.
    """

    def __init__(
        self, writer: FileWriter, options: SqliteWriteOptions, plan: FilePlan, task: int, attempt: int
    ) -> None:
        self._writer = writer
        self._options = options
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._file = StagedFile(
            plan.staging, plan.token, task, attempt, when_gone=partial(writer.hold_claim, plan)
        )
        self._tally = Tally(task, attempt)

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        self._file.write(batch if self.tolerant else self._encode(batch))
        self._tally.add(batch)

    def flush(self) -> None:
        self._tally.hold_open()
        self._file.flush()

    def close(self) -> Receipt:
        self._tally.hold_open()
        staged = self._file.close()
        if self._plan.commit == "task":
            receipt = self._ingest([self._file.path] if staged else [])
            self._file.drop()
        else:
            receipt = self._receipt(self._file.path.name if staged else None)
        self._tally.ended = True
        return receipt

    def rollback(self) -> None:
        self._tally.ended = True
        self._file.drop()

    def _ingest(self, files: list[Path]) -> Receipt:
        plan, writer = self._plan, self._writer
        with writer.open_file(writer.path, TargetError) as session:
            claims = writer.claims(session, plan.place)
            with writer.transaction(session):
                claims.fence(plan.claim)
                done = claims.task(plan.claim, self._task)
                if done is None:
                    if self.tolerant:
                        self._insert_tolerantly(session, files)
                    else:
                        insert_files(session, plan.target, self._options, files)
                    claims.add_task(plan.claim, self._receipt())
        if done is not None:
            # An attempt before this one has committed, and its answer was lost: what it left out was refused.
            dirty = max(0, self._tally.rows - done.rows) if self.tolerant else 0
            return replace(done, dirty_rows=dirty)
        return self._receipt()

    def _receipt(self, name: str | None = None) -> Receipt:
        return Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes, {"file": name})

    def _encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        target = self._plan.target
        try:
            encoded = encode(batch, target.columns)
            if target.operation is not None:
                encoded = encoded.append_column(OPERATION, pc.cast(batch.column(OPERATION), pa.string()))
            return encoded
        except BadValueError as error:
            row = "" if self.tolerant else f", row {self._tally.rows + error.index + 1} of task {self._task}"
            raise BatchRefusedError(
                f"column {error.column.name!r}{row}: {error.value!r} cannot be stored in "
                f"table {target.name!r}: {error.why}"
            ) from None

    def _insert_tolerantly(self, session: Session, files: list[Path]) -> None:
        """Insert what SQLite takes; every other row goes to `refused`, and is no row of this task."""
        assert self.refused is not None, "the host allows dirty rows and takes none"
        refused = self.refused
        judge = Judge(session, self._plan.target, self._options, self._encode)

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
                        sift(batch.slice(start, self._options.batch_size), judge.insert, refuse)
        judge.close()
