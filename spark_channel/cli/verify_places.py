"""verify: whether two tables, folders or files hold the same rows."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from spark_channel.cli.copy_places import add_option, parse_options, parse_place
from spark_channel.cli.plan import check_place, load, without_pandas
from spark_channel.cli.run import EngineName, chosen_engine, parse_conf, session
from spark_channel.connectors.base.registry import has_third_parties
from spark_channel.errors import ChannelError, OptionError
from spark_channel.option_types import ColumnList
from spark_channel.planning import TransferSpec
from spark_channel.verification.report import TablesReport, VerifiedTable, VerifyReport
from spark_channel.verification.verify import RepairSettings, VerifySettings

__all__ = ["VerifyOptions", "column_list", "verify"]


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
        more: Mapping[str, Any],
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
    more = {name: value for name, value in options.of_job.items() if value is not None}
    file = options.job
    if file is not None and file.suffix.lower() in (".yml", ".yaml"):
        report: VerifyReport | TablesReport = _verify_file(file, options, more)
    elif options.select:
        raise OptionError(
            "option '--select' names tables of a replication file, FILE.yml", option="--select"
        )
    else:
        specs = _specs(options)
        if options.job is not None:
            options = replace(options, settings=replace(options.settings, copied_only=True))
        with _engine(options, specs, more) as carry_out:
            if len(specs) == 1:
                report = carry_out(specs[0], more, options.settings, options.repairs)
            else:
                report = TablesReport(tuple(_verify_each(carry_out, specs, options, more)))
    if options.report is not None:
        try:
            report.save(options.report)
        except OptionError as error:  # the exit code is about the rows
            print(f"warning: {error}", file=sys.stderr)  # noqa: T201 - the command line talks
    print(report.to_json() if options.json_output else report, flush=True)  # noqa: T201 - the command line talks
    return report.exit_code


def _verify_each(
    carry_out: "_Verify",
    specs: Sequence[TransferSpec],
    options: VerifyOptions,
    more: Mapping[str, Any],
) -> Iterator[VerifiedTable]:
    """The entries of a job's content, one by one. One that cannot be compared does not end the others."""
    for number, spec in enumerate(specs):
        name = f"content {number}"
        try:
            yield VerifiedTable(name, carry_out(spec, more, options.settings, options.repairs))
        except ChannelError as error:
            yield VerifiedTable(name, None, str(error))


def _verify_file(file: Path, options: VerifyOptions, more: Mapping[str, Any]) -> TablesReport:
    """The tables of a replication file, one by one, under the file's limit or the one that is given instead."""
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.run import RunSettings, limited
    from spark_channel.replication.verify import pairs_of

    _refuse_places(options, "a replication file")
    if options.settings.key is not None:
        raise OptionError(
            "option '--key' is for one table: name the key of each table with 'primary_key' in its stream",
            option="--key",
        )
    replication = load_replication(file)
    given = {"rowsPerSecond", "bytesPerSecond", "sharedLimit"} & set(more)
    found = []
    with ExitStack() as held:
        of_file = {} if given else held.enter_context(limited(replication, RunSettings()))[0]
        more = {**of_file, **more}
        carry_out = held.enter_context(_engine(options, (), more))
        for pair in pairs_of(replication, options.select):
            if pair.spec is None:
                found.append(VerifiedTable(pair.name, None, pair.fault))
                continue
            asked = options.settings
            settings = replace(
                asked,
                key=pair.key,
                copied_only=True,
                exclude=tuple(name for name in asked.exclude if name.lower() in pair.columns),
                json=tuple(name for name in asked.json if name.lower() in pair.columns),
            )
            try:
                report = carry_out(pair.spec, more, settings, options.repairs)
            except ChannelError as error:
                found.append(VerifiedTable(pair.name, None, str(error)))
            else:
                report.notes = (*pair.notes, *report.notes)
                found.append(VerifiedTable(pair.name, report))
    return TablesReport(tuple(found))


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


def _refuse_places(options: VerifyOptions, what: str) -> None:
    """Refuse the options of '--source' and '--target' beside a file that names both sides itself."""
    if options.source is not None or options.target is not None:
        raise OptionError(
            f"{what} names both sides: omit '--source' and '--target', or the file", option="job"
        )
    for name in ("where", "columns"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"option '--{name}' needs '--source' and '--target': {what} says itself what it reads",
                option=f"--{name}",
            )
    if any(parse_options(options.options).values()):
        raise OptionError(
            f"option '-o' needs '--source' and '--target': {what} has its own options", option="-o"
        )


def _specs(options: VerifyOptions) -> Sequence[TransferSpec]:
    if options.job is not None:
        _refuse_places(options, "a job file")
        return load(options.job, options.parameters, all_content=True).specs
    given = parse_options(options.options)
    if options.source is None or options.target is None:
        missing = "--source" if options.source is None else "--target"
        raise OptionError(
            f"option {missing!r} is missing: give '--source' and '--target', or a job file",
            option=missing,
        )
    for name in ("where", "columns"):
        if (value := getattr(options, name)) is not None:
            add_option(given["reader"], name, value)
            add_option(given["writer"], name, value)
    source = parse_place("reader", options.source, given["reader"], "--source")
    return [
        TransferSpec(source, parse_place("reader", options.target, given["writer"], "--target"))
    ]


@contextmanager
def _engine(
    options: VerifyOptions, specs: Sequence[TransferSpec], more: Mapping[str, Any]
) -> Iterator[_Verify]:
    conf = parse_conf(options.conf)
    name = chosen_engine(options.engine, specs, master=options.master, conf=conf)
    if name == "local":
        from spark_channel.local import first_line, has_speed, local_engine
        from spark_channel.verification.verify import verify_with

        served = any(has_speed(spec, more) for spec in specs) or bool(more)
        with local_engine(served=served) as engine:
            try:
                yield _as_typed(partial(verify_with, engine))
            except ChannelError:
                raise
            except Exception as error:
                raise ChannelError(first_line(error)) from error
        return
    from spark_channel.spark.transfer import verify as by_spark

    with session(options.master, conf, "spark-channel") as spark:
        yield _as_typed(partial(by_spark, spark))


_NAMED = re.compile(r"\b(option|with) '(key|exclude|json|delete|max_repairs)'")


def _as_typed(carry_out: _Verify) -> _Verify:
    """The same, with options named as on the command line in errors and notes, and not as in Python."""

    def typed(text: str) -> str:
        return _NAMED.sub(lambda found: f"{found[1]} '--{found[2].replace('_', '-')}'", text)

    def carried_out(
        spec: TransferSpec,
        more: Mapping[str, Any],
        settings: VerifySettings,
        repairs: RepairSettings | None,
    ) -> VerifyReport:
        try:
            report = carry_out(spec, more, settings, repairs)
        except ChannelError as error:
            error.args = (typed(str(error)), *error.args[1:])
            raise
        report.notes = tuple(map(typed, report.notes))
        return report

    return carried_out
