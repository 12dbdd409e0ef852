"""ClickHouse over HTTP: tables read as Arrow by ranges of their sorting key, and blocks inserted as Arrow."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.clickhouse.reader import ClickhouseReader
    from spark_channel.connectors.clickhouse.writer import ClickhouseWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["ClickhouseReader"], "writer": ["ClickhouseWriter"]}
    )

__all__ = ["ClickhouseReader", "ClickhouseWriter"]
