"""DataX's plugin names, and the connectors' own; what each of them means here."""

import difflib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal

from spark_channel.connectors.base.registry import connector_names
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.aliases import ALIASES, alias_reader, alias_writer
from spark_channel.datax.plugins.connectors import connector_plugin, declared_plugins
from spark_channel.datax.plugins.databases import database_reader, database_writer, known_databases
from spark_channel.errors import JobFileError

__all__ = ["UnknownPluginError", "find_plugin", "readers", "writers"]


class UnknownPluginError(JobFileError):
    """A job names a plugin that is not here; `plugin` is its name."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plugin, str(self))


Builder = Callable[[dict[str, Any], PluginContext], ParsedPlugin]


def _late(module: str, name: str) -> Builder:
    """A plugin whose module is imported by the job that uses it: every start of the command would pay for all."""

    def build(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
        parsed_plugin: ParsedPlugin = getattr(import_module(f"{__name__}.{module}"), name)(
            parameter, context
        )
        return parsed_plugin

    return build


_READERS: dict[str, Builder] = {
    "streamreader": _late("streams", "stream_reader"),
    "txtfilereader": _late("files", "txtfile_reader"),
    "hdfsreader": _late("files", "hdfs_reader"),
    "elasticsearchreader": _late("elasticsearch", "elasticsearch_reader"),
    "ftpreader": _late("ftp", "ftp_reader"),
    "hivereader": _late("hive", "hive_reader"),
    "httpreader": _late("http", "http_reader"),
    "kafkareader": _late("kafka", "kafka_reader"),
    "mongodbreader": _late("mongodb", "mongodb_reader"),
    "ossreader": _late("buckets", "oss_reader"),
    "redisreader": _late("redis", "redis_reader"),
    "s3reader": _late("buckets", "s3_reader"),
}
_WRITERS: dict[str, Builder] = {
    "streamwriter": _late("streams", "stream_writer"),
    "txtfilewriter": _late("files", "txtfile_writer"),
    "hdfswriter": _late("files", "hdfs_writer"),
    "elasticsearchwriter": _late("elasticsearch", "elasticsearch_writer"),
    "ftpwriter": _late("ftp", "ftp_writer"),
    "hivewriter": _late("hive", "hive_writer"),
    "kafkawriter": _late("kafka", "kafka_writer"),
    "mongodbwriter": _late("mongodb", "mongodb_writer"),
    "osswriter": _late("buckets", "oss_writer"),
    "rediswriter": _late("redis", "redis_writer"),
    "doriswriter": _late("stream_load", "stream_load_writer"),
    "selectdbwriter": _late("stream_load", "stream_load_writer"),
    "starrockswriter": _late("stream_load", "stream_load_writer"),
    "s3writer": _late("buckets", "s3_writer"),
}


def readers() -> dict[str, Builder]:
    """The builders of DataX's reader plugins: ours, and those that connectors declare."""
    named = {
        f"{name}reader": partial(database_reader, database)
        for name, database in known_databases().items()
    }
    aliases = {f"{name}reader": partial(alias_reader, name) for name in ALIASES}
    return {**declared_plugins("reader"), **aliases, **_READERS, **named}


def writers() -> dict[str, Builder]:
    """The builders of DataX's writer plugins: ours, and those that connectors declare."""
    named = {
        f"{name}writer": partial(database_writer, database)
        for name, database in known_databases().items()
    }
    aliases = {f"{name}writer": partial(alias_writer, name) for name in ALIASES}
    return {**declared_plugins("writer"), **aliases, **_WRITERS, **named}


def find_plugin(name: str, half: Literal["reader", "writer"], path: str) -> Builder:
    """The builder of a plugin of DataX; of a connector, where DataX has none of that name.

    Raises:
        JobFileError: neither is here; lists those that are.
    """
    plugins = readers() if half == "reader" else writers()
    plugin_name = name.strip().lower()
    builder = plugins.get(plugin_name) or connector_plugin(plugin_name, half)
    if builder is not None:
        return builder
    connectors = connector_names(half)
    if plugin_name in connector_names():
        hint = f"connector {plugin_name!r} has no {half}; "
    else:
        near = difflib.get_close_matches(plugin_name, [*plugins, *connectors], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownPluginError(
        name,
        f"{path} got {name!r}; {hint}it takes a connector: {', '.join(connectors)}; "
        f"or a plugin of DataX: {', '.join(sorted(plugins))}",
    )
