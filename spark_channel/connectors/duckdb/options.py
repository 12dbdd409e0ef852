"""Options of the DuckDB connector."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from spark_channel.connectors.sql.options import FileReadOptions, FileUrl, FileWriteOptions
from spark_channel.errors import OptionError
from spark_channel.options import CommitMode, Trait

__all__ = ["DuckdbReadOptions", "DuckdbWriteOptions"]

_IGNORED: Mapping[str, str] = {
    "user": "a DuckDB file has no logins",
    "password": "a DuckDB file has no logins",
    "queryTimeout": "a statement on a DuckDB file has no timeout; 'lockTimeout' bounds the wait for the file",
    "isolationLevel": "DuckDB's transactions are always snapshots",
    "hint": "DuckDB takes no hints",
    "cascadeTruncate": "DuckDB cascades to no other table",
    "tableComment": "write COMMENT ON TABLE into 'postSql'",
}
_EXTERNAL_ACCESS = (
    "whether views, macros and statements may read other files, attach databases and load extensions; set it for "
    "files that you trust"
)


class _DuckdbUrl(FileUrl):
    def path(self, url: str | None, path: str | None) -> Path:
        file_path = FileUrl.path(self, url, path)
        if str(file_path).lower().startswith(("md:", "motherduck:")):
            raise OptionError(
                "this connector reads and writes DuckDB files; MotherDuck is a server",
                option="path" if url is None else "url",
                takes=self.takes,
            )
        return file_path


_FILE_URL = _DuckdbUrl(
    "duckdb",
    "DuckDB",
    "duckdb",
    "give a SET statement with 'sessionInitStatement' for a setting",
    not_in_path="?\\",
    ends_path="?;",  # the JDBC driver's separator is the second
)

_ExternalAccess = Annotated[bool, Trait.SAME_ROWS]


class DuckdbReadOptions(FileReadOptions):
    """Options of the DuckDB reader."""

    external_access: _ExternalAccess = Field(False, description=_EXTERNAL_ACCESS)

    ignored: ClassVar[Mapping[str, str]] = {**FileReadOptions.ignored, **_IGNORED}
    file_url: ClassVar[FileUrl] = _FILE_URL


class DuckdbWriteOptions(FileWriteOptions):
    """Options of the DuckDB writer."""

    external_access: _ExternalAccess = Field(False, description=_EXTERNAL_ACCESS)

    dirty_commit: ClassVar[CommitMode | None] = (
        None  # DuckDB supports none: the checks below explain why
    )
    ignored: ClassVar[Mapping[str, str]] = {**FileWriteOptions.ignored, **_IGNORED}
    refused: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.refused,
        "createTableOptions": "DuckDB's CREATE TABLE takes none",
        "maxDirtyRows": "all rows are inserted together at the commit, and one refused row refuses them all",
        "maxDirtyFraction": "all rows are inserted together at the commit, and one refused row refuses all",
        "dirtyRowsPath": "no row is refused alone: all rows are inserted together at the commit",
    }
    file_url: ClassVar[FileUrl] = _FILE_URL

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is opened by one process at a time, "
                "so tasks cannot write it side by side. It takes 'job', which is the default",
                option="commit",
                got="task",
                takes="job",
            )
