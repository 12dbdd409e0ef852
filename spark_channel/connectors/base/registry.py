"""Finds the connector of a name, a url or a path.

The packages of those that ship are listed here, since a source zip carries no entry points. Others are found under the
entry point group `spark_channel.connectors`, whose entries load a `Connector`.
"""

import difflib
import functools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from spark_channel.errors import OptionError
from spark_channel.masking import mask_text, mask_url, scheme_of, without_login
from spark_channel.working_directory import shorten

if TYPE_CHECKING:
    from spark_channel.connectors.base.connector import Connector
    from spark_channel.connectors.base.contract import Reader, Writer

__all__ = [
    "all_connectors",
    "connector_names",
    "describe",
    "experiment_remark",
    "find_connector",
    "has_third_parties",
    "is_database",
    "load_reader",
    "load_writer",
    "named_first",
]


_HOMES = {
    "parquet": "files",
    "csv": "files",
    "json": "files",
    "arrow": "files",
    "orc": "files",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "clickhouse": "clickhouse",
    "adbc": "adbc",
    "delta": "delta",
    "iceberg": "iceberg",
    "elasticsearch": "elasticsearch",
    "http": "http",
    "mongodb": "mongodb",
    "redis": "redis",
    "kafka": "kafka",
    "streamload": "stream_load",
    "generator": "generator",
    "discard": "discard",
}
"""The package of each connector that ships. It declares the connector, and imports nothing for that."""


_GROUP = "spark_channel.connectors"


def has_third_parties() -> bool:
    """Whether connectors are installed that do not ship with this package."""
    return bool(_third_parties())


def _third_parties() -> "dict[str, Connector]":
    return _installed(tuple((folder, _changed(folder)) for folder in sys.path))


@functools.lru_cache(maxsize=1)
def _installed(_places: tuple[tuple[str, int], ...]) -> "dict[str, Connector]":
    """Looked for again when something was put where Python imports from: each look costs 10 ms.

    Python's own search by group takes twice as long, since it parses the entry points of every library.
    """
    found: dict[str, Connector] = {}
    for library in distributions():
        if _GROUP in (library.read_text("entry_points.txt") or ""):
            for entry in library.entry_points.select(group=_GROUP):
                found.setdefault(entry.name.lower(), entry.load())
    return found


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - asked for each name, and `Path` takes ten times as long
    except OSError:
        return 0


@functools.cache
def _shipped(name: str) -> "Connector":
    package = import_module(f"spark_channel.connectors.{_HOMES[name]}")
    declared: tuple[Connector, ...] = getattr(package, "CONNECTORS", None) or (package.CONNECTOR,)
    return next(connector for connector in declared if connector.name == name)


def _named(name: str) -> "Connector | None":
    """The connector of a name. No other system's package is imported."""
    return _third_parties().get(name) or (_shipped(name) if name in _HOMES else None)


def _each() -> "Iterator[Connector]":
    """All connectors, those that ship first. Whoever stops early has imported no further package."""
    others = _third_parties()
    yield from (others.get(name) or _shipped(name) for name in _HOMES)
    yield from (connector for name, connector in others.items() if name not in _HOMES)


def _all() -> "dict[str, Connector]":
    return {**{name: _shipped(name) for name in _HOMES}, **_third_parties()}


def named_first(name: str) -> "Iterator[Connector]":
    """Every connector, by name, that of `name` first. Whoever takes it has imported no other system's package."""
    if (named := _named(name)) is not None:
        yield named
    yield from (connector for connector in all_connectors() if connector is not named)


def all_connectors() -> "list[Connector]":
    """Every connector that can be named, by name."""
    return sorted(_all().values(), key=lambda connector: connector.name)


def connector_names(half: str | None = None) -> list[str]:
    """Names of all connectors; `half` = "reader" or "writer" keeps those that have that half."""
    return sorted(
        name for name, connector in _all().items() if half is None or getattr(connector, half)
    )


def _lowered(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in options.items()}


def experiment_remark(used: "Iterable[tuple[Connector, Mapping[str, Any]]]") -> str | None:
    """Return the warning that a job logs at its start, if it uses something experimental: by (connector, options)."""
    experiments = {
        connector.name: connector.tested
        for connector, options in used
        if connector.maturity == "experimental"
        or (connector.untested and connector.untested(_lowered(options)))
    }
    if not experiments:
        return None
    listing = "; ".join(
        f"{name}, tested only against {tested}"
        if tested
        else f"{name}, which does not declare what it was tested against"
        for name, tested in experiments.items()
    )
    return f"an experimental connector is used: {listing}. Compare target and source before you rely on it"


