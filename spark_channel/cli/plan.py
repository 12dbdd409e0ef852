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
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.connectors.base.stored import server_facts
from spark_channel.connectors.sql.session_pool import keeping_sessions
from spark_channel.errors import ChannelError, MissingPackageError, OptionError
from spark_channel.option_types import has_reference, without_references
from spark_channel.plain_text import one_line
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.progress.report import many, plain_end, short

if TYPE_CHECKING:
    from rich.console import Console

    from spark_channel.datax import LoadedJob
    from spark_channel.datax.load import JobFileCheck

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


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not now", name=fullname)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes longer than a small job.

    It does so at its first `pa.array`, wherever pandas is installed, to see whether the values are pandas'. A later
    `to_pandas` imports it all the same.
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


def job_files(given: Sequence[Path]) -> list[Path]:
    """The files, and those that end with .json below the folders, by name; each once.

    Raises:
        OptionError: a folder without job files.
    """
    found: dict[Path, None] = {}
    for path in given:
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(each for each in path.rglob("*.json") if each.is_file())
        if not inside:
            raise OptionError(
                f"folder {path} has no job files: it takes files that end with .json",
                option="jobs",
                got=str(path),
            )
        found.update(dict.fromkeys(inside))
    return list(found)


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
    with keeping_sessions():  # a job may have thousands of tables, and a server one catalog
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
    with ExitStack() as held:  # no row is read, so the state that splits share is freed early
        every = rehearse(spec, parallelism, held, here=here)
        opened = every[0]
    replaced = [
        f"replaces {what} in {one.target}"
        for one in every
        if one.spec.save_mode == "overwrite"
        for what in (writer.foreign_content(one.schema) for writer in one.writers)
        if what
    ]
    options, made = opened.options, opened.plan
    others = [f" and {each.writer.name or 'another target'}" for each in spec.targets[1:]]
    way = f"{plain_end(opened.source)} -> {plain_end(opened.target)}"
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
    columns = ", ".join(f"{field.name} {field.type}" for field in opened.schema)
    console.print(one_line(f"columns: {columns}"), markup=False)
    over = f"{many(len(made.tasks), 'split')} over {many(made.channels, 'channel')}"
    size = "" if made.nbytes is None else f", {short(made.nbytes)}B"
    rows = "unknown" if made.rows is None else f"about {short(made.rows)}"
    console.print(one_line(f"{rows} rows{size}, in {over}"))


def _dirty(spec: TransferSpec) -> str:
    if spec.max_dirty_fraction is not None:
        return f"at most {100 * spec.max_dirty_fraction:g} %"
    return "any number" if spec.max_dirty_rows is None else f"at most {spec.max_dirty_rows}"


def _cores(master: str | None) -> int:
    """Return the cores in `local[4]`; else this machine's cores, since only a session knows a cluster's."""
    inside = (master or "").removeprefix("local[").partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() and int(inside) else os.cpu_count() or 1


_RUNS, _NEEDS, _REFUSED = "runs", "needs a driver", "refused"
_DRIVERS = {
    "oracle": "Oracle's JDBC driver",
    "sqlserver": "SQL Server's JDBC driver",
    "db2": "DB2's JDBC driver",
    "mysql": "MySQL's JDBC driver",
    "postgresql": "PostgreSQL's JDBC driver",
}


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
    given: Sequence[Path], parameters: Sequence[str], *, as_json: bool, connect: bool
) -> bool:
    """Print a row per file, and totals; True when none is refused. Opens nothing but the files, unless `connect`.

    Raises:
        OptionError: a folder without job files.
    """
    from spark_channel.datax import parse_parameters

    if not has_third_parties():
        without_pandas()
    variables = parse_parameters(" ".join(parameters))
    with keeping_sessions():
        results = {path: check_job(path, variables, connect=connect) for path in job_files(given)}
    states = Counter(each.state for each in results.values())
    missing = Counter(name.strip().lower() for each in results.values() for name in each.missing)
    if as_json:
        shown: dict[str, Any] = {
            "version": 1,
            "totals": {state: states[state] for state in (_RUNS, _NEEDS, _REFUSED)},
            "missing_plugins": dict(missing.most_common()),
            "jobs": [{"file": str(path), **asdict(result)} for path, result in results.items()],
        }
        typer.echo(json_line(shown))
    else:
        _print(results, states, missing)
        if not connect:
            say("No end was opened: --connect logs in, and checks tables, columns and rights.")
    return not states[_REFUSED]


