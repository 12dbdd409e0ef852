"""SQLite: read by rowid ranges, written atomically, exact in both directions."""

from spark_channel.connectors.sql.sqlite.reader import SqliteReader
from spark_channel.connectors.sql.sqlite.writer import SqliteWriter

__all__ = ["SqliteReader", "SqliteWriter"]
