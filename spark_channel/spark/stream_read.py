"""`readStream`: offsets in one process on the driver's host, rows in executors as in a batch read."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors import FetchSize
from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import (
    ChannelError,
    UnsupportedError,
)
from spark_channel.options import ReadOptions
from spark_channel.plain_text import log_of
from spark_channel.planning import (
    Split,
    TaskGroup,
    assign_fairly,
    merge_tasks,
    plan_channels,
    split_advice,
)
from spark_channel.planning.tasks import share_channels
from spark_channel.progress import JobColumn, JobSpec
from spark_channel.service import new_job_id
from spark_channel.spark.driver import (
    channels_at_once,
    command_of,
    default_parallelism,
    on_one_host,
    reach_service,
    slots_now,
)
from spark_channel.spark.own_reads import note_origin
from spark_channel.spark.precision import DeclaredPrecision
from spark_channel.spark.schema import as_arrow
from spark_channel.spark.worker import (
    HangupWatch,
    SessionFacts,
    Versioned,
    pass_of,
    portable,
    without_traceback,
)
from spark_channel.transfers.job_spec import read_spec
from spark_channel.transfers.limits import JobLimits, static_of_spec, static_shares
from spark_channel.tunnel.positions import CheckpointPositions, LagWatch, Offset, StreamPositions
from spark_channel.tunnel.source import StreamSource

if TYPE_CHECKING:
    from spark_channel.limits import StaticShare
    from spark_channel.service import ServiceAddress, SharedLimitAddress

__all__ = [
    "ChannelStreamReader",
    "batch_number",
    "query_id",
]


_log = log_of(__name__)

_BATCH_SECONDS = 60
"""Under a speed limit and no other, a micro-batch contains about what the limit lets through in this time."""
_BESIDE_SECONDS = 2
"""The same while existing rows are read beside the changes, which arrive with their batch."""


class StreamPartition(InputPartition):
    """One task group of one micro-batch: the rows of one tunnel range, or of a query's own."""

    def __init__(
        self,
        group: TaskGroup,
        job: str,
        spec: JobSpec,
        origin: str,
        service: "ServiceAddress | None",
        shared_limit: "SharedLimitAddress | None",
        fetch: FetchSize,
        static: "StaticShare | None" = None,
    ) -> None:
        super().__init__(group.id)
        self.static = static
        self.group = group
        self.job = job
        self.spec = spec
        self.origin = origin
        self.service = service
        self.shared_limit = shared_limit
        self.fetch = fetch


