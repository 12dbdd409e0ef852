"""The commands, one function each; what they do is done elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from spark_channel.cli.limits import limits

app = typer.Typer(
    name="spark-channel",
    help="Move data between systems with Spark without hurting either end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(limits, name="limits")


def _version(wanted: bool) -> None:
    if wanted:
        from spark_channel import __version__

        typer.echo(f"spark-channel {__version__}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Move data between systems with Spark without hurting either end."""


@app.command()
def demo(
    rows_per_second: Annotated[str, typer.Option(help="The limit of the copy.")] = "100k",
    directory: Annotated[
        Path | None, typer.Option(help="Where the database is made; default: a new temporary directory.")
    ] = None,
) -> None:
    """Copy 336 776 flights into SQLite through Spark, under a limit, and read them back."""
    from spark_channel.cli.demo import run_demo

    run_demo(rows_per_second=rows_per_second, directory=directory)


@app.command()
def connectors() -> None:
    """List the connectors: what each reads, writes, and is recognised by."""
    from rich.console import Console
    from rich.table import Table

    from spark_channel.connectors.registry import all_connectors

    table = Table("name", "reads", "writes", "recognised by", "what it is")
    for found in all_connectors():
        marks = [f"{scheme}:" for scheme in found.schemes] + [f"*{suffix}" for suffix in found.suffixes]
        table.add_row(
            found.name,
            "yes" if found.reader else "-",
            "yes" if found.writer else "-",
            " ".join(marks),
            found.about,
        )
    Console().print(table)
