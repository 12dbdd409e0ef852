"""PostgreSQL: read by COPY in splits of equal rows, written by COPY, published in one transaction."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.reader import PostgresReader
    from spark_channel.connectors.postgresql.writer import PostgresWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["PostgresReader"], "writer": ["PostgresWriter"]}
    )

__all__ = ["PostgresReader", "PostgresWriter"]
