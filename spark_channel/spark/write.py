"""The batch write: staged by a writer thread in each Spark task, published once on the driver's host."""

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_channel.clock import utc_now
from spark_channel.connectors import Receipt, WriteContext, find_connector, load_writer
from spark_channel.connectors.describe import describe
from spark_channel.options import WriteOptions
from spark_channel.pipeline import TaskWrite
from spark_channel.progress import JobSpec, Phase
from spark_channel.spark.driver import JobReporter, limit_scope_of, reach_service, shared_limit_of
from spark_channel.spark.schema import as_arrow
from spark_channel.spark.task import TaskLink

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
        self._started = utc_now()
        context = WriteContext(
            job=_job_name(self._options.job_id),
            commit=self._options.commit,
            overwrite=overwrite,
            txn=_transaction(self._options),
        )
        self._shared_limit = shared_limit_of(self._options)
        self._plan = self._writer.prepare(context, as_arrow(schema))
        self._service = reach_service(self._options)
        target = describe(self._options)
        self._spec = JobSpec(
            "write",
            name=self._options.job_id or "",
            target=f"{find_connector(options, 'writer').name} {target}",
            commit=self._plan.commit,
            rows_per_second=self._options.rows_per_second,
            bytes_per_second=self._options.bytes_per_second,
            limit_scope=limit_scope_of(self._options),
            max_connections=self._options.max_connections,
            where=target,
        )
        self._reporter.open(self._spec)

    @property
    def _reporter(self) -> JobReporter:
        return JobReporter(self._service, self._plan.job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReceiptMessage:
        if self._plan.published_at is not None:
            return ReceiptMessage(None)
        task = TaskContext.get()
        assert task is not None
        partition, attempt = task.partitionId(), task.taskAttemptId()
        name = f"task {partition}"
        with (
            TaskLink(
                self._service, self._plan.job, self._spec, self._options, name, self._shared_limit
            ) as link,
            link.permit(),
        ):
            write = TaskWrite(
                self._writer,
                self._plan,
                partition,
                attempt,
                limiter=link.limiter,
                counters=link.counters(partition, attempt),
                capacity_rows=self._options.capacity_rows,
                capacity_bytes=self._options.capacity_bytes,
                transaction_rows=self._options.transaction_rows,
            )
            return ReceiptMessage(write.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.published_at is not None:
            app, version = self._plan.txn or ("", 0)
            _log.warning(
                "txnAppId %r, txnVersion %d was published at %s: nothing written",
                app,
                version,
                self._plan.published_at,
            )
            self._reporter.enter(Phase.DONE, rows=0)
            return
        receipts = [receipt for receipt in _receipts(messages) if receipt is not None]
        self._reporter.enter(Phase.PUBLISHING)
        self._writer.commit(self._plan, receipts)
        rows, nbytes = sum(r.rows for r in receipts), sum(r.nbytes for r in receipts)
        self._reporter.enter(Phase.DONE, rows=rows)
        seconds = (utc_now() - self._started).total_seconds()
        _log.info("%d rows, %d bytes in %.1f s: %s", rows, nbytes, seconds, self._spec.target)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.published_at is None:
            self._writer.abort(self._plan, _receipts(messages))
        self._reporter.enter(Phase.FAILED)


def _receipts(messages: list[WriterCommitMessage | None]) -> list[Receipt | None]:
    return [message.receipt if isinstance(message, ReceiptMessage) else None for message in messages]


def _transaction(options: WriteOptions) -> tuple[str, int] | None:
    if options.txn_app_id is None or options.txn_version is None:
        return None
    return options.txn_app_id, options.txn_version


def _job_name(label: str | None) -> str:
    """A name for one run, unique even when the user gives the same `jobId` twice."""
    unique = uuid.uuid4().hex[:12]
    return f"{label}-{unique}" if label else unique
