"""What a job file would run and reach, by its options alone: statements, files, hosts and code."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_channel.masking import (
    MASK,
    is_secret_name,
    mask_statement,
    mask_text,
    mask_untyped,
    mask_url,
)
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.replication.config import Place, Replication, StreamOptions

__all__ = ["KINDS", "reach", "reach_of_replication"]

KINDS: Mapping[str, Sequence[str]] = {
    "runs": (
        *("startSql", "preSql", "postSql", "endSql", "query", "prepareQuery", "where"),
        *("sessionInitStatement", "sessionVariables", "createTableOptions"),
        *("createTableColumnTypes", "filter", "deleteFilter", "replaceWhere"),
    ),
    "uses": (
        *("path", "paths", "basePath", "dirtyRowsPath", "schemaAfter", "catalog"),
        *("sslrootcert", "sslcert", "sslkey", "serverRsaPublicKeyFile"),
    ),
    "connects to": (
        *("url", "uri", "bootstrapServers", "kafka.bootstrap.servers", "queryServer", "proxy"),
        *("backends", "sharedLimit"),
    ),
    "loads": ("driver", "entrypoint"),
    "allows": (
        "externalAccess",
        "replaceForeignFiles",
        "enableCleartextPlugin",
        "allowPublicKeyRetrieval",
    ),
    "sets": ("storageOptions", "catalogProperties", "driverOptions", "clientProperties"),
}
"""What an end does with each option that names more than rows: statements, files, hosts, libraries, rights."""
_DOES = {name.lower(): (does, name) for does, names in KINDS.items() for name in names}
_OF_PLACE = re.compile(
    r"(?i)(uri|url|warehouse|impl|endpoint|host|server|file|path|location|rootcert|override|class)s?$"
)
"""Ends of names of properties whose values are places or code."""
_SECRET_FILE = "${file:"  # noqa: S105 - the beginning of a reference to one


def reach(spec: TransferSpec) -> Iterator[str]:
    """One line for each option of the transfer's ends that names a statement, a file or a host, without logins."""
    targets = [target.writer for target in spec.targets] or [spec.writer]
    for half, end in (("reader", spec.reader), *(("writer", target) for target in targets)):
        for options in (end.options, *(part.options for part in end.parts)):
            yield from _of_options(half, options)
        for url in (url for part in end.parts for url in part.urls):
            yield f"{half} connects to {mask_url(url)}"
        yield from _code(half, end)
    if spec.shared_limit:
        yield f"job connects to sharedLimit: {mask_text(spec.shared_limit)}"


def reach_of_replication(replication: Replication) -> Iterator[str]:
    """The same of a file of `replicate`: of both ends, and of each stream."""
    ends: tuple[tuple[str, Place], ...] = (
        ("source", replication.source),
        ("target", replication.target),
    )
    for half, end in ends:
        yield from _of_options(half, end.options())
    streams: dict[str, StreamOptions] = {"defaults": replication.defaults, **replication.streams}
    for name, stream in streams.items():
        if stream.where:
            yield f"{name} runs where: {mask_statement(stream.where)}"
        for half, options in (("source", stream.source_options), ("target", stream.target_options)):
            yield from _of_options(f"{name}: {half}", options or {})


def _of_options(half: str, options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value in (None, "", [], False, "false"):
            continue
        does, spelt = _DOES.get(name.lower(), ("", name))
        if does == "sets":
            yield from _of_properties(half, spelt, value)
        elif does == "runs":
            yield f"{half} runs {spelt}: {mask_statement(str(value))}"
        elif spelt in ("url", "uri"):
            address = mask_untyped(spelt, value) if spelt == "uri" else mask_text(str(value))
            yield f"{half} connects to {address}"
        elif does:
            yield f"{half} {does} {spelt}: {mask_text(str(value))}"
        if _SECRET_FILE in str(value):
            yield f"{half} reads the file that option {spelt} names"


def _of_properties(half: str, name: str, value: object) -> Iterator[str]:
    """The properties of a JSON object that are no secret."""
    try:
        properties = value if isinstance(value, Mapping) else json.loads(str(value))
    except ValueError:
        properties = None
    if not isinstance(properties, Mapping):
        yield f"{half} sets {name}, whose properties are not known here"
        return
    for key, text in properties.items():
        is_shown = _OF_PLACE.search(str(key)) and not is_secret_name(str(key))
        yield f"{half} sets {name} {key}={mask_text(str(text)) if is_shown else MASK}"


def _code(half: str, end: Endpoint) -> Iterator[str]:
    if end.spark_format:
        yield f"{half} is Spark's format {end.name!r}, which loads its own code"
