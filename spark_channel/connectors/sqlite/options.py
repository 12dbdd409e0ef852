"""Options of the SQLite connector."""

from collections.abc import Mapping
from typing import ClassVar

from spark_channel.connectors.sql.options import FileReadOptions, FileUrl, FileWriteOptions

__all__ = ["SqliteReadOptions", "SqliteWriteOptions"]

_IGNORED: Mapping[str, str] = {
    "user": "a SQLite file has no logins",
    "password": "a SQLite file has no logins",
    "queryTimeout": "a statement on a SQLite file has no timeout; 'lockTimeout' bounds the wait for a lock",
    "isolationLevel": "SQLite's transactions are always serializable",
    "hint": "SQLite takes no hints",
    "cascadeTruncate": "SQLite cascades only where its foreign keys say so",
    "tableComment": "SQLite keeps no comments on tables",
}

_FILE_URL = FileUrl(
    "sqlite",
    "SQLite",
    "db",
    "give 'lockTimeout' for busy_timeout, and 'sessionInitStatement' for a PRAGMA",
)


class SqliteReadOptions(FileReadOptions):
    """Options of the SQLite reader."""

    ignored: ClassVar[Mapping[str, str]] = {**FileReadOptions.ignored, **_IGNORED}
    file_url: ClassVar[FileUrl] = _FILE_URL


class SqliteWriteOptions(FileWriteOptions):
    """Options of the SQLite writer."""

    ignored: ClassVar[Mapping[str, str]] = {**FileWriteOptions.ignored, **_IGNORED}
    file_url: ClassVar[FileUrl] = _FILE_URL