def is_database(connector: str) -> bool:
    """Whether the connector of that name is of a database."""
    declared = _named(connector)
    return declared is not None and bool(declared.dialect)


def find_connector(options: Mapping[str, Any], half: str) -> "Connector":
    """The connector that `options` (Spark's, lower-cased keys) ask for; `half` is "reader" or "writer".

    The option named like the half wins, then `url`'s scheme, then `path`'s suffix.

    Raises:
        OptionError: unknown name, or nothing that points to a connector.
    """
    lowered = _lowered(options)
    if (name := lowered.get(half)) is not None:
        declared = _named(str(name).lower())
        if declared is None or getattr(declared, half) is None:
            names = connector_names(half)
            near = difflib.get_close_matches(str(name).lower(), names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"option {half!r} got {mask_text(str(name))!r}; {hint}it takes one of: {', '.join(names)}",
                option=half,
                got=mask_text(str(name)),
                takes=", ".join(names),
            )
        return declared
    if (url := lowered.get("url")) is not None:
        scheme = scheme_of(str(url))
        for connector in _each():
            if scheme in connector.schemes and getattr(connector, half):
                return connector
        _refuse_other_half(lowered, half)
        schemes = sorted({s for c in _each() if getattr(c, half) for s in c.schemes})
        raise OptionError(
            f"option 'url' has scheme {scheme!r}; known {half} schemes: {', '.join(schemes)}. "
            f"Or name the connector with option {half!r}",
            option="url",
            got=scheme,
            takes=", ".join(schemes),
        )
    path = str(lowered.get("path") or lowered.get("paths") or "").lower().rstrip("/\"]' ")
    for connector in _each():
        if getattr(connector, half) and path.endswith(connector.suffixes or ("\0",)):
            return connector
    _refuse_other_half(lowered, half)
    names = connector_names(half)
    if path:
        raise OptionError(
            f"path {mask_url(path)!r} does not show which connector to use; "
            f"name it with option {half!r}, one of: {', '.join(names)}",
            option=half,
            takes=", ".join(names),
        )
    raise OptionError(
        f"nothing says what to {'read' if half == 'reader' else 'write'}: "
        f"give a path, a 'url', or option {half!r} (one of: {', '.join(names)})",
        option=half,
        takes=", ".join(names),
    )


def _refuse_other_half(options: Mapping[str, Any], half: str) -> None:
    other, verb = ("writer", "reads") if half == "reader" else ("reader", "writes")
    if (name := options.get(other)) is not None:
        raise OptionError(
            f"option {other!r} got {mask_text(str(name))!r}, but this {verb}: use option {half!r}",
            option=other,
            got=mask_text(str(name)),
        )


def load_reader(options: Mapping[str, Any]) -> "tuple[Reader, list[str]]":
    """The reader that `options` describe, and warnings about ignored options. Opens nothing."""
    return find_connector(options, "reader").reader_with(options)


def load_writer(options: Mapping[str, Any]) -> "tuple[Writer, list[str]]":
    """The writer that `options` describe, and warnings about ignored options. Opens nothing."""
    return find_connector(options, "writer").writer_with(options)


def describe(options: object) -> str:
    """ "flights.db#flights", "/data/*.csv", "postgresql://db:5432/shop#orders". For people, not programs."""
    url, path, paths = (getattr(options, name, None) for name in ("url", "path", "paths"))
    address = ""
    if url:
        scheme, mark, path_part = without_login(str(url)).rpartition(":")
        address = scheme + mark + shorten(path_part)
    elif path:
        address = mask_url(shorten(str(path)))
    elif paths:
        path_items = json.loads(paths) if isinstance(paths, str) else list(paths)
        others = f" and {len(path_items) - 1} more" if len(path_items) > 1 else ""
        address = mask_url(shorten(str(path_items[0]))) + others
    if table := getattr(options, "dbtable", None):
        return f"{address}#{table}"
    return f"{address}#(query)" if getattr(options, "query", None) else address
