"""The tunnel of a replication's file: its name, its place, its options, and what it notes of tables."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from spark_channel.errors import OptionError
from spark_channel.masking import scheme_of
from spark_channel.option_types import resolve_references
from spark_channel.replication.config import Replication
from spark_channel.replication.tables import TableCopy, connector_of, name_of
from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.records import ChannelState
from spark_channel.tunnel.source import StreamSource

__all__ = [
    "AGAIN",
    "DONE",
    "ENDED",
    "FILE",
    "PARKED",
    "begin_again",
    "changes_of_channel",
    "check_publication",
    "done_of",
    "known_tables",
    "log_options",
    "note",
    "options_of",
    "parked_of",
    "parts_of",
    "read_again",
    "store_of",
    "tunnel_name",
    "tunnel_of",
    "tunnel_options",
    "tunnel_with_source",
]

PARKED, AGAIN = "parked", "again"
ENDED = "ended"
"""Why a table is read again if it comes back to the file: `replicate end` has ended its following."""
_OTHER = "#"
"""Begins the notes that are not of what becomes of a table."""
DONE = f"{_OTHER}done "
"""Begins the notes that say what was done with a table's columns in the target, and when."""
FILE = f"{_OTHER}file"
"""Where the tunnel's notes have the file whose run followed the tables last."""
_NAME = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')


def tunnel_name(replication: Replication) -> str:
    """One tunnel for each source and target, whatever streams the file has, and whoever logs in."""
    names = [
        [name_of(end), None] if end.path is None else [None, name_of(end)]
        for end in (replication.source, replication.target)
    ]
    return f"replicate-{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]}"


def tunnel_of(replication: Replication, options: Mapping[str, Any] | None = None) -> Tunnel:
    """The tunnel of the tables that are followed; without `options` for a look at its store."""
    store = store_of(replication)
    if store is None:
        source = resolve_references(replication.source.options())
        store = next(str(source[key]) for key in source if key.lower() == "tunnelstore")
    return Tunnel(tunnel_name(replication), options, store=store)


def tunnel_with_source(
    replication: Replication, overrides: Mapping[str, Any] | None = None
) -> Tunnel:
    """The tunnel as its commands open it: with the source's options, which `overrides` overrides, for all its tables.

    Raises:
        OptionError: nothing names the publication.
    """
    overridden = {key.lower() for key in overrides or {}}
    options = {
        key: value
        for key, value in tunnel_options(replication).items()
        if key.lower() not in overridden
    }
    return tunnel_of(replication, {**options, **(overrides or {})})


def tunnel_options(replication: Replication) -> dict[str, Any]:
    """The source's options for all tables that the tunnel has."""
    source = resolve_references(replication.source.options())
    return {**source, **log_options(replication), "tables": "*"}


def store_of(replication: Replication) -> str | None:
    """Where the tunnel keeps its positions: in the target's database. None = the source's option says it.

    Raises:
        OptionError: the target is not a database that can keep them.
    """
    if any(key.lower() == "tunnelstore" for key in replication.source.options()):
        return None
    options = resolve_references(replication.target.options())
    url = str(options.get("url") or "").removeprefix("jdbc:")
    scheme = scheme_of(url)
    if scheme == "sqlite":
        return url.removeprefix("sqlite:")
    if scheme in ("postgresql", "postgres"):
        user, password = options.get("user"), options.get("password")
        if user is None or "@" in urlsplit(url).netloc:
            return url
        login = quote(str(user), safe="")
        login += f":{quote(str(password), safe='')}" if password is not None else ""
        return url.replace("://", f"://{login}@", 1)
    raise OptionError(
        "target: it cannot keep the position in the source's log: name a place with the source's option tunnelStore, "
        "a file or a url of PostgreSQL",
        option="tunnelStore",
    )


def options_of(replication: Replication, copies: Collection[TableCopy]) -> dict[str, Any]:
    tables = [copy.table.dbtable for copy in copies if copy.table is not None]
    return {
        **resolve_references(replication.source.options()),
        **log_options(replication, tables),
        "tables": ", ".join(tables),
        "onSchemaChange": "evolve",
    }


