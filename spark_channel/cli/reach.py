"""What a job file would run and reach, by its options alone: statements, files and hosts."""

from collections.abc import Iterator, Mapping
from typing import Any

from spark_channel.masking import mask_statement, mask_text, mask_url
from spark_channel.planning import Endpoint, TransferSpec

__all__ = ["reach"]

_STATEMENTS = (
    "startSql",
    "preSql",
    "postSql",
    "query",
    "where",
    "sessionInitStatement",
    "prepareQuery",
)
_FILES = (
    "path",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "knownHosts",
    "privateKey",
    "dirtyRowsPath",
)
_HOSTS = ("url", "uri", "host", "hosts", "bootstrapServers", "kafka.bootstrap.servers", "endpoint")


def reach(spec: TransferSpec) -> Iterator[str]:
    """One line for each option of the transfer's ends that names a statement, a file or a host, without logins."""
    targets = [each.writer for each in spec.targets] or [spec.writer]
    for half, end in (("reader", spec.reader), *(("writer", each) for each in targets)):
        for options in (end.options, *(part.options for part in end.parts)):
            yield from _of_options(half, options)
        for url in (url for part in end.parts for url in part.urls):
            yield f"{half} connects to {mask_url(url)}"
        yield from _code(half, end)


def _of_options(half: str, options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        lowered = name.lower()
        if value in (None, "", []):
            continue
        if lowered in map(str.lower, _STATEMENTS):
            yield f"{half} runs {name}: {mask_statement(str(value))}"
        elif lowered in map(str.lower, _FILES):
            yield f"{half} uses {name}: {mask_text(str(value))}"
        elif lowered in map(str.lower, _HOSTS):
            yield f"{half} connects to {mask_text(str(value))}"
        if "${file:" in str(value):
            yield f"{half} reads the file that option {name} names"


def _code(half: str, end: Endpoint) -> Iterator[str]:
    if end.spark_format:
        yield f"{half} is Spark's format {end.name!r}, which loads its own code"
