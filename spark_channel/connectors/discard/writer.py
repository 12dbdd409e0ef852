"""Counts the rows of a write and drops them."""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.discard.options import DiscardOptions
from spark_channel.options import WriteOptions

__all__ = ["DiscardWriter"]


class DiscardWriter(Writer):
    """Accepts every type and stores nothing, so a repeated task changes nothing."""

    Options: ClassVar[type[WriteOptions]] = DiscardOptions

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(
            job=context.job,
            schema=schema,
            commit=context.commit or "job",
            overwrite=context.overwrite,
            txn=context.txn,
        )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return _Counter(RowTally(task, attempt))

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        pass

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        pass


class _Counter(TaskWriter):
    def __init__(self, tally: RowTally) -> None:
        self._tally = tally

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.add(batch)

    def close(self) -> Receipt:
        return self._tally.receipt()

    def rollback(self) -> None:
        self._tally.ended = True
