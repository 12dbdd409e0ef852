"""copy and verify: tables, folders or files at two urls, copied or compared.

No module here is called `copy`: spark-submit puts this folder before the standard library.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args
from urllib.parse import unquote

import typer
from pydantic import TypeAdapter

from spark_channel.cli.arguments import EngineName
from spark_channel.cli.plan import check_place, load, show_plan, without_pandas
from spark_channel.cli.run import (
    JobRun,
    RunOptions,
    carry_out_jobs,
    chosen_engine,
    parse_conf,
)
from spark_channel.cli.text import say
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import (
    all_connectors,
    describe,
    find_connector,
    has_third_parties,
    is_database,
    load_writer,
)
from spark_channel.connectors.base.stored import MOST_COUNTED
from spark_channel.connectors.sql.definition import DEFINING
from spark_channel.datax import LoadedJob
from spark_channel.errors import ChannelError, OptionError
from spark_channel.masking import is_clear, mask_text, scheme_of
from spark_channel.option_types import ColumnList, parse_transaction
from spark_channel.plain_text import one_line_json
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import SaveMode
from spark_channel.progress.report import many
from spark_channel.service.display import is_verbose
from spark_channel.verification.report import (
    RepairSettings,
    TablesReport,
    VerifiedTable,
    VerifyReport,
    VerifySettings,
)

if TYPE_CHECKING:
    from spark_channel.service.jobs import JobListener

__all__ = [
    "CopyOptions",
    "VerifyOptions",
    "add_option",
    "column_list",
    "copy",
    "parse_options",
    "parse_place",
    "verify",
]

_Half = Literal["reader", "writer"]
_ARGUMENTS = {"reader": "SOURCE", "writer": "TARGET"}
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
"""At least two letters: one letter and a colon is a disk of Windows."""
_OPTIONS = re.compile(r"(?P<place>.*?)\?(?P<options>\w+=.*)", re.DOTALL)
_TABLE = frozenset({"dbtable", "query"})
"""A parameter of a url that resembles one of these is a slip, and no parameter of a driver."""
_FILE_STORES = frozenset({"file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "sftp", "ftp"})


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """What a user gave beside the two places. `options` are texts such as `reader.nullValue=NA`."""

    options: Sequence[str] = ()
    where: str | None = None
    columns: str | None = None
    mode: str = "append"
    txn: str | None = None
    dry_run: bool = False
    of_job: Mapping[str, Any] = field(default_factory=dict)
    """Options of the whole copy by the names of format options, such as `rowsPerSecond`; None = not given."""


def copy(source: str, target: str, options: CopyOptions, run: RunOptions) -> int:
    """Copy what is at `source` to `target`, and print the result. Returns the exit code.

    Raises:
        ChannelError: a place or an option makes no sense, or the copy failed.
    """
    if not has_third_parties():
        without_pandas()
    options_by_half = parse_options(options.options)
    for name, value in (("where", options.where), ("columns", options.columns)):
        if value is not None:
            add_option(options_by_half["reader"], name, value)
    for name, value in options.of_job.items():
        if value is not None and name != "channels":
            add_option(options_by_half["writer"], name, value)
    if options.txn is not None:
        name, version = parse_transaction(options.txn, "--txn")
        add_option(options_by_half["writer"], "txn", f"{name}:{version}")
    _check_choice("--mode", options.mode, get_args(SaveMode))
    to = parse_place("writer", target, options_by_half["writer"])
    _check_schema(options.of_job.get("createTable"), to)
    to = _with_keys(to)
    spec = TransferSpec(
        parse_place("reader", source, options_by_half["reader"]),
        to,
        save_mode=cast(SaveMode, options.mode),
        channels=options.of_job.get("channels"),
    )
    loaded = LoadedJob((spec,), name="copy")
    if options.dry_run:
        on_spark = run.engine == "spark" or bool(run.conf)
        show_plan(loaded, run.master, on_spark=on_spark)
        return 0
    label = f"{_label(spec.reader, 'reader')} -> {_label(spec.writer, 'writer')}"
    before = _rows_before(spec.writer) if options.mode == "append" else None
    outcome = carry_out_jobs([JobRun(Path(label), "copy", loaded)], run)
    if before and not outcome.code and outcome.rows_written:
        be = "was" if before == 1 else "were"
        prefix = "more than " if before > MOST_COUNTED else ""
        rows_before = f"{prefix}{many(min(before, MOST_COUNTED), 'row')}"
        say(f"added to {rows_before} that {be} there", error=True)
    return outcome.code


def _rows_before(end: Endpoint) -> int | None:
    """How many rows a table or a folder has, counted up to a bound; None where that is not known."""
    options = {key: value for key, value in end.options.items() if key.lower() in _OF_PLACE}
    if is_database(end.name) and not any(key.lower() == "dbtable" for key in options):
        return None
    if any(key.lower() == "writemode" and value != "insert" for key, value in end.options.items()):
        return None  # rows with a key that is there are not added
    try:
        writer, _ = load_writer({**options, "writer": end.name})
        return writer.existing_rows()
    except ChannelError:  # the server does not answer, or the login may not look; the job says so
        return None


_OF_PLACE = frozenset(
    ["url", "path", "dbtable", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey"]
)
"""Options that name a database, and who logs in."""


def _check_choice(option: str, got: str, choices: Sequence[str]) -> None:
    if got not in choices:
        takes = ", ".join(choices)
        raise OptionError(
            f"option {option!r} got {got!r}; it takes one of: {takes}",
            option=option,
            got=got,
            takes=takes,
        )


def _check_schema(level: str | None, target: Endpoint) -> None:
    """Check `--schema`, by the name that was typed: what is behind it is an option of the target."""
    if level is None:
        return
    _check_choice("--schema", level, ("columns", "keys", "full"))
    connector = find_connector({**target.options, "writer": target.name}, "writer")
    if "createtable" not in connector.options_class("writer").names():
        raise OptionError(
            "option '--schema' is for tables of databases, Delta, Iceberg and Parquet, and the target is "
            f"{connector.name}: omit it",
            option="--schema",
            got=level,
        )


def _with_keys(target: Endpoint) -> Endpoint:
    """The target, whose new table gets the keys of its source unless an option says what it gets."""
    connector = find_connector({**target.options, "writer": target.name}, "writer")
    if connector.name not in DEFINING or "createtable" in map(str.lower, target.options):
        return target
    return replace(target, options={**target.options, "createTable": "auto"})


def _label(end: Endpoint, half: _Half) -> str:
    """The place in a few words, without secrets."""
    connector = find_connector({**end.options, half: end.name}, half)
    options, _ = connector.options_class(half).parse(end.options, connector=connector.name)
    return f"{connector.name} {describe(options)}".strip()


def parse_place(
    half: _Half, text: str, typed_options: dict[str, Any], argument: str | None = None
) -> Endpoint:
    """The end of a transfer that an argument names: a url or a path, and options behind a `?`.

    `typed_options` are options that were given apart, `argument` is what messages call the place. The place is one of

    - a url of a connector: `postgresql://db/shop?dbtable=orders`. A parameter that is an option of the connector is
      taken as that option; the others stay in the url.
    - the name of a connector and a place: `csv:flights.csv`, `parquet:s3://lake/orders`, `kafka:?topic=orders`.
    - a path whose ending names the connector: `s3://lake/orders.parquet`, `flights.csv?delimiter=;`. All parameters
      are options.

    Values are percent-decoded.

    Raises:
        OptionError: nothing is known of that name, or an option is unknown or given twice.
    """
    argument = argument or _ARGUMENTS[half]
    if not text.strip():
        raise OptionError(f"{argument} is empty; it takes a url or a path", option=argument)
    connector, key, location = _connector_of(half, text, argument)
    if key == "url" and not is_clear(location):
        raise OptionError(
            f"{argument} has an '@' after the first '/', '?' or '#', so it is not clear where its login ends. In a "
            "login and in parameters, write / ? # @ : as %2F %3F %23 %40 %3A",
            option=argument,
        )
    match = _OPTIONS.fullmatch(location)
    options: dict[str, Any] = {}
    if match is not None:
        location = match["place"]
        url_parameters = _take_options(
            connector, half, match["options"], options, argument, in_url=key == "url"
        )
        if url_parameters:
            location = f"{location}?{url_parameters}"
    if location and not key:
        raise OptionError(
            f"{argument} has {mask_text(location)!r} behind {connector.name + ':'!r}, which takes options alone, as in "
            f"{connector.name}:?name=value",
            option=argument,
        )
    if location:
        add_option(options, key, location)
    for name, value in typed_options.items():
        add_option(options, name, value)
    return Endpoint(connector.name, options)


def _connector_of(half: _Half, text: str, argument: str) -> tuple[Connector, str, str]:
    """The connector, the option that holds the place, and the place."""
    match = _PREFIX.fullmatch(text)
    prefix = match[1].lower() if match is not None else ""
    if match is not None and prefix not in _FILE_STORES:
        for connector in all_connectors():
            schemes = {*connector.schemes, *(("http", "https") if connector.name == "http" else ())}
            of_url = scheme_of(text) in schemes
            if not of_url and prefix != connector.name:
                continue
            names = connector.options_class(half).names()  # an error, if it has no such half
            if of_url and "url" in names:
                return connector, "url", text
            key = next((option for option in ("path", "url", "dbtable") if option in names), "")
            return connector, key, _without_slashes(match[2]) if key == "path" else match[2]
        raise _unknown(half, prefix, text, argument)
    with_options = _OPTIONS.fullmatch(text)
    location = with_options["place"] if with_options is not None else text
    try:
        return find_connector({"path": location}, half), "path", text
    except OptionError:
        raise _unknown(half, prefix, location, argument) from None


def _unknown(half: _Half, prefix: str, location: str, argument: str) -> OptionError:
    names = [connector.name for connector in all_connectors() if getattr(connector, half)]
    schemes = {
        scheme
        for connector in all_connectors()
        if getattr(connector, half)
        for scheme in connector.schemes
    }
    if prefix and prefix not in _FILE_STORES:
        near = difflib.get_close_matches(prefix, sorted({*names, *schemes}), n=1)
        problem = f"begins with {prefix + ':'!r}, which names no {half}"
        hint = (
            f"; did you mean {near[0] + ':'!r}?"
            if near
            else "; write ./ before a path that has a colon."
        )
    else:
        problem = f"{mask_text(location)!r} does not say its format by its ending"
        hint = f": put a name in front of it, as in parquet:{mask_text(location)}."
    return OptionError(
        f"{argument} {problem}{hint} Names: {', '.join(names)}; urls: {', '.join(sorted(schemes))}",
        option=argument,
        got=prefix or mask_text(location),
    )


def _without_slashes(path: str) -> str:
    """`///lake/orders` is `/lake/orders`, as in a `file` url."""
    return path[2:] if path.startswith("///") else path


def _take_options(
    connector: Connector,
    half: _Half,
    text: str,
    options: dict[str, Any],
    argument: str,
    *,
    in_url: bool,
) -> str:
    """Put parameters that are options into `options`; returns the others, unchanged, if they may stay `in_url`."""
    model = connector.options_class(half)
    option_names = {*model.names(), *(name.lower() for name in model.aliases)}
    option_names |= {name.lower() for name in (*model.ignored, *model.refused)}
    remaining = []
    for part in text.split("&"):
        name, _, value = part.partition("=")
        name = unquote(name)
        if name.lower() in option_names:
            add_option(options, name, unquote(value))
        elif in_url and not difflib.get_close_matches(
            name.lower(), option_names & _TABLE, cutoff=0.8
        ):
            remaining.append(part)
        else:
            near = difflib.get_close_matches(
                name, [_spelled(model, option_name) for option_name in option_names], n=1
            )
            path = "" if in_url else f" A path that has a '?' itself is given by -o {half}.path=..."
            raise OptionError(
                f"{argument} has parameter {name!r}, which is not an option of {connector.name}"
                f"{f'; did you mean {near[0]!r}?' if near else '.'}{path}",
                option=name,
            )
    return "&".join(remaining)


def _spelled(model: Any, lowered: str) -> str:
    field = model.names().get(lowered)
    return lowered if field is None else model.model_fields[field].alias or field


def add_option(options: dict[str, Any], name: str, value: object) -> None:
    if any(name.lower() == option.lower() for option in options):
        raise OptionError(f"option {name!r} is given twice: give it once", option=name)
    options[name] = value


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`reader.X=...` and `writer.X=...` by half.

    Raises:
        OptionError: another text.
    """
    by_half: dict[str, dict[str, Any]] = {"reader": {}, "writer": {}}
    for text in texts:
        key, equals, value = text.partition("=")
        half, dot, name = key.partition(".")
        if half not in by_half or not dot or not equals or not name.strip():
            takes = "reader.NAME=VALUE or writer.NAME=VALUE"
            raise OptionError(
                f"option '-o' got {key!r}; it takes {takes}", option="-o", got=key, takes=takes
            )
        add_option(by_half[half], name.strip(), value)
    return by_half


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What a user gave. `options` are texts such as `reader.nullValue=NA`; `of_job` as in `CopyOptions`."""

    job: Path | None = None
    select: Sequence[str] = ()
    parameters: Sequence[str] = ()
    source: str | None = None
    target: str | None = None
    options: Sequence[str] = ()
    where: str | None = None
    columns: str | None = None
    settings: VerifySettings = field(default_factory=VerifySettings)
    repairs: RepairSettings | None = None
    of_job: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineName = "auto"
    master: str | None = None
    conf: Sequence[str] = ()
    report: Path | None = None
    json_output: bool = False


class _Verify(Protocol):
    def __call__(
        self,
        spec: TransferSpec,
        overrides: Mapping[str, Any],
        settings: VerifySettings,
        repairs: RepairSettings | None,
    ) -> VerifyReport: ...


def verify(options: VerifyOptions) -> int:
    """Verify, print the result, and write the report. Returns the exit code.

    Raises:
        ChannelError: a place or an option makes no sense, a side cannot be read, or a repair failed.
    """
    if not has_third_parties():
        without_pandas()
    if options.report is not None:
        VerifyReport.check_name(options.report)
        check_place(options.report)
    overrides = {name: value for name, value in options.of_job.items() if value is not None}
    file = options.job
    if file is not None and file.suffix.lower() in (".yml", ".yaml"):
        report: VerifyReport | TablesReport = _verify_file(file, options, overrides)
    elif options.select:
        raise OptionError(
            "option '--select' names tables of a replication file, FILE.yml", option="--select"
        )
    else:
        specs = _specs(options)
        if options.job is not None:
            options = replace(options, settings=replace(options.settings, copied_only=True))
        with _engine(options, specs, overrides) as carry_out:
            if len(specs) == 1:
                report = carry_out(specs[0], overrides, options.settings, options.repairs)
            else:
                report = TablesReport(tuple(_verify_each(carry_out, specs, options, overrides)))
    if options.report is not None:
        try:
            report.save(options.report)
        except OptionError as error:  # the exit code is about the rows
            say(f"warning: {error}", error=True)
    if options.json_output:
        typer.echo(one_line_json(report.to_json()))
    else:
        text = (
            report.text(verbose=is_verbose()) if isinstance(report, TablesReport) else str(report)
        )
        for line in text.split("\n"):
            say(line)
    return report.exit_code


def _verify_each(
    carry_out: "_Verify",
    specs: Sequence[TransferSpec],
    options: VerifyOptions,
    overrides: Mapping[str, Any],
) -> Iterator[VerifiedTable]:
    """The entries of a job's content, one by one. One that cannot be compared does not end the others."""
    for number, spec in enumerate(specs):
        name = f"content {number}"
        try:
            yield VerifiedTable(name, carry_out(spec, overrides, options.settings, options.repairs))
        except ChannelError as error:
            yield VerifiedTable(name, None, str(error))


