"""`spark-channel run` and `plan`: a DataX job, carried out or only planned."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from spark_channel.cli.engine import EngineName, chosen_engine, parse_conf
from spark_channel.errors import ChannelError
from spark_channel.jobs import LoadedJob, load_job, parse_parameters
from spark_channel.jobs.plugins.own_databases import is_database
from spark_channel.planning import TransferSpec
from spark_channel.progress.render import short

__all__ = ["plan_job", "run_job"]

_log = logging.getLogger(__name__)

_AT_LEAST_ONCE = (
    "delivery is at least once, as with DataX: a rerun after a failure can add rows twice. "
    "--txn NAME:VERSION makes a rerun of the same load add nothing twice, and --commit job shows all rows at once"
)


def run_job(
    job: Path,
    parameters: Sequence[str],
    *,
    master: str | None = None,
    conf: Sequence[str] = (),
    dry_run: bool = False,
    all_content: bool = False,
    dirty_rows_path: str | None = None,
    commit: str | None = None,
    txn: str | None = None,
    engine: EngineName = "auto",
) -> None:
    """Carry out the job; with `dry_run`, show its plan.

    Raises:
        ChannelError: see `spark_channel.run`.
    """
    loaded = _load(job, parameters, all_content, commit=commit, transaction=txn)
    settings = parse_conf(conf)
    for note in _notes(loaded):
        print(f"note: {note}", file=sys.stderr)  # noqa: T201 - the command line talks
    if dry_run:
        _show(loaded, master or settings.get("spark.master"))
        return
    more = {} if dirty_rows_path is None else {"dirtyRowsPath": dirty_rows_path}
    if chosen_engine(engine, loaded.specs, master=master, conf=settings) == "local":
        _run_local(loaded, more)
    else:
        _run_spark(loaded, more, master, settings)


def _run_local(loaded: LoadedJob, more: dict[str, Any]) -> None:
    from spark_channel.cli.signals import ending_on_sigterm
    from spark_channel.local import LocalEngine
    from spark_channel.transfers.run import carry_out

    limited = any(spec.rows_per_second or spec.bytes_per_second for spec in loaded.specs)
    with ending_on_sigterm(), LocalEngine(served=limited) as engine:
        for spec in loaded.specs:
            try:
                carry_out(engine, spec, more)
            except ChannelError:
                raise
            except Exception as error:
                _log.debug("the error was raised here", exc_info=True)
                raise ChannelError(_first_line(error)) from error


def _run_spark(loaded: LoadedJob, more: dict[str, Any], master: str | None, settings: dict[str, str]) -> None:
    from spark_channel.cli.session import session
    from spark_channel.spark.failures import own_error
    from spark_channel.spark.transfer import carry_out

    with session(master, settings, f"spark-channel {loaded.name}") as spark:
        for spec in loaded.specs:
            try:
                carry_out(spark, spec, more)
            except ChannelError:
                raise
            except Exception as error:  # Spark's own: a page of stack traces, of which one line says it
                raise own_error(error) or ChannelError(_first_line(error)) from error


def plan_job(job: Path, parameters: Sequence[str], *, master: str | None, all_content: bool) -> None:
    """Show the plan. Reads the source's schema and splits; moves nothing, and needs no Spark session.

    Raises:
        ChannelError: the job is broken, or its source or target cannot be opened.
    """
    _show(_load(job, parameters, all_content), master)


def _notes(loaded: LoadedJob) -> list[str]:
    """What the job could have and does not ask for."""
    adds = any(
        not spec.writer.spark_format
        and is_database(spec.writer.name)
        and "txnAppId" not in spec.writer.options
        for spec in loaded.specs
    )
    return [_AT_LEAST_ONCE] if adds else []


def _load(
    job: Path,
    parameters: Sequence[str],
    all_content: bool,
    *,
    commit: str | None = None,
    transaction: str | None = None,
) -> LoadedJob:
    loaded = load_job(
        str(job),
        parse_parameters(" ".join(parameters)),
        all_content=all_content,
        commit=commit,
        transaction=transaction,
    )
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)  # noqa: T201 - the command line talks
    return loaded


def _show(loaded: LoadedJob, master: str | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for number, spec in enumerate(loaded.specs):
        if len(loaded.specs) > 1:
            console.print(f"[bold]content {number}[/]")
        _show_one(spec, _cores(master), console)


def _show_one(spec: TransferSpec, parallelism: int, console: Console) -> None:
    from spark_channel.transfers.options import job_options
    from spark_channel.transfers.plan import open_transfer

    if spec.reader.spark_format or spec.writer.spark_format:
        ends = (spec.reader, spec.writer)
        names = ", ".join(end.name for end in ends if end.spark_format)
        console.print(f"runs as a DataFrame: {names} is a Spark format, and Spark plans it")
        for half, end in zip(("reader", "writer"), ends, strict=True):
            console.print(f"{half}: {end!r}", markup=False)
        return
    with ExitStack() as held:  # nothing is read: what the splits share may go at once
        opened = open_transfer(job_options(spec, {}), parallelism, held)
    options, made = opened.options, opened.plan
    others = [f" and {each.writer.name or 'another target'}" for each in spec.targets[1:]]
    console.print(f"{opened.source} -> {opened.target}{''.join(others)}", markup=False)
    steps = ", ".join(type(getattr(step, "inner", step)).__name__ for step in spec.transformers)
    console.print(f"mode {spec.save_mode}, transformers: {steps or 'none'}", markup=False)
    limits = [
        f"{short(value)}{unit}"
        for value, unit in (
            (options.rows_per_second, " rows/s"),
            (options.bytes_per_second, "B/s, in Arrow bytes"),
        )
        if value is not None
    ]
    console.print(f"limit: {' and '.join(limits) or 'none'}; dirty rows: {_dirty(spec)}")
    columns = ", ".join(f"{field.name} {field.type}" for field in opened.schema)
    console.print(f"columns: {columns}", markup=False)
    table = Table("task group", "channels", "tasks", "rows", "bytes")
    for group in made.groups:
        splits = [task.split for task in group.tasks]
        table.add_row(
            str(group.id),
            str(group.channels),
            str(len(group.tasks)),
            _sum([split.rows for split in splits]),
            _sum([split.nbytes for split in splits], "B"),
        )
    console.print(table)
    console.print(
        f"{made.channels} channels, {len(made.tasks)} tasks in {len(made.groups)} task groups: "
        f"{_sum([made.rows])} rows, {_sum([made.nbytes], 'B')}"
    )


def _dirty(spec: TransferSpec) -> str:
    if spec.max_dirty_fraction is not None:
        return f"at most {100 * spec.max_dirty_fraction:g} %"
    return "any number" if spec.max_dirty_rows is None else f"at most {spec.max_dirty_rows}"


def _sum(values: list[int | None], unit: str = "") -> str:
    """Rounded as the progress line rounds."""
    known = [value for value in values if value is not None]
    return (
        f"{short(sum(known))}{unit}"
        if len(known) == len(values)
        else f"unknown {'bytes' if unit else ''}".rstrip()
    )


def _cores(master: str | None) -> int:
    """What `local[4]` says; else this machine's cores, since only a session knows a cluster's."""
    inside = (master or "").removeprefix("local[").partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() and int(inside) else os.cpu_count() or 1


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
