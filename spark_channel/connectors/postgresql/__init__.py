"""PostgreSQL: read by COPY in splits of equal rows, written by COPY, published in one transaction."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.read.reader import PostgresReader
    from spark_channel.connectors.postgresql.write.writer import PostgresWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"read.reader": ["PostgresReader"], "write.writer": ["PostgresWriter"]}
    )

__all__ = ["PostgresReader", "PostgresWriter"]
