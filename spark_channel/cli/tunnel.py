"""`spark-channel tunnel`: make tunnels, look at them, pause and resume what they read, and start them again."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_channel.cli.tunnel_view import plain_view, print_view
from spark_channel.tunnel.lag_words import grouped
from spark_channel.tunnel.tunnel import Tunnel

__all__ = ["tunnel"]

tunnel = typer.Typer(
    help="Create, list, describe, pause, resume, split, change, delete and reset tunnels.",
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(help="The tunnel's name.")]
_Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE",
        help="An option of the source, as spark.readStream takes it; may be given several times. "
        "`${env:NAME}` and `${file:PATH}` keep secrets out of the command.",
    ),
]  # fmt: skip
_OptionsFile = Annotated[
    Path | None, typer.Option(help="A file of NAME=VALUE lines, for options that a command should not show.")
]
_Store = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_CHANNEL_TUNNEL_STORE",
        help="The store of tunnels: a SQLite file, or postgresql://user:password@host/database; default: "
        "`$SPARK_CHANNEL_TUNNEL_STORE`, else `~/.spark_channel/tunnels.db`.",
    ),
]
_Channels = Annotated[int, typer.Option(min=1, help="Approximate number of splits of the existing rows.")]
_StreamChannels = Annotated[
    list[str] | None,
    typer.Option("--channel", help="A stream channel; may be given several times. Default: all."),
]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@tunnel.command()
def create(
    name: _Name, option: _Option = None, options_file: _OptionsFile = None, store: _Store = None,
    channels: _Channels = 8,
) -> None:  # fmt: skip
    """Create a tunnel: record the end of its source, and split the existing rows."""
    made = Tunnel(name, _options(option, options_file), store=store)
    record = made.create(channels=channels)
    count = len(made.store.state(name).channels)
    typer.echo(f"tunnel {name} of {record.source}: {record.type}, {count} channels, in {made.store.show()}")


@tunnel.command("list")
def list_(
    store: _Store = None,
    orphans: Annotated[
        bool,
        typer.Option("--orphans", help="List the source's replication slots that no tunnel of this store names."),
    ] = False,
    option: _Option = None, options_file: _OptionsFile = None,
) -> None:  # fmt: skip
    """List the tunnels of a store; or, with --orphans, the slots that a server keeps WAL for without one."""
    if orphans:
        _print_orphans(Tunnel("", _options(option, options_file), store=store))
        return
    table = Table("tunnel", "type", "source", "channels", "done", "clients")
    place = Tunnel("", store=store).store
    for record in place.all():
        state = place.state(record.name)
        done = sum(channel.state == "terminated" for channel in state.channels.values())
        table.add_row(
            record.name, str(record.type), record.source, str(len(state.channels)), str(done),
            str(len(state.clients)),
        )  # fmt: skip
    Console().print(table)


@tunnel.command()
def describe(
    name: _Name, option: _Option = None, options_file: _OptionsFile = None, store: _Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; null for what is not known.")] = False,
) -> None:  # fmt: skip
    """Show a tunnel's channels and clients; with its source's options, how far each channel and table is behind."""
    view = Tunnel(name, _options(option, options_file), store=store).describe()
    if as_json:
        typer.echo(plain_view(view))
    else:
        print_view(view)


@tunnel.command()
def resume(
    name: _Name, store: _Store = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="A parked channel; may be given several times. Default: all.")
    ] = None,
) -> None:  # fmt: skip
    """Release parked channels: clients receive the range that failed again."""
    resumed = Tunnel(name, store=store).resume(channel)
    if not resumed:
        what = ", ".join(channel) + " is not" if channel else "no channel is"
        typer.echo(f"tunnel {name}: {what} parked, so nothing is resumed")
        return
    typer.echo(f"tunnel {name}: resumed {', '.join(resumed)}; a client has it after its next heartbeat")


@tunnel.command("pause-base")
def pause_base(name: _Name, store: _Store = None, channel: _StreamChannels = None) -> None:
    """Pause the reading of existing rows, while changes are still read. The pause holds across restarts."""
    paused = Tunnel(name, store=store).pause_base(channel)
    if not paused:
        typer.echo(
            f"tunnel {name}: each channel is paused already, or has read all existing rows: nothing changes"
        )
        return
    typer.echo(
        f"tunnel {name}: existing rows of {', '.join(paused)} are paused from its client's next heartbeat on; "
        f"`spark-channel tunnel resume-base {name}` ends the pause"
    )


@tunnel.command("resume-base")
def resume_base(name: _Name, store: _Store = None, channel: _StreamChannels = None) -> None:
    """Resume the reading of existing rows, from where `pause-base` stopped it."""
    resumed = Tunnel(name, store=store).resume_base(channel)
    if not resumed:
        typer.echo(f"tunnel {name}: no channel was paused: nothing changes")
        return
    typer.echo(
        f"tunnel {name}: existing rows of {', '.join(resumed)} are read again from its client's next heartbeat on"
    )


@tunnel.command()
def split(
    name: _Name, channel: Annotated[str, typer.Option(help="A stream channel.")], option: _Option = None,
    options_file: _OptionsFile = None, store: _Store = None,
) -> None:  # fmt: skip
    """Split a stream channel of files or of a table while clients read. The new channels open when it is drained."""
    made = Tunnel(name, _options(option, options_file), store=store).split(channel)
    typer.echo(f"tunnel {name}: {channel} ends at its present range, and {' and '.join(made)} follow")


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
    Tunnel(name, _options(option, options_file), store=store).add_table(table)
    typer.echo(
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
    Tunnel(name, _options(option, options_file), store=store).remove_table(table)
    typer.echo(
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
    Tunnel(name, _options(option, options_file), store=store).resnapshot(table)
    typer.echo(f"tunnel {name}: the existing rows of {table} are read again beside the changes")


@tunnel.command()
def delete(
    name: _Name, option: _Option = None, options_file: _OptionsFile = None, store: _Store = None,
    yes: _Yes = False,
    leave_slot: Annotated[
        bool, typer.Option("--leave-slot", help="Remove it without dropping its replication slot.")
    ] = False,
) -> None:  # fmt: skip
    """Delete a tunnel and its checkpoints; with its source's options, also its own replication slot."""
    found = Tunnel(name, _options(option, options_file), store=store)
    found.store.get(name)
    if not yes:
        typer.confirm(f"Remove tunnel {name} and all its checkpoints?", abort=True)
    found.delete(leave_slot=leave_slot)
    typer.echo(f"tunnel {name} is deleted")


