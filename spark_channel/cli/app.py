"""The commands of `spark-channel`, one function each."""

from collections.abc import Callable, Sequence
from copy import copy as copy_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_channel.cli.arguments import (
    OF_DATAX,
    AllContent,
    Conf,
    DirtyRowsPath,
    DryRun,
    EngineName,
    Job,
    Jobs,
    Master,
    Output,
    Parameters,
    SharedLimit,
    Verbose,
    choice,
    choices,
    examples_of,
    in_panels,
)
from spark_channel.cli.datax_flags import note_datax_flags, set_log_level
from spark_channel.cli.table_commands import (
    COPY_EXAMPLES,
    REPLICATE_EXAMPLES,
    VERIFY_EXAMPLES,
    convert,
    copy,
    replicate,
    verify,
)

if TYPE_CHECKING:
    from spark_channel.connectors import Connector

__all__ = ["app", "complete"]


RUN_EXAMPLES = examples_of(
    "datax",
    "spark-channel run job.json -p '-Dday=2026-01-31' --txn orders",
    "spark-channel run jobs/ --parallel 4 --rows-per-second 20k --report run.json",
)

app = typer.Typer(
    name="spark-channel",
    help="Copy data with Spark under a speed limit, all or nothing where the target allows it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_ORDER = (
    *("demo", "copy", "replicate", "verify", "run", "check", "plan", "convert", "ui", "report"),
    *("compact", "replaced", "connectors", "help"),
)
"""The order of use."""


def _version(flag: bool) -> None:
    if flag:
        from spark_channel.version import __version__

        typer.echo(f"spark-channel {__version__}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Copy data with Spark under a speed limit, all or nothing where the target allows it."""


@app.command()
def demo(
    rows_per_second: Annotated[
        str, typer.Option(help="The limit of the copy, in rows per second.")
    ] = "50k",
    directory: Annotated[
        Path | None,
        typer.Option(help="Directory of the new database; default: a new temporary directory."),
    ] = None,
) -> None:
    """Copy 336 776 flights into SQLite through Spark, under a limit, and read them back."""
    from spark_channel.cli.demo import run_demo

    run_demo(rows_per_second=rows_per_second, directory=directory)


@app.command()
def report(
    file: Annotated[
        Path, typer.Argument(help="A file that `--report` or `TransferReport.to_json` wrote.")
    ],
    picture: Annotated[
        Path | None, typer.Option(help="Draw speed against the limit into this SVG file.")
    ] = None,
) -> None:
    """Show a saved report."""
    from spark_channel.cli.saved_report import show_report

    show_report(file, picture)


@app.command(epilog=RUN_EXAMPLES)
@in_panels
def run(
    jobs: Jobs,
    parameters: Parameters = None,
    master: Master = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    all_content: AllContent = False,
    dirty_rows_path: DirtyRowsPath = None,
    commit: Annotated[
        str | None,
        typer.Option(
            metavar="job|task",
            help="Publish all rows together, or those of each task as it ends; default: the job file's.",
        ),
    ] = None,
    txn: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:VERSION",
            help="Transaction id of this load: a rerun adds no row twice. The version is a number or a date; NAME "
            "alone uses the only date among the values of -p. With several jobs, each is NAME/file.",
        ),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            parser=choice(EngineName),
            metavar=choices(EngineName),
            help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
            "spark-submit runs the command, or source or target is a Spark format.",
        ),
    ] = "auto",
    parallel: Annotated[
        int, typer.Option(min=1, help="Maximum number of jobs that run at the same time.")
    ] = 1,
    rows_per_second: Annotated[
        str | None,
        typer.Option(
            help="Limit of the whole command, in rows per second, such as 50k; default: unlimited."
        ),
    ] = None,
    bytes_per_second: Annotated[
        str | None,
        typer.Option(
            help="Limit of the whole command, in Arrow bytes per second, such as 64MB; default: unlimited."
        ),
    ] = None,
    shared_limit: SharedLimit = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the report as JSON, also of a failure; default: not written.",
        ),
    ] = None,
    output: Output = "text",
    _verbose: Verbose = False,
    datax_summary: Annotated[
        bool, typer.Option("--datax-summary", help="End with the table that DataX prints.")
    ] = False,
    jobid: Annotated[
        str | None, typer.Option("--jobid", help="As in DataX: the job's name.")
    ] = None,
    loglevel: Annotated[
        str | None,
        typer.Option(
            "--loglevel", help="As in DataX: debug, info, warn or error; default: unchanged."
        ),
    ] = None,
    jvm: Annotated[
        str | None,
        typer.Option(
            "-j", "--jvm", help="As in DataX, without effect: --conf sets Spark's memory."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--mode",
            help="As in DataX, without effect: see --engine and --master.",
            rich_help_panel=OF_DATAX,
        ),
    ] = None,
) -> None:
    """Run DataX jobs: files, or folders of them.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 more rows were refused than allowed, 130 interrupted, 143 ended by
    SIGTERM; 1 if several jobs failed for different reasons.
    """

    note_datax_flags(jvm=jvm, mode=mode)
    set_log_level(loglevel)
    if dry_run:
        from spark_channel.cli.plan import job_files, plan_job

        on_spark = engine == "spark" or bool(conf)
        for job in job_files(jobs):
            plan_job(
                job, parameters or [], master=master, all_content=all_content, on_spark=on_spark
            )
        return
    from spark_channel.cli.run import RunOptions, run_jobs

    options = RunOptions(
        parameters=parameters or [],
        master=master,
        conf=conf or [],
        all_content=all_content,
        dirty_rows_path=dirty_rows_path,
        commit=commit,
        txn=txn,
        job_id=jobid,
        engine=engine,
        parallel=parallel,
        rows_per_second=rows_per_second,
        bytes_per_second=bytes_per_second,
        shared_limit=shared_limit,
        report=report,
        json_output=output == "json",
        datax_summary=datax_summary,
    )
    if code := run_jobs(jobs, options):
        raise typer.Exit(code)


