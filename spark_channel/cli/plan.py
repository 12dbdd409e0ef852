"""`spark-channel plan`, and `run --dry-run`: what a DataX job would do."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from spark_channel.cli.files import load
from spark_channel.jobs import LoadedJob
from spark_channel.planning import TransferSpec
from spark_channel.progress.render import short

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["plan_job"]


def plan_job(job: Path, parameters: Sequence[str], *, master: str | None, all_content: bool) -> None:
    """Show the plan. Opens both ends; moves and changes nothing, and needs no Spark session.

    Raises:
        ChannelError: the job is broken, or its source or target cannot be opened.
    """
    _show(load(job, parameters, all_content), master)


def _show(loaded: LoadedJob, master: str | None) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for number, spec in enumerate(loaded.specs):
        if len(loaded.specs) > 1:
            console.print(f"[bold]content {number}[/]")
        _show_one(spec, _cores(master), console)


def _show_one(spec: TransferSpec, parallelism: int, console: "Console") -> None:
    from rich.table import Table

    from spark_channel.transfers.rehearse import rehearse

    if spec.reader.spark_format or spec.writer.spark_format:
        ends = (spec.reader, spec.writer)
        names = ", ".join(end.name for end in ends if end.spark_format)
        console.print(f"runs as a DataFrame: {names} is a Spark format, and Spark plans it")
        for half, end in zip(("reader", "writer"), ends, strict=True):
            console.print(f"{half}: {end!r}", markup=False)
        return
    with ExitStack() as held:  # nothing is read: what the splits share may go at once
        opened, *_ = rehearse(spec, parallelism, held)
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
