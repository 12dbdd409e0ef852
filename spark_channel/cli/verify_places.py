"""verify: whether two tables, folders or files hold the same rows."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from spark_channel.verification.report import VerifyReport
from spark_channel.verification.settings import RepairSettings, VerifySettings

__all__ = ["VerifyOptions", "column_list", "verify"]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What a user gave. `options` are texts such as `reader.nullValue=NA`; `of_job` as in `CopyOptions`."""

    job: Path | None = None
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
    spec = _spec(options)
    if options.report is not None:
        VerifyReport.check_name(options.report)
        check_place(options.report)
    conf = parse_conf(options.conf)
    more = {name: value for name, value in options.of_job.items() if value is not None}
    engine = chosen_engine(options.engine, [spec], master=options.master, conf=conf)
    with _engine(engine, spec, more, options.master, conf) as carry_out:
        report = carry_out(spec, more, options.settings, options.repairs)
    if options.report is not None:
        try:
            report.save(options.report)
        except OptionError as error:  # the exit code is about the rows
            print(f"warning: {error}", file=sys.stderr)  # noqa: T201 - the command line talks
    print(report.to_json() if options.json_output else report, flush=True)  # noqa: T201
    return report.exit_code


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


def _spec(options: VerifyOptions) -> TransferSpec:
    given = parse_options(options.options)
    if options.job is not None:
        if options.source is not None or options.target is not None:
            raise OptionError(
                "a job file names both sides: omit '--source' and '--target', or the file",
                option="job",
            )
        spec = load(options.job, options.parameters, all_content=False).spec
        for name in ("where", "columns"):
            if getattr(options, name) is not None:
                raise OptionError(
                    f"option '--{name}' needs '--source' and '--target': a job file says itself what it reads",
                    option=f"--{name}",
                )
        if any(given.values()):
            raise OptionError(
                "option '-o' needs '--source' and '--target': a job file has its own options",
                option="-o",
            )
        return spec
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
    return TransferSpec(
        parse_place("reader", options.source, given["reader"], "--source"),
        parse_place("reader", options.target, given["writer"], "--target"),
    )


@contextmanager
def _engine(
    name: str,
    spec: TransferSpec,
    more: Mapping[str, Any],
    master: str | None,
    conf: dict[str, str],
) -> Iterator[_Verify]:
    if name == "local":
        from spark_channel.local import first_line, has_speed, local_engine
        from spark_channel.verification.carry_out import verify_with

        with local_engine(served=has_speed(spec, more)) as engine:
            try:
                yield partial(verify_with, engine)
            except ChannelError:
                raise
            except Exception as error:
                raise ChannelError(first_line(error)) from error
        return
    from spark_channel.spark.transfer import verify as by_spark

    with session(master, conf, "spark-channel") as spark:
        yield partial(by_spark, spark)
