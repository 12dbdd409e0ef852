"""`spark-channel plan` and `check`: finds and reads job files, and shows whether and how they would run."""

import importlib
import os
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spark_channel.cli.text import cell, json_line, say, say_indented
from spark_channel.connectors import find_connector, load_reader, load_writer
from spark_channel.connectors.base.overlap import server_facts
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.sql.read.quantiles import divisions
from spark_channel.errors import ChannelError, MissingPackageError, OptionError
from spark_channel.option_types import has_reference, without_references
from spark_channel.plain_text import one_line
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.progress.report import many, plain_end, short

if TYPE_CHECKING:
    from rich.console import Console

    from spark_channel.datax import LoadedJob
    from spark_channel.datax.check import JobFileCheck

__all__ = [
    "CheckResult",
    "check_jobs",
    "check_place",
    "job_files",
    "load",
    "plan_job",
    "publish_text",
    "show_plan",
    "without_pandas",
]

_RUNS, _NEEDS, _REFUSED = "runs", "needs a driver", "refused"
_DRIVERS = {
    "oracle": "Oracle's JDBC driver",
    "sqlserver": "SQL Server's JDBC driver",
    "db2": "DB2's JDBC driver",
    "mysql": "MySQL's JDBC driver",
    "postgresql": "PostgreSQL's JDBC driver",
}


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in ("pandas", "dateutil"):
            raise ModuleNotFoundError("not now", name=fullname)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes longer than a small job.

    It does so at its first `pa.array`, wherever pandas is installed, to see whether the values are pandas', and imports
    dateutil, for intervals. What needs them later imports them all the same.
    """
    if "pandas" in sys.modules:
        return
    pa = importlib.import_module("pyarrow")
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def job_files(paths: Sequence[Path]) -> list[Path]:
    """The files, and those that end with .json below the folders, by name; each once.

    Raises:
        OptionError: a folder without job files.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            files[path] = None
            continue
        inside = sorted(file for file in path.rglob("*.json") if file.is_file())
        if not inside:
            raise OptionError(
                f"folder {path} has no job files: it takes files that end with .json",
                option="jobs",
                got=str(path),
            )
        files.update(dict.fromkeys(inside))
    return list(files)


def load(
    job: Path,
    parameters: Sequence[str],
    all_content: bool,
    *,
    commit: str | None = None,
    txn: str | None = None,
    named: bool = False,
) -> "LoadedJob":
    """The job in a file; its warnings go to the standard error, `named` with the file's name.

    Raises:
        JobFileError: it is broken.
    """
    from spark_channel.datax import load_job, parse_parameters

    if not has_third_parties():  # whose connectors may hand pyarrow what only pandas can read
        without_pandas()
    loaded = load_job(
        str(job),
        parse_parameters(" ".join(parameters)),
        all_content=all_content,
        commit=commit,
        txn=txn,
    )
    for warning in loaded.warnings:
        say(f"{f'{job}: ' if named else ''}warning: {warning}", error=True)
    return loaded


def check_place(path: Path) -> None:
    """Check that a report can be written to `path`, before a row moves.

    Raises:
        OptionError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-"):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"option '--report' got {str(path)!r}, which cannot be written: {error.strerror or error}",
        option="--report",
        got=str(path),
    )


def publish_text(path: Path, text: str) -> None:
    """Put `text` in place of the file at `path`, so that a reader finds the old one or the new one, and no half.

    Raises:
        OptionError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.parent / f".{path.name}-{secrets.token_hex(8)}"
        # Not by `tempfile`, whose files are of this user alone: a report has the mode that the umask says.
        number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            name.replace(path)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def plan_job(
    job: Path,
    parameters: Sequence[str],
    *,
    master: str | None,
    all_content: bool,
    on_spark: bool = False,
) -> None:
    """Show the plan. Opens both ends; moves and changes nothing, and needs no Spark session.

    `on_spark`: Spark would run the job; `master` asks for it, too.

    Raises:
        ChannelError: the job is broken, or its source or target cannot be opened.
    """
    show_plan(load(job, parameters, all_content), master, on_spark=on_spark)


