"""replicate: many tables as one file describes them."""

import json
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spark_channel.cli.arguments import EngineName
from spark_channel.cli.exit_codes import exit_code
from spark_channel.cli.plan import check_place, publish_text, without_pandas
from spark_channel.cli.run import chosen_engine, open_engine, parse_conf
from spark_channel.cli.text import cell, json_line, print_table, say
from spark_channel.clock import utc_now
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.errors import OptionError
from spark_channel.plain_text import one_line
from spark_channel.processes import cores
from spark_channel.progress.report import many, short
from spark_channel.replication.config import Replication, json_schema, load_replication
from spark_channel.replication.plan import RunPlan, TablePlan, plan_replication
from spark_channel.replication.reasons import every_reason
from spark_channel.replication.report import PARKED, ReplicationReport, TablesProgress
from spark_channel.replication.run import RunSettings, replicate_on
from spark_channel.replication.status import (
    TableStatus,
    end_tables,
    reset_tables,
    resume_tables,
    status_of,
)
from spark_channel.service.windows import NO_WINDOW

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ReplicateOptions", "replicate"]


_ACTIONS = ("status", "reset", "resume", "end", "schema")
_COLORS = {"done": "green", "unchanged": "green", "parked": "red", "not run": "yellow"}


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions:
    """The options of the `replicate` command."""

    select: Sequence[str] = ()
    full_refresh: bool = False
    dry_run: bool = False
    plans: bool = False
    once: bool = False
    shared_limit: str | None = None
    engine: EngineName = "auto"
    master: str | None = None
    conf: Sequence[str] = ()
    report: Path | None = None
    json_output: bool = False


def replicate(words: Sequence[str], options: ReplicateOptions) -> int:
    """Do what `words` say: a file, or an action and a file. Returns the exit code.

    Raises:
        ChannelError: the file is broken, or an end cannot be opened.
    """
    action, *arguments = words if words[0] in _ACTIONS else ["run", *words]
    if action == "schema" and not arguments:
        typer.echo(json_schema(), nl=False)
        return 0
    if not arguments or (len(arguments) > 1 and action not in ("reset", "resume", "end")):
        takes = "a YAML file; status FILE; reset FILE TABLE ...; resume FILE TABLE ...; end FILE [TABLE ...]; or schema"
        raise OptionError(f"replicate got {' '.join(words)!r}; it takes {takes}", option="FILE")
    if not has_third_parties():
        without_pandas()
    file, *tables = arguments
    if action == "status":
        return _status(Path(file), options)
    if action == "reset":
        for name in reset_tables(load_replication(file), [*options.select, *tables]):
            say(f"{name} is reset: the next run replaces all its rows")
        return 0
    if action == "resume":
        resumed, others = resume_tables(load_replication(file), [*options.select, *tables])
        for name in resumed:
            say(f"{name} is resumed: the next run reads all its rows again")
        for name in others:
            say(f"{name} is not parked: each run tries it again")
        return 0
    if action == "end":
        return _end(load_replication(file), [*options.select, *tables])
    return _plan(Path(file), options) if options.dry_run else _run(Path(file), options)


def _end(replication: Replication, tables: Sequence[str]) -> int:
    ended = end_tables(replication, tables)
    lines = [f"{name} is not followed: nothing to end" for name in ended.others]
    if ended.is_whole:
        dropped = f", and slot {ended.slot} is dropped" if ended.slot else ""
        streams = ", ".join(ended.streams) or "no table of the file"
        lines.append(f"{streams}: following is ended with its checkpoints and claims{dropped}")
    else:
        lines += [f"{name} is followed no more: take it out of the file" for name in ended.streams]
    if not ended.streams and not ended.is_whole and not lines:
        lines.append("no table of this file is followed: nothing to end")
    remark = "their rows in the target stay; a run of the file follows its tables again"
    for line in [*lines, *([remark] if ended.streams else [])]:
        print(one_line(line))  # noqa: T201 - the command line talks
    return 0


def _status(file: Path, options: ReplicateOptions) -> int:
    replication = load_replication(file)
    statuses = status_of(replication, options.select)
    if options.json_output:
        typer.echo(json_line([asdict(status) for status in statuses]))
        return 0
    table = _table(("table", "object", "mode", "state", "position", "lag", "last write"), set())
    for status in statuses:
        table.add_row(
            *map(cell, (status.stream, status.object, status.mode, status.state)),
            "" if status.position is None else cell(status.position),
            _lag(status),
            cell(_last_write(status)),
        )
    columns = {
        status.stream: status.columns and f"{status.columns} ({status.columns_at})"
        for status in statuses
    }
    lines = [
        *every_reason(columns),
        *every_reason({status.stream: status.why for status in statuses}),
        *(f"{status.stream} lacks: {lack}" for status in statuses for lack in status.lacks),
    ]
    followed = [status for status in statuses if status.mode == "full_then_changes"]
    _print(table, *lines, *_of_tunnel(file, replication, followed))
    return 0


