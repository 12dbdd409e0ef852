"""One attempt of one task that stages its rows in a file beside the database."""

from functools import partial
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.file_writer import FilePlan, FileWriter
from spark_channel.connectors.sql.staged_file import StagedFile
from spark_channel.connectors.sql.task import SqlTask

__all__ = ["FileTask"]


class FileTask(SqlTask):
    """Stages under a separate name; an attempt without rows stages nothing. A database implements `encode`."""

    _writer: FileWriter

    def __init__(self, writer: FileWriter, plan: FilePlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._file = StagedFile(
            plan.staging, plan.token, task, attempt, when_gone=partial(writer.hold_claim, plan)
        )

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The staged columns of the batch: those of the table, and the operation.

        Raises:
            TargetError: a value that the table would change.
        """
        raise NotImplementedError

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        self._file.write(self.encode(batch))
        self._tally.add(batch)

    def flush(self) -> None:
        self._tally.hold_open()
        self._file.flush()

    def finish(self) -> dict[str, Any]:
        return {"file": self._file.path.name if self._file.close() else None}

    def rollback(self) -> None:
        super().rollback()
        self._file.drop()
