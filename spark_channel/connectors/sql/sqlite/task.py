"""One attempt of one task: rows go to a staged file, and with `commit=task` into the table at the end."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.contracts import Receipt
from spark_channel.connectors.sieve import sift
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.file_task import FileTask
from spark_channel.connectors.sql.sqlite.database import SqliteSession
from spark_channel.connectors.sql.sqlite.encode import encode
from spark_channel.connectors.sql.sqlite.judge import Judge
from spark_channel.connectors.sql.sqlite.publish import insert_files
from spark_channel.errors import TargetError

__all__ = ["SqliteTaskWriter"]


class SqliteTaskWriter(FileTask):
    """When dirty rows are allowed (with `commit=task`), batches are staged as they come and judged in `close`, each
    under a savepoint: the file's only write lock is not held while a slow source is read.
    """

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
                    claims.add_task(plan.claim, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes))

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
