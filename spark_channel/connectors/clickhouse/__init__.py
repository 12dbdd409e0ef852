"""ClickHouse over HTTP: tables read as Arrow by ranges of their sorting key, and blocks inserted as Arrow."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import (
    AT_LEAST_ONCE,
    LOCAL_TEXTS,
    Connector,
    DataxCompatibility,
)

if TYPE_CHECKING:
    from spark_channel.connectors.clickhouse.reader import ClickhouseReader
    from spark_channel.connectors.clickhouse.writer import ClickhouseWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["ClickhouseReader"], "writer": ["ClickhouseWriter"]}
    )

__all__ = ["CONNECTOR", "ClickhouseReader", "ClickhouseWriter"]

CONNECTOR = Connector(
    "clickhouse",
    "spark_channel.connectors.clickhouse:ClickhouseReader",
    "spark_channel.connectors.clickhouse:ClickhouseWriter",
    schemes=("clickhouse",),
    about="ClickHouse, over HTTP",
    needs=("clickhouse_connect",),
    port=8123,
    dialect="clickhouse",
    datax=("clickhouse",),
    secrets=("url", "password"),
    as_datax=DataxCompatibility(texts=LOCAL_TEXTS, zone="sessionTimeZone", short_decimals=True),
    maturity="preview",
    tested="ClickHouse's engine 26.9 (chdb), without its server; a server of 18.16 is refused",
    delivery=AT_LEAST_ONCE,
)
