"""verify: tables, folders or files at two urls, of a job file or of a replication file, compared."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from spark_channel.cli.arguments import EngineName
from spark_channel.cli.endpoints import add_option, parse_options, parse_place
from spark_channel.cli.plan import check_place, load, without_pandas
from spark_channel.cli.run import chosen_engine, parse_conf
from spark_channel.cli.text import say
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.errors import ChannelError, OptionError
from spark_channel.plain_text import one_line_json
from spark_channel.planning import TransferSpec
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

__all__ = ["VerifyOptions", "verify"]


_NAMED = re.compile(r"\b(option|with) '(key|exclude|json|delete|max_repairs)'")


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
