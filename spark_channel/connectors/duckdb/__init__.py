"""DuckDB: read as its own Arrow, written in one transaction at commit."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import CURSOR, ONCE_BY_JOB, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.duckdb.database import DuckdbDatabase
    from spark_channel.connectors.duckdb.reader import DuckdbReader
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["DuckdbReader"], "database": ["DuckdbDatabase"]}
    )

__all__ = ["CONNECTOR", "DuckdbDatabase", "DuckdbReader"]

CONNECTOR = Connector(
    "duckdb",
    "spark_channel.connectors.duckdb:DuckdbReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="spark_channel.connectors.duckdb:DuckdbDatabase",
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
