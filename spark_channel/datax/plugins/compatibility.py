"""What a DataX job asks of our connectors so that they read and write as DataX does."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_channel.connectors.base.connector import DataxCompatibility
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.planning import Endpoint
from spark_channel.transform import Transformer
from spark_channel.transform.convert import ShortDecimals, local_zone

__all__ = [
    "decimal_steps",
    "duplicate_options",
    "mode_options",
    "reading_options",
    "with_local_times",
    "writing_options",
    "zone_options",
]


_IN_URL = {"zeroDates": "zerodatetimebehavior"}
"""Options that a url calls otherwise."""
_OUTSIDE = re.compile(r"^\s*vacuum\b|\bconcurrently\b", re.IGNORECASE)


def reading_options(connector: str, urls: Collection[str]) -> dict[str, str]:
    """DataX's defaults, but for what the urls themselves say."""
    all_urls = " ".join(urls).lower()
    defaults = _as_datax(connector).reader
    return {
        name: value
        for name, value in defaults.items()
        if _IN_URL.get(name, name.lower()) not in all_urls
    }


def mode_options(connector: str, texts: Iterable[str]) -> Mapping[str, str]:
    """A job that sets `sql_mode` gets it unchanged."""
    asks = any("sql_mode" in text.lower() for text in texts)
    return _as_datax(connector).own_mode if asks else {}


def zone_options(
    connector: str, texts: Iterable[str], *, statements: Iterable[str] = ()
) -> dict[str, str]:
    """The zone of this machine, where DataX's driver sets it; not where a url or a statement of the session sets one.

    PostgreSQL runs some `statements` outside of transactions alone, which a session with its own zone does not do.
    """
    option = _as_datax(connector).zone
    names_zone = any("zone" in text.lower() for text in texts)
    alone = any(_OUTSIDE.search(text) for text in statements)
    return {} if not option or names_zone or alone else {option: local_zone()}


def decimal_steps(connector: str | None) -> tuple[Transformer, ...]:
    """The step that gives decimals the text that DataX's plugin for this connector gives them, if it has its own."""
    has_short = connector is not None and _as_datax(connector).short_decimals
    return (ShortDecimals(),) if has_short else ()


def duplicate_options(connector: str, write_mode: str) -> Mapping[str, str]:
    """`writeMode` by every unique key, where the database has such a mode; {} = it has none."""
    words = " ".join(write_mode.lower().partition("(")[0].split()).removesuffix(" into")
    return _as_datax(connector).modes.get(words, {})


def with_local_times(end: Endpoint) -> Endpoint:
    """The reader that brings instants as its session shows them, where it can."""
    return (
        end
        if end.spark_format
        else replace(end, options={**_as_datax(end.name).texts, **end.options})
    )


def writing_options(connector: str, *, promises: bool) -> Mapping[str, str]:
    """DataX's defaults of a write; `promises`: the job asks for more than at least once, which needs the ledger."""
    defaults = _as_datax(connector).writer
    return {name: value for name, value in defaults.items() if not (promises and name == "ledger")}


def _as_datax(connector: str) -> DataxCompatibility:
    return next(
        (
            connector_there.as_datax
            for connector_there in all_connectors()
            if connector_there.name == connector
        ),
        DataxCompatibility(),
    )
