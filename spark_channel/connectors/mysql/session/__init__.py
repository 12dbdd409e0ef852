"""Sessions for reading and writing."""

from spark_channel.connectors.mysql.session.connection import (
    LostConnectionError,
    MysqlSession,
    code_of,
    is_away,
    is_ended,
    is_short,
    quoted,
)
from spark_channel.connectors.mysql.session.write_connection import (
    DUPLICATE,
    IGNORED_ROWS,
    NO_TABLE,
    TABLE_EXISTS,
    MysqlWriteSession,
    is_conflict,
    passes,
    was_rolled_back,
)

__all__ = [
    "DUPLICATE",
    "IGNORED_ROWS",
    "NO_TABLE",
    "TABLE_EXISTS",
    "LostConnectionError",
    "MysqlSession",
    "MysqlWriteSession",
    "code_of",
    "is_away",
    "is_conflict",
    "is_ended",
    "is_short",
    "passes",
    "quoted",
    "was_rolled_back",
]