for command, examples in (
    (copy, COPY_EXAMPLES),
    (verify, VERIFY_EXAMPLES),
    (replicate, REPLICATE_EXAMPLES),
    (convert, ""),
):
    app.command(epilog=examples)(in_panels(command))


@app.command()
def plan(
    job: Job,
    parameters: Parameters = None,
    master: Master = None,
    all_content: AllContent = False,
) -> None:
    """Show the plan of a DataX job, without moving a row."""
    from spark_channel.cli.plan import plan_job

    plan_job(job, parameters or [], master=master, all_content=all_content)


@app.command()
def check(
    jobs: Annotated[
        list[Path] | None,
        typer.Argument(help="DataX job files, or folders of them.", show_default=False),
    ] = None,
    parameters: Parameters = None,
    output: Output = "text",
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Ask the Python processes of Spark's tasks for their spark-channel, before a job does.",
        ),
    ] = False,
    master: Master = None,
    conf: Conf = None,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Connect to source and target, and check login, table, columns and rights.",
        ),
    ] = False,
) -> None:
    """Show for each job file, or YAML file of `replicate`, whether it runs, needs a driver, or is refused, and why.

    Exit codes: 0, or 2 when one is refused, or a process of Spark has no spark-channel or another version.
    """
    if bool(jobs) == spark:
        raise typer.BadParameter("give either job files, or folders of them, or --spark")
    as_json = output == "json"
    if jobs:
        from spark_channel.cli.plan import check_jobs

        right = check_jobs(jobs, parameters or [], as_json=as_json, connect=connect)
    else:
        from spark_channel.cli.pythons import check_pythons

        right = check_pythons(master, conf or [], as_json=as_json)
    if not right:
        raise typer.Exit(2)


@app.command()
def connectors(
    name: Annotated[
        str | None, typer.Argument(help="A connector, to see all that is known of it.")
    ] = None,
    output: Output = "text",
) -> None:
    """List the connectors: what each reads and writes, and its maturity; with a name, all that is known of it."""
    from rich.table import Table

    from spark_channel.cli.text import cell, json_line, print_table, say
    from spark_channel.connectors.base.registry import all_connectors

    selected = [connector for connector in all_connectors() if name in (None, connector.name)]
    if not selected:
        names = ", ".join(connector.name for connector in all_connectors())
        raise typer.BadParameter(f"{name!r} is not a connector; there are: {names}")
    if output == "json":
        typer.echo(json_line([_about(connector) for connector in selected]))
    elif name is None:
        table = Table("name", "reads", "writes", "maturity")
        for connector in selected:
            reads, writes = (
                "yes" if half else "-" for half in (connector.reader, connector.writer)
            )
            table.add_row(cell(connector.name), reads, writes, connector.maturity)
        print_table(table)
        typer.echo("`spark-channel connectors NAME` says what each was tested against.")
    else:
        for words, value in _about(selected[0]).items():
            text = "; ".join(value) if isinstance(value, list) else value
            text = {True: "yes", False: "no", "": "-"}.get(text, text)
            say(f"{words.replace('_', ' ')}: {text}")


