"""The batch read: planned on the driver's host, run by reader threads in each Spark task."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors import FetchSize, find_connector
from spark_channel.connectors.base.registry import experiment_remark
from spark_channel.errors import ChannelError
from spark_channel.options import ReadOptions
from spark_channel.plain_text import log_of
from spark_channel.planning import Split, TaskGroup, assign_fairly
from spark_channel.processes import keep_loaded
from spark_channel.progress import JobColumn, JobSpec
from spark_channel.service import run_id
from spark_channel.spark.precision import DeclaredPrecision
from spark_channel.spark.schema import as_arrow
from spark_channel.spark.worker import (
    HangupWatch,
    SessionFacts,
    Versioned,
    pass_of,
    portable,
    sent_as_they_come,
    without_traceback,
)
from spark_channel.transfers.limits import is_limited

if TYPE_CHECKING:
    from spark_channel.connectors.base.overlap import Stored
    from spark_channel.limits import StaticShare
    from spark_channel.service import ServiceAddress, SharedLimitAddress

__all__ = [
    "ChannelPartition",
    "ChannelReader",
    "one_split",
]


_log = log_of(__name__)

_READS = 2
"""A DataFrame may be joined with itself: two stages then read at the same time, and spend one limit."""
_FEW_ROWS = 10_000


class ChannelPartition(InputPartition):
    """One task group, what Spark retries; and what all groups of one `load()` share."""

    def __init__(
        self,
        group: TaskGroup,
        plan: str,
        spec: JobSpec,
        service: "ServiceAddress | None",
        shared_limit: "SharedLimitAddress | None",
        fetch: FetchSize,
        static: "StaticShare | None" = None,
        stored: "Stored | None" = None,
    ) -> None:
        super().__init__(group.id)
        self.static = static
        self.stored = stored
        self.fetch = fetch
        self.shared_limit = shared_limit
        self.group = group
        self.plan = plan
        self.spec = spec
        self.service = service


@portable
class ChannelReader(Versioned, DataSourceReader):
    """Made in a planner process, where `partitions` runs; pickled; `read` runs in executors.

    `load` is unique per `load()`. A self-join may plan both its sides, each with its own reader: what
    they have in common is `load`, and with it the limit.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        facts: SessionFacts,
        load: str,
        *,
        own_schema: bool = False,
    ) -> None:
        from spark_channel.connectors.base.registry import describe

        connector = find_connector(options, "reader")
        reader, warnings = connector.reader_with(options)
        for warning in warnings:
            _log.warning(warning)
        if remark := experiment_remark([(connector, options)]):
            _log.warning(remark)
        self._schema = as_arrow(schema)
        self._precision = DeclaredPrecision.from_schema(schema)
        reader.schema_is_own = own_schema
        self._reader = reader.with_schema(self._schema)
        self._options: ReadOptions = reader.options
        self._source = f"{connector.name} {describe(reader.options)}"
        self._facts = facts
        self._load = load

    @without_traceback()
    def partitions(self) -> list[InputPartition]:
        # a task unpickles this class and plans nothing: its process imports none of these
        from spark_channel.planning import merge_tasks, plan_channels, split_advice
        from spark_channel.planning.tasks import assign_by_mark
        from spark_channel.spark.driver import (
            channels_at_once,
            command_of,
            default_parallelism,
            on_one_host,
            reach_service,
            slots_now,
        )
        from spark_channel.spark.own_reads import note_planned
        from spark_channel.transfers.job_spec import read_spec
        from spark_channel.transfers.limits import JobLimits, static_of_spec, static_shares

        parallelism = self._facts.parallelism or default_parallelism(command_of())
        channels = plan_channels(self._options.channels, parallelism)
        limits = JobLimits.from_options(self._options).watching(self._reader)
        fetch = self._reader.fetch_size = limits.fetch_size(channels, reads=_READS)
        splits: Sequence[Split] = self._reader.split(split_advice(channels))
        per_task = self._options.rows_per_second_per_task or self._options.bytes_per_second_per_task
        if self._options.channels is None and not per_task:
            # Fewer tasks would have less of a limit per task.
            splits = self._reader.joined(splits)
        for remark in self._reader.remarks(splits):
            _log.warning(remark)
        if warning := one_split(self._options, splits, channels, self._source):
            _log.warning(warning)
        tasks = merge_tasks(
            splits, reader_marks=[self._reader.resource_mark(split) for split in splits]
        )
        channels, remark = channels_at_once(
            self._reader, self._options, min(channels, max(1, len(tasks))), self._facts
        )
        if remark:
            _log.warning(remark)
        per_mark = self._options.limit_per_mark
        if per_mark:
            groups = assign_by_mark(tasks, channels, self._options.channels_per_task)
        else:
            groups = assign_fairly(tasks, channels, self._options.channels_per_task)
        falls_back = limits.static(1) is not None
        service = reach_service(
            self._options, host=self._facts.driver_host, can_do_without=falls_back
        )
        slots = slots_now(service, self._facts.slots) if falls_back else None
        if service is not None:
            service = service.for_jobs_of(self._load)
        shares = static_shares(limits, groups, slots, per_mark=per_mark)
        spec = read_spec(
            "read",
            limits,
            per_mark=per_mark,
            name=self._options.job_id or "",
            source=self._source,
            source_columns=JobColumn.from_schema(self._schema),
            channels=sum(group.channels for group in groups),
            tasks=len(groups),
            splits=len(splits),
            rows_expected=_total([split.rows for split in splits]),
            bytes_expected=_total([split.nbytes for split in splits]),
            **static_of_spec(
                shares[0] if shares else None, len(groups), slots, one_host=on_one_host
            ),
        )
        stored = self._reader.stored()
        note_planned(stored)
        keep_loaded()  # plans are made in such workers too
        return [
            ChannelPartition(group, self._load, spec, service, limits.address, fetch, share, stored)
            for group, share in zip(groups, shares, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ChannelPartition):
            return  # Spark makes one empty partition of none
        from spark_channel.pipeline import GroupRead
        from spark_channel.transfers.job_link import JobLink

        watch = HangupWatch()
        # Spark pickles the reader before it asks for partitions.
        self._reader.fetch_size = partition.fetch
        task = TaskContext.get()
        assert task is not None
        if partition.stored is not None:
            from spark_channel.spark.own_reads import note_read

            note_read(task, partition.stored)
        execution = task.getLocalProperty("spark.sql.execution.id")
        job = run_id(partition.plan, execution, task.stageId())
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_traceback())
            job_link = JobLink(
                job,
                partition.spec,
                partition.service,
                partition.shared_limit,
                (partition.static,),
            )
            link = stack.enter_context(
                job_link.connect(
                    self._options,
                    f"group {partition.group.id}",
                    mark=partition.group.tasks[0].reader_mark,
                    healths={"source": self._reader.health},
                )
            )
            counters = link.counters(
                partition.group.id,
                **pass_of(task),
                rows_expected=_total([task.split.rows for task in partition.group.tasks]),
                bytes_expected=_total([task.split.nbytes for task in partition.group.tasks]),
                execution=execution or "",
            )
            group = GroupRead(
                self._reader,
                partition.group,
                self._schema,
                check=None if self._precision is None else self._precision.check,
                limiter=link.limiter,
                counters=counters,
                capacity_rows=self._options.capacity_rows,
                capacity_bytes=self._options.capacity_bytes,
            )
            stack.enter_context(watch.calling(group.cancel))
            try:
                yield from sent_as_they_come(group.batches())
            except ChannelError as error:
                counters.explain(str(error))
                raise


def _total(estimates: list[int | None]) -> int | None:
    known_estimates = [estimate for estimate in estimates if estimate is not None]
    return sum(known_estimates) if len(known_estimates) == len(estimates) else None


def one_split(options: ReadOptions, splits: Sequence[Split], channels: int, source: str) -> str:
    """Why a read that asks for a speed or for channels has one, and what to index; empty where that does not matter."""
    asks_for_speed = is_limited(options) or options.channels is not None
    if (
        not asks_for_speed
        or len(splits) != 1
        or channels < 2
        or not hasattr(options, "partition_column")
    ):
        return ""
    rows = splits[0].rows
    if options.partition_column is not None or (rows is not None and rows < _FEW_ROWS):
        return ""
    return (
        f"{source} is read by one channel instead of {channels}, since nothing cuts it: a view, a query, and a table "
        "without a unique key have no ranges. Its speed is that of one connection, whatever the limit "
        "allows. Name a column of many values with option 'partitionColumn', and index it: without an index each "
        "channel scans the whole table"
    )
