"""`explain`: what a DataFrame reads through this format, which Spark's plan calls "channel" and no more."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from spark_channel.connectors import find_connector
from spark_channel.connectors.base.registry import describe
from spark_channel.errors import UnsupportedError
from spark_channel.options import ReadOptions
from spark_channel.progress import JobSpec, before_lines
from spark_channel.spark.source import ChannelDataSource
from spark_channel.transfers.limits import JobLimits
from spark_channel.tunnel.options import split_options

__all__ = ["explain", "scan_lines"]


def explain(df: DataFrame, mode: str | None = None) -> None:
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
    reads = split_options(options)[1]
    connector = find_connector(reads, "reader")
    reader, _ = connector.reader_with(reads)
    asked: ReadOptions = reader.options
    source = f"{connector.name} {describe(asked)}"
    limits = JobLimits.of(asked).of_spec(per_mark=asked.limit_per_mark)
    return [
        f"channel: {source}",
        f"  columns: {', '.join(asked.columns) if asked.columns else 'all'}",
        f"  where: {asked.where or 'all rows'}",
        f"  {before_lines('', JobSpec('read', source=source, **limits))[-1]}",
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
