"""SQLite: read by rowid ranges, written atomically, exact in both directions."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.sqlite.reader import SqliteReader
    from spark_channel.connectors.sqlite.writer import SqliteWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["SqliteReader"], "writer": ["SqliteWriter"]}
    )

__all__ = ["SqliteReader", "SqliteWriter"]