def show_plan(loaded: "LoadedJob", master: str | None, *, on_spark: bool = False) -> None:
    """As `plan_job`, for a job that is there already."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    # A job may have thousands of tables, and a server one catalog.
    with keeping_sessions(looks=True):
        for number, spec in enumerate(loaded.specs):
            if len(loaded.specs) > 1:
                console.print(f"[bold]content {number}[/]")
            _show_one(spec, _cores(master), console, here=master is None and not on_spark)


def _show_one(spec: TransferSpec, parallelism: int, console: "Console", *, here: bool) -> None:
    from spark_channel.transfers.plan import rehearse

    if spec.reader.spark_format or spec.writer.spark_format:
        ends = (spec.reader, spec.writer)
        names = ", ".join(end.name for end in ends if end.spark_format)
        console.print(f"runs as a DataFrame: {cell(names)} is a Spark format, and Spark plans it")
        for half, end in zip(("reader", "writer"), ends, strict=True):
            console.print(one_line(f"{half}: {end!r}"), markup=False)
        return
    with ExitStack() as stack:  # no row is read, so the state that splits share is freed early
        every = rehearse(spec, parallelism, stack, here=here)
        rehearsal = every[0]
    replaced = [
        f"replaces {content} in {one.target}"
        for one in every
        if one.spec.save_mode == "overwrite"
        for content in (writer.foreign_content(one.schema) for writer in one.writers)
        if content
    ]
    options, plan = rehearsal.options, rehearsal.plan
    others = [f" and {target.writer.name or 'another target'}" for target in spec.targets[1:]]
    way = f"{plain_end(rehearsal.source)} -> {plain_end(rehearsal.target)}"
    console.print(one_line(f"{way}{''.join(others)}"), markup=False)
    steps = ", ".join(type(getattr(step, "inner", step)).__name__ for step in spec.transformers)
    console.print(one_line(f"mode {spec.save_mode}, transformers: {steps or 'none'}"), markup=False)
    lacks = [f"the new table lacks {part}" for one in every for part in one.left_out]
    lacks += [f"another name than in the source: {part}" for one in every for part in one.renamed]
    builds = [f"after its rows, under no limit: {part}" for one in every for part in one.builds]
    for line in (*(one.path for one in every if one.path), *replaced, *lacks, *builds):
        console.print(one_line(line), markup=False)
    limits = [
        f"{short(value)}{unit}"
        for value, unit in (
            (options.rows_per_second, " rows/s"),
            (options.bytes_per_second, "B/s, in Arrow bytes"),
        )
        if value is not None
    ]
    console.print(f"limit: {' and '.join(limits) or 'none'}; dirty rows: {_dirty(spec)}")
    columns = ", ".join(f"{field.name} {field.type}" for field in rehearsal.schema)
    console.print(one_line(f"columns: {columns}"), markup=False)
    over = f"{many(len(plan.tasks), 'split')} over {many(plan.channels, 'channel')}"
    size = "" if plan.nbytes is None else f", {short(plan.nbytes)}B"
    rows = "unknown" if plan.rows is None else f"about {short(plan.rows)}"
    console.print(one_line(f"{rows} rows{size}, in {over}"))
    for line in divisions([task.split.params["split"] for task in plan.tasks]):
        console.print(one_line(line), markup=False)


def _dirty(spec: TransferSpec) -> str:
    if spec.max_dirty_fraction is not None:
        return f"at most {100 * spec.max_dirty_fraction:g} %"
    return "any number" if spec.max_dirty_rows is None else f"at most {spec.max_dirty_rows}"


def _cores(master: str | None) -> int:
    """Return the cores in `local[4]`; else this machine's cores, since only a session knows a cluster's."""
    inside = (master or "").removeprefix("local[").partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() and int(inside) else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`state` is "runs", "needs a driver" or "refused"; `faults` is every reason, `missing` the plugins not here.

    `runs`: what the job reaches, by its options: statements, files and hosts. `found`: what both ends said of
    themselves, if they were asked.
    """

    state: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


def check_jobs(
    paths: Sequence[Path], parameters: Sequence[str], *, as_json: bool, connect: bool
) -> bool:
    """Print a row per file, and totals; True when none is refused. Opens nothing but the files, unless `connect`.

    Raises:
        OptionError: a folder without job files.
    """
    from spark_channel.datax import parse_parameters

    if not has_third_parties():
        without_pandas()
    variables = parse_parameters(" ".join(parameters))
    with keeping_sessions(looks=True):
        results = {path: check_job(path, variables, connect=connect) for path in job_files(paths)}
    states = Counter(result.state for result in results.values())
    missing = Counter(
        name.strip().lower() for result in results.values() for name in result.missing
    )
    if as_json:
        document: dict[str, Any] = {
            "version": 1,
            "totals": {state: states[state] for state in (_RUNS, _NEEDS, _REFUSED)},
            "missing_plugins": dict(missing.most_common()),
            "jobs": [{"file": str(path), **asdict(result)} for path, result in results.items()],
        }
        typer.echo(json_line(document))
    else:
        _print(results, states, missing)
        if not connect:
            say("No end was opened: --connect logs in, and checks tables, columns and rights.")
    return not states[_REFUSED]


def check_job(path: Path, variables: dict[str, str], *, connect: bool = False) -> CheckResult:
    """Return whether the job can run, judged by its text; with `connect`, by its source and target, too."""
    if path.suffix.lower() in (".yml", ".yaml"):
        return _check_replication(path, connect=connect)
    from spark_channel.datax.check import check_job_file

    check = check_job_file(path, variables)
    result = _checked(check, connect=connect)
    masked = check.shown
    return CheckResult(
        result.state,
        *map(masked, (result.faults, result.notes, result.missing, result.runs, result.found)),
    )


