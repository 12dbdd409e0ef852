"""replicate: many tables as one file describes them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_channel.cli.plan import check_place, publish_text, without_pandas
from spark_channel.cli.run import EngineName, chosen_engine, open_engine, parse_conf
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.errors import OptionError
from spark_channel.replication.config import json_schema, load_replication
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.run import RunSettings, replicate_on

__all__ = ["ReplicateOptions", "replicate"]

_COLORS = {"done": "green", "unchanged": "green", "parked": "red", "not run": "yellow"}


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions:
    """The options of the `replicate` command."""

    select: Sequence[str] = ()
    full_refresh: bool = False
    dry_run: bool = False
    shared_limit: str | None = None
    engine: EngineName = "auto"
    master: str | None = None
    conf: Sequence[str] = ()
    report: Path | None = None
    json_output: bool = False


def replicate(words: Sequence[str], options: ReplicateOptions) -> int:
    """Run what `words` say: a file, or an action and a file. Returns the exit code.

    Raises:
        ChannelError: the file is broken, or an end cannot be opened.
    """
    if words[0] == "schema" and len(words) == 1:
        print(json_schema(), end="")  # noqa: T201 - the command line talks
        return 0
    if len(words) != 1:
        raise OptionError(
            f"replicate got {' '.join(words)!r}; it takes a YAML file, or `schema`", option="FILE"
        )
    if not has_third_parties():
        without_pandas()
    return _run(Path(words[0]), options)


def _run(file: Path, options: ReplicateOptions) -> int:
    found = load_replication(file)
    settings = parse_conf(options.conf)
    engine = chosen_engine(options.engine, (), master=options.master, conf=settings)
    if options.report is not None:
        check_place(options.report)
    given = RunSettings(
        select=options.select,
        full_refresh=options.full_refresh,
        shared_limit=options.shared_limit,
        ended=None if options.json_output else _tell,
    )
    with open_engine(engine, (), options.master, settings) as (move, _, cancel):
        made = replicate_on(found, move, cancel, given)
    if options.report is not None:
        publish_text(options.report, made.to_json() + "\n")
    if options.json_output:
        print(json.dumps(json.loads(made.to_json()), ensure_ascii=False))  # noqa: T201 - the command line talks
    else:
        _show(made)
    return made.exit_code


def _tell(outcome: TableOutcome, number: int, tables: int) -> None:
    what = f"{outcome.rows} rows" if outcome.state == "done" else outcome.state
    print(  # noqa: T201 - the command line talks
        f"{number}/{tables} {outcome.stream} -> {outcome.object}: {what} in {outcome.seconds:.1f} s",
        file=sys.stderr,
    )


def _show(report: ReplicationReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    table.add_column("table", overflow="fold")
    table.add_column("object", overflow="fold")
    for name in ("mode", "state", "rows", "seconds"):
        table.add_column(name, justify="right" if name in ("rows", "seconds") else "left")
    table.add_column("why", overflow="fold", ratio=1)
    for each in report.tables:
        table.add_row(
            escape(each.stream),
            escape(each.object),
            each.mode,
            f"[{_COLORS[each.state]}]{each.state}[/]",
            str(each.rows),
            f"{each.seconds:.1f}",
            escape(each.why),
        )
    console = Console(highlight=False)
    console.print(table)
    for at, window, limit in report.windows:
        console.print(f"limit from {at.astimezone():%H:%M:%S}: {limit} ({window})", markup=False)
    console.print(str(report))
