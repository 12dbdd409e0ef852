"""Options of the SQLite connector, and which file they mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_channel.connectors.sql.options import SqlReadOptions, SqlWriteOptions
from spark_channel.errors import OptionError
from spark_channel.options import DiskPath
from spark_channel.working_directory import absolute_url

__all__ = ["SqliteReadOptions", "SqliteWriteOptions", "database_path"]

_TAKES = "jdbc:sqlite:/path/to/file.db, sqlite:///path/to/file.db or sqlite:file.db"
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

_LockTimeout = Annotated[float, Field(gt=0, le=86_400)]


def _absolute_url(value: object) -> str:
    return absolute_url(str(value), ("sqlite",))


_Url = Annotated[str, BeforeValidator(_absolute_url)]


class SqliteReadOptions(SqlReadOptions):
    """What the SQLite reader takes."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlReadOptions.ignored, **_IGNORED}

    url: _Url | None = Field(None, description="the database's url, with or without `jdbc:`")
    path: DiskPath | None = Field(None, description="the database file, instead of url")
    lock_timeout: _LockTimeout = Field(30.0, description="seconds to wait for a lock that others hold")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        database_path(self.url, self.path)


class SqliteWriteOptions(SqlWriteOptions):
    """What the SQLite writer takes."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlWriteOptions.ignored, **_IGNORED}

    url: _Url | None = Field(None, description="the database's url, with or without `jdbc:`")
    path: DiskPath | None = Field(
        None, description="the database file, instead of url; made when it is not there"
    )
    lock_timeout: _LockTimeout = Field(60.0, description="seconds to wait for a lock that others hold")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        database_path(self.url, self.path)


def database_path(url: str | None, path: str | None) -> Path:
    """The file that `url` and `path` name.

    `sqlite:///a/b.db` is /a/b.db, as a url says it; a relative file is `sqlite:a/b.db`.

    Raises:
        OptionError: none, two different ones, not a SQLite url, or a database in memory.
    """
    from_url = None if url is None else _path_of_url(url)
    if from_url is not None and path is not None and Path(from_url) != Path(path):
        raise OptionError(
            f"options 'url' ({url}) and 'path' ({path}) name different files: give one of them", option="path"
        )
    text = from_url if from_url is not None else path
    if text is None:
        raise OptionError(f"nothing names the database file: give a path, or 'url' as {_TAKES}", option="url")
    if not text or text.startswith(":") or "\0" in text:
        raise OptionError(
            "a SQLite database in memory belongs to one process, and Spark has several: name a file",
            option="url" if from_url is not None else "path",
            got=text,
            takes=_TAKES,
        )
    return Path(text)


def _path_of_url(url: str) -> str:
    text = url.strip()
    for prefix in ("jdbc:", "sqlite:"):
        if text.lower().startswith(prefix):
            text = text[len(prefix) :]
        elif prefix == "sqlite:":
            scheme = text.partition(":")[0]  # the rest may hold a login
            raise OptionError(
                f"option 'url' has scheme {scheme!r}; it takes {_TAKES}",
                option="url",
                got=scheme,
                takes=_TAKES,
            )
    text = text.removeprefix("file:")
    text, mark, parameters = text.partition("?")
    if mark:
        names = [part.partition("=")[0] for part in parameters.split("&")]  # a value may be a secret
        raise OptionError(
            f"option 'url' carries parameters ({', '.join(names)}), which are JDBC's or SQLite's own; "
            "give 'lockTimeout' for busy_timeout, and 'sessionInitStatement' for a PRAGMA",
            option="url",
            takes=_TAKES,
        )
    if text.startswith("//"):
        host, slash, rest = text[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            shown = host.rpartition("@")[2]  # before it stands a login
            raise OptionError(
                f"option 'url' names host {shown!r}; a SQLite file is local: {_TAKES}",
                option="url",
                takes=_TAKES,
            )
        text = "/" + rest
    return text