def _verify_file(file: Path, options: VerifyOptions, overrides: Mapping[str, Any]) -> TablesReport:
    """The tables of a replication file, one by one, under the file's limit or the one that is given instead."""
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.report import TablesProgress
    from spark_channel.replication.run import RunSettings, limited
    from spark_channel.replication.verify import pairs_of

    _refuse_places(options, "a replication file")
    if options.settings.key is not None:
        raise OptionError(
            "option '--key' is for one table: name the key of each table with 'primary_key' in its stream",
            option="--key",
        )
    replication = load_replication(file)
    limit_options = {"rowsPerSecond", "bytesPerSecond", "sharedLimit"} & set(overrides)
    tables = []
    progress = TablesProgress((lambda _: None) if options.json_output else partial(say, error=True))
    with ExitStack() as stack:
        stack.enter_context(progress)
        of_file = (
            {} if limit_options else stack.enter_context(limited(replication, RunSettings()))[0]
        )
        overrides = {**of_file, **overrides}
        display = None if is_verbose() else progress
        carry_out = stack.enter_context(_engine(options, (), overrides, display))
        for pair in pairs_of(replication, options.select):
            if pair.spec is None:
                tables.append(VerifiedTable(pair.name, None, pair.fault))
                progress.table_compared(0)
                continue
            common_settings = options.settings
            settings = replace(
                common_settings,
                key=pair.key,
                copied_only=True,
                exclude=tuple(
                    name for name in common_settings.exclude if name.lower() in pair.columns
                ),
                json=tuple(name for name in common_settings.json if name.lower() in pair.columns),
            )
            compare = partial(carry_out, pair.spec, overrides, settings)
            try:
                report = _as_far_as_possible(compare, options.repairs)
            except ChannelError as error:
                tables.append(VerifiedTable(pair.name, None, str(error)))
                progress.table_compared(0)
            else:
                report.notes = (*pair.notes, *report.notes)
                tables.append(VerifiedTable(pair.name, report))
                progress.table_compared(report.source_rows + report.target_rows)
    return TablesReport(tuple(tables))