def check_job(path: Path, variables: dict[str, str], *, connect: bool = False) -> CheckResult:
    """Return whether the job can run, judged by its text; with `connect`, by its source and target, too."""
    if path.suffix.lower() in (".yml", ".yaml"):
        return _check_replication(path, connect=connect)
    from spark_channel.datax.load import check_job_file

    found = check_job_file(path, variables)
    made = _checked(found, connect=connect)
    shown = found.shown
    return CheckResult(
        made.state,
        *map(shown, (made.faults, made.notes, made.missing, made.runs, made.found)),
    )


def _checked(found: "JobFileCheck", *, connect: bool) -> CheckResult:
    from spark_channel.cli.reach import reach

    if found.faults or found.loaded is None:
        faults = found.faults
        return CheckResult(_REFUSED if faults else _RUNS, faults, found.notes, found.missing)
    reaches = tuple(dict.fromkeys(line for spec in found.loaded.specs for line in reach(spec)))
    there: tuple[str, ...] = ()
    try:
        needs = [need for spec in found.loaded.specs for need in _needs(spec)]
        if connect and not needs:
            there = tuple(dict.fromkeys(_connect(found.loaded.specs)))
    except ChannelError as error:
        return CheckResult(_REFUSED, (str(error),), found.notes, runs=reaches)
    if needs:
        return CheckResult(_NEEDS, tuple(dict.fromkeys(needs)), found.notes, runs=reaches)
    return CheckResult(_RUNS, (), found.notes, runs=reaches, found=there)


def _check_replication(path: Path, *, connect: bool) -> CheckResult:
    from spark_channel.cli.reach import reach_of_replication
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.plan import check_replication, plan_replication

    faults, needs = check_replication(path)
    if faults:
        return CheckResult(_REFUSED, tuple(faults))
    reaches = tuple(reach_of_replication(load_replication(path)))
    if needs or not connect:
        return CheckResult(_NEEDS if needs else _RUNS, tuple(needs), runs=reaches)
    from spark_channel.replication.reasons import every_reason
    from spark_channel.replication.table_run import RunSettings

    try:
        made = plan_replication(load_replication(path), RunSettings(), parallelism=1)
    except ChannelError as error:
        return CheckResult(_REFUSED, (str(error),))
    lacks = (*every_reason({each.stream: each.fault for each in made.tables}), *made.missing)
    can = sum(not each.fault for each in made.tables)
    there = (
        f"source: {made.servers[0] or 'open'}; {can} of {len(made.tables)} tables can be copied",
        f"log of the source: {made.log}",
        f"target: {made.servers[1] or 'open'}",
    )
    return CheckResult(_REFUSED if lacks else _RUNS, lacks, made.notes, runs=reaches, found=there)


def _connect(specs: Sequence[TransferSpec]) -> Iterator[str]:
    """What both ends say of themselves, once they have let the job in.

    Raises:
        ChannelError: what a run would be refused for.
    """
    from spark_channel.transfers.plan import rehearse

    for spec in specs:
        with ExitStack() as held:
            for opened in rehearse(spec, 1, held):
                for source in opened.sources:
                    columns = many(len(source.pipeline.output_schema), "column")
                    server = server_facts(source.reader) or "open"
                    yield f"source: {server}; may read {columns} of {plain_end(opened.source)}"
                for writer in opened.writers:
                    server = server_facts(writer) or "open"
                    yield f"target: {server}; may write {plain_end(opened.target)}"


def _needs(spec: TransferSpec) -> list[str]:
    """Return the missing packages that the transfer needs.

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
                from spark_channel.transfers.options import take_schema

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
    counts = ", ".join(f"{states[each]} {each}" for each in (_RUNS, _NEEDS, _REFUSED))
    say(f"{many(len(results), 'job')}: {counts}")
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in missing.most_common())
        say(f"plugins that are not here: {listed}")
