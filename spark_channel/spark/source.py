"""`format("channel")`: what Spark asks for, answered by the connectors.

`schema`, `reader` and `writer` run in short planner processes on the driver's host; what they return is
pickled, and used in executors. See each class for what runs where.
"""

import uuid
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_channel.connectors import load_reader
from spark_channel.errors import UnsupportedError
from spark_channel.spark.portable import portable
from spark_channel.spark.schema import as_spark

if TYPE_CHECKING:
    from spark_channel.spark.facts import SessionFacts
    from spark_channel.spark.read import ChannelReader
    from spark_channel.spark.stream_read import ChannelStreamReader
    from spark_channel.spark.stream_write import ChannelStreamWriter
    from spark_channel.spark.write import ChannelWriter

__all__ = ["ChannelDataSource"]


@portable
class ChannelDataSource(DataSource):
    """Spark's door to every connector: `spark.read.format("channel")`, `df.write.format("channel")`.

    Register it with `spark_channel.register(spark)`, or plainly with
    `spark.dataSource.register(spark_channel.ChannelDataSource)`.
    """

    parallelism: ClassVar[int | None] = None
    """The session's default parallelism, where `register` could tell it."""

    driver_host: ClassVar[str | None] = None
    """The driver's host as Spark knows it, where `register` could tell it."""

    slots: ClassVar[int | None] = None
    """How many Spark tasks ran at a time when the session was registered, where `register` could tell it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = uuid.uuid4().hex[:12]
        """Names this `load()`: Spark makes one object of it, which it pickles for every call below."""

    @classmethod
    def name(cls) -> str:
        return "channel"

    def schema(self) -> StructType:
        self._refuse_nothing()
        from spark_channel.tunnel.options import is_stream

        if is_stream(self.options):
            from spark_channel.tunnel.source import StreamSource

            return as_spark(StreamSource(self.options).feed.schema())
        reader, _ = load_reader(self.options)
        return as_spark(reader.schema())

    def reader(self, schema: StructType) -> "ChannelReader":
        self._refuse_nothing()
        from spark_channel.spark.read import ChannelReader

        return ChannelReader(self.options, schema, self._facts(), self._load)

    def writer(self, schema: StructType, overwrite: bool) -> "ChannelWriter":
        self._refuse_nothing()
        from spark_channel.spark.write import ChannelWriter

        return ChannelWriter(self.options, schema, overwrite, self._facts())

    def streamReader(self, schema: StructType) -> "ChannelStreamReader":  # noqa: N802
        from spark_channel.spark.stream_read import stream_reader

        return stream_reader(self.options, schema, self._facts())

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ChannelStreamWriter":  # noqa: N802
        from spark_channel.spark.stream_write import stream_writer

        return stream_writer(self.options, schema, overwrite, self._facts())

    def _refuse_nothing(self) -> None:
        """Of `CREATE TABLE ... USING channel` Spark keeps the options, and hands none of them on."""
        if not self.options:
            raise UnsupportedError(
                "format 'channel' was given no options. If this is a table made by CREATE TABLE ... USING channel: "
                "Spark does not pass a table's options on to a Python data source. Use CREATE TEMPORARY VIEW name "
                "USING channel OPTIONS (...), or spark.read.format('channel').options(...)"
            )

    def _facts(self) -> "SessionFacts":
        from spark_channel.spark.facts import SessionFacts

        return SessionFacts(self.parallelism, self.driver_host, self.slots)
