"""`format("channel")`: what Spark asks for, answered by the connectors.

`schema`, `reader` and `writer` run in short planner processes on the driver's host; what they return is
pickled, and used in executors. See each class for what runs where.
"""

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_channel.connectors import load_reader
from spark_channel.errors import UnsupportedError
from spark_channel.spark.schema import as_spark

if TYPE_CHECKING:
    from spark_channel.spark.read import ChannelReader
    from spark_channel.spark.write import ChannelWriter

__all__ = ["ChannelDataSource"]


class ChannelDataSource(DataSource):
    """Spark's door to every connector: `spark.read.format("channel")`, `df.write.format("channel")`.

    Register it with `spark_channel.register(spark)`, or plainly with
    `spark.dataSource.register(spark_channel.ChannelDataSource)`.
    """

    parallelism: ClassVar[int | None] = None
    """The session's default parallelism, where `register` could tell it."""

    @classmethod
    def name(cls) -> str:
        return "channel"

    def schema(self) -> StructType:
        reader, _ = load_reader(self.options)
        return as_spark(reader.schema())

    def reader(self, schema: StructType) -> "ChannelReader":
        from spark_channel.spark.read import ChannelReader

        return ChannelReader(self.options, schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> "ChannelWriter":
        from spark_channel.spark.write import ChannelWriter

        return ChannelWriter(self.options, schema, overwrite)

    def streamReader(self, schema: StructType):  # type: ignore[no-untyped-def]  # noqa: N802
        raise UnsupportedError("format 'channel' reads in batch only: use spark.read, not spark.readStream")

    def streamWriter(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]  # noqa: N802
        raise UnsupportedError(
            "format 'channel' writes in batch only: use df.write, or foreachBatch in a stream"
        )
