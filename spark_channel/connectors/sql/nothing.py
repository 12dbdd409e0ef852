"""The writer of a task that has nothing to write."""

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, TaskWriter

__all__ = ["NothingWriter"]


class NothingWriter(TaskWriter):
    """For a task, or a job, that was committed before: takes rows, keeps none, and gives `receipt`."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> Receipt:
        return self._receipt

    def rollback(self) -> None:
        pass
