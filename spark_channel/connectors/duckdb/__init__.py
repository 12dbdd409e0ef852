"""DuckDB: read as its own Arrow, written in one transaction at commit."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import CURSOR, ONCE_BY_JOB, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.duckdb.reader import DuckdbReader
    from spark_channel.connectors.duckdb.writer import DuckdbWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["DuckdbReader"], "writer": ["DuckdbWriter"]}
    )

__all__ = ["CONNECTOR", "DuckdbReader", "DuckdbWriter"]

CONNECTOR = Connector(
    "duckdb",
    "spark_channel.connectors.duckdb:DuckdbReader",
    "spark_channel.connectors.duckdb:DuckdbWriter",
    schemes=("duckdb",),
    suffixes=(".duckdb", ".ddb"),
    about="DuckDB databases",
    needs=("duckdb",),
    dialect="duckdb",
    secrets=("url",),
    feed=(CURSOR,),
    maturity="stable",
    tested="DuckDB 2.0",
    delivery=ONCE_BY_JOB,
)