def _checked(check: "JobFileCheck", *, connect: bool) -> CheckResult:
    from spark_channel.cli.reach import reach

    if check.faults or check.loaded is None:
        faults = check.faults
        return CheckResult(_REFUSED if faults else _RUNS, faults, check.notes, check.missing)
    reaches = tuple(dict.fromkeys(line for spec in check.loaded.specs for line in reach(spec)))
    facts: tuple[str, ...] = ()
    try:
        needs = [need for spec in check.loaded.specs for need in _needs(spec)]
        if connect and not needs:
            facts = tuple(dict.fromkeys(_connect(check.loaded.specs)))
    except ChannelError as error:
        return CheckResult(_REFUSED, (str(error),), check.notes, runs=reaches)
    if needs:
        return CheckResult(_NEEDS, tuple(dict.fromkeys(needs)), check.notes, runs=reaches)
    return CheckResult(_RUNS, (), check.notes, runs=reaches, found=facts)


def _check_replication(path: Path, *, connect: bool) -> CheckResult:
    from spark_channel.cli.reach import reach_of_replication
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.faults import check_replication
    from spark_channel.replication.plan import plan_replication

    faults, needs = check_replication(path)
    if faults:
        return CheckResult(_REFUSED, tuple(faults))
    reaches = tuple(reach_of_replication(load_replication(path)))
    if needs or not connect:
        return CheckResult(_NEEDS if needs else _RUNS, tuple(needs), runs=reaches)
    from spark_channel.replication.reasons import every_reason
    from spark_channel.replication.table_run import RunSettings

    try:
        plan = plan_replication(load_replication(path), RunSettings(), parallelism=1)
    except ChannelError as error:
        return CheckResult(_REFUSED, (str(error),))
    lacks = (*every_reason({table.stream: table.fault for table in plan.tables}), *plan.missing)
    can = sum(not table.fault for table in plan.tables)
    facts = (
        f"source: {plan.servers[0] or 'open'}; {can} of {len(plan.tables)} tables can be copied",
        f"log of the source: {plan.log}",
        f"target: {plan.servers[1] or 'open'}",
    )
    return CheckResult(_REFUSED if lacks else _RUNS, lacks, plan.notes, runs=reaches, found=facts)


def _connect(specs: Sequence[TransferSpec]) -> Iterator[str]:
    """What both ends say of themselves, once they have let the job in.

    Raises:
        ChannelError: what a run would be refused for.
    """
    from spark_channel.transfers.plan import rehearse

    for spec in specs:
        with ExitStack() as stack:
            for transfer in rehearse(spec, 1, stack):
                for source in transfer.sources:
                    columns = many(len(source.pipeline.output_schema), "column")
                    server = server_facts(source.reader) or "open"
                    yield f"source: {server}; may read {columns} of {plain_end(transfer.source)}"
                for writer in transfer.writers:
                    server = server_facts(writer) or "open"
                    yield f"target: {server}; may write {plain_end(transfer.target)}"


def _needs(spec: TransferSpec) -> list[str]:
    """Return the missing packages that the transfer needs.

    Raises:
        ChannelError: options that a connector does not take.
    """
    needs = []
    targets = [target.writer for target in spec.targets] or [spec.writer]
    for half, end in (("reader", spec.reader), *(("writer", target) for target in targets)):
        first = end.resolve(lambda urls: urls[0])[0]
        if end.spark_format:
            needs.append(f"{half}: {_driver(first)}")
            continue
        options = {**({half: end.name} if end.name else {}), **without_references(first.options)}
        try:
            if half == "reader":
                from spark_channel.transfers.options import take_schema

                take_schema(options)
                load_reader(options)
            else:
                load_writer(options)
        except MissingPackageError:
            name = find_connector(options, half).name
            needs.append(f"{half}: pip install 'spark-channel[{name}]'")
        except ImportError as error:
            needs.append(f"{half}: {error.name or error} (pip install 'spark-channel[{end.name}]')")
        except OptionError as error:
            if not has_reference(first.options.get(error.option)):
                # Which is resolved when the job runs.
                raise
    return needs


def _driver(end: Endpoint) -> str:
    if end.name.lower() == "hive":
        return "a Hive metastore (spark.sql.catalogImplementation=hive)"
    scheme = str(end.options.get("url", "")).removeprefix("jdbc:").partition(":")[0].lower()
    named = _DRIVERS.get(scheme) or (f"the JDBC driver of {scheme}" if scheme else end.name)
    return f"{named} (--conf spark.jars=...)"


def _print(results: dict[Path, CheckResult], states: Counter[str], missing: Counter[str]) -> None:
    for path, result in results.items():
        say(f"{path}: {result.state}")
        notes = (f"note: {note}" for note in result.notes)
        for line in (*result.faults, *notes, *result.runs, *result.found):
            say_indented(line)
    counts = ", ".join(f"{states[state]} {state}" for state in (_RUNS, _NEEDS, _REFUSED))
    say(f"{many(len(results), 'job')}: {counts}")
    if missing:
        plugins = ", ".join(f"{name} ({count})" for name, count in missing.most_common())
        say(f"plugins that are not here: {plugins}")
