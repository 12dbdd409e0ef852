"""`spark-channel check`: which job files run here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from spark_channel.connectors import load_reader, load_writer
from spark_channel.errors import ChannelError
from spark_channel.jobs import load_job, parse_parameters
from spark_channel.planning import Endpoint, TransferSpec

__all__ = ["Verdict", "check_job", "check_jobs"]

_DRIVERS = {
    "oracle": "Oracle's JDBC driver",
    "sqlserver": "SQL Server's JDBC driver",
    "db2": "DB2's JDBC driver",
    "mysql": "MySQL's JDBC driver",
    "postgresql": "PostgreSQL's JDBC driver",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state` is "runs", "needs a driver" or "refused"; `reason` is empty for a job that simply runs."""

    state: str
    reason: str = ""


def check_jobs(jobs: Sequence[Path], parameters: Sequence[str]) -> bool:
    """Print a row per file; True when none is refused. Opens nothing but the files."""
    variables = parse_parameters(" ".join(parameters))
    table = Table()
    for name in ("job", "verdict", "reason"):
        table.add_column(name, overflow="fold")
    fine = True
    for path in jobs:
        verdict = check_job(path, variables)
        fine = fine and verdict.state != "refused"
        color = {"runs": "green", "needs a driver": "yellow"}.get(verdict.state, "red")
        table.add_row(str(path), f"[{color}]{verdict.state}[/]", _plain(verdict.reason))
    Console(highlight=False).print(table)
    return fine


def check_job(path: Path, variables: dict[str, str]) -> Verdict:
    """Whether the job runs, as far as its text tells."""
    try:
        loaded = load_job(str(path), variables)
        needs = _needs(loaded.spec)
    except ChannelError as error:
        return Verdict("refused", str(error))
    if needs:
        return Verdict("needs a driver", "; ".join(needs))
    return Verdict("runs", "; ".join(loaded.warnings))


def _needs(spec: TransferSpec) -> list[str]:
    """What must be installed besides.

    Raises:
        ChannelError: options that a connector does not take.
    """
    needs = []
    targets = [each.writer for each in spec.targets] or [spec.writer]
    for half, end in (("reader", spec.reader), *(("writer", each) for each in targets)):
        first = end.resolve(lambda urls: urls[0])[0]
        if end.spark_format:
            needs.append(f"{half}: {_driver(first)}")
            continue
        try:
            load = load_reader if half == "reader" else load_writer
            load({**({half: end.name} if end.name else {}), **_given(first)})
        except ImportError as error:
            needs.append(f"{half}: {error.name or error} (pip install 'spark-channel[{end.name}]')")
    return list(dict.fromkeys(needs))


def _given(end: Endpoint) -> dict[str, Any]:
    """The options, with references to secrets unresolved: they are resolved when the job runs."""
    return {key: "reference" if "${" in str(value) else value for key, value in end.options.items()}


def _driver(end: Endpoint) -> str:
    if end.name.lower() == "hive":
        return "a Hive metastore (spark.sql.catalogImplementation=hive)"
    scheme = str(end.options.get("url", "")).removeprefix("jdbc:").partition(":")[0].lower()
    named = _DRIVERS.get(scheme) or (f"the JDBC driver of {scheme}" if scheme else end.name)
    return f"{named} (--conf spark.jars=...)"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
