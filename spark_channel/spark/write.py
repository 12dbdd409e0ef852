"""The batch write: staged by a writer thread in each Spark task, published once on the driver's host."""

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_channel.connectors import Receipt, WriteContext, load_writer
from spark_channel.options import WriteOptions
from spark_channel.pipeline import TaskWrite
from spark_channel.spark.schema import as_arrow

__all__ = ["ChannelWriter", "ReceiptMessage"]

_log = logging.getLogger(__name__)


@dataclass
class ReceiptMessage(WriterCommitMessage):
    """A receipt on its way to the driver. None: the pair (txnAppId, txnVersion) was published before."""

    receipt: Receipt | None


class ChannelWriter(DataSourceArrowWriter):
    """Made in a planner process and pickled; `write` runs in executors, at least once per partition;
    `commit` and `abort` run in planner processes, with this object or a copy of it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writer, warnings = load_writer(options)
        for warning in warnings:
            _log.warning(warning)
        self._options: WriteOptions = self._writer.options
        context = WriteContext(
            job=new_job(self._options.job_id),
            commit=self._options.commit,
            overwrite=overwrite,
            txn=_transaction(self._options),
        )
        self._plan = self._writer.prepare(context, as_arrow(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReceiptMessage:
        if self._plan.published_at is not None:
            return ReceiptMessage(None)
        task = TaskContext.get()
        assert task is not None
        write = TaskWrite(
            self._writer,
            self._plan,
            task.partitionId(),
            task.taskAttemptId(),
            capacity_rows=self._options.capacity_rows,
            capacity_bytes=self._options.capacity_bytes,
            transaction_rows=self._options.transaction_rows,
        )
        return ReceiptMessage(write.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.published_at is not None:
            app, version = self._plan.txn or ("", 0)
            _log.warning(
                "txnAppId %r, txnVersion %d: published at %s, nothing written", app, version, self._plan.published_at
            )
            return
        receipts = [receipt for receipt in _receipts(messages) if receipt is not None]
        self._writer.commit(self._plan, receipts)
        rows, nbytes = sum(r.rows for r in receipts), sum(r.nbytes for r in receipts)
        _log.info("job %s: %d rows, %d bytes in %d tasks", self._plan.job, rows, nbytes, len(receipts))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.published_at is None:
            self._writer.abort(self._plan, _receipts(messages))


def _receipts(messages: list[WriterCommitMessage | None]) -> list[Receipt | None]:
    return [message.receipt if isinstance(message, ReceiptMessage) else None for message in messages]


def _transaction(options: WriteOptions) -> tuple[str, int] | None:
    if options.txn_app_id is None or options.txn_version is None:
        return None
    return options.txn_app_id, options.txn_version


def new_job(label: str | None) -> str:
    """A name for one run, unique even when the user gives the same `jobId` twice."""
    unique = uuid.uuid4().hex[:12]
    return f"{label}-{unique}" if label else unique
