"""One attempt of one task: rows go to a staged file, and with `commit=task` into the table at the end."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, TaskWriter
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.encode import BadValueError, encode
from spark_channel.connectors.sql.sqlite.ledger import PUBLISHED, Ledger
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.publish import insert_files, transaction
from spark_channel.connectors.sql.sqlite.staging import Staging, target_errors
from spark_channel.connectors.sql.sqlite.target import SqlitePlan
from spark_channel.errors import TargetError

__all__ = ["NothingWriter", "SqliteTaskWriter"]


class NothingWriter(TaskWriter):
    """For a job whose transaction pair was published before: takes rows and keeps none."""

    def __init__(self, task: int, attempt: int) -> None:
        self._receipt = Receipt(task, attempt, rows=0, nbytes=0)

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> Receipt:
        return self._receipt

    def rollback(self) -> None:
        pass


class SqliteTaskWriter(TaskWriter):
    """Stages under a name of its own; an attempt without rows stages nothing."""

    def __init__(
        self, database: Path, options: SqliteWriteOptions, plan: SqlitePlan, task: int, attempt: int
    ) -> None:
        self._database = database
        self._options = options
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._staging = Staging(Path(plan.staging))
        self._staging.check(plan.token)
        self._path = self._staging.new_file(task, attempt)
        self._file: Any = None
        self._ipc: Any = None
        self._rows = 0
        self._nbytes = 0
        self._ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._hold_open()
        try:
            encoded = encode(batch, self._plan.target.columns)
        except BadValueError as error:
            raise TargetError(
                f"column {error.column.name!r}, row {self._rows + error.index + 1} of task {self._task}: "
                f"{error.value!r} cannot be stored in table {self._plan.target.name!r}: {error.why}"
            ) from None
        with target_errors(self._path):
            if self._ipc is None:
                # Not "xb": the name is random, and a directory that is gone says that the job was aborted.
                self._file = self._path.open("wb")
                self._ipc = pa.ipc.new_file(self._file, encoded.schema)
            self._ipc.write_batch(encoded)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes

    def flush(self) -> None:
        self._hold_open()
        if self._file is not None:
            with target_errors(self._path):
                self._file.flush()

    def close(self) -> Receipt:
        self._hold_open()
        staged = self._ipc is not None
        if staged:
            with target_errors(self._path):
                ipc, self._ipc = self._ipc, None
                ipc.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
        self._staging.check(self._plan.token)
        if self._plan.commit == "task":
            receipt = self._ingest([self._path] if staged else [])
            self._path.unlink(missing_ok=True)
        else:
            details = {"file": self._path.name if staged else None}
            receipt = Receipt(self._task, self._attempt, self._rows, self._nbytes, details)
        self._ended = True
        return receipt

    def rollback(self) -> None:
        self._ended = True
        ipc, file = self._ipc, self._file
        self._ipc = self._file = None
        for each in (ipc, file):
            if each is not None:
                try:
                    each.close()
                except (OSError, ValueError):
                    pass  # a full disk, or closed already: what was written is removed next
        self._path.unlink(missing_ok=True)

    def _ingest(self, files: list[Path]) -> Receipt:
        plan, failure = self._plan, TargetError
        with Session(
            self._database, "rw", lock_timeout=self._options.lock_timeout, failure=failure
        ) as session:
            ledger = Ledger(session, plan.target.name)
            with transaction(session):
                done = ledger.entry(plan, self._task)
                if done is None:
                    if ledger.entry(plan, PUBLISHED) is not None:
                        raise TargetError(
                            f"job {plan.job!r} is published already, without task {self._task}: this "
                            "attempt is "
                            "too late, and its rows were not written"
                        )
                    insert_files(session, plan.target, self._options, files)
                    ledger.add(plan, self._task, attempt=self._attempt, rows=self._rows, nbytes=self._nbytes)
        if done is not None:
            return Receipt(self._task, done.attempt, done.rows, done.nbytes, {"file": None})
        return Receipt(self._task, self._attempt, self._rows, self._nbytes, {"file": None})

    def _hold_open(self) -> None:
        if self._ended:
            raise TargetError(f"task {self._task}, attempt {self._attempt} has ended: open another attempt")
