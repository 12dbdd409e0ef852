"""DataX's plugin names, and what each of them means here."""

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from spark_channel.errors import JobFileError
from spark_channel.jobs.place import End, Place
from spark_channel.jobs.plugins.aliases import ALIASES, alias_reader, alias_writer
from spark_channel.jobs.plugins.databases import database_reader, database_writer, known_databases
from spark_channel.jobs.plugins.elasticsearch import elasticsearch_reader, elasticsearch_writer
from spark_channel.jobs.plugins.files import hdfs_reader, hdfs_writer, txtfile_reader, txtfile_writer
from spark_channel.jobs.plugins.ftp import ftp_reader, ftp_writer
from spark_channel.jobs.plugins.hive import hive_reader, hive_writer
from spark_channel.jobs.plugins.mongodb import mongodb_reader, mongodb_writer
from spark_channel.jobs.plugins.redis import redis_reader, redis_writer
from spark_channel.jobs.plugins.stores import oss_reader, oss_writer, s3_reader, s3_writer
from spark_channel.jobs.plugins.stream import stream_reader, stream_writer
from spark_channel.jobs.plugins.stream_load import stream_load_writer

__all__ = ["UnknownPluginError", "find_plugin", "readers", "writers"]


class UnknownPluginError(JobFileError):
    """A job names a plugin that is not here; `plugin` is its name."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plugin, str(self))


Builder = Callable[[dict[str, Any], Place], End]

_READERS: dict[str, Builder] = {
    "streamreader": stream_reader,
    "txtfilereader": txtfile_reader,
    "hdfsreader": hdfs_reader,
    "elasticsearchreader": elasticsearch_reader,
    "ftpreader": ftp_reader,
    "hivereader": hive_reader,
    "mongodbreader": mongodb_reader,
    "ossreader": oss_reader,
    "redisreader": redis_reader,
    "s3reader": s3_reader,
}
_WRITERS: dict[str, Builder] = {
    "streamwriter": stream_writer,
    "txtfilewriter": txtfile_writer,
    "hdfswriter": hdfs_writer,
    "elasticsearchwriter": elasticsearch_writer,
    "ftpwriter": ftp_writer,
    "hivewriter": hive_writer,
    "mongodbwriter": mongodb_writer,
    "osswriter": oss_writer,
    "rediswriter": redis_writer,
    "doriswriter": stream_load_writer,
    "selectdbwriter": stream_load_writer,
    "starrockswriter": stream_load_writer,
    "s3writer": s3_writer,
}


def readers() -> dict[str, Builder]:
    """The builders of reader plugins: ours, and those of the databases that connectors declare."""
    named = {f"{name}reader": partial(database_reader, each) for name, each in known_databases().items()}
    aliases = {f"{name}reader": partial(alias_reader, name) for name in ALIASES}
    return {**aliases, **_READERS, **named}


def writers() -> dict[str, Builder]:
    """The builders of writer plugins: ours, and those of the databases that connectors declare."""
    named = {f"{name}writer": partial(database_writer, each) for name, each in known_databases().items()}
    aliases = {f"{name}writer": partial(alias_writer, name) for name in ALIASES}
    return {**aliases, **_WRITERS, **named}


def find_plugin(name: str, plugins: dict[str, Builder], path: str) -> Builder:
    """The builder of a plugin.

    Raises:
        JobFileError: one that is not here; lists those that are.
    """
    found = plugins.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), plugins, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownPluginError(
            name, f"{path} got {name!r}; {hint}it takes one of: {', '.join(sorted(plugins))}"
        )
    return found