def _of_tunnel(file: Path, replication: Replication, followed: Sequence[TableStatus]) -> list[str]:
    """What all followed tables share: the log that the source keeps for them, and the commands of their tunnel."""
    if all(status.state in ("not copied", "not followed", "unknown") for status in followed):
        return []
    log_bytes = next(
        (status.log_kept_bytes for status in followed if status.log_kept_bytes is not None), None
    )
    oldest = max((status.lag_seconds or 0 for status in followed), default=0)
    log = [] if log_bytes is None else [f"the source keeps {short(log_bytes)}B of its log for them"]
    log += [f"the oldest change that is left is {oldest:.0f} s old"] if oldest else []
    ends = f"ends with: spark-channel replicate end {replication.typed}"
    return [*(["; ".join(log)] if log else []), ends, f"tunnel: {file}"]


def _last_write(status: TableStatus) -> str:
    rows = "" if status.rows is None else f"{many(status.rows, 'row')} at "
    return f"{rows}{status.published_at}" if status.published_at else ""


def _lag(status: TableStatus) -> str:
    parts = [] if status.lag_rows is None else [many(status.lag_rows, "row")]
    if status.state == "reading rows":
        parts = [f"about {part}" for part in parts] or ["existing rows, not counted"]
    return ", ".join(parts + ([f"{status.lag_seconds:.0f} s"] if status.lag_seconds else []))


def _plan(file: Path, options: ReplicateOptions) -> int:
    settings = RunSettings(select=options.select, full_refresh=options.full_refresh)
    plan = plan_replication(
        load_replication(file),
        settings,
        parallelism=cores(),
        explains=options.plans or options.json_output,
    )
    code = PARKED if plan.missing or any(table.fault for table in plan.tables) else 0
    if options.json_output:
        typer.echo(json_line({"version": 1, "exit_code": code, **asdict(plan)}))
        return code
    for line in _decision(plan):
        say(line)
    missing = [f"missing: {lack}" for lack in plan.missing]
    table = _table(
        ("table", "object", "mode", "rows", "bytes", "connections", "target"),
        {"rows", "bytes", "connections"},
    )
    for table_plan in plan.tables:
        table.add_row(
            *map(cell, (table_plan.stream, table_plan.object, table_plan.mode)),
            _rows(table_plan),
            "?" if table_plan.nbytes is None else f"{short(table_plan.nbytes)}B",
            str(table_plan.connections or ""),
            "[red]parked[/]" if table_plan.fault else cell(table_plan.does),
        )
    if options.plans:
        _print(table, *(line for table in plan.tables for line in _plan_lines(table)))
    else:
        _print(table)
    faults = {table.stream: table.fault for table in plan.tables}
    for line in [*every_reason(faults, "would be parked: "), *missing]:
        say(line)
    return code


def _decision(plan: RunPlan) -> list[str]:
    """What decides whether a run may begin: rows, time, connections, and what the servers keep for it."""
    unknown = sum(1 for table in plan.tables if table.rows is None and not table.fault)
    without = f", without {many(unknown, 'table')} of unknown size" if unknown else ""
    staging = f"at most about {short(plan.staging)}B at a time" if plan.staging else "none"
    parked = sum(1 for table in plan.tables if table.fault)
    without += f"; {many(parked, 'table')} would be parked, and not counted" if parked else ""
    return [
        f"rows: about {short(plan.rows)}, {short(plan.nbytes)}B{without}; from {plan.numbers}",
        f"limit: {plan.limit}",
        f"duration: {_lasts(plan)}",
        f"connections: {_connections(plan)}{_free(plan)}",
        f"log of the source: {plan.log}",
        f"staging in the target: {staging}",
        *(f"note: {note}" for note in plan.notes),
    ]


def _connections(plan: RunPlan) -> str:
    return f"at most {plan.connections} at a time at each end" if plan.connections else "none"


def _free(plan: RunPlan) -> str:
    named = zip(("source", "target"), plan.servers, strict=True)
    servers = [f"{name}: {facts}" for name, facts in named if facts]
    return f" ({'; '.join(servers)})" if servers else ""


def _rows(plan: TablePlan) -> str:
    if plan.rows is None:
        return "?"
    low, high = plan.rows_between or (plan.rows, plan.rows)
    return short(plan.rows) if low == high else f"{short(low)} to {short(high)}"


