"""`spark-channel tunnel`: creates, shows, pauses and resets tunnels."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spark_channel.cli.arguments import Output
from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLag, TableLag
from spark_channel.masking import mask_text
from spark_channel.option_types import resolve_references
from spark_channel.processes import has_ended
from spark_channel.serialization import dump_tagged
from spark_channel.tunnel.positions import base_words, grouped, in_flight_words, kept_words
from spark_channel.tunnel.records import Client
from spark_channel.tunnel.tunnel import ChannelView, Tunnel, TunnelView

__all__ = [
    "tunnel",
]


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


# --- text ---


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


# --- JSON ---


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


# --- both ---


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


tunnel = typer.Typer(
    help="Create, list, describe, pause, resume, split, change, delete and reset tunnels.",
    no_args_is_help=True,
)

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The tunnel's name, or a YAML file of `replicate`.")
]
_Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the source, as spark.readStream takes it; may be given several times. "
        "`${env:NAME}` and `${file:PATH}` keep secrets out of the command.",
    ),
]
_OptionsFile = Annotated[
    Path | None,
    typer.Option(help="A file of NAME=VALUE lines, for options that a command should not show."),
]


def _resolved(store: str | None) -> str | None:
    return None if store is None else str(resolve_references({"--store": store})["--store"])


_Store = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_CHANNEL_TUNNEL_STORE",
        callback=_resolved,
        help="The store of tunnels: a SQLite file, or postgresql://host/db, a password in it as ${env:PW}; default: "
        "`$SPARK_CHANNEL_TUNNEL_STORE`, else `~/.spark_channel/tunnels.db`.",
    ),
]
_Channels = Annotated[
    int, typer.Option(min=1, help="Approximate number of splits of the existing rows.")
]
_StreamChannels = Annotated[
    list[str] | None,
    typer.Option("--channel", help="A stream channel; may be given several times. Default: all."),
]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@tunnel.command()
def create(
    name: _Name,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
    channels: _Channels = 8,
) -> None:
    """Create a tunnel: record the end of its source, and split the existing rows."""
    new_tunnel = Tunnel(name, _options(option, options_file), store=store)
    record = new_tunnel.create(channels=channels)
    count = len(new_tunnel.store.state(name).channels)
    say(
        f"tunnel {name} of {record.source}: {record.type}, {count} channels, in {new_tunnel.store.show()}"
    )


@tunnel.command("list")
def list_(
    store: _Store = None,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans",
            help="List the source's replication slots that no tunnel of this store names.",
        ),
    ] = False,
    option: _Option = None,
    options_file: _OptionsFile = None,
    output: Output = "text",
) -> None:
    """List the tunnels of a store; or, with --orphans, the slots that a server keeps WAL for without one."""
    if orphans:
        _print_orphans(Tunnel("", _options(option, options_file), store=store), output)
        return
    table = Table("tunnel", "type", "source", "channels", "done", "clients")
    tunnels = []
    tunnel_store = Tunnel("", store=store).store
    for record in tunnel_store.all():
        state = tunnel_store.state(record.name)
        counts = {
            "channels": len(state.channels),
            "done": sum(channel.state == "terminated" for channel in state.channels.values()),
            "clients": len(state.clients),
        }
        about = {"tunnel": record.name, "type": str(record.type), "source": record.source}
        tunnels.append({**about, **counts})
        table.add_row(*map(cell, about.values()), *map(str, counts.values()))
    if output == "json":
        typer.echo(json_line(tunnels))
    else:
        print_table(table)


@tunnel.command()
def describe(
    name: _Name,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
    output: Output = "text",
) -> None:
    """Show a tunnel's channels and clients; with its source's options, how far each channel and table is behind."""
    view = _tunnel(name, store, option, options_file).describe()
    if output == "json":
        typer.echo(plain_view(view))
    else:
        print_view(view)


@tunnel.command()
def resume(
    name: _Name,
    store: _Store = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="A parked channel; may be given several times. Default: all."),
    ] = None,
) -> None:
    """Release parked channels: clients receive the range that failed again."""
    resumed = _tunnel(name, store).resume(channel)
    if not resumed:
        subject = ", ".join(channel) + " is not" if channel else "no channel is"
        say(f"tunnel {name}: {subject} parked, so nothing is resumed")
        return
    say(f"tunnel {name}: resumed {', '.join(resumed)}; a client has it after its next heartbeat")


@tunnel.command("pause-base")
def pause_base(name: _Name, store: _Store = None, channel: _StreamChannels = None) -> None:
    """Pause the reading of existing rows, while changes are still read. The pause holds across restarts."""
    named_tunnel = _tunnel(name, store)
    paused = named_tunnel.pause_base(channel)
    if not paused:
        say(
            f"tunnel {name}: each channel is paused already, or has read all existing rows: nothing changes"
        )
        return
    say(
        f"tunnel {name}: existing rows of {', '.join(paused)} are paused from its client's next heartbeat on; "
        f"`spark-channel tunnel resume-base {named_tunnel.store.named(named_tunnel.name)}` ends the pause"
    )


@tunnel.command("resume-base")
def resume_base(name: _Name, store: _Store = None, channel: _StreamChannels = None) -> None:
    """Resume the reading of existing rows, from where `pause-base` stopped it."""
    resumed = _tunnel(name, store).resume_base(channel)
    if not resumed:
        say(f"tunnel {name}: no channel was paused: nothing changes")
        return
    say(
        f"tunnel {name}: existing rows of {', '.join(resumed)} are read again from its client's next heartbeat on"
    )


@tunnel.command()
def split(
    name: _Name,
    channel: Annotated[str, typer.Option(help="A stream channel.")],
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
) -> None:
    """Split a stream channel of files or of a table while clients read. The new channels open when it is drained."""
    new_channels = _tunnel(name, store, option, options_file).split(channel)
    say(
        f"tunnel {name}: {channel} ends at its present range, and {' and '.join(new_channels)} follow"
    )


_Table = Annotated[str, typer.Option(help="The table, as schema.table.")]


@tunnel.command("add-table")
def add_table(
    name: _Name,
    table: _Table,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
) -> None:
    """Add a table to a tunnel of option `tables` while clients read. The publication must have the table."""
    _tunnel(name, store, option, options_file).add_table(table)
    say(
        f"tunnel {name}: {table} is followed from here on, and its existing rows are read beside the changes"
    )


@tunnel.command("remove-table")
def remove_table(
    name: _Name,
    table: _Table,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
) -> None:
    """Remove a table from a tunnel of option `tables` while clients read. It may have been dropped."""
    _tunnel(name, store, option, options_file).remove_table(table)
    say(
        f"tunnel {name}: {table} is not followed after the ranges that are handed out; the other tables continue"
    )


@tunnel.command()
def resnapshot(
    name: _Name,
    table: _Table,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
) -> None:
    """Read the existing rows of one table of a tunnel of option `tables` again, while clients read."""
    _tunnel(name, store, option, options_file).resnapshot(table)
    say(f"tunnel {name}: the existing rows of {table} are read again beside the changes")


@tunnel.command()
def delete(
    name: _Name,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
    yes: _Yes = False,
    leave_slot: Annotated[
        bool, typer.Option("--leave-slot", help="Remove it without dropping its replication slot.")
    ] = False,
) -> None:
    """Delete a tunnel and its checkpoints; with its source's options, also its own replication slot."""
    named_tunnel = _tunnel(name, store, option, options_file)
    named_tunnel.store.get(named_tunnel.name)
    if not yes:
        typer.confirm(f"Remove tunnel {name} and all its checkpoints?", abort=True)
    named_tunnel.delete(leave_slot=leave_slot)
    say(f"tunnel {name} is deleted")


