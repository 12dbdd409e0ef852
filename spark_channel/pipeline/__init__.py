"""What runs inside a Spark task, without Spark: threads round a channel."""

from spark_channel.pipeline.conform import conform
from spark_channel.pipeline.read import GroupRead, ReadCancelledError
from spark_channel.pipeline.write import TaskWrite

__all__ = ["GroupRead", "ReadCancelledError", "TaskWrite", "conform"]
