"""`spark-channel tunnel`: creates, shows, pauses and resets tunnels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from spark_channel.cli.arguments import Output
from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.cli.tunnel_view import plain_view, print_view
from spark_channel.masking import mask_text
from spark_channel.option_types import resolve_references
from spark_channel.tunnel.positions import grouped
from spark_channel.tunnel.tunnel import Tunnel

__all__ = ["tunnel"]


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
