"""Apache Doris, StarRocks and SelectDB, written by Stream Load: one HTTP request for the rows of a task."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.stream_load.writer import StreamLoadWriter
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"writer": ["StreamLoadWriter"]})

__all__ = ["StreamLoadWriter"]