def _about(connector: "Connector") -> dict[str, object]:
    others = [f"{other.system} ({other.maturity}, {other.tested})" for other in connector.also]
    return {
        "name": connector.name,
        "about": connector.about,
        "reads": connector.reader is not None,
        "writes": connector.writer is not None,
        "maturity": connector.maturity,
        "tested_against": connector.tested,
        "other_systems": others,
        "url_schemes": [f"{scheme}:" for scheme in connector.schemes],
        "file_suffixes": list(connector.suffixes),
    }


@app.command()
def replaced(
    folder: Annotated[
        str,
        typer.Argument(help="Path or uri of a folder that jobs wrote.", show_default=False),
    ],
    put_back: Annotated[
        int | None,
        typer.Option(
            "--put-back",
            metavar="NUMBER",
            help="Make the files with this number visible again, and replace those that are visible now.",
        ),
    ] = None,
    file_prefix: Annotated[
        str | None, typer.Option(help="The files of this `filePrefix`; default: all.")
    ] = None,
    output: Output = "text",
) -> None:
    """List the files that overwrites of a folder replaced and that are still kept, or put them back."""
    from spark_channel.cli.replaced import list_replaced, put_files_back

    if put_back is None:
        list_replaced(folder, file_prefix, as_json=output == "json")
    else:
        put_files_back(folder, put_back, file_prefix)


@app.command()
def compact(
    target: Annotated[
        str,
        typer.Argument(
            help="A folder that jobs wrote, or a Delta or Iceberg table, as TARGET of `copy`.",
            show_default=False,
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            metavar="writer.NAME=VALUE",
            help="An option of the target, such as writer.retention=7200; may be given several times.",
        ),
    ] = None,
    target_size: Annotated[
        str,
        typer.Option(
            metavar="BYTES",
            help="Size of the files that are made, about; files below half of it are merged.",
        ),
    ] = "128MB",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be merged, and change nothing.")
    ] = False,
    output: Output = "text",
) -> None:
    """Merge small files, without changing a row, while readers and other jobs continue.

    Rows of different partitions, and files with other columns or codecs, stay apart. Readers that hold an old list find
    the old files for writer.retention seconds (3600): set it above the longest pause of a folder's streams. Readers
    that do not follow a folder's log, such as Spark's own file stream, may get rows twice.
    """
    from spark_channel.cli.compact import compact_target

    compact_target(target, options or [], target_size, dry_run=dry_run, as_json=output == "json")


@app.command()
def ui(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The TCP port on 127.0.0.1; 0: any free port.")
    ] = 0,
) -> None:
    """Show the jobs and limits of this user on this host as a page for a browser, until interrupted."""
    import queue
    import signal

    from spark_channel.observe.page import PageServer
    from spark_channel.signals import woken_by_signals

    # A signal's handler may take no lock that this thread may hold, as an event's; a queue's `put` is safe there.
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: ended.put(number))
    with woken_by_signals():
        page = PageServer(port=port)
        try:
            typer.echo(f"watch and change: {page.link(change=True)}")
            typer.echo(f"watch only:       {page.link(change=False)}")
            typer.echo("Who has a link has its rights until this command ends (Ctrl-C).")
            ended.get()
        finally:
            page.stop()
    typer.echo("the page is closed; jobs continue")


@app.command("help")
def help_page(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A page, or PAGE#section; default: list the pages.", show_default=False
        ),
    ] = None,
) -> None:
    """Show a page of the documentation, which is installed with the package."""
    from spark_channel.cli.pages import show

    show(topic)


def complete(arguments: Sequence[str]) -> typer.Typer:
    """The app, or its one command that `arguments` name: to import and describe the others takes time."""
    named = arguments[0] if arguments else ""
    for command in app.registered_commands:
        if named == (command.name or _name_of(command.callback)):
            alone = copy_of(app)
            alone.registered_commands = [command]
            return alone
    if app.registered_groups:
        return app
    from spark_channel.cli.claims import claims
    from spark_channel.cli.limits import limits
    from spark_channel.cli.tunnel import tunnel

    app.add_typer(claims, name="claims")
    app.add_typer(limits, name="limits")
    app.add_typer(tunnel, name="tunnel")
    return app


def _name_of(function: Callable[..., object] | None) -> str:
    return getattr(function, "__name__", "")


app.registered_commands.sort(
    key=lambda command: _ORDER.index(command.name or _name_of(command.callback))
)
