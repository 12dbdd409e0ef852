"""`writeStream`: each micro-batch is published as one job whose name is the same whenever it is run again.

Rows that come straight from a tunnel's range are published under the channel's name and the range's number, so that
they are published once whoever reads the range, this query or another one that took its channel over. All other rows
are published under the query's id and the batch's number. The target keeps the last number of each.

Spark does not notify a streaming writer before the tasks of a batch run, and does not name the query.
So each task prepares the write (the same job gives the same plan), and sends the plan with its receipt.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyspark.sql.datasource as datasource_api
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_channel.connectors import Receipt, WriteContext, WritePlan, find_connector
from spark_channel.connectors.base.registry import describe, experiment_remark
from spark_channel.errors import ChannelError, OptionError, UnsupportedError
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.progress import JobColumn
from spark_channel.spark.driver import on_one_host, reach_for_write
from spark_channel.spark.own_reads import forget_origins, origins_of_task
from spark_channel.spark.schema import as_arrow, spark_text_lengths
from spark_channel.spark.stream_read import batch_number, query_id
from spark_channel.spark.worker import SessionFacts, Versioned, portable, without_traceback
from spark_channel.spark.write import refuse_on_stall
from spark_channel.transfers.conversion import refuse_lenient
from spark_channel.transfers.job_link import JobLink, TaskServiceClient
from spark_channel.transfers.job_spec import write_spec
from spark_channel.transfers.limits import JobLimits, permit_option, static_of_spec
from spark_channel.transfers.write_job import WriteJob

__all__ = ["OF_THE_QUERY", "ChannelStreamWriter", "stream_writer"]

_log = log_of(__name__)

OF_THE_QUERY = {"checkpointlocation", "queryname", "outputmode"}
"""Options of the query itself, which Spark hands on."""

_ArrowWriter: Any = getattr(datasource_api, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""Since 4.1 a streaming writer is given Arrow batches; before, rows."""
_GIVES_ROWS = _ArrowWriter is DataSourceStreamWriter


@dataclass
class StreamMessage(WriterCommitMessage):
    """The receipt of a task's staged rows, and its plan; None for a task without rows."""

    plan: WritePlan | None = None
    receipt: Receipt | None = None
    misses_batches: bool = False
    """The target has no earlier batch of the query, which has had some."""


