"""Options of the DuckDB connector, and which file they mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_channel.connectors.sql.options import SqlReadOptions, SqlWriteOptions
from spark_channel.errors import OptionError
from spark_channel.options import CommitMode, DiskPath
from spark_channel.working_directory import absolute_url

__all__ = ["DuckdbReadOptions", "DuckdbWriteOptions", "database_path"]

_TAKES = "jdbc:duckdb:/path/to/file.duckdb, duckdb:///path/to/file.duckdb or duckdb:file.duckdb"
_IGNORED: Mapping[str, str] = {
    "user": "a DuckDB file has no logins",
    "password": "a DuckDB file has no logins",
    "queryTimeout": "a statement on a DuckDB file has no timeout; 'lockTimeout' bounds the wait for the file",
    "isolationLevel": "DuckDB's transactions are always snapshots",
    "hint": "DuckDB takes no hints",
    "cascadeTruncate": "DuckDB cascades to no other table",
    "tableComment": "write COMMENT ON TABLE into 'postSql'",
}

_LockTimeout = Annotated[float, Field(gt=0, le=86_400)]


def _absolute_url(value: object) -> str:
    return absolute_url(str(value), ("duckdb",))


_Url = Annotated[str, BeforeValidator(_absolute_url)]


class DuckdbReadOptions(SqlReadOptions):
    """What the DuckDB reader takes."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlReadOptions.ignored, **_IGNORED}

    url: _Url | None = Field(None, description="the database's url, with or without `jdbc:`")
    path: DiskPath | None = Field(None, description="the database file, instead of url")
    lock_timeout: _LockTimeout = Field(30.0, description="seconds to wait while another process writes")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        database_path(self.url, self.path)


class DuckdbWriteOptions(SqlWriteOptions):
    """What the DuckDB writer takes."""

    dirty_commit: ClassVar[CommitMode | None] = None  # none does: what is wrong is told below
    ignored: ClassVar[Mapping[str, str]] = {**SqlWriteOptions.ignored, **_IGNORED}
    refused: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.refused,
        "createTableOptions": "DuckDB's CREATE TABLE takes none",
        "maxDirtyRows": "all rows are inserted together at the commit, and one refused row refuses them all",
        "maxDirtyFraction": "all rows are inserted together at the commit, and one refused row refuses all",
        "dirtyRowsPath": "no row is refused alone: all rows are inserted together at the commit",
    }

    url: _Url | None = Field(None, description="the database's url, with or without `jdbc:`")
    path: DiskPath | None = Field(
        None, description="the database file, instead of url; made when it is not there"
    )
    lock_timeout: _LockTimeout = Field(60.0, description="seconds to wait while other processes use the file")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        database_path(self.url, self.path)
        if self.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is opened by one process at a time, so tasks cannot "
                "write it side by side. It takes 'job', which is the default",
                option="commit",
                got="task",
                takes="job",
            )
        given: dict[str, object] = {
            "maxDirtyRows": self.max_dirty_rows,
            "maxDirtyFraction": self.max_dirty_fraction,
            "dirtyRowsPath": self.dirty_rows_path,
            "createTableOptions": self.create_table_options,
        }
        for name, value in given.items():
            if value not in (None, 0):
                raise OptionError(
                    f"option {name!r} is not supported: {self.refused[name]}", option=name, got=str(value)
                )


def database_path(url: str | None, path: str | None) -> Path:
    """The file that `url` and `path` name.

    `duckdb:///a/b.duckdb` is /a/b.duckdb, as a url says it; a relative file is `duckdb:a/b.duckdb`.

    Raises:
        OptionError: none, two different ones, not a DuckDB url, or a database that is no file.
    """
    from_url = None if url is None else _path_of_url(url)
    if from_url is not None and path is not None and Path(from_url) != Path(path):
        raise OptionError(
            f"options 'url' ({from_url}) and 'path' ({path}) name different files: give one of them",
            option="path",
        )
    text = from_url if from_url is not None else path
    if text is None:
        raise OptionError(f"nothing names the database file: give a path, or 'url' as {_TAKES}", option="url")
    if not text or text.startswith(":") or "\0" in text:
        raise OptionError(
            "a DuckDB database in memory belongs to one process, and Spark has several: name a file",
            option="url" if from_url is not None else "path",
            got=text,
            takes=_TAKES,
        )
    if text.lower().startswith(("md:", "motherduck:")):
        raise OptionError(
            "this connector reads and writes DuckDB files; MotherDuck is a server",
            option="url" if from_url is not None else "path",
            takes=_TAKES,
        )
    return Path(text)


def _path_of_url(url: str) -> str:
    text = url.strip()
    if text.lower().startswith("jdbc:"):
        text = text[len("jdbc:") :]
    scheme, colon, text = text.partition(":")
    if scheme.lower() != "duckdb" or not colon:
        raise OptionError(
            f"option 'url' has scheme {scheme!r}; it takes {_TAKES}", option="url", got=scheme, takes=_TAKES
        )
    text, mark, parameters = text.partition("?")
    if not mark:
        text, mark, parameters = text.partition(";")  # the JDBC driver's separator
    if mark:
        names = [part.partition("=")[0] for part in parameters.replace("&", ";").split(";")]
        raise OptionError(
            f"option 'url' carries parameters ({', '.join(names)}), which are JDBC's own; give a SET "
            "statement with 'sessionInitStatement' for a setting",
            option="url",
            takes=_TAKES,
        )
    if text.startswith("//"):
        host, slash, rest = text[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            shown = host.rpartition("@")[2]  # before it stands a login
            raise OptionError(
                f"option 'url' names host {shown!r}; a DuckDB file is local: {_TAKES}",
                option="url",
                takes=_TAKES,
            )
        text = "/" + rest
    return text
