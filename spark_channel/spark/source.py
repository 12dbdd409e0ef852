"""`format("channel")`: Spark's data source, on top of the connectors; and `explain`, which shows its reads.

`schema`, `reader` and `writer` run in short planner processes on the driver's host; Spark pickles their results, and
uses them in executors. The docstring of each class names the process of each method.

The process in which Spark looks for data sources needs only the class from this module, so each method imports its
dependencies.
"""

import importlib.util
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource

from spark_channel.errors import UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.spark.worker import (
    SessionFacts,
    Versioned,
    check_version,
    portable,
    without_traceback,
)
from spark_channel.working_directory import WorkingDirectory, relative_to

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spark_channel.spark.already_published import AlreadyPublishedWriter
    from spark_channel.spark.read import ChannelReader
    from spark_channel.spark.stream_read import ChannelStreamReader
    from spark_channel.spark.stream_write import ChannelStreamWriter
    from spark_channel.spark.write import ChannelWriter

__all__ = ["ChannelDataSource", "explain", "scan_lines"]


_log = log_of(__name__)


@portable
class ChannelDataSource(Versioned, DataSource):
    """The data source for every connector: `spark.read.format("channel")`, `df.write.format("channel")`.

    Register it with `spark_channel.register(spark)`, or plainly with
    `spark.dataSource.register(spark_channel.ChannelDataSource)`.
    """

    version: ClassVar[str | None] = None
    """spark-channel's in the process that called `register`."""
    parallelism: ClassVar[int | None] = None
    """The session's default parallelism, where `register` found it."""
    times: ClassVar[bool | None] = None
    """`spark.sql.timeType.enabled`, where `register` found it."""
    directory: ClassVar[WorkingDirectory | None] = None
    """The driver's working directory, where `register` found it."""

    driver_host: ClassVar[str | None] = None
    """Spark's name for the driver's host, where `register` found it."""

    slots: ClassVar[int | None] = None
    """How many Spark tasks ran at a time when the session was registered, where `register` found it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if self.version is not None:
            check_version(self.version)
        self._load = uuid.uuid4().hex[:12]
        """The name of this `load()`: Spark makes one object for it, and pickles the object for every call below."""
        self._own_schema: StructType | None = None
        """The result of `schema`, which Spark does not call when the user gave a schema."""

    @classmethod
    def name(cls) -> str:
        return "channel"

    @contextmanager
    def _on_the_driver(self) -> Iterator[None]:
        with without_traceback(), relative_to(self.directory or _working_directory()):
            yield

    def schema(self) -> "StructType":
        from spark_channel.connectors import load_reader
        from spark_channel.tunnel.options import is_stream

        with self._on_the_driver():
            _refuse_catalog(self.options)
            if is_stream(self.options):
                from spark_channel.tunnel.source import StreamSource

                return self._as_spark(StreamSource(self.options).schema())
            reader, _ = load_reader(self.options)
            self._own_schema = self._as_spark(reader.schema())
            return self._own_schema

    def _as_spark(self, schema: "pa.Schema") -> "StructType":
        from spark_channel.spark.driver import command_of, takes_times
        from spark_channel.spark.schema import TIME_SUPPORTED, as_spark, has_times

        times = TIME_SUPPORTED and (takes_times(command_of()) if self.times is None else self.times)
        if not times and (texts := [field.name for field in schema if has_times(field.type)]):
            _log.warning(
                "the times of day in %s are read as text: %s",
                ", ".join(map(repr, texts)),
                "spark.sql.timeType.enabled was false when this session was registered. "
                "To have them as TIME, set it and call spark_channel.register(spark) again"
                if TIME_SUPPORTED
                else "Spark has the type TIME from version 4.1 on",
            )
        return as_spark(schema, times=times)

    def reader(self, schema: "StructType") -> "ChannelReader":
        from spark_channel.spark.read import ChannelReader

        with self._on_the_driver():
            _refuse_catalog(self.options)
            _refuse_other_engine(schema)
            is_own = schema == self._own_schema
            return ChannelReader(self.options, schema, self._facts(), self._load, own_schema=is_own)

    def writer(
        self, schema: "StructType", overwrite: bool
    ) -> "ChannelWriter | AlreadyPublishedWriter":
        from spark_channel.spark.write import batch_writer

        with self._on_the_driver():
            _refuse_catalog(self.options)
            _refuse_other_engine(schema)
            return batch_writer(self.options, schema, overwrite, self._facts())

    def streamReader(self, schema: "StructType") -> "ChannelStreamReader":
        _refuse_catalog(self.options)
        _refuse_other_engine(schema)
        # Admission control and AvailableNow came with Spark 4.2: earlier ones cannot import what has them.
        if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
            from spark_channel.spark.stream_read import ChannelStreamReader

            reader_class = ChannelStreamReader
        else:
            from spark_channel.spark.stream_admission import AdmittingStreamReader

            reader_class = AdmittingStreamReader
        # pyspark's runner of streaming sources hides the error behind another one: the traceback is needed
        with relative_to(self.directory or _working_directory()):
            return reader_class(self.options, schema, self._facts())

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "ChannelStreamWriter":
        from spark_channel.spark.stream_write import OF_THE_QUERY, stream_writer

        with self._on_the_driver():
            _refuse_catalog(
                {k: v for k, v in self.options.items() if k.lower() not in OF_THE_QUERY}
            )
            _refuse_other_engine(schema)
            return stream_writer(self.options, schema, overwrite, self._facts())

    def _facts(self) -> SessionFacts:
        return SessionFacts(self.parallelism, self.driver_host, self.slots)


def _refuse_other_engine(schema: object) -> None:
    """
    Raises:
        UnsupportedError: the schema is not Spark's.
    """
    if not hasattr(schema, "fields"):
        kind = f"{type(schema).__module__}.{type(schema).__qualname__}"
        raise UnsupportedError(
            f"this engine is not Apache Spark: it hands a {kind} to a Python data source, which gets a StructType in "
            "Spark. Other engines that speak Spark Connect, such as Sail, are not supported: run the job on Apache "
            "Spark, or without it by `spark-channel copy`"
        )


def _working_directory() -> WorkingDirectory:
    from spark_channel.spark.driver import working_directory

    return working_directory()


def _refuse_catalog(options: Mapping[str, str]) -> None:
    """Refuse a table of Spark's catalog: Spark keeps no options of a Python data source there.

    CREATE TABLE passes `location`, which no connector takes, and a SELECT from such a table no option at all.

    Raises:
        UnsupportedError: names the view to make.
    """
    if options and "location" not in {key.lower() for key in options}:
        return
    raise UnsupportedError(
        "format 'channel' was given no options, or those of a table of Spark's catalog, "
        "such as CREATE TABLE ... USING channel, saveAsTable, writeTo or @dp.table(format='channel') make one: "
        "Spark does not pass a table's options on to a Python data source. Make a view: "
        "CREATE TEMPORARY VIEW name USING channel OPTIONS (path '...', dbtable '...'), "
        "or df.createOrReplaceTempView('name'). INSERT INTO such a view writes. A pipeline writes to a sink: "
        "dp.create_sink(name, format='channel', options={...})"
    )


def explain(df: "DataFrame", mode: str | None = None) -> None:
    """Print what `df` reads through `format("channel")`, then Spark's plan, as `df.explain(mode=mode)` does.

    Of each scan: connector, place and table; the columns and the condition that the source is asked for; the limit.
    A `filter` in Spark's plan runs in Spark: to run it in the source, give it as option `where`.

    Raises:
        UnsupportedError: `df` is of Spark Connect, which shows no plan on this side.
    """
    for options in _scans(df):
        sys.stdout.write("\n".join([*scan_lines(options), "", ""]))
    if mode is None:
        df.explain()
    else:
        df.explain(mode=mode)


def scan_lines(options: Mapping[str, str]) -> list[str]:
    """Return lines that describe the source queries of a read with `options`, and its limit."""
    from spark_channel.connectors import find_connector
    from spark_channel.connectors.base.registry import describe
    from spark_channel.progress import before_lines
    from spark_channel.transfers.job_spec import read_spec
    from spark_channel.transfers.limits import JobLimits
    from spark_channel.tunnel.options import split_options

    reads = split_options(options)[1]
    connector = find_connector(reads, "reader")
    reader, _ = connector.reader_with(reads)
    read_options = reader.options
    source = f"{connector.name} {describe(read_options)}"
    limits = JobLimits.from_options(read_options)
    spec = read_spec("read", limits, per_mark=read_options.limit_per_mark, source=source)
    return [
        f"channel: {source}",
        f"  columns: {', '.join(read_options.columns) if read_options.columns else 'all'}",
        f"  where: {read_options.where or 'all rows'}",
        f"  {before_lines('', spec)[-1]}",
    ]


def _scans(df: Any) -> Iterator[dict[str, str]]:
    """The options of each scan of this format below `df`."""
    if not hasattr(df, "_jdf"):
        raise UnsupportedError(
            "explain reads the plan of a classic session, and this DataFrame is of Spark Connect: df.explain() shows "
            "Spark's part of it"
        )
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - no public road
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.getClass().getSimpleName()
        if kind == "DataSourceV2Relation" and leaf.table().name() == ChannelDataSource.name():
            yield dict(leaf.options().asCaseSensitiveMap())
        elif kind == "StreamingRelationV2" and leaf.sourceName() == ChannelDataSource.name():
            yield dict(leaf.extraOptions().asCaseSensitiveMap())
