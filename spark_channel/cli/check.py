"""`spark-channel check`: which job files run here."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_channel.cli.files import job_files
from spark_channel.connectors import find_connector, load_reader, load_writer
from spark_channel.connectors.registry import has_third_parties, take_schema
from spark_channel.errors import ChannelError, MissingPackageError, OptionError
from spark_channel.jobs import parse_parameters
from spark_channel.jobs.faults import look_at
from spark_channel.jobs.references import has_reference, without_references
from spark_channel.local.light import without_pandas
from spark_channel.planning import Endpoint, TransferSpec

__all__ = ["Verdict", "check_job", "check_jobs"]

_RUNS, _NEEDS, _REFUSED = "runs", "needs a driver", "refused"
_DRIVERS = {
    "oracle": "Oracle's JDBC driver",
    "sqlserver": "SQL Server's JDBC driver",
    "db2": "DB2's JDBC driver",
    "mysql": "MySQL's JDBC driver",
    "postgresql": "PostgreSQL's JDBC driver",
}
_WIDTH = 80
"""Of the table, where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state` is "runs", "needs a driver" or "refused"; `faults` is every reason, `missing` the plugins not here."""

    state: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def check_jobs(given: Sequence[Path], parameters: Sequence[str], *, as_json: bool, connect: bool) -> bool:
    """Print a row per file, and totals; True when none is refused. Opens nothing but the files, unless `connect`.

    Raises:
        OptionError: a folder without job files.
    """
    if not has_third_parties():
        without_pandas()
    variables = parse_parameters(" ".join(parameters))
    verdicts = {path: check_job(path, variables, connect=connect) for path in job_files(given)}
    states = Counter(each.state for each in verdicts.values())
    missing = Counter(name.strip().lower() for each in verdicts.values() for name in each.missing)
    if as_json:
        told: dict[str, Any] = {
            "version": 1,
            "totals": {state: states[state] for state in (_RUNS, _NEEDS, _REFUSED)},
            "missing_plugins": dict(missing.most_common()),
            "jobs": [{"file": str(path), **asdict(verdict)} for path, verdict in verdicts.items()],
        }
        print(json.dumps(told, ensure_ascii=False))  # noqa: T201 - the command line talks
    else:
        _print(verdicts, states, missing)
    return not states[_REFUSED]


def check_job(path: Path, variables: dict[str, str], *, connect: bool = False) -> Verdict:
    """Whether the job runs, as far as its text tells; with `connect`, as far as both ends tell."""
    found = look_at(path, variables)
    if found.faults or found.loaded is None:
        faults = found.faults
        return Verdict(_REFUSED if faults else _RUNS, faults, found.notes, found.missing)
    try:
        needs = [need for spec in found.loaded.specs for need in _needs(spec)]
        if connect and not needs:
            _connect(found.loaded.specs)
    except ChannelError as error:
        return Verdict(_REFUSED, (str(error),), found.notes)
    if needs:
        return Verdict(_NEEDS, tuple(dict.fromkeys(needs)), found.notes)
    return Verdict(_RUNS, (), found.notes)


def _connect(specs: Sequence[TransferSpec]) -> None:
    from spark_channel.transfers.rehearse import rehearse

    for spec in specs:
        with ExitStack() as held:
            rehearse(spec, 1, held)


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
        given = {**({half: end.name} if end.name else {}), **without_references(first.options)}
        try:
            if half == "reader":
                take_schema(given)
                load_reader(given)
            else:
                load_writer(given)
        except MissingPackageError:
            name = find_connector(given, half).name
            needs.append(f"{half}: pip install 'spark-channel[{name}]'")
        except ImportError as error:
            needs.append(f"{half}: {error.name or error} (pip install 'spark-channel[{end.name}]')")
        except OptionError as error:
            if not has_reference(first.options.get(error.option)):  # which is resolved when the job runs
                raise
    return needs


def _driver(end: Endpoint) -> str:
    if end.name.lower() == "hive":
        return "a Hive metastore (spark.sql.catalogImplementation=hive)"
    scheme = str(end.options.get("url", "")).removeprefix("jdbc:").partition(":")[0].lower()
    named = _DRIVERS.get(scheme) or (f"the JDBC driver of {scheme}" if scheme else end.name)
    return f"{named} (--conf spark.jars=...)"


def _print(verdicts: dict[Path, Verdict], states: Counter[str], missing: Counter[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    table.add_column("job", overflow="fold", ratio=2)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=3)
    for path, verdict in verdicts.items():
        color = {_RUNS: "green", _NEEDS: "yellow"}.get(verdict.state, "red")
        why = "\n".join((*verdict.faults, *(f"note: {note}" for note in verdict.notes)))
        table.add_row(escape(str(path)), f"[{color}]{verdict.state}[/]", escape(why))
    console = Console(highlight=False, width=shutil.get_terminal_size((_WIDTH, 24)).columns)
    console.print(table)
    console.print(
        f"{len(verdicts)} jobs: " + ", ".join(f"{states[each]} {each}" for each in (_RUNS, _NEEDS, _REFUSED))
    )
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in missing.most_common())
        console.print(f"plugins that are not here: {listed}", markup=False)
