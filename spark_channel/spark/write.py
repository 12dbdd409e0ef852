"""The batch write: staged by a writer thread in each Spark task, published once on the driver's host."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_channel.clock import utc_now
from spark_channel.connectors import Receipt, WriteContext, find_connector
from spark_channel.connectors.base.overlap import Overlap, Stored, most_overlap
from spark_channel.connectors.base.registry import describe, experiment_remark
from spark_channel.errors import ChannelError, DirtyRowsError, OptionError, TargetError
from spark_channel.final_errors import first_original
from spark_channel.options import WriteOptions
from spark_channel.pipeline import TaskDirtyRows
from spark_channel.plain_text import log_of
from spark_channel.progress import JobColumn, Phase
from spark_channel.progress.report import told_reasons
from spark_channel.spark.already_published import AlreadyPublishedWriter
from spark_channel.spark.driver import on_one_host, reach_for_write
from spark_channel.spark.own_reads import planned_reads, reads_of_task
from spark_channel.spark.schema import as_arrow, spark_text_lengths
from spark_channel.spark.worker import SessionFacts, Versioned, portable, without_traceback
from spark_channel.transfers.conversion import conversion_to
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.job_spec import write_spec
from spark_channel.transfers.limits import JobLimits, permit_option, static_of_spec, told_static
from spark_channel.transfers.write_job import WriteJob, commit_of, job_name, transaction_of

__all__ = [
    "ChannelWriter",
    "batch_of",
    "batch_writer",
    "refuse_on_stall",
]


_log = log_of(__name__)


def refuse_on_stall(options: WriteOptions) -> None:
    """Check that a write of a DataFrame is not ended when it stalls.

    Raises:
        OptionError: `onStall=fail`: rows come from Spark, whose own wait for them no task can end.
    """
    if options.on_stall == "fail":
        raise OptionError(
            "option 'onStall' got 'fail', which is for transfer(): a write of a DataFrame may wait for Spark's own "
            "rows, which it cannot end. Omit it; with 'stallTimeout' the progress line names the task",
            option="onStall",
            got="fail",
            takes="report",
        )


@dataclass
class ReceiptMessage(WriterCommitMessage):
    """A receipt on its way to the driver, and what the target refused.

    No receipt: `stopped` says which dirty limit was exceeded. That is not an error of the Spark task: Spark would only
    run it again.
    """

    receipt: Receipt | None
    dirty: TaskDirtyRows = field(default_factory=TaskDirtyRows)
    stopped: str = ""
    failed: ChannelError | None = None
    """What every task would meet, too: as an error of the Spark task it would be met again."""
    static: bool = False
    """The task kept its fixed share of the limit, since it did not reach the service."""


@portable
class ChannelWriter(Versioned, DataSourceArrowWriter):
    """Made in a planner process and pickled; `write` runs in executors, at least once per partition;
    `commit` and `abort` run in planner processes, with this object or a copy of it.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool, facts: SessionFacts
    ) -> None:
        connector = find_connector(options, "writer")
        self._writer, warnings = connector.writer_with(options)
        for warning in warnings:
            _log.warning(warning)
        if remark := experiment_remark([(connector, options)]):
            _log.warning(remark)
        self._options: WriteOptions = self._writer.options
        refuse_on_stall(self._options)
        _refuse_first_batch(self._options)
        self._started = utc_now()
        limits = JobLimits.from_options(self._options).watching(self._writer)
        target = f"{connector.name} {describe(self._options)}"
        arriving = as_arrow(schema)
        self._steps = conversion_to(self._writer, connector.name, arriving)
        columns = arriving if self._steps is None else self._steps.output_schema
        self._job = WriteJob(job_name(self._options.job_id), [self._writer], target)
        context = WriteContext(
            job=self._job.job,
            commit=commit_of(self._options),
            overwrite=overwrite,
            txn=transaction_of(self._options),
            text_lengths=spark_text_lengths(schema),
            reads=planned_reads(),
            reads_surely=False,
            gathers=True,
        )
        self._job.prepare([context], columns, begins=True)
        (self._plan,) = self._job.plans
        try:
            self._open(options, facts, limits, context, columns)
        except BaseException:
            # Spark has no writer yet, and aborts nothing: the claim and the staging would stay until the next run.
            self._job.abort(None)
            raise

    def _open(
        self,
        options: Mapping[str, str],
        facts: SessionFacts,
        limits: JobLimits,
        context: WriteContext,
        columns: pa.Schema,
    ) -> None:
        """Show the job at the driver's service, which counts what its tasks share."""
        service, self._static, most, remark = reach_for_write(
            self._writer, limits, facts, shared=any(read.servers for read in context.reads)
        )
        if remark:
            _log.warning(remark)
        if service is not None:
            self._job.service = service = service.for_jobs_of(self._plan.job)
        spec = write_spec(
            "write",
            self._options,
            limits,
            target=self._job.target,
            target_columns=JobColumn.from_schema(columns),
            commit=self._plan.commit,
            at_least_once=self._plan.at_least_once,
            max_connections=most,
            where=describe(self._options),
            **static_of_spec(self._static, one_host=on_one_host),
        )
        self._link = JobLink(
            self._plan.job, spec, service, limits.address, (self._static,), permit_option(options)
        )
        self._job.open(spec)

    def published(self) -> AlreadyPublishedWriter | None:
        """Return the writer to use instead when the rows are already published."""
        if self._plan.published_at is None:
            return None
        return AlreadyPublishedWriter(
            self._plan.txn or ("", 0), self._plan.published_at, self._plan.job, self._job.service
        )

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReceiptMessage:
        from spark_channel.pipeline import DirtyLog, TaskWrite

        task = TaskContext.get()
        assert task is not None
        partition, attempt = task.partitionId(), task.taskAttemptId()
        with (
            self._link.connect(
                self._options, f"task {partition}", healths={"target": self._writer.health}
            ) as link,
            link.permit(),
        ):
            execution = task.getLocalProperty("spark.sql.execution.id") or ""
            counters = link.counters(partition, attempt, execution=execution)
            budget = link.dirty_budget(self._options)
            write = TaskWrite(
                self._writer,
                self._plan,
                partition,
                attempt,
                limiter=link.limiter,
                counters=counters,
                capacity_rows=self._options.capacity_rows,
                capacity_bytes=self._options.capacity_bytes,
                transaction_rows=self._options.transaction_rows,
                dirty=DirtyLog(
                    budget,
                    partition,
                    attempt,
                    store=self._job.dirty_store,
                    job=self._plan.job,
                    counters=counters,
                ),
                steps=self._steps,
            )
            try:
                budget.check()
                receipt = write.run(self._apart(task, iterator))
                return ReceiptMessage(receipt, write.dirty_part, static=link.is_static)
            except DirtyRowsError as error:
                return ReceiptMessage(None, write.dirty_part, str(error))
            except ChannelError as error:
                counters.explain(str(error), ends_job=error.is_final)
                if error.is_final:
                    return ReceiptMessage(None, failed=error)
                raise

    def _apart(
        self, task: TaskContext, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a task, none of which may come from where it commits them before the others are read.

        Raises:
            TargetError: they do. The task has committed nothing.
        """
        target = self._plan.stored
        for batch in batches:
            self._check_apart(task, target)
            target = None if self._plan.commit == "job" else target
            yield batch
        self._check_apart(task, target)

    def _check_apart(self, task: TaskContext, target: Stored | None) -> None:
        if target is None or most_overlap(reads_of_task(task), target) is not Overlap.SURE:
            return
        raise TargetError(
            f"{self._job.target} is written by what reads it: with commit=task, rows that its tasks commit would be "
            "read and written again. This task has written nothing. Set 'commit' to job, or omit it"
        )

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [message for message in messages if isinstance(message, ReceiptMessage)]
        job = self._job
        failed = first_original(message.failed for message in results if message.failed is not None)
        if failed is not None:
            job.reporter.enter(Phase.FAILED, error=str(failed))
            raise failed
        job.receive(results)
        try:
            job.judge(next((message.stopped for message in results if message.stopped), ""))
        except DirtyRowsError as error:
            rows = sum(receipt.rows for receipt in job.receipts)
            job.reporter.enter(
                Phase.FAILED, error=str(error), rows=rows if self._plan.commit == "task" else 0
            )
            raise
        static = told_static(sum(message.static for message in results), len(results), self._static)
        if static:
            _log.warning("%s", static)
        job.reporter.enter(Phase.PUBLISHING, limit=static)
        receipts = job.publish()
        rows, nbytes = sum(r.rows for r in receipts), sum(r.nbytes for r in receipts)
        seconds = (utc_now() - self._started).total_seconds()
        _log.info("%d rows, %d bytes in %.1f s: %s", rows, nbytes, seconds, job.target)
        if job.dirty:
            place = self._options.dirty_rows_path if job.dirty_store is not None else ""
            kept_in = f"; they are in {place}" if place else ""
            reasons = f": {told_reasons(job.dirty_reasons, job.dirty)}" if job.dirty_reasons else ""
            _log.warning("%d rows were refused by %s%s%s", job.dirty, job.target, kept_in, reasons)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._job.fail(
            [
                message.receipt if isinstance(message, ReceiptMessage) else None
                for message in messages
            ]
        )


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, facts: SessionFacts
) -> ChannelWriter | AlreadyPublishedWriter:
    """Planner: what writes with these options, or that a run before has."""
    writer = ChannelWriter(options, schema, overwrite, facts)
    return writer.published() or writer


def _refuse_first_batch(options: WriteOptions) -> None:
    """
    Raises:
        OptionError: `firstBatch` without batches.
    """
    if options.first_batch != "append":
        raise OptionError(
            "option 'firstBatch' got 'overwrite', and this write has no micro-batches: use mode overwrite, or omit it",
            option="firstBatch",
            got="overwrite",
            takes="append",
        )


def batch_of(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """`rows`, tuples in the order of `schema`, as one batch.

    Spark gives a timestamp with zone as a naive datetime of the worker's own zone.
    """
    columns = [
        pa.array([_value(row[index], field.type) for row in rows], field.type)
        for index, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(value: Any, kind: pa.DataType) -> object:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC) if kind.tz is not None else value
    if pa.types.is_struct(kind):
        return {
            kind.field(index).name: _value(value[index], kind.field(index).type)
            for index in range(kind.num_fields)
        }
    if pa.types.is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in value.items()]
    return value
