"""The commands that copy, compare and replicate tables by their urls, one function each."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from spark_channel.cli.arguments import (
    Conf,
    DirtyRowsPath,
    DryRun,
    EndOptions,
    Engine,
    Jobs,
    Master,
    Output,
    Parameters,
    Protect,
    SharedLimit,
    Timezone,
    Verbose,
    Windows,
    choice,
    choices,
    examples_of,
)
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.errors import OptionError
from spark_channel.lazy import left_out

__all__ = ["convert", "copy", "replicate", "verify"]

COPY_EXAMPLES = examples_of(
    "copy",
    "spark-channel copy 'postgresql://db/shop?dbtable=crm.orders' parquet:/lake/orders --rows-per-second 20k",
    "spark-channel copy flights.csv 'sqlite:ap.db?dbtable=flights' --mode overwrite",
)
VERIFY_EXAMPLES = examples_of(
    "verify",
    "spark-channel verify shop.yml --select crm.orders",
    "spark-channel verify --source 'sqlite:a.db?dbtable=t' --target 'sqlite:b.db?dbtable=t' --repair --dry-run",
)
REPLICATE_EXAMPLES = examples_of(
    "replicate",
    "spark-channel replicate shop.yml --dry-run",
    "spark-channel replicate status shop.yml",
)
_TextForm = Literal["exact", "nfc"]
_WITHOUT_NUMPY = (
    *("postgresql:", "postgres:", "mysql:", "mariadb:", "sqlite:"),
    *("parquet:", "csv:", "json:", "arrow:"),
)
"""Places whose connectors hand pyarrow no array of numpy, and take none."""


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
        str | None, typer.Option(help="Only the rows for which this SQL condition is true.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, separated by commas; default: all.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="append|overwrite|errorIfExists",
            help="append keeps the rows of the target, overwrite replaces them, "
            "errorIfExists refuses a table or folder that exists.",
        ),
    ] = "append",
    options: EndOptions = None,
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
    window: Windows = None,
    timezone: Timezone = "UTC",
    shared_limit: SharedLimit = None,
    protect: Protect = None,
    channels: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many parts are read at the same time; default: the number of cores."
        ),
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(
            metavar="job|task",
            help="Publish all rows together, or those of each task as it ends; default: job, where the target can.",
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
    dirty_rows_path: DirtyRowsPath = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="columns|keys|full",
            help="What a new table gets of its source: columns; keys: NOT NULL and the primary key; full: also "
            "indexes, defaults, sequences, checks, comments. Default: keys where the source has them, else columns.",
        ),
    ] = None,
    schema_after: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.sql",
            help="File for the statements of indexes and constraints, which are then not built; default: they are.",
        ),
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the report as JSON, also of a failure; default: not written.",
        ),
    ] = None,
    output: Output = "text",
    _verbose: Verbose = False,
) -> None:
    """Copy one table, folder or file from a source to a target.

    A parameter behind the '?' of SOURCE or TARGET is an option of its connector.

    Its value is percent-encoded: %26 is &, and %25 is %. Exit codes are those of `run`.
    """
    on_spark = engine == "spark" or master or conf or "PYSPARK_GATEWAY_PORT" in os.environ
    ends = (source.lower(), target.lower())
    plain = all(end.startswith(_WITHOUT_NUMPY) for end in ends)
    if plain and not on_spark and not has_third_parties():
        as_bytes = all(end.startswith("postgres") for end in ends)
        if as_bytes:  # Arrow holds no rows, and its own allocator takes 4 MB at the start
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        with left_out("numpy"):  # pyarrow imports it: a ninth of a small copy, and 13 MB
            import pyarrow  # before another module imports it

            if not as_bytes:
                import pyarrow.compute  # noqa: F401
    from spark_channel.cli.copying import CopyOptions
    from spark_channel.cli.copying import copy as copy_places
    from spark_channel.cli.run import RunOptions

    copy_options = CopyOptions(
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
            "createTable": schema,
            "schemaAfter": None if schema_after is None else str(schema_after),
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
    if code := copy_places(source, target, copy_options, run_options):
        raise typer.Exit(code)


def verify(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="A DataX job.json, whose reader and writer are the two sides, or a FILE.yml of "
            "`replicate`, whose tables are compared one by one; default: --source and --target.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="With a file of `replicate`: compare these tables alone, names and patterns, separated by commas.",
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
        str | None,
        typer.Option(help="Only the rows for which this SQL condition is true."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, separated by commas; default: all.")
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
        _TextForm,
        typer.Option(
            parser=choice(_TextForm),
            metavar=choices(_TextForm),
            help="Compare texts as they are, or by Unicode's NFC.",
        ),
    ] = "exact",
    confirm: Annotated[
        int,
        typer.Option(help="How many times a differing row is compared again, with growing pauses."),
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
    options: EndOptions = None,
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
    protect: Protect = None,
    channels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many parts are read at the same time; default: the number of cores.",
        ),
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    parameters: Parameters = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the report (.json), or for its first 1 000 differing rows (.parquet); default: not written.",
        ),
    ] = None,
    output: Output = "text",
    _verbose: Verbose = False,
) -> None:
    """Show whether two tables hold the same rows, and repair those that differ.

    Exit codes: 0 equal, 3 different, 1 not known, 2 bad input, 130 interrupted, 143 ended by SIGTERM.
    """
    from spark_channel.cli.endpoints import column_list
    from spark_channel.cli.verifying import VerifyOptions
    from spark_channel.cli.verifying import verify as verify_places
    from spark_channel.verification.report import RepairSettings, VerifySettings

    for name, is_set in (("--delete", delete), ("--dry-run", dry_run)):
        if is_set and not repair:
            raise OptionError(
                f"option {name!r} needs '--repair': without it nothing is written", option=name
            )
    verify_options = VerifyOptions(
        job=job,
        select=_selected(select),
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
    if code := verify_places(verify_options):
        raise typer.Exit(code)


def replicate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="A YAML file that names source, target and streams. A word before it: `status` shows what the target "
            "records of each table; `reset`, with names of tables behind the file, makes the next run replace all "
            "their rows; `resume`, with names of parked tables, makes it read their rows again. "
            "`end` drops slot, checkpoints and claims of followed tables, all or those named. "
            "`schema` alone prints the file's JSON schema.",
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
    dry_run: DryRun = False,
    plans: Annotated[
        bool,
        typer.Option(
            "--plans",
            help="With --dry-run: also show each table's statement, its plan and its locks.",
        ),
    ] = False,
    shared_limit: SharedLimit = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="File for the report as JSON, also of a failure; default: not written.",
        ),
    ] = None,
    output: Output = "text",
    _verbose: Verbose = False,
) -> None:
    """Copy many tables, as a YAML file describes them, under one limit.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 a table was parked, 130 interrupted, 143 ended by SIGTERM.
    """
    from spark_channel.cli.replicate import ReplicateOptions
    from spark_channel.cli.replicate import replicate as replicate_file

    options = ReplicateOptions(
        select=_selected(select),
        full_refresh=full_refresh,
        once=once,
        dry_run=dry_run or plans,
        plans=plans,
        shared_limit=shared_limit,
        engine=engine,
        master=master,
        conf=conf or [],
        report=report,
        json_output=output == "json",
    )
    if code := replicate_file(words, options):
        raise typer.Exit(code)


def _selected(text: str | None) -> list[str]:
    """The tables that `--select` names; [] = all.

    Raises:
        OptionError: it names none, as the empty value of a shell's variable.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise OptionError(
            "option '--select' names no table; it takes names and patterns: omit it for all tables",
            option="--select",
        )
    return names


def convert(jobs: Jobs, parameters: Parameters = None) -> None:
    """Print DataX jobs that replace tables as one YAML file of `replicate`; says which jobs do not fit, and why.

    Exit codes: 0 all fit, 3 some do not, 2 none does.
    """
    from spark_channel.cli.convert import convert as convert_files

    if code := convert_files(jobs, parameters or []):
        raise typer.Exit(code)
