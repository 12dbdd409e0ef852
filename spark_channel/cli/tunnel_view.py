"""A tunnel at one moment, as tables for people and as JSON."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import FeedLag, TableLag
from spark_channel.tunnel.lag_words import base_words, grouped, in_flight_words, kept_words
from spark_channel.tunnel.plain import dump
from spark_channel.tunnel.process import is_gone
from spark_channel.tunnel.records import Client
from spark_channel.tunnel.tunnel import ChannelView, TunnelView

__all__ = ["plain_view", "print_view"]

_SHOWN = 40


def print_view(view: TunnelView) -> None:
    """Tables of channels, of the tables of those that have several, and of clients; and what else is known in lines."""
    record = view.record
    wide = Console(file=sys.stdout)
    wide.print(f"{record.name}: {record.type} of {record.source}", highlight=False)
    wide.print(_channels(view))
    for each in view.channels:
        for about, words in _remarks(each):
            wide.print(f"{each.channel.id} ({about}) {words}", markup=False, highlight=False)
    tables = _tables(view)
    if tables.row_count:
        wide.print(tables)
    for each in view.channels:
        if each.channel.parked:
            wide.print(f"parked {each.channel.id}: {each.channel.parked}", markup=False, highlight=False)
    if view.clients:
        clients = Table("client", "tag", "host", "timeout", "last heartbeat")
        for client in view.clients:
            clients.add_row(
                client.id,
                client.tag,
                client.host.partition("/")[0],
                f"{client.timeout:g} s",
                _heard(view, client),
            )
        wide.print(clients)


def plain_view(view: TunnelView) -> str:
    """The same as one JSON object; null for what is not known."""
    record = view.record
    found = {
        "tunnel": record.name,
        "type": str(record.type),
        "source": record.source,
        "channels": [_plain_channel(each) for each in view.channels],
        "clients": [
            {
                "client": each.id,
                "tag": each.tag,
                "host": each.host.partition("/")[0],
                "timeout_seconds": each.timeout,
                "heartbeat_seconds_ago": round(max(0.0, view.now - each.last_seen), 1),
                "has_ended": is_gone(each.host, each.process),
            }
            for each in view.clients
        ],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


# --- text ---


def _channels(view: TunnelView) -> Table:
    found = Table(
        "channel", "state", "version", "client", "checkpoint", "rows behind", "bytes behind", "seconds"
    )
    for each in view.channels:
        channel, lag = each.channel, each.lag or FeedLag()
        found.add_row(
            channel.id, str(channel.state), str(channel.version), channel.client or "-", str(channel.sequence),
            grouped(lag.rows), grouped(lag.nbytes), _seconds(lag.seconds),
        )  # fmt: skip
    return found


def _remarks(each: ChannelView) -> Iterator[tuple[str, str]]:
    if each.stage == "stream":
        until = "" if each.channel.until is None else f", and ends at {_shown(each.channel.until)}"
        yield "stream", f"reads on from {_shown(each.channel.token)}{until}"
    if each.no_lag:
        yield "lag", f"is not known: {each.no_lag}"
    paused = each.channel.paused and each.channel.has_base
    lag = each.lag or FeedLag()
    base = base_words(lag, paused=paused) or ("existing rows are paused by pause-base" if paused else "")
    in_flight = "" if each.in_flight is None else in_flight_words(each.in_flight.rows, each.in_flight.seconds)
    said = {"slot": kept_words(lag), "base": base, "waits": lag.held_up, "in flight": in_flight}
    for about, words in said.items():
        if words:
            yield about, words
    for table in lag.tables:
        if table.stage == "dropped" and each.channel.until is None:
            yield (
                "dropped",
                f"`spark-channel tunnel remove-table` removes {table.name}, which does not exist, from the tunnel",
            )


def _tables(view: TunnelView) -> Table:
    found = Table(
        "channel", "table", "existing rows", "chunks", "changes behind", "bytes", "seconds", "in flight"
    )
    for each in view.channels:
        for lag, in_flight in _by_table(each):
            found.add_row(
                each.channel.id, lag.name, _existing(lag), _chunks(lag), grouped(lag.changes),
                grouped(lag.nbytes), _seconds(lag.seconds), grouped(in_flight),
            )  # fmt: skip
    return found


def _existing(lag: TableLag) -> str:
    if not lag.stage:
        return "-"
    if lag.stage == "changes":
        return "are read"
    if lag.stage == "dropped":
        return "table was dropped"
    if lag.base_read is None:
        return "wait for transactions that ran when it was added"
    return f"{grouped(lag.base_read)}{'' if lag.base_rows is None else f' of about {grouped(lag.base_rows)}'}"


def _chunks(lag: TableLag) -> str:
    if lag.base_chunks is None:
        return "-"
    return f"{grouped(lag.base_chunks)}{'' if lag.chunks is None else f' of about {grouped(lag.chunks)}'}"


def _heard(view: TunnelView, client: Client) -> str:
    ago = f"{max(0.0, view.now - client.last_seen):.0f} s ago"
    return f"{ago}, its process has ended" if is_gone(client.host, client.process) else ago


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _shown(token: Token) -> str:
    """A position in one short line."""
    text = ", ".join(f"{name}={value}" for name, value in token.items())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# --- JSON ---


def _plain_channel(each: ChannelView) -> dict[str, Any]:
    channel, flight = each.channel, each.in_flight
    return {
        "channel": channel.id,
        "stage": each.stage,
        "state": str(channel.state),
        "version": channel.version,
        "client": channel.client or None,
        "checkpoint": channel.sequence,
        "position": _plain(channel.token) if each.stage == "stream" else None,
        "until": _plain(channel.until),
        "parked": channel.parked or None,
        "is_base_paused": channel.paused and channel.has_base,
        "lag": None if each.lag is None else _plain_lag(each.lag),
        "no_lag": each.no_lag or None,
        "in_flight": None
        if flight is None
        else {"rows": flight.rows, "seconds_ago": round(flight.seconds, 1)},
        "tables": [_plain_table(*found) for found in _by_table(each)],
    }


def _plain_lag(lag: FeedLag) -> dict[str, Any]:
    return {
        "rows": lag.rows,
        "bytes": lag.nbytes,
        "seconds": _rounded(lag.seconds),
        "wal_kept_bytes": lag.kept,
        "waits": lag.held_up or None,
        "base": None
        if lag.base_read is None
        else {**_plain_base(lag), "is_paused_by_max_slot_lag": lag.base_held},
    }


def _plain_table(lag: TableLag, in_flight: int | None) -> dict[str, Any]:
    return {
        "table": lag.name,
        "stage": lag.stage or None,
        "changes": lag.changes,
        "bytes": lag.nbytes,
        "seconds": _rounded(lag.seconds),
        "base": None if lag.base_read is None else _plain_base(lag),
        "rows_in_flight": in_flight,
    }


def _plain_base(lag: FeedLag | TableLag) -> dict[str, int | None]:
    return {
        "rows_read": lag.base_read,
        "rows": lag.base_rows,
        "chunks_read": lag.base_chunks,
        "chunks": lag.chunks,
    }


def _plain(token: Token | None) -> Any:
    return None if token is None else json.loads(dump(token))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


# --- both ---


def _by_table(each: ChannelView) -> Iterator[tuple[TableLag, int | None]]:
    """The tables of a channel of several, and their rows in flight. A lag without a stage is not known."""
    flight: Mapping[str, int] | None = None if each.in_flight is None else each.in_flight.tables
    lags = {table.name: table for table in (each.lag or FeedLag()).tables}
    for name in dict.fromkeys([*lags, *(flight or ())]):
        if name:  # of a channel of one table, rows in flight are under no name
            yield lags.get(name, TableLag(name, "")), None if flight is None else flight.get(name, 0)
