"""Counts rows and drops them: the target of a benchmark."""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from spark_channel.connectors.contracts import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.errors import TargetError
from spark_channel.options import WriteOptions

__all__ = ["DiscardOptions", "DiscardWriter"]


class DiscardOptions(WriteOptions):
    """What discard takes: nothing of its own."""

    url: str | None = Field(None, description="`discard:`, for who names connectors by url")


class DiscardWriter(Writer):
    """Every type fits, nothing is kept, and so nothing is ever there twice."""

    Options: ClassVar[type[WriteOptions]] = DiscardOptions

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(
            job=context.job,
            schema=schema,
            commit=context.commit or "job",
            overwrite=context.overwrite,
            batch=context.batch,
            txn=context.txn,
        )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return _Counter(task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        pass

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        pass


class _Counter(TaskWriter):
    def __init__(self, task: int, attempt: int) -> None:
        self._task, self._attempt = task, attempt
        self._rows = self._nbytes = 0
        self._ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._hold_open()
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes

    def close(self) -> Receipt:
        self._hold_open()
        self._ended = True
        return Receipt(self._task, self._attempt, self._rows, self._nbytes)

    def rollback(self) -> None:
        self._ended = True

    def _hold_open(self) -> None:
        if self._ended:
            raise TargetError(f"task {self._task}, attempt {self._attempt} has ended: open another attempt")
