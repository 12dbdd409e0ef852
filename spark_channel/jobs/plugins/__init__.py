"""DataX's plugin names, and what each of them means here."""

import difflib
from collections.abc import Callable
from typing import Any

from spark_channel.errors import JobFileError
from spark_channel.jobs.place import End, Place
from spark_channel.jobs.plugins.databases import DATABASES, reader_for, writer_for
from spark_channel.jobs.plugins.files import hdfs_reader, hdfs_writer, txtfile_reader, txtfile_writer
from spark_channel.jobs.plugins.hive import hive_reader, hive_writer
from spark_channel.jobs.plugins.stream import stream_reader, stream_writer

__all__ = ["READERS", "WRITERS", "find_plugin"]

Builder = Callable[[dict[str, Any], Place], End]

READERS: dict[str, Builder] = {
    "streamreader": stream_reader,
    "txtfilereader": txtfile_reader,
    "hdfsreader": hdfs_reader,
    "hivereader": hive_reader,
    **{f"{name}reader": reader_for(name) for name in DATABASES},
}
WRITERS: dict[str, Builder] = {
    "streamwriter": stream_writer,
    "txtfilewriter": txtfile_writer,
    "hdfswriter": hdfs_writer,
    "hivewriter": hive_writer,
    **{f"{name}writer": writer_for(name) for name in DATABASES},
}


def find_plugin(name: str, plugins: dict[str, Builder], path: str) -> Builder:
    """The builder of a plugin.

    Raises:
        JobFileError: one that is not here; lists those that are.
    """
    found = plugins.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), plugins, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise JobFileError(f"{path} got {name!r}; {hint}it takes one of: {', '.join(sorted(plugins))}")
    return found