@tunnel.command()
def reset(
    name: _Name,
    option: _Option = None,
    options_file: _OptionsFile = None,
    store: _Store = None,
    channels: _Channels = 8,
    yes: _Yes = False,
) -> None:
    """Restart a tunnel from the beginning, with the present columns of its source."""
    named_tunnel = _tunnel(name, store, option, options_file)
    named_tunnel.store.get(named_tunnel.name)
    if not yes:
        typer.confirm(
            f"Drop all checkpoints of tunnel {name} and restart it from the beginning?", abort=True
        )
    named_tunnel.reset(channels=channels)
    say(f"tunnel {name} restarts from the beginning")


def _tunnel(
    name: str,
    store: str | None,
    option: Sequence[str] | None = None,
    options_file: Path | None = None,
) -> Tunnel:
    """The tunnel `name`; of a file of `replicate`, the one that follows its tables, in the store that the file says."""
    source_options = _options(option, options_file)
    if not name.endswith((".yml", ".yaml")):
        return Tunnel(name, source_options, store=store)
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.tunnels import tunnel_with_source

    return tunnel_with_source(load_replication(name), source_options)


def _options(texts: Sequence[str] | None, path: Path | None) -> dict[str, str]:
    lines = list(texts or ())
    if path is not None:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise typer.BadParameter(f"--options-file {path}: {error.strerror}") from error
        stripped = (line.strip() for line in text.splitlines())
        lines += [line for line in stripped if line and not line.startswith("#")]
    options = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The rest may be a secret.
            option_name = mask_text(name.split()[0]) if name.strip() else ""
            raise typer.BadParameter(f"--option takes NAME=VALUE; {option_name!r} has no '='")
        options[name.strip()] = value.strip()
    return options


def _print_orphans(tunnel: Tunnel, output: str) -> None:
    orphaned = tunnel.orphans()
    location = tunnel.store.show()
    if output == "json":
        slots = [
            {
                "slot": slot.slot,
                "active": slot.is_active,
                "bytes_kept": slot.kept,
                "named_by": slot.named_by or None,
            }
            for slot in orphaned
        ]
        typer.echo(json_line(slots))
        return
    if not orphaned:
        say(f"no slot of this database is without a tunnel in {location}")
        return
    table = Table("slot", "active", "bytes of WAL kept")
    for slot in orphaned:
        table.add_row(cell(slot.slot), "yes" if slot.is_active else "no", grouped(slot.kept))
    print_table(table)
    for slot in orphaned:
        if slot.named_by:
            say(
                f"{slot.slot}: a slot of this name belongs to tunnel {slot.named_by}: keep it if that is this server"
            )
    say(
        f"no tunnel in {location} names these slots. A stream without a tunnel, a tunnel of another store or another "
        "program may use them: ask first, then SELECT pg_drop_replication_slot('...')"
    )
