"""The batch write: staged by a writer thread in each Spark task, published once on the driver's host."""

import uuid
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
from spark_channel.connectors.base.registry import describe, experiment_remark
from spark_channel.connectors.base.stored import Overlap, Stored, most_overlap
from spark_channel.errors import ChannelError, DirtyRowsError, OptionError, TargetError
from spark_channel.final_errors import first_original
from spark_channel.options import WriteOptions
from spark_channel.pipeline import TaskDirtyRows
from spark_channel.pipeline.dirty import dirty_row_totals, merged_reasons, prepare_write, too_many
from spark_channel.plain_text import log_of
from spark_channel.progress import JobColumn, JobSpec, Phase
from spark_channel.progress.report import told_reasons
from spark_channel.spark.already_published import AlreadyPublishedWriter
from spark_channel.spark.driver import (
    JobReporter,
    found_service,
    on_one_host,
    reach_service,
    slots_now,
)
from spark_channel.spark.own_reads import planned_reads, reads_of_task
from spark_channel.spark.schema import as_arrow, spark_text_lengths
from spark_channel.spark.worker import SessionFacts, Versioned, portable, without_traceback
from spark_channel.transfers.conversion import conversion_to
from spark_channel.transfers.limits import JobLimits, permit_option, static_of_spec, told_static

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

    @property
    def dirty_rows(self) -> int:
        return self.dirty.rows if self.receipt is None else self.receipt.dirty_rows


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
        self._started = utc_now()
        tolerant = self._options.tolerates_dirty_rows
        context = WriteContext(
            job=_job_name(self._options.job_id),
            commit=self._options.commit or (self._options.dirty_commit if tolerant else None),
            overwrite=overwrite,
            txn=_transaction(self._options),
            text_lengths=spark_text_lengths(schema),
            reads=planned_reads(),
            reads_surely=False,
            gathers=True,
        )
        limits = JobLimits.from_options(self._options).watching(self._writer)
        self._shared_limit = limits.address
        where = describe(self._options)
        target = f"{connector.name} {where}"
        arriving = as_arrow(schema)
        self._steps = conversion_to(self._writer, connector.name, arriving)
        wanted = arriving if self._steps is None else self._steps.output_schema
        replaced = self._writer.foreign_content(wanted) if context.overwrite else ""
        self._plan, self._dirty_store = prepare_write(self._writer, context, wanted, target)
        if replaced and self._plan.published_at is None:
            _log.warning("job %s replaces %s in %s", context.job, replaced, target)
        falls_back = limits.static(1) is not None
        self._permit_option = permit_option(options)
        most = self._options.max_connections
        slots = slots_now(found_service(), facts.slots) if falls_back or most is not None else None
        if most is not None and slots is not None and slots <= most:
            most = None  # so many never run at a time: they need no counting
        self._static = limits.static(slots)
        self._service = reach_service(
            self._options,
            host=facts.driver_host,
            can_do_without=self._static is not None,
            counts=most is not None,
        )
        if self._service is not None:
            self._service = self._service.for_jobs_of(self._plan.job)
        self._spec = JobSpec(
            "write",
            name=self._options.job_id or "",
            target=target,
            target_columns=JobColumn.from_schema(wanted),
            commit=self._plan.commit,
            at_least_once=self._plan.at_least_once,
            **limits.of_spec(),
            max_connections=most,
            **static_of_spec(self._static, one_host=on_one_host),
            max_dirty_rows=self._options.most_dirty_rows,
            max_dirty_fraction=self._options.max_dirty_fraction,
            where=where,
            stall_timeout=self._options.stall_timeout,
        )
        self._reporter.open(self._spec)

    @property
    def _reporter(self) -> JobReporter:
        return JobReporter(self._service, self._plan.job)

    def published(self) -> AlreadyPublishedWriter | None:
        """Return the writer to use instead when the rows are already published."""
        if self._plan.published_at is None:
            return None
        return AlreadyPublishedWriter(
            self._plan.txn or ("", 0), self._plan.published_at, self._plan.job, self._service
        )

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReceiptMessage:
        from spark_channel.pipeline import DirtyLog, TaskWrite
        from spark_channel.transfers.task import TaskServiceClient

        task = TaskContext.get()
        assert task is not None
        partition, attempt = task.partitionId(), task.taskAttemptId()
        name = f"task {partition}"
        with (
            TaskServiceClient(
                self._service,
                self._plan.job,
                self._spec,
                self._options,
                name,
                self._shared_limit,
                static=self._static,
                permit_option=self._permit_option,
                healths={"target": self._writer.health},
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
                    store=self._dirty_store,
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
            f"{self._spec.target} is written by what reads it: with commit=task, rows that its tasks commit would be "
            "read and written again. This task has written nothing. Set 'commit' to job, or omit it"
        )

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        receipts = [receipt for receipt in _receipts(messages) if receipt is not None]
        own = [message for message in messages if isinstance(message, ReceiptMessage)]
        dirty = sum(message.dirty_rows for message in own)
        failed = first_original(message.failed for message in own if message.failed is not None)
        if failed is not None:
            self._reporter.enter(Phase.FAILED, error=str(failed))
            raise failed
        stopped = next((message.stopped for message in own if message.stopped), "")
        why = stopped or too_many(self._options, dirty, receipts)
        if self._dirty_store is not None:
            self._dirty_store.publish([message.dirty for message in own])
        if why:
            why = f"{why}. {dirty_row_totals(self._plan, self._spec.target, receipts)}"
            rows = sum(receipt.rows for receipt in receipts) if self._plan.commit == "task" else 0
            self._reporter.enter(Phase.FAILED, error=why, rows=rows)
            raise DirtyRowsError(why)
        static = sum(message.static for message in own)
        if static:
            _log.warning("%s", told_static(static, len(own), self._static))
        self._reporter.enter(Phase.PUBLISHING, limit=told_static(static, len(own), self._static))
        if self._writer.commit(self._plan, receipts) is False:
            receipts = []
        rows, nbytes = sum(r.rows for r in receipts), sum(r.nbytes for r in receipts)
        self._reporter.enter(Phase.DONE, rows=rows)
        seconds = (utc_now() - self._started).total_seconds()
        _log.info("%d rows, %d bytes in %.1f s: %s", rows, nbytes, seconds, self._spec.target)
        if dirty:
            kept = (
                f"; they are in {self._options.dirty_rows_path}"
                if self._dirty_store is not None
                else ""
            )
            reasons = merged_reasons(
                message.dirty.reasons if message.receipt is None else message.receipt.dirty_reasons
                for message in own
            )
            why = f": {told_reasons(reasons, dirty)}" if reasons else ""
            _log.warning("%d rows were refused by %s%s%s", dirty, self._spec.target, kept, why)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        left = self._writer.abort(self._plan, _receipts(messages))
        if self._dirty_store is not None:
            self._dirty_store.drop()
        is_known = left is not None and not self._plan.at_least_once
        rows = sum(each.rows for each in left or ()) if is_known else None
        self._reporter.enter(Phase.FAILED, rows=rows)


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, facts: SessionFacts
) -> ChannelWriter | AlreadyPublishedWriter:
    """Planner: what writes with these options, or that a run before has."""
    writer = ChannelWriter(options, schema, overwrite, facts)
    return writer.published() or writer


def _receipts(messages: list[WriterCommitMessage | None]) -> list[Receipt | None]:
    return [
        message.receipt if isinstance(message, ReceiptMessage) else None for message in messages
    ]


def _transaction(options: WriteOptions) -> tuple[str, int] | None:
    if options.txn_app_id is None or options.txn_version is None:
        return None
    return options.txn_app_id, options.txn_version


def _job_name(label: str | None) -> str:
    """A name for one run, unique even when the user gives the same `jobId` twice."""
    unique = uuid.uuid4().hex[:12]
    return f"{label}-{unique}" if label else unique


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
