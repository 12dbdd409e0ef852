"""The batch read: planned on the driver's host, run by reader threads in each Spark task."""

import logging
import os
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.options import ReadOptions
from spark_channel.pipeline import GroupRead
from spark_channel.planning import TaskGroup, assign_fairly, merge_tasks, plan_channels, split_advice
from spark_channel.spark.hangup import HangupWatch
from spark_channel.spark.schema import as_arrow

__all__ = ["ChannelPartition", "ChannelReader"]

_log = logging.getLogger(__name__)


class ChannelPartition(InputPartition):
    """One task group; what Spark retries."""

    def __init__(self, group: TaskGroup) -> None:
        super().__init__(group.id)
        self.group = group


class ChannelReader(DataSourceReader):
    """Made in a planner process, where `partitions` runs; pickled; `read` runs in executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._reader, warnings = load_reader(options)
        for warning in warnings:
            _log.warning(warning)
        self._options: ReadOptions = self._reader.options
        self._schema = as_arrow(schema)
        self._reader = self._reader.with_schema(self._schema)

    def partitions(self) -> list[InputPartition]:
        channels = plan_channels(self._options.channels, default_parallelism())
        self._reader.fetch_size = fetch_size(self._options, channels)
        tasks = merge_tasks(self._reader.split(split_advice(channels)))
        groups = assign_fairly(tasks, channels, self._options.channels_per_task)
        return [ChannelPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ChannelPartition):
            return  # Spark makes one empty partition of none
        watch = HangupWatch()
        group = GroupRead(
            self._reader,
            partition.group,
            self._schema,
            capacity_rows=self._options.capacity_rows,
            capacity_bytes=self._options.capacity_bytes,
        )
        with watch.calling(group.cancel):
            yield from group.batches()


def default_parallelism() -> int:
    """The session's parallelism when `register` made it known, else the cores of the driver's host."""
    return os.cpu_count() or 1


def fetch_size(options: ReadOptions, channels: int) -> FetchSize:
    """About half a second of the limit over all channels: a fetch is sent before it is paid."""
    rows, nbytes = options.rows_per_second, options.bytes_per_second
    share = 2 * channels
    return FetchSize(rows and max(1, rows // share), nbytes and max(1, nbytes // share))