@tunnel.command()
def reset(
    name: _Name, option: _Option = None, options_file: _OptionsFile = None, store: _Store = None,
    channels: _Channels = 8, yes: _Yes = False,
) -> None:  # fmt: skip
    """Restart a tunnel from the beginning, with the present columns of its source."""
    found = Tunnel(name, _options(option, options_file), store=store)
    found.store.get(name)
    if not yes:
        typer.confirm(f"Drop all checkpoints of tunnel {name} and restart it from the beginning?", abort=True)
    found.reset(channels=channels)
    typer.echo(f"tunnel {name} restarts from the beginning")


def _options(given: Sequence[str] | None, path: Path | None) -> dict[str, str]:
    lines = list(given or ())
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
            raise typer.BadParameter(f"--option takes NAME=VALUE; {name.split()[:1]} has no '='")
        options[name.strip()] = value.strip()
    return options


def _print_orphans(tunnel: Tunnel) -> None:
    found = tunnel.orphans()
    place = tunnel.store.show()
    if not found:
        typer.echo(f"no slot of this database is without a tunnel in {place}")
        return
    slots = Table("slot", "active", "bytes of WAL kept")
    for each in found:
        slots.add_row(each.slot, "yes" if each.is_active else "no", grouped(each.kept))
    Console(file=sys.stdout).print(slots)
    for each in found:
        if each.named_by:
            typer.echo(
                f"{each.slot}: a slot of this name belongs to tunnel {each.named_by}: keep it if that is this server"
            )
    typer.echo(
        f"no tunnel in {place} names these slots. A stream without a tunnel, a tunnel of another store or another "
        "program may use them: ask first, then SELECT pg_drop_replication_slot('...')"
    )
