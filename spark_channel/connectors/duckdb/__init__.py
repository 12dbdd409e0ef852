"""DuckDB: read as its own Arrow, written in one transaction at commit."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.duckdb.reader import DuckdbReader
    from spark_channel.connectors.duckdb.writer import DuckdbWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["DuckdbReader"], "writer": ["DuckdbWriter"]}
    )

__all__ = ["DuckdbReader", "DuckdbWriter"]
