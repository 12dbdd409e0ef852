"""The batch read: planned on the driver's host, run by reader threads in each Spark task."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors import FetchSize, find_connector, load_reader
from spark_channel.connectors.describe import describe
from spark_channel.options import CommonOptions, ReadOptions
from spark_channel.pipeline import GroupRead
from spark_channel.planning import TaskGroup, assign_fairly, merge_tasks, plan_channels, split_advice
from spark_channel.progress import JobSpec
from spark_channel.service import ServiceAddress, SharedLimitAddress, new_job_id, run_id
from spark_channel.spark.driver import (
    command_of,
    default_parallelism,
    limit_scope_of,
    reach_service,
    shared_limit_of,
)
from spark_channel.spark.hangup import HangupWatch
from spark_channel.spark.schema import as_arrow
from spark_channel.spark.task import TaskLink

__all__ = ["ChannelPartition", "ChannelReader"]

_log = logging.getLogger(__name__)


class ChannelPartition(InputPartition):
    """One task group, what Spark retries; and what all groups of one `load()` share."""

    def __init__(
        self,
        group: TaskGroup,
        plan: str,
        spec: JobSpec,
        service: ServiceAddress | None,
        shared_limit: SharedLimitAddress | None,
    ) -> None:
        super().__init__(group.id)
        self.shared_limit = shared_limit
        self.group = group
        self.plan = plan
        self.spec = spec
        self.service = service


class ChannelReader(DataSourceReader):
    """Made in a planner process, where `partitions` runs; pickled; `read` runs in executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType, parallelism: int | None) -> None:
        reader, warnings = load_reader(options)
        for warning in warnings:
            _log.warning(warning)
        self._schema = as_arrow(schema)
        self._reader = reader.with_schema(self._schema)
        self._options: ReadOptions = reader.options
        self._source = f"{find_connector(options, 'reader').name} {describe(reader.options)}"
        self._parallelism = parallelism

    def partitions(self) -> list[InputPartition]:
        parallelism = self._parallelism or default_parallelism(command_of())
        channels = plan_channels(self._options.channels, parallelism)
        self._reader.fetch_size = fetch_size(self._options, channels)
        splits = self._reader.split(split_advice(channels))
        tasks = merge_tasks(splits, reader_marks=[self._reader.resource_mark(split) for split in splits])
        groups = assign_fairly(tasks, channels, self._options.channels_per_task)
        spec = JobSpec(
            "read",
            name=self._options.job_id or "",
            source=self._source,
            channels=sum(group.channels for group in groups),
            tasks=len(groups),
            splits=len(splits),
            rows_expected=_total([split.rows for split in splits]),
            bytes_expected=_total([split.nbytes for split in splits]),
            rows_per_second=self._options.rows_per_second,
            bytes_per_second=self._options.bytes_per_second,
            limit_scope=limit_scope_of(self._options),
        )
        shared_limit = shared_limit_of(self._options)
        service = reach_service(self._options)
        plan = new_job_id()
        return [ChannelPartition(group, plan, spec, service, shared_limit) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ChannelPartition):
            return  # Spark makes one empty partition of none
        watch = HangupWatch()
        task = TaskContext.get()
        assert task is not None
        job = run_id(partition.plan, task.getLocalProperty("spark.sql.execution.id"), task.stageId())
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(
                TaskLink(partition.service, job, partition.spec, self._options, f"group {partition.group.id}")
            )
            group = GroupRead(
                self._reader,
                partition.group,
                self._schema,
                limiter=link.limiter,
                counters=link.counters(
                    partition.group.id,
                    task.taskAttemptId(),
                    scan=task.stageId(),
                    rows_expected=_total([each.split.rows for each in partition.group.tasks]),
                    bytes_expected=_total([each.split.nbytes for each in partition.group.tasks]),
                ),
                capacity_rows=self._options.capacity_rows,
                capacity_bytes=self._options.capacity_bytes,
            )
            stack.enter_context(watch.calling(group.cancel))
            yield from group.batches()


def _total(estimates: list[int | None]) -> int | None:
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(known) if len(known) == len(estimates) else None


def fetch_size(options: CommonOptions, channels: int) -> FetchSize:
    """About half a second of the limit over all channels: a fetch is sent before it is paid."""
    rows, nbytes = options.rows_per_second, options.bytes_per_second
    share = 2 * channels
    return FetchSize(rows and max(1, rows // share), nbytes and max(1, nbytes // share))