def _as_far_as_possible(
    compare: Callable[[RepairSettings | None], VerifyReport], repairs: RepairSettings | None
) -> VerifyReport:
    """Compare, and repair; a table that cannot be repaired is compared alone, and its report says why."""
    try:
        return compare(repairs)
    except ChannelError as error:
        if repairs is None or not error.is_of_input:
            raise
        reason = str(error)
    report = compare(None)
    if report.outcome != "equal":
        report.notes = (*report.notes, f"nothing was repaired: {reason}")
    return report


def column_list(option: str, text: str | None) -> tuple[str, ...] | None:
    """The columns that an option lists, as option `columns` of a reader does; None = it is not given.

    Raises:
        OptionError: it lists none.
    """
    if text is None:
        return None
    try:
        return TypeAdapter(ColumnList).validate_python(text)
    except ValueError:
        takes = "columns, separated by commas"
        raise OptionError(
            f"option {option!r} got {text!r}; it takes {takes}",
            option=option,
            got=text,
            takes=takes,
        ) from None


def _refuse_places(options: VerifyOptions, file_kind: str) -> None:
    """Refuse the options of '--source' and '--target' beside a file that names both sides itself."""
    if options.source is not None or options.target is not None:
        raise OptionError(
            f"{file_kind} names both sides: omit '--source' and '--target', or the file",
            option="job",
        )
    for name in ("where", "columns"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"option '--{name}' needs '--source' and '--target': {file_kind} says itself what it reads",
                option=f"--{name}",
            )
    if any(parse_options(options.options).values()):
        raise OptionError(
            f"option '-o' needs '--source' and '--target': {file_kind} has its own options",
            option="-o",
        )


