"""What a DataX job asks of our connectors so that they read and write as DataX does."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_channel.connectors.registry import AsDatax, all_connectors
from spark_channel.planning import Endpoint

__all__ = [
    "duplicate_options",
    "is_database",
    "mode_options",
    "reading_options",
    "with_local_times",
    "writing_options",
]

_IN_URL = {"zeroDates": "zerodatetimebehavior"}
"""Options that a url calls otherwise."""


def reading_options(connector: str, urls: Collection[str]) -> dict[str, str]:
    """DataX's defaults, but for what the urls themselves say."""
    said = " ".join(urls).lower()
    defaults = _as_datax(connector).reader
    return {name: value for name, value in defaults.items() if _IN_URL.get(name, name.lower()) not in said}


def mode_options(connector: str, texts: Iterable[str]) -> Mapping[str, str]:
    """A job that sets `sql_mode` gets it unchanged."""
    asks = any("sql_mode" in text.lower() for text in texts)
    return _as_datax(connector).own_mode if asks else {}


def duplicate_options(connector: str, write_mode: str) -> Mapping[str, str]:
    """`writeMode` by every unique key, where the database has such a mode; {} = it has none."""
    words = " ".join(write_mode.lower().partition("(")[0].split()).removesuffix(" into")
    return _as_datax(connector).modes.get(words, {})


def with_local_times(end: Endpoint) -> Endpoint:
    """The reader that brings instants as its session shows them, where it can."""
    return end if end.spark_format else replace(end, options={**_as_datax(end.name).texts, **end.options})


def is_database(connector: str) -> bool:
    """Whether the connector of that name is of a database."""
    return any(each.name == connector and each.dialect for each in all_connectors())


def writing_options(connector: str, *, promises: bool) -> Mapping[str, str]:
    """DataX's defaults of a write; `promises`: the job asks for more than at least once, which needs the ledger."""
    defaults = _as_datax(connector).writer
    return {name: value for name, value in defaults.items() if not (promises and name == "ledger")}


def _as_datax(connector: str) -> AsDatax:
    return next((each.as_datax for each in all_connectors() if each.name == connector), AsDatax())
