"""Options of the SQLite connector, and the file that they name."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from spark_channel.connectors.sql.file_url import FileUrl
from spark_channel.connectors.sql.options import FileOptions, SqlReadOptions, SqlWriteOptions
from spark_channel.options import Trait

__all__ = ["SqliteReadOptions", "SqliteWriteOptions"]

_NO_LOGIN: Mapping[str, str] = {
    "user": "a SQLite file has no logins",
    "password": "a SQLite file has no logins",
}
_IGNORED: Mapping[str, str] = {
    **_NO_LOGIN,
    "queryTimeout": "a statement on a SQLite file has no timeout; 'lockTimeout' bounds the wait for a lock",
    "isolationLevel": "SQLite's transactions are always serializable",
    "hint": "SQLite takes no hints",
    "cascadeTruncate": "SQLite cascades only where its foreign keys say so",
    "tableComment": "SQLite keeps no comments on tables",
}

_LockTimeout = Annotated[float, Field(gt=0, le=86_400), Trait.SAME_ROWS]
_FILE_URL = FileUrl(
    "sqlite", "SQLite", "db",
    "give 'lockTimeout' for busy_timeout, and 'sessionInitStatement' for a PRAGMA",
)  # fmt: skip


class SqliteReadOptions(FileOptions, SqlReadOptions):
    """Options of the SQLite reader."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlReadOptions.ignored, **_IGNORED}
    file_url: ClassVar[FileUrl] = _FILE_URL

    lock_timeout: _LockTimeout = Field(
        30.0, description="timeout for a lock that another process holds, in seconds"
    )


class SqliteWriteOptions(FileOptions, SqlWriteOptions):
    """Options of the SQLite writer."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlWriteOptions.ignored, **_IGNORED}
    file_url: ClassVar[FileUrl] = _FILE_URL

    lock_timeout: _LockTimeout = Field(
        60.0, description="timeout for a lock that another process holds, in seconds"
    )