@portable
class ChannelStreamWriter(Versioned, _ArrowWriter):  # type: ignore[misc] # a base that depends on the version
    """Made for every call on the driver's host, so the messages carry the state."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool, facts: SessionFacts
    ) -> None:
        writer_options = {
            key: value for key, value in options.items() if key.lower() not in OF_THE_QUERY
        }
        connector = find_connector(writer_options, "writer")
        self._writer, warnings = connector.writer_with(writer_options)
        for warning in warnings:
            _log.warning(warning)
        experiment = experiment_remark([(connector, writer_options)])
        self._options: WriteOptions = self._writer.options
        _refuse(self._options)
        refuse_on_stall(self._options)
        self._schema, self._lengths = as_arrow(schema), spark_text_lengths(schema)
        self._overwrite = overwrite
        limits = JobLimits.from_options(self._options).watching(self._writer)
        self._service, static, most, bounded = reach_for_write(
            self._writer, limits, facts, shared=True
        )
        self._remarks = [remark for remark in (experiment, bounded) if remark]
        where = describe(self._options)
        target = f"{connector.name} {where}"
        if self._service is not None:
            # Spark makes another writer for the commit, which ends the jobs that tasks of this one open.
            self._service = self._service.for_jobs_of(target)
        spec = write_spec(
            "write",
            self._options,
            limits,
            counts_dirty=False,
            target=target,
            target_columns=JobColumn.from_schema(self._schema),
            commit="job",
            max_connections=most,
            where=where,
            **static_of_spec(static, one_host=on_one_host),
        )
        self._link = JobLink(
            "", spec, self._service, limits.address, (static,), permit_option(options)
        )
        """Of no job yet: each batch is one."""

    @without_traceback()
    def write(self, iterator: Iterator[Any]) -> StreamMessage:
        task = TaskContext.get()
        assert task is not None
        batches = _as_batches(iterator, self._schema) if _GIVES_ROWS else iterator
        first = next(batches, None)
        query = query_id(task)
        batch = batch_number(task)
        overwrite = self._overwrite or (batch == 0 and self._options.first_batch == "overwrite")
        if first is None and not overwrite:
            return StreamMessage()
        origins = origins_of_task(task)
        stream = (query, batch)
        if origins and self._options.first_batch == "overwrite":
            raise UnsupportedError(
                "option 'firstBatch' got 'overwrite', and the rows come from a tunnel: their batches belong to its "
                "channels, and not to this query. Omit it, or empty the target before the tunnel is reset"
            )
        if origins and not self._overwrite:
            channel, _, sequence = origins[0].rpartition("-")
            stream = (channel, int(sequence))
        job = f"stream-{stream[0]}-{stream[1]}"
        context = WriteContext(
            job,
            commit="job",
            overwrite=overwrite,
            stream=stream,
            text_lengths=self._lengths,
            gathers=True,
        )
        spec = replace(self._link.spec, batch=batch, query=query)
        job_link = replace(self._link, job=job, spec=spec)
        with (
            job_link.connect(
                self._options,
                f"task {task.partitionId()}",
                healths={"target": self._writer.health},
            ) as link,
            link.permit(),
        ):
            misses = batch > 0 and not origins and not overwrite and self._knows_nothing_of(query)
            # The claim is taken here and not by a `WriteJob`: tasks take the same one: Spark notifies no driver.
            plan = self._writer.prepare(context, self._schema)
            # Rows of a batch that is published already are read and dropped: a Spark task whose rows are not read may
            # not end, and only at its end are the ranges known that the rows came from.
            receipt = self._staged(
                task, plan, link, batches if first is None else itertools.chain([first], batches)
            )
        noted = origins_of_task(task)
        forget_origins(task)
        if origins and noted != origins:
            raise UnsupportedError(
                "rows of several tunnel ranges meet in one task (coalesce), so another query that takes over a channel "
                "could not separate them: use repartition instead of coalesce, or write the rows without either"
            )
        return StreamMessage(plan, receipt, misses)

    def _knows_nothing_of(self, query: str) -> bool:
        if getattr(self._options, "ledger", "required") != "required":
            return False  # there may be no record
        try:
            return self._writer.stream_progress(query) is None
        except UnsupportedError:  # this target keeps no record of what it has
            return False

    def _staged(
        self,
        task: TaskContext,
        plan: WritePlan,
        link: TaskServiceClient,
        batches: Iterator[pa.RecordBatch],
    ) -> Receipt:
        from spark_channel.pipeline import TaskWrite

        partition, attempt = task.partitionId(), task.taskAttemptId()
        counters = link.counters(partition, attempt)
        write = TaskWrite(
            self._writer,
            plan,
            partition,
            attempt,
            limiter=link.limiter,
            counters=counters,
            capacity_rows=self._options.capacity_rows,
            capacity_bytes=self._options.capacity_bytes,
            transaction_rows=self._options.transaction_rows,
        )
        try:
            return write.run(batches)
        except ChannelError as error:
            counters.explain(str(error))
            raise

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for remark in self._remarks if batchId == 0 else ():  # each batch has its own writer
            _log.warning(remark)
        if any(
            isinstance(message, StreamMessage) and message.misses_batches for message in messages
        ):
            _log.warning(
                "%s has no rows of this query before batch %d: if earlier batches had rows, another target has them. "
                "A checkpoint belongs to one target; for all rows, begin the query with a new checkpoint directory",
                self._link.spec.target,
                batchId,
            )
        for job in self._jobs(messages):
            rows = sum(receipt.rows for receipt in job.publish())
            _log.info("batch %d: %d rows published in %s", batchId, rows, job.target)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for job in self._jobs(messages):
            job.fail(job.receipts)

    def _jobs(self, messages: list[WriterCommitMessage | None]) -> list[WriteJob]:
        """The batch's jobs with the receipts of their tasks, in the order of their names."""
        jobs: dict[str, WriteJob] = {}
        for message in messages:
            if (
                isinstance(message, StreamMessage)
                and message.plan is not None
                and message.receipt is not None
            ):
                plan, target = message.plan, self._link.spec.target
                job = jobs.setdefault(
                    plan.job, WriteJob(plan.job, [self._writer], target, self._service, [plan])
                )
                job.receipts.append(message.receipt)
        return [jobs[name] for name in sorted(jobs)]


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, facts: SessionFacts
) -> ChannelStreamWriter:
    """The writer of one query; `overwrite`: output mode complete."""
    return ChannelStreamWriter(options, schema, overwrite, facts)


def _refuse(options: WriteOptions) -> None:
    refuse_lenient(options)
    if options.txn_app_id is not None:
        raise OptionError(
            "option 'txn' names one write; a stream's batches have their own names",
            option="txn",
        )
    if options.commit == "task":
        raise OptionError(
            "option 'commit' got 'task'; a stream publishes each micro-batch whole: omit the option",
            option="commit",
            got="task",
            takes="job",
        )
    if options.tolerates_dirty_rows:
        raise OptionError(
            "option 'maxDirtyRows' needs commit=task, and a stream publishes each micro-batch whole; write "
            "with foreachBatch to set rows aside",
            option="maxDirtyRows",
        )


def _as_batches(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Spark 4.0's rows as batches of the size that later versions give."""
    from spark_channel.spark.write import batch_of

    while chunk := list(itertools.islice(rows, 10_000)):
        yield batch_of(chunk, schema)
