"""The warning for a read that one channel does, because its source cannot be split."""

from collections.abc import Sequence

from spark_channel.options import ReadOptions
from spark_channel.planning import Split
from spark_channel.transfers.job_limits import is_limited

__all__ = ["one_split"]

_FEW_ROWS = 10_000


def one_split(options: ReadOptions, splits: Sequence[Split], channels: int, source: str) -> str:
    """Why a read that asks for a speed or for channels has one, and what to index; empty where that does not matter."""
    asked = is_limited(options) or options.channels is not None
    if not asked or len(splits) != 1 or channels < 2 or not hasattr(options, "partition_column"):
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
