"""The commands, one function each; what they do is done elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from spark_channel.cli.engine import EngineName
from spark_channel.cli.limits import limits
from spark_channel.cli.tunnel import tunnel

app = typer.Typer(
    name="spark-channel",
    help="Move data between systems with Spark without hurting either end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(limits, name="limits")
app.add_typer(tunnel, name="tunnel")


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
    rows_per_second: Annotated[str, typer.Option(help="The limit of the copy, in rows per second.")] = "100k",
    directory: Annotated[
        Path | None, typer.Option(help="Directory of the new database; default: a new temporary directory.")
    ] = None,
) -> None:
    """Copy 336 776 flights into SQLite through Spark, under a limit, and read them back."""
    from spark_channel.cli.demo import run_demo

    run_demo(rows_per_second=rows_per_second, directory=directory)


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="A file that `TransferReport.to_json` wrote.")],
    picture: Annotated[
        Path | None, typer.Option(help="Draw speed against the limit into this SVG file.")
    ] = None,
) -> None:
    """Show a saved report."""
    from spark_channel.cli.report import show_report

    show_report(file, picture)


_Job = Annotated[Path, typer.Argument(help="A DataX job.json.", show_default=False)]
_Parameters = Annotated[
    list[str] | None, typer.Option("-p", metavar='"-Dname=value"', help="Values of ${name} in the job.")
]
_Master = Annotated[
    str | None, typer.Option(help="Spark's master; default: spark-submit's, else this machine.")
]
_AllContent = Annotated[
    bool, typer.Option("--all-content", help="Run each entry of job.content; DataX runs the first.")
]


@app.command()
def run(
    job: _Job,
    parameters: _Parameters = None,
    master: _Master = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="name=value", help="A Spark setting; may be given several times."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and move nothing.")] = False,
    all_content: _AllContent = False,
    dirty_rows_path: Annotated[
        str | None, typer.Option(help="Directory for refused rows, as Parquet; default: not kept.")
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(
            metavar="job|task",
            help="Publish all rows together, or those of each task as it ends; default: the job file's.",
        ),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="What runs the job: this machine without Spark (local), or Spark. auto: local, unless --master or "
            "--conf is given, spark-submit runs this, or one end is a format of Spark."
        ),
    ] = "auto",
    txn: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:VERSION",
            help="Transaction id of this load: a rerun adds no row twice. The version is a number or a date; NAME "
            "alone uses the only date among the values of -p.",
        ),
    ] = None,
) -> None:
    """Run a DataX job. Exit codes: 0 done, 1 failed, 2 bad input, 3 dirty limit, 130 interrupted."""
    from spark_channel.cli.run import run_job

    run_job(
        job,
        parameters or [],
        master=master,
        conf=conf or [],
        dry_run=dry_run,
        all_content=all_content,
        dirty_rows_path=dirty_rows_path,
        commit=commit,
        txn=txn,
        engine=engine,
    )


@app.command()
def plan(
    job: _Job, parameters: _Parameters = None, master: _Master = None, all_content: _AllContent = False
) -> None:
    """Show the plan of a DataX job as a table, without moving a row."""
    from spark_channel.cli.run import plan_job

    plan_job(job, parameters or [], master=master, all_content=all_content)


@app.command()
def check(
    jobs: Annotated[list[Path], typer.Argument(help="DataX job files.", show_default=False)],
    parameters: _Parameters = None,
) -> None:
    """Show for each job file whether it runs, needs a driver, or is refused, and why."""
    from spark_channel.cli.check import check_jobs

    if not check_jobs(jobs, parameters or []):
        raise typer.Exit(2)


@app.command()
def connectors() -> None:
    """List the connectors: whether each reads and writes, and which urls and suffixes select it."""
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
