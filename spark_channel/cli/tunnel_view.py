"""The state of a tunnel as tables and lines, and as JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLag, TableLag
from spark_channel.processes import has_ended
from spark_channel.serialization import dump_tagged
from spark_channel.tunnel.positions import base_words, grouped, in_flight_words, kept_words
from spark_channel.tunnel.records import Client
from spark_channel.tunnel.tunnel import ChannelView, TunnelView

__all__ = ["plain_view", "print_view"]


_SHOWN = 40


def print_view(view: TunnelView) -> None:
    """Tables of channels, of the tables of those that have several, and of clients; and what else is known in lines."""
    record = view.record
    say(f"{record.name}: {record.type} of {record.source}")
    print_table(_channels(view))
    for channel_view in view.channels:
        for about, words in _remarks(channel_view):
            say(f"{channel_view.channel.id} ({about}) {words}")
    tables = _tables(view)
    if tables.row_count:
        print_table(tables)
    for channel_view in view.channels:
        if channel_view.channel.parked:
            say(f"parked {channel_view.channel.id}: {channel_view.channel.parked}")
    if view.clients:
        clients = Table("client", "tag", "host", "timeout", "last heartbeat")
        for client in view.clients:
            clients.add_row(
                cell(client.id),
                cell(client.tag),
                cell(client.host.partition("/")[0]),
                f"{client.timeout:g} s",
                _heard(view, client),
            )
        print_table(clients)


def plain_view(view: TunnelView) -> str:
    """The same as one JSON object; null for what is not known."""
    record = view.record
    document = {
        "tunnel": record.name,
        "type": str(record.type),
        "source": record.source,
        "channels": [_plain_channel(channel_view) for channel_view in view.channels],
        "clients": [
            {
                "client": client.id,
                "tag": client.tag,
                "host": client.host.partition("/")[0],
                "timeout_seconds": client.timeout,
                "heartbeat_seconds_ago": round(max(0.0, view.now - client.last_seen), 1),
                "has_ended": has_ended(client.host, client.process),
            }
            for client in view.clients
        ],
    }
    return json_line(document)


def _channels(view: TunnelView) -> Table:
    table = Table(
        "channel",
        "state",
        "version",
        "client",
        "checkpoint",
        "rows behind",
        "bytes behind",
        "seconds",
    )
    for channel_view in view.channels:
        channel, lag = channel_view.channel, channel_view.lag or FeedLag()
        table.add_row(
            cell(channel.id),
            str(channel.state),
            str(channel.version),
            cell(channel.client or "-"),
            str(channel.sequence),
            grouped(lag.rows),
            grouped(lag.nbytes),
            _seconds(lag.seconds),
        )
    return table


def _remarks(channel_view: ChannelView) -> Iterator[tuple[str, str]]:
    if channel_view.stage == "stream":
        until = (
            ""
            if channel_view.channel.until is None
            else f", and ends at {_shown(channel_view.channel.until)}"
        )
        yield "stream", f"reads on from {_shown(channel_view.channel.token)}{until}"
    if channel_view.no_lag:
        yield "lag", f"is not known: {channel_view.no_lag}"
    paused = channel_view.channel.paused and channel_view.channel.has_base
    lag = channel_view.lag or FeedLag()
    base = base_words(lag, paused=paused) or (
        "existing rows are paused by pause-base" if paused else ""
    )
    in_flight = (
        ""
        if channel_view.in_flight is None
        else in_flight_words(channel_view.in_flight.rows, channel_view.in_flight.seconds)
    )
    remarks = {
        "slot": kept_words(lag),
        "base": base,
        "waits": lag.backfill_blocked_by,
        "in flight": in_flight,
    }
    for about, words in remarks.items():
        if words:
            yield about, words
    for table in lag.tables:
        if table.stage == "dropped" and channel_view.channel.until is None:
            yield (
                "dropped",
                f"`spark-channel tunnel remove-table` removes {table.name}, which does not exist, from the tunnel",
            )


def _tables(view: TunnelView) -> Table:
    table = Table(
        "channel",
        "table",
        "existing rows",
        "chunks",
        "changes behind",
        "bytes",
        "seconds",
        "in flight",
    )
    for channel_view in view.channels:
        for lag, in_flight in _by_table(channel_view):
            table.add_row(
                cell(channel_view.channel.id),
                cell(lag.name),
                _existing(lag),
                _chunks(lag),
                grouped(lag.changes),
                grouped(lag.nbytes),
                _seconds(lag.seconds),
                grouped(in_flight),
            )
    return table


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
    return f"{ago}, its process has ended" if has_ended(client.host, client.process) else ago


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _shown(token: Token) -> str:
    """A position in one short line."""
    text = ", ".join(f"{name}={value}" for name, value in token.items())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _plain_channel(channel_view: ChannelView) -> dict[str, Any]:
    channel, flight = channel_view.channel, channel_view.in_flight
    return {
        "channel": channel.id,
        "stage": channel_view.stage,
        "state": str(channel.state),
        "version": channel.version,
        "client": channel.client or None,
        "checkpoint": channel.sequence,
        "position": _plain(channel.token) if channel_view.stage == "stream" else None,
        "until": _plain(channel.until),
        "parked": channel.parked or None,
        "is_base_paused": channel.paused and channel.has_base,
        "lag": None if channel_view.lag is None else _plain_lag(channel_view.lag),
        "no_lag": channel_view.no_lag or None,
        "in_flight": None
        if flight is None
        else {"rows": flight.rows, "seconds_ago": round(flight.seconds, 1)},
        "tables": [_plain_table(*row) for row in _by_table(channel_view)],
    }


def _plain_lag(lag: FeedLag) -> dict[str, Any]:
    return {
        "rows": lag.rows,
        "bytes": lag.nbytes,
        "seconds": _rounded(lag.seconds),
        "wal_kept_bytes": lag.kept,
        "waits": lag.backfill_blocked_by or None,
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


def _plain(token: Token | None) -> object:
    return None if token is None else json.loads(dump_tagged(token))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _by_table(channel_view: ChannelView) -> Iterator[tuple[TableLag, int | None]]:
    """The tables of a channel of several, and their rows in flight. A lag without a stage is not known."""
    flight: Mapping[str, int] | None = (
        None if channel_view.in_flight is None else channel_view.in_flight.tables
    )
    lags = {table.name: table for table in (channel_view.lag or FeedLag()).tables}
    for name in dict.fromkeys([*lags, *(flight or ())]):
        if name:  # rows in flight have no table name in a channel of one table
            yield (
                lags.get(name, TableLag(name, "")),
                None if flight is None else flight.get(name, 0),
            )
