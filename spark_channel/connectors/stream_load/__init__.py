"""Apache Doris, StarRocks and SelectDB, written by Stream Load: one HTTP request for the rows of a task."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import Connector

if TYPE_CHECKING:
    from spark_channel.connectors.stream_load.writer import StreamLoadWriter
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"writer": ["StreamLoadWriter"]})

__all__ = ["CONNECTOR", "StreamLoadWriter"]

CONNECTOR = Connector(
    "streamload",
    None,
    "spark_channel.connectors.stream_load:StreamLoadWriter",
    about="Apache Doris, StarRocks and SelectDB, by Stream Load",
    secrets=("url", "password"),
    maturity="experimental",
    tested="servers written for the tests",
    delivery={"task": "once in a run"},
)