def _lasts(plan: RunPlan) -> str:
    """How long the limit and the waits make the run last, for the fewest rows and for the most."""
    low, high = plan.seconds_between
    if high is None or plan.ends_at is None or plan.seconds is None:
        least = "" if low is None else f", at least {_span(low)}"
        return f"more than four weeks at this limit{least}"
    if not high:
        if plan.tables and all(table.fault for table in plan.tables):
            return "no table would be copied"
        return "not known: no limit makes the run wait, and how fast both ends are is not measured"
    ends = plan.ends_at + timedelta(seconds=high - plan.seconds)
    spans = dict.fromkeys(_span(seconds) for seconds in (low, high) if seconds is not None)
    late = (
        f", {_span(plan.waits)} of it to wait for rows that are committed late"
        if plan.waits
        else ""
    )
    return (
        f"{' to '.join(spans)} at this limit{late}, ends by {ends.astimezone():%Y-%m-%d %H:%M}; longer if an end is "
        "slower than the limit"
    )


def _span(seconds: float) -> str:
    """The two largest units: `3 d 4 h`, `6 h 10 min`, `27 s`."""
    remaining, parts = max(1, round(seconds)), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def _plan_lines(plan: TablePlan) -> list[str]:
    """What the servers do for a table: its statement and the plan for it, locks, staging, and what is created."""
    if plan.fault:
        return []
    steps = [f"    {line}" for line in plan.server_plan.splitlines()]
    notes = [("locks of the source", plan.source_lock), ("locks of the target", plan.target_lock)]
    notes += [("target", statement) for statement in plan.alters]
    notes += [("the target lacks", lack) for lack in plan.lacks]
    notes += [("the new table lacks", column) for column in plan.left_out]
    notes += [("another name than in the source", column) for column in plan.renamed]
    rows = "" if plan.rows is None else f" of {short(plan.rows)} rows"
    notes += [("after its rows, under no limit", f"{build}{rows}") for build in plan.builds]
    if plan.staging:
        notes.append(("staging", f"about {short(plan.staging)}B until they are published"))
    lines = [f"  {name}: {text}" for name, text in notes if text]
    first = f"{plan.stream}: {plan.statement}" if plan.statement else f"{plan.stream}:"
    return [first, *steps, *lines] if lines or plan.statement else []


def _run(file: Path, options: ReplicateOptions) -> int:
    replication = load_replication(file)
    settings = parse_conf(options.conf)
    engine = chosen_engine(options.engine, (), master=options.master, conf=settings)
    if options.report is not None:
        check_place(options.report)
    progress = TablesProgress((lambda _: None) if options.json_output else _say)
    reports = [ReplicationReport("", utc_now())]
    run_settings = RunSettings(
        select=options.select,
        full_refresh=options.full_refresh,
        once=options.once,
        shared_limit=options.shared_limit,
        begun=reports.append,
        ended=progress.table_ended,
        planned=progress.planned,
        following=progress.following,
    )
    try:
        with (
            progress,
            open_engine(engine, (), options.master, settings, progress) as (move, _, cancel),
        ):
            report = replicate_on(replication, move, cancel, run_settings)
    except BaseException as error:
        reports[-1].failed = error, exit_code(error)
        raise
    finally:
        _publish(reports[-1], options.report)
    if options.json_output:
        typer.echo(json_line(json.loads(report.to_json())))
    else:
        _show(report)
    return report.exit_code


def _publish(report: ReplicationReport, file: Path | None) -> None:
    if file is not None:
        try:
            publish_text(file, report.to_json() + "\n")
        except OptionError as error:  # the exit code is about the rows
            say(f"warning: {error}", error=True)


def _say(line: str) -> None:
    say(line, error=True)


def _show(report: ReplicationReport) -> None:
    has_windows = any(window != NO_WINDOW for _, window, _ in report.windows)
    table = _table(("table", "object", "mode", "state", "rows", "seconds"), {"rows", "seconds"})
    for table_report in report.tables:
        table.add_row(
            *map(cell, (table_report.stream, table_report.object, table_report.mode)),
            f"[{_COLORS[table_report.state]}]{table_report.state}[/]",
            str(table_report.rows),
            f"{table_report.seconds:.1f}",
        )
    _print(
        table,
        *every_reason({table.stream: table.why for table in report.tables}),
        *(
            f"limit from {at.astimezone():%H:%M:%S}: {limit} ({window})"
            for at, window, limit in report.windows
            if has_windows
        ),
        str(report),
    )


def _table(names: Sequence[str], numbers: Set[str]) -> "Table":
    from rich.table import Table

    table = Table()
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table


def _print(table: "Table", *lines: str) -> None:
    print_table(table)
    for line in lines:
        say(line)
