"""The commands of `spark-channel`, one function each."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from spark_channel.cli.run import EngineName
from spark_channel.errors import OptionError

__all__ = ["app", "complete"]


app = typer.Typer(
    name="spark-channel",
    help="Copy data with Spark under a speed limit, all or nothing where the target allows it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


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
    file: Annotated[Path, typer.Argument(help="A file that `TransferReport.to_json` wrote.")],
    picture: Annotated[
        Path | None, typer.Option(help="Draw speed against the limit into this SVG file.")
    ] = None,
) -> None:
    """Show a saved report."""
    from spark_channel.cli.outcome import show_report

    show_report(file, picture)


_Job = Annotated[Path, typer.Argument(help="A DataX job.json.", show_default=False)]
_Jobs = Annotated[
    list[Path], typer.Argument(help="DataX job files, or folders of them.", show_default=False)
]
_Output = Annotated[
    Literal["text", "json"],
    typer.Option(help="json: print one line of JSON to stdout, and nothing else."),
]
_Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", metavar='"-Dname=value"', help="Values of ${name} in the job."),
]
_Master = Annotated[
    str | None, typer.Option(help="Spark's master; default: spark-submit's, else this machine.")
]
_Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="name=value", help="A Spark setting; may be given several times."
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Connect to source and target, and show the plan without moving a row.",
    ),
]
_DirtyRowsPath = Annotated[
    str | None, typer.Option(help="Directory for refused rows, as Parquet; default: not kept.")
]
_SharedLimit = Annotated[
    str | None, typer.Option(help="The name of a limit that `spark-channel limits serve` serves.")
]
_Windows = Annotated[
    list[str] | None,
    typer.Option(
        "--window",
        metavar='"DAYS TIMES LIMIT"',
        help="Another limit by the time: 'Mon-Fri 08:00-18:00 5k', '22:00-06:00 64MB', 'Sat-Sun unlimited', "
        "'12:00-13:00 pause'; may be given several times, and the first that holds counts.",
    ),
]
_Timezone = Annotated[str, typer.Option(help="Time zone of --window, such as Europe/Berlin.")]
_AllContent = Annotated[
    bool, typer.Option("--all-content", help="Run each entry of job.content; DataX runs the first.")
]


@app.command()
def run(
    jobs: _Jobs,
    parameters: _Parameters = None,
    master: _Master = None,
    conf: _Conf = None,
    dry_run: _DryRun = False,
    all_content: _AllContent = False,
    dirty_rows_path: _DirtyRowsPath = None,
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
            help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
            "spark-submit runs the command, or one end is a Spark format."
        ),
    ] = "auto",
    parallel: Annotated[int, typer.Option(min=1, help="Most jobs that run at the same time.")] = 1,
    rows_per_second: Annotated[
        str | None,
        typer.Option(
            help="Limit of all jobs of this command together, in rows per second, such as 50k; default: unlimited."
        ),
    ] = None,
    bytes_per_second: Annotated[
        str | None,
        typer.Option(help="The same in Arrow bytes per second, such as 64MB; default: unlimited."),
    ] = None,
    shared_limit: _SharedLimit = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the report of the run as JSON, also of a failed run; default: not written.",
        ),
    ] = None,
    output: _Output = "text",
    datax_summary: Annotated[
        bool, typer.Option("--datax-summary", help="Print the final table with DataX's labels.")
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
            "-m", "--mode", help="As in DataX, without effect: see --engine and --master."
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

        for job in job_files(jobs):
            plan_job(job, parameters or [], master=master, all_content=all_content)
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


@app.command()
def copy(
    source: Annotated[
        str,
        typer.Argument(
            help="Url or path of the source, with options behind a '?': 'postgresql://db/shop?dbtable=orders', "
            "flights.csv, parquet:s3://lake/orders.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(help="Url or path of the target, in the same forms.", show_default=False),
    ],
    where: Annotated[
        str | None, typer.Option(help="Copy the rows for which this SQL condition is true.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Copy these columns, separated by commas; default: all.")
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="append|overwrite|errorIfExists", help="As Spark's save mode.")
    ] = "append",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="reader.NAME=VALUE",
            help="An option of the reader, or with writer.NAME=VALUE of the writer; may be given several times.",
        ),
    ] = None,
    rows_per_second: Annotated[
        str | None,
        typer.Option(help="Limit in rows per second, such as 20k; default: unlimited."),
    ] = None,
    bytes_per_second: Annotated[
        str | None,
        typer.Option(help="Limit in Arrow bytes per second, such as 64MB; default: unlimited."),
    ] = None,
    window: _Windows = None,
    timezone: _Timezone = "UTC",
    shared_limit: _SharedLimit = None,
    protect: Annotated[
        str | None,
        typer.Option(
            metavar="auto|AIM",
            help="Follow what source and target say of their health, with an aim such as 'p99<1.25x'; default: off.",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(min=1, help="How many parts are copied at the same time; default: the cores."),
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(
            metavar="job|task",
            help="Publish all rows together, or those of each task as it ends; default: the connector's.",
        ),
    ] = None,
    txn: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:VERSION",
            help="Transaction id of this load: a rerun adds no row twice. The version is a number or a date.",
        ),
    ] = None,
    max_dirty_rows: Annotated[
        str | None, typer.Option(help="How many rows the target may refuse; default: 0.")
    ] = None,
    dirty_rows_path: _DirtyRowsPath = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
            "or spark-submit runs the command."
        ),
    ] = "auto",
    master: _Master = None,
    conf: _Conf = None,
    dry_run: _DryRun = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the report as JSON, also of a failed copy; default: not written.",
        ),
    ] = None,
    output: _Output = "text",
) -> None:
    """Copy one table, folder or file to another place.

    A parameter behind the '?' of SOURCE or TARGET is an option of its connector. Values are percent-encoded: write
    %26 for & and %25 for %. Exit codes are those of `run`.
    """
    from spark_channel.cli.copy_places import CopyOptions
    from spark_channel.cli.copy_places import copy as copy_places
    from spark_channel.cli.run import RunOptions

    wanted = CopyOptions(
        options=options or [],
        where=where,
        columns=columns,
        mode=mode,
        txn=txn,
        dry_run=dry_run,
        of_job={
            "rowsPerSecond": None if window else rows_per_second,
            "bytesPerSecond": None if window else bytes_per_second,
            "sharedLimit": None if window else shared_limit,
            "protect": protect,
            "channels": channels,
            "commit": commit,
            "maxDirtyRows": max_dirty_rows,
        },
    )
    run_options = RunOptions(
        master=master,
        conf=conf or [],
        dirty_rows_path=dirty_rows_path,
        engine=engine,
        rows_per_second=rows_per_second if window else None,
        bytes_per_second=bytes_per_second if window else None,
        shared_limit=shared_limit if window else None,
        windows=window or (),
        timezone=timezone,
        report=report,
        json_output=output == "json",
    )
    if code := copy_places(source, target, wanted, run_options):
        raise typer.Exit(code)


@app.command()
def verify(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="A DataX job.json, whose reader and writer are the two sides; default: --source and --target.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Url or path of the source, in the forms that `copy` takes."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Url or path of the target, in the same forms.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Columns by which rows are matched, separated by commas; default: the target's primary key."
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Compare the rows of both sides for which this is true.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Compare these columns, separated by commas; default: all.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Leave these columns out, separated by commas.")
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            help="Columns of text whose values are compared as JSON, separated by commas."
        ),
    ] = None,
    text: Annotated[
        Literal["exact", "nfc"],
        typer.Option(help="Compare texts as they are, or by Unicode's NFC."),
    ] = "exact",
    confirm: Annotated[
        int,
        typer.Option(help="How often a differing row is looked at again, after growing waits."),
    ] = 3,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the differing rows to the target again.")
    ] = False,
    max_repairs: Annotated[
        int, typer.Option(min=0, help="Repair nothing if more rows differ.")
    ] = 1_000,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --repair: remove rows that only the target has.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: list the keys, and write nothing.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="reader.NAME=VALUE",
            help="An option of the source, or with writer.NAME=VALUE of the target; may be given several times.",
        ),
    ] = None,
    rows_per_second: Annotated[
        str | None,
        typer.Option(
            help="Limit of both sides together, in rows per second, such as 50k; default: unlimited."
        ),
    ] = None,
    bytes_per_second: Annotated[
        str | None,
        typer.Option(help="The same in Arrow bytes per second, such as 64MB; default: unlimited."),
    ] = None,
    shared_limit: _SharedLimit = None,
    protect: Annotated[
        str | None,
        typer.Option(
            metavar="auto", help="Follow what both sides say of their health; default: off."
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(min=1, help="Splits of a side read at a time; default: the cores."),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
            "or spark-submit runs the command."
        ),
    ] = "auto",
    master: _Master = None,
    conf: _Conf = None,
    parameters: _Parameters = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the report (.json), or for its first 1 000 differing rows (.parquet); default: not written.",
        ),
    ] = None,
    output: _Output = "text",
) -> None:
    """Show whether two tables hold the same rows, and repair those that differ.

    Exit codes: 0 equal, 3 different, 1 not known, 2 bad input, 130 interrupted, 143 ended by SIGTERM.
    """
    from spark_channel.cli.verify_places import VerifyOptions, column_list
    from spark_channel.cli.verify_places import verify as verify_places
    from spark_channel.verification.settings import RepairSettings, VerifySettings

    for name, given in (("--delete", delete), ("--dry-run", dry_run)):
        if given and not repair:
            raise OptionError(
                f"option {name!r} needs '--repair': without it nothing is written", option=name
            )
    wanted = VerifyOptions(
        job=job,
        parameters=parameters or [],
        source=source,
        target=target,
        options=options or [],
        where=where,
        columns=columns,
        settings=VerifySettings(
            column_list("--key", key),
            column_list("--exclude", exclude) or (),
            column_list("--json", json) or (),
            text,
            confirm,
        ),
        repairs=RepairSettings(max_repairs, delete, dry_run) if repair else None,
        of_job={
            "rowsPerSecond": rows_per_second,
            "bytesPerSecond": bytes_per_second,
            "sharedLimit": shared_limit,
            "protect": protect,
            "channels": channels,
        },
        engine=engine,
        master=master,
        conf=conf or [],
        report=report,
        json_output=output == "json",
    )
    if code := verify_places(wanted):
        raise typer.Exit(code)


@app.command()
def replicate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="A YAML file that names source, target and streams. Before it may stand: `status`, what the target "
            "records of each table; `reset`, with names of tables behind the file: the next run replaces all their "
            "rows. `schema` alone prints the file's JSON schema.",
            show_default=False,
        ),
    ],
    select: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Copy these tables alone: names and patterns, separated by commas.",
        ),
    ] = None,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Replace all rows, also of incremental tables.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Follow tables of mode full_then_changes up to now; default: until ended.",
        ),
    ] = False,
    dry_run: _DryRun = False,
    shared_limit: _SharedLimit = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
            "or spark-submit runs the command."
        ),
    ] = "auto",
    master: _Master = None,
    conf: _Conf = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="File for the report as JSON; default: not written."
        ),
    ] = None,
    output: _Output = "text",
) -> None:
    """Copy many tables, as a YAML file describes them, under one limit.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 a table was parked, 130 interrupted, 143 ended by SIGTERM.
    """
    from spark_channel.cli.replicate import ReplicateOptions
    from spark_channel.cli.replicate import replicate as replicate_file

    options = ReplicateOptions(
        select=[each.strip() for each in (select or "").split(",") if each.strip()],
        full_refresh=full_refresh,
        once=once,
        dry_run=dry_run,
        shared_limit=shared_limit,
        engine=engine,
        master=master,
        conf=conf or [],
        report=report,
        json_output=output == "json",
    )
    if code := replicate_file(words, options):
        raise typer.Exit(code)


@app.command()
def convert(jobs: _Jobs, parameters: _Parameters = None) -> None:
    """Print DataX jobs that replace tables as one YAML file of `replicate`; says which jobs do not fit, and why.

    Exit codes: 0 all fit, 3 some do not, 2 none does.
    """
    from spark_channel.cli.replicate import convert as convert_files

    if code := convert_files(jobs, parameters or []):
        raise typer.Exit(code)


@app.command()
def plan(
    job: _Job,
    parameters: _Parameters = None,
    master: _Master = None,
    all_content: _AllContent = False,
) -> None:
    """Show the plan of a DataX job as a table, without moving a row."""
    from spark_channel.cli.plan import plan_job

    plan_job(job, parameters or [], master=master, all_content=all_content)


@app.command()
def check(
    jobs: _Jobs,
    parameters: _Parameters = None,
    output: _Output = "text",
    connect: Annotated[
        bool, typer.Option("--connect", help="Open both ends: login, table, columns and rights.")
    ] = False,
) -> None:
    """Show for each job file, or YAML file of `replicate`, whether it runs, needs a driver, or is refused, and why.

    Exit codes: 0, or 2 when one is refused.
    """
    from spark_channel.cli.plan import check_jobs

    if not check_jobs(jobs, parameters or [], as_json=output == "json", connect=connect):
        raise typer.Exit(2)


@app.command()
def connectors() -> None:
    """List the connectors: what each reads and writes, what it was tested against, and what selects it."""
    from rich.console import Console
    from rich.table import Table

    from spark_channel.connectors.base.registry import all_connectors

    table = Table(
        "name", "reads", "writes", "maturity", "tested against", "recognised by", "what it is"
    )
    for found in all_connectors():
        marks = [f"{scheme}:" for scheme in found.schemes] + [
            f"*{suffix}" for suffix in found.suffixes
        ]
        table.add_row(
            found.name,
            "yes" if found.reader else "-",
            "yes" if found.writer else "-",
            found.maturity,
            found.tested or "not declared",
            " ".join(marks),
            found.about,
        )
        for more in found.also:
            table.add_row("", "", "", more.maturity, more.tested, "", more.system)
    Console().print(table)


@app.command()
def ui(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The TCP port on 127.0.0.1; 0: any free port.")
    ] = 0,
) -> None:
    """Show the jobs and limits of this user on this host as a page for a browser, until interrupted."""
    from spark_channel.cli.ui import show_page

    show_page(port)


def complete(arguments: Sequence[str]) -> typer.Typer:
    """The whole app; groups of commands that `arguments` do not name are left out, since importing them takes time."""
    named = arguments[0] if arguments else ""
    if app.registered_groups or named in {
        command.name or _name_of(command.callback) for command in app.registered_commands
    }:
        return app
    from spark_channel.cli.limits import limits
    from spark_channel.cli.tunnel import tunnel

    app.add_typer(limits, name="limits")
    app.add_typer(tunnel, name="tunnel")
    return app


def _name_of(function: Callable[..., object] | None) -> str:
    return getattr(function, "__name__", "")


_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,
}


def note_datax_flags(*, jvm: str | None, mode: str | None) -> None:
    """Explain the flags that have no effect here."""
    notes = []
    if jvm is not None:
        notes.append(
            "--jvm has no effect: --engine local runs no JVM, and --conf spark.driver.memory sets Spark's"
        )
    if mode is not None:
        notes.append(f"--mode {mode} has no effect: --engine and --master say where a job runs")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201 - the command line talks


def set_log_level(level: str | None) -> None:
    """Log from `level` on, to the standard error.

    Raises:
        OptionError: another word.
    """
    if level is None:
        return
    if level.lower() not in _LEVELS:
        takes = "debug, info, warn or error"
        raise OptionError(
            f"option '--loglevel' got {level!r}; it takes {takes}", option="--loglevel", takes=takes
        )
    logging.basicConfig(
        level=_LEVELS[level.lower()], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