@portable
class ChannelStreamReader(Versioned, DataSourceStreamReader):
    """Offsets are asked for in one process per query; `read` runs on pickled copies in executors.

    This class serves Spark 4.0 and 4.1, which have no admission control; see `spark.source`. A tunnel
    makes up for it, since it knows its channels' positions.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, facts: SessionFacts) -> None:
        self._schema = as_arrow(schema)
        self._precision = DeclaredPrecision.from_schema(schema)
        self._source = StreamSource(options, self._schema)
        self._source.schema()  # a user who gives one is not asked for it
        self._options: ReadOptions = self._source.reader.options
        self._facts = facts
        self._positions: StreamPositions | None = None
        self._lag = LagWatch(self._source.feed.waits_seconds)
        self._has_remarked = self._has_said_bound = False
        self._experiment = self._source.experiment

    @without_traceback()
    def initialOffset(self) -> Offset:
        return self._standing().initial()

    @without_traceback()
    def latestOffset(self) -> Offset:  # type: ignore[override] # Spark 4.2 gives it arguments in a subclass
        limit = self._source.options.limit()
        if limit and self._source.options.tunnel is None:
            raise UnsupportedError(
                "options 'maxRowsPerTrigger' and 'maxBytesPerTrigger' need Spark 4.2, "
                "which passes a source the position of its query, or option 'tunnel', which keeps the position; "
                "or limit the speed with 'rowsPerSecond'"
            )
        standing = self._standing()
        return standing.latest(None, self._beside(limit) if standing.is_beside(None) else limit)

    def _beside(self, limit: FeedLimit) -> FeedLimit:
        """`limit` while existing rows are read beside the changes."""
        if self._source.options.limit():
            return limit  # the user's
        return batch_limit(self._options, FeedLimit(), _BESIDE_SECONDS)

    @without_traceback()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        channels = self._channels()
        limits = JobLimits.from_options(self._options).watching(self._source.reader)
        fetch = self._source.reader.fetch_size = limits.fetch_size(channels)
        ranges = self._standing().ranges(start, end)
        splits = [split for one_range in ranges for split in one_range.splits]
        self._remark(splits)
        channels, bounded = channels_at_once(
            self._source.reader, self._options, min(channels, max(1, len(splits))), self._facts
        )
        if bounded and not self._has_said_bound:
            self._has_said_bound = True
            _log.warning(bounded)
        falls_back = limits.static(1) is not None
        service = reach_service(
            self._options, host=self._facts.driver_host, can_do_without=falls_back
        )
        slots = slots_now(service, self._facts.slots) if falls_back else None
        planned: list[tuple[TaskGroup, str]] = []
        channels_of = share_channels(channels, [len(one_range.splits) for one_range in ranges])
        for one_range, share in zip(ranges, channels_of, strict=True):
            tasks = merge_tasks(one_range.splits)
            for group in assign_fairly(tasks, share, self._options.channels_per_task):
                planned.append(
                    (TaskGroup(len(planned), group.tasks, group.channels), one_range.origin)
                )
        shares = static_shares(limits, [group for group, _ in planned], slots)
        behind, lag = (
            ("", {}) if service is None else self._lag.look(lambda: self._standing().behind(end))
        )
        spec = read_spec(
            "read",
            limits,
            name=self._options.job_id or self._source.options.tunnel or "",
            source=self._source.about,
            source_columns=JobColumn.from_schema(self._schema),
            channels=channels,
            tasks=len(planned),
            **static_of_spec(
                shares[0] if shares else None, len(planned), slots, one_host=on_one_host
            ),
            behind=behind,
            lag=lag,
        )
        job = new_job_id()
        if service is not None:
            service = service.for_jobs_of(job)
        return [
            StreamPartition(group, job, spec, origin, service, limits.address, fetch, share)
            for (group, origin), share in zip(planned, shares, strict=True)
        ]

    def _remark(self, splits: Sequence[Split]) -> None:
        """Log the reader's remarks on `splits`, once per query."""
        if self._experiment:
            _log.warning(self._experiment)
            self._experiment = None
        for remark in () if self._has_remarked else self._source.reader.remarks(splits):
            self._has_remarked = True
            _log.warning(remark)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPartition):
            return  # Spark makes one empty partition of none
        from spark_channel.pipeline import GroupRead
        from spark_channel.transfers.job_link import JobLink

        watch = HangupWatch()
        task = TaskContext.get()
        assert task is not None
        if partition.origin:
            note_origin(task, partition.origin)
        self._source.reader.fetch_size = partition.fetch
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_traceback())
            job_link = JobLink(
                partition.job,
                replace(partition.spec, batch=batch_number(task), query=query_id(task)),
                partition.service,
                partition.shared_limit,
                (partition.static,),
            )
            link = stack.enter_context(
                job_link.connect(
                    self._options,
                    f"group {partition.group.id}",
                    healths={"source": self._source.reader.health},
                )
            )
            counters = link.counters(partition.group.id, **pass_of(task))
            group = GroupRead(
                self._source.feed,
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
                yield from group.batches()
            except ChannelError as error:
                counters.explain(str(error))
                raise

    @without_traceback()
    def commit(self, end: Offset) -> None:
        self._standing().settle(end)

    def stop(self) -> None:
        if self._positions is not None:
            self._positions.close()

    def __getstate__(self) -> dict[str, Any]:
        # Executors read what their partitions say; the client of the tunnel stays with the offsets.
        return {**self.__dict__, "_positions": None, "_lag": None}

    def _channels(self) -> int:
        return plan_channels(
            self._options.channels, self._facts.parallelism or default_parallelism(command_of())
        )

    def _standing(self) -> StreamPositions:
        if self._positions is None:
            settings = self._source.options
            if settings.tunnel is None:
                self._positions = CheckpointPositions(self._source, split_advice(self._channels()))
            else:
                from spark_channel.tunnel.shared_positions import SharedPositions
                from spark_channel.tunnel.store import open_store

                self._positions = SharedPositions(self._source, open_store(settings.store))
        return self._positions


def batch_number(task: TaskContext) -> int:
    """The number of the micro-batch that a task is of."""
    return int(task.getLocalProperty("streaming.sql.batchId") or 0)


def query_id(task: TaskContext) -> str:
    """The streaming query that a task is of."""
    return task.getLocalProperty("sql.streaming.queryId") or ""


def batch_limit(options: ReadOptions, limit: FeedLimit, seconds: int = _BATCH_SECONDS) -> FeedLimit:
    """Return the limit of a micro-batch; with only a speed limit, the rows that it allows in this many seconds."""
    if limit:
        return limit
    rows, nbytes = options.rows_per_second, options.bytes_per_second
    return FeedLimit(rows and rows * seconds, nbytes and nbytes * seconds)
