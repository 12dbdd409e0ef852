"""A row for each job of a command."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_channel.cli.outcome import RunOutcome

__all__ = ["print_summary"]

_COLORS = {"done": "green", "failed": "red", "not run": "yellow"}


def print_summary(run: RunOutcome) -> None:
    table = Table()
    table.add_column("job", overflow="fold")
    for name in ("state", "rows", "refused", "seconds"):
        table.add_column(name, justify="right" if name != "state" else "left", no_wrap=True)
    table.add_column("why", overflow="fold")
    for job in run.jobs:
        table.add_row(
            escape(job.file),
            f"[{_COLORS[job.state]}]{job.state}[/]",
            str(job.rows_written),
            str(job.rows_refused),
            f"{job.seconds:.1f}",
            escape(job.error.splitlines()[0] if job.error else ""),
        )
    console = Console(highlight=False)
    console.print(table)
    done = sum(job.state == "done" for job in run.jobs)
    console.print(f"{done} of {len(run.jobs)} jobs done")