def check_publication(replication: Replication, tables: Sequence[str] = ()) -> None:
    """Check that the file names a publication if the source's log is one of PostgreSQL.

    Raises:
        OptionError: it does not.
    """
    names = connector_of(replication.source, "reader").options_class("reader").names()
    option_names = {key.lower() for key in replication.source.options()}
    if "binlog" not in names and "publication" not in option_names:
        raise OptionError(
            "source: full_then_changes needs publication, the name of a publication that has the tables: "
            f"CREATE PUBLICATION shop FOR TABLE {', '.join(tables) or 'shop.orders, shop.items'}",
            option="publication",
        )


def log_options(replication: Replication, tables: Sequence[str] = ()) -> dict[str, Any]:
    """Options that name the source's log, as far as the file does not.

    Raises:
        OptionError: nothing names the publication.
    """
    connector = connector_of(replication.source, "reader")
    option_names = {key.lower() for key in replication.source.options()}
    masks = [
        stream_options.columns
        for stream_options in (replication.defaults, *replication.streams.values())
    ]
    hides = {"hideValues": "true"} if any(masks) else {}
    if "binlog" in connector.options_class("reader").names():
        return {"binlog": "true", **hides}
    check_publication(replication, tables)
    slot = {} if "slot" in option_names else {"slot": tunnel_name(replication).replace("-", "_")}
    return {**slot, **hides}


def changes_of_channel(tunnel_id: str, channel: str) -> str:
    """The stream as which a target has the changes of its table."""
    return f"replicate/changes/{tunnel_id}/{channel}"


def known_tables(tunnel: Tunnel, options: Mapping[str, Any]) -> set[str]:
    """The tables that a tunnel follows, as its source writes their names."""
    feed = StreamSource(options).feed
    return {
        name
        for channel in tunnel.store.state(tunnel.name).channels.values()
        if not channel.is_base and channel.state != ChannelState.TERMINATED
        for name in feed.tables(channel.token)
    }


def parts_of(name: str) -> tuple[str, str]:
    """Schema and table of a name as feeds write it, where each name that is not plain is quoted."""
    parts = [
        (quoted or ticked).replace('""', '"').replace("``", "`") if quoted or ticked else plain
        for quoted, ticked, plain in _NAME.findall(name)
    ]
    return ("", parts[0]) if len(parts) == 1 else (parts[0], parts[-1])


def note(tunnel: Tunnel, stream: str, state: str, reason: str = "") -> None:
    """Keep in the tunnel's store what `parked_of` returns of a table."""
    tunnel.store.note(tunnel.name, stream, json.dumps([state, reason]))


def parked_of(tunnel: Tunnel) -> dict[str, tuple[str, str]]:
    """The tables of a tunnel that do not simply go on: "parked", or "again" when they are read again, and why."""
    notes = tunnel.store.notes(tunnel.name)
    states = {key: json.loads(text) for key, text in notes.items() if not key.startswith(_OTHER)}
    return {stream: (str(state), str(reason)) for stream, (state, reason) in states.items()}


def done_of(tunnel: Tunnel) -> dict[str, tuple[str, str]]:
    """What was done with the columns of followed tables in the target last, and when."""
    notes = tunnel.store.notes(tunnel.name)
    actions = {key: json.loads(text) for key, text in notes.items() if key.startswith(DONE)}
    return {key.removeprefix(DONE): (str(action), str(at)) for key, (action, at) in actions.items()}


def read_again(replication: Replication, streams: Sequence[str]) -> None:
    """Have the next run empty these tables in the target, and read their rows again.

    Raises:
        ChannelError: the tunnel's store cannot be reached, or does not have the tunnel.
    """
    if not streams:
        return
    tunnel = tunnel_of(replication)
    for stream in streams:
        note(tunnel, stream, AGAIN)


def begin_again(replication: Replication, copies: Collection[TableCopy]) -> None:
    """Let the tunnel follow the log from now on, wherever it was: the source may have lost what was there.

    Raises:
        ChannelError: the source or the place of the tunnel cannot be reached.
    """
    tunnel_of(replication, options_of(replication, copies)).reset()