def _specs(options: VerifyOptions) -> Sequence[TransferSpec]:
    if options.job is not None:
        _refuse_places(options, "a job file")
        return load(options.job, options.parameters, all_content=True).specs
    options_by_half = parse_options(options.options)
    if options.source is None or options.target is None:
        missing = "--source" if options.source is None else "--target"
        raise OptionError(
            f"option {missing!r} is missing: give '--source' and '--target', or a job file",
            option=missing,
        )
    for name in ("where", "columns"):
        if (value := getattr(options, name)) is not None:
            add_option(options_by_half["reader"], name, value)
            add_option(options_by_half["writer"], name, value)
    source = parse_place("reader", options.source, options_by_half["reader"], "--source")
    return [
        TransferSpec(
            source, parse_place("reader", options.target, options_by_half["writer"], "--target")
        )
    ]


@contextmanager
def _engine(
    options: VerifyOptions,
    specs: Sequence[TransferSpec],
    overrides: Mapping[str, Any],
    display: "JobListener | None" = None,
) -> Iterator[_Verify]:
    """`display` shows the jobs of this machine, which are otherwise shown as everywhere."""
    conf = parse_conf(options.conf)
    name = chosen_engine(options.engine, specs, master=options.master, conf=conf)
    if name == "local":
        from spark_channel.local import first_line, has_speed, local_engine
        from spark_channel.verification import verify_with

        served = any(has_speed(spec, overrides) for spec in specs) or bool(overrides)
        with local_engine(served=served, display=display) as engine:
            try:
                yield _as_typed(partial(verify_with, engine))
            except ChannelError:
                raise
            except Exception as error:
                raise ChannelError(first_line(error)) from error
        return
    from spark_channel.spark.engine import open_session
    from spark_channel.spark.transfer import verify as by_spark

    with open_session(options.master, conf, "spark-channel") as spark:
        yield _as_typed(partial(by_spark, spark))


_NAMED = re.compile(r"\b(option|with) '(key|exclude|json|delete|max_repairs)'")


def _as_typed(carry_out: _Verify) -> _Verify:
    """The same, with options named as on the command line in errors and notes, and not as in Python."""

    def typed(text: str) -> str:
        return _NAMED.sub(lambda match: f"{match[1]} '--{match[2].replace('_', '-')}'", text)

    def carried_out(
        spec: TransferSpec,
        overrides: Mapping[str, Any],
        settings: VerifySettings,
        repairs: RepairSettings | None,
    ) -> VerifyReport:
        try:
            report = carry_out(spec, overrides, settings, repairs)
        except ChannelError as error:
            error.args = (typed(str(error)), *error.args[1:])
            raise
        report.notes = tuple(map(typed, report.notes))
        return report

    return carried_out
