"""`spark-channel run`: runs DataX jobs, in processes of this machine or on a Spark session."""

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from spark_channel.cli.arguments import EngineName
from spark_channel.cli.exit_codes import exit_code
from spark_channel.cli.job_results import JobOutcome, RunOutcome, closing_table
from spark_channel.cli.plan import check_place, job_files, load, publish_text
from spark_channel.cli.text import json_line, say
from spark_channel.clock import utc_now
from spark_channel.connectors.base.registry import is_database
from spark_channel.errors import ChannelError, JobFileError, OptionError
from spark_channel.plain_text import log_of
from spark_channel.planning import TransferSpec
from spark_channel.planning.transfer import wanted_channels
from spark_channel.progress import TransferReport
from spark_channel.signals import raise_if_ended

if TYPE_CHECKING:
    from spark_channel.datax import LoadedJob
    from spark_channel.service.jobs import JobListener

__all__ = [
    "JobRun",
    "RunOptions",
    "carry_out_jobs",
    "chosen_engine",
    "open_engine",
    "parse_conf",
    "run_jobs",
]

_log = log_of(__name__)
_AT_LEAST_ONCE = (
    "rows are committed as they come, as with DataX: a rerun after a failure can add rows twice. "
    "--txn NAME:VERSION makes a rerun of the same load add nothing twice, and --commit job writes all rows or none"
)


def chosen_engine(
    engine_name: EngineName,
    specs: Sequence[TransferSpec],
    *,
    master: str | None,
    conf: Mapping[str, str],
) -> Literal["local", "spark"]:
    """`auto` is local, unless something asks for Spark: `--master`, `--conf`, spark-submit, or a format of Spark's.

    Raises:
        OptionError: `local`, and only Spark can do what is asked for.
    """
    if engine_name == "spark":
        return "spark"
    reason = _asks_for_spark(specs, master=master, conf=conf)
    if not reason:
        return "local"
    if engine_name == "auto":
        return "spark"
    raise OptionError(
        f"option '--engine' got 'local', and {reason}: omit --engine, or give --engine spark",
        option="--engine",
        got="local",
        takes="auto, local or spark",
    )


def _asks_for_spark(
    specs: Sequence[TransferSpec], *, master: str | None, conf: Mapping[str, str]
) -> str:
    if master is not None:
        return f"--master {master} names a Spark"
    if conf:
        return f"--conf {next(iter(conf))} is a setting of Spark"
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return "spark-submit runs this command in a Spark driver"
    end = next(filter(None, (spec.spark_format for spec in specs)), "")
    return f"{end} is read and written by Spark alone" if end else ""


def parse_conf(texts: Sequence[str]) -> dict[str, str]:
    """`k=v` texts, as `spark-submit --conf` takes them.

    Raises:
        OptionError: one that is not.
    """
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            takes = "a setting of Spark as name=value"
            raise OptionError(
                f"option '--conf' got {key!r}; it takes {takes}",
                option="--conf",
                got=key,
                takes=takes,
            )
        settings[key.strip()] = value
    return settings


_Move = Callable[[TransferSpec, Mapping[str, Any]], TransferReport]
_Last = Callable[[str], TransferReport | None]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of the `run` command."""

    parameters: Sequence[str] = ()
    master: str | None = None
    conf: Sequence[str] = ()
    all_content: bool = False
    dirty_rows_path: str | None = None
    commit: str | None = None
    txn: str | None = None
    job_id: str | None = None
    engine: EngineName = "auto"
    parallel: int = 1
    rows_per_second: str | None = None
    bytes_per_second: str | None = None
    windows: Sequence[str] = ()
    timezone: str = "UTC"
    shared_limit: str | None = None
    report: Path | None = None
    json_output: bool = False
    datax_summary: bool = False


@dataclass
class JobRun:
    """One job of a command; with an `error` it does not run."""

    file: Path
    label: str
    """Unique among the jobs of this command, where there are several; names them in logs and limits."""
    loaded: "LoadedJob | None" = None
    error: ChannelError | None = None


def run_jobs(paths: Sequence[Path], options: RunOptions) -> int:
    """Run the jobs in these files and folders, and print the results. Returns the exit code.

    The other jobs run even if a file cannot be read or a job fails.

    Raises:
        ChannelError: the error of the only job. OptionError: an option is invalid; no job was started.
    """
    jobs = _loaded(job_files(paths), options)
    for note in _notes(_specs(jobs), options):
        say(f"note: {note}", error=True)
    return carry_out_jobs(jobs, options).code


def carry_out_jobs(jobs: Sequence[JobRun], options: RunOptions) -> RunOutcome:
    """As `run_jobs`, for jobs that are there already. Returns what they did.

    Raises:
        ChannelError: as `run_jobs`.
    """
    settings = parse_conf(options.conf)
    if options.report is not None:
        check_place(options.report)
    run = _Run(jobs, options)
    try:
        _run_all(run, jobs, options, settings)
    except (KeyboardInterrupt, SystemExit) as error:
        run.outcome.ended = exit_code(error)
        raise
    finally:
        run.end()
        _tell(run.outcome, options)
    failed = jobs[0].error or run.error
    if len(jobs) == 1 and failed is not None:
        raise failed
    return run.outcome


def _specs(jobs: Sequence[JobRun]) -> list[TransferSpec]:
    return [spec for job in jobs if job.loaded is not None for spec in job.loaded.specs]


def _run_all(
    run: "_Run", jobs: Sequence[JobRun], options: RunOptions, settings: dict[str, str]
) -> None:
    specs = _specs(jobs)
    engine = chosen_engine(options.engine, specs, master=options.master, conf=settings)
    if not specs:
        return
    with (
        _shared_limit(options) as job_options,
        open_engine(engine, specs, options.master, settings) as (move, last, cancel),
    ):
        parallel = min(options.parallel, sum(job.loaded is not None for job in jobs))
        if engine == "local":
            parallel = _at_once(parallel, specs)
        run.carry_out(parallel, move, last, cancel, job_options)


def _at_once(parallel: int, specs: Sequence[TransferSpec]) -> int:
    from spark_channel.processes import cores
    from spark_channel.transfers.channels import jobs_at_once
    from spark_channel.transfers.plan import ends_of_servers

    channels = max((wanted_channels(spec, cores()) for spec in specs), default=1)
    return jobs_at_once("jobs", parallel, *ends_of_servers(specs), channels=channels, cores=cores())


class _Run:
    """The jobs as they go. The first exception that is not a job's, such as Ctrl-C, ends all of them."""

    def __init__(self, jobs: Sequence[JobRun], options: RunOptions) -> None:
        self._jobs = jobs
        self._options = options
        self._began = time.monotonic()
        self.outcome = RunOutcome(utc_now(), 0.0)
        self.outcome.jobs = [self._not_run(job) for job in jobs]
        self.error: BaseException | None = None
        self._cancelled = False

    def carry_out(
        self,
        parallel: int,
        move: _Move,
        last: _Last,
        cancel: Callable[[], None],
        job_options: Mapping[str, Any],
    ) -> None:
        pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        waiting = [number for number, job in enumerate(self._jobs) if job.loaded is not None]
        for number in waiting:
            pending.put(number)
        if parallel <= 1:
            for number in waiting:
                self._run_one(number, move, last, job_options)
            return
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work() -> None:
            try:
                while not self._cancelled:
                    self._run_one(pending.get_nowait(), move, last, job_options)
            except queue.Empty:
                pass
            finally:
                ended.put(0)

        threads = [
            threading.Thread(target=work, name=f"spark-channel-job-{number}", daemon=True)
            for number in range(parallel)
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                ended.get()  # not `join`, which no signal interrupts
        except BaseException:
            self._cancelled = True
            cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise

    def end(self) -> None:
        self.outcome.seconds = time.monotonic() - self._began

    def _not_run(self, job: JobRun) -> JobOutcome:
        outcome = JobOutcome(
            utc_now(), 0.0, str(job.file), job.label, "not run", 1, "the command ended before"
        )
        if job.error is not None:
            outcome.code, outcome.error = exit_code(job.error), str(job.error)
            outcome.error_type = type(job.error).__name__
        return outcome

    def _run_one(
        self, number: int, move: _Move, last: _Last, job_options: Mapping[str, Any]
    ) -> None:
        job = self._jobs[number]
        assert job.loaded is not None
        options = dict(job_options)
        label = self._options.job_id or (job.label if len(self._jobs) > 1 else None)
        if label is not None:
            options["jobId"] = label
        if self._options.dirty_rows_path is not None:
            options["dirtyRowsPath"] = self._options.dirty_rows_path
        reports: list[TransferReport] = []
        outcome = JobOutcome(utc_now(), 0.0, str(job.file), job.label, warnings=job.loaded.warnings)
        began = time.monotonic()
        try:
            reports.extend(move(spec, options) for spec in job.loaded.specs)
        except BaseException as error:
            failed = last(f"{label}-" if label else "")
            if failed is not None and failed.phase == "failed":
                reports.append(failed)
            outcome.state, outcome.code = "failed", exit_code(error)
            outcome.error, outcome.error_type = (
                str(error) or type(error).__name__,
                type(error).__name__,
            )
            if not isinstance(error, ChannelError):
                raise
            self.error = error
            if len(self._jobs) > 1:
                say(f"{job.file}: {error}", error=True)
        finally:
            outcome.seconds = time.monotonic() - began
            outcome.reports = tuple(reports)
            self.outcome.jobs[number] = outcome


def _loaded(files: Sequence[Path], options: RunOptions) -> list[JobRun]:
    labels: dict[str, int] = {}
    jobs = []
    for file in files:
        number = labels[file.stem] = labels.get(file.stem, 0) + 1
        job = JobRun(file, file.stem if number == 1 else f"{file.stem}-{number}")
        try:
            job.loaded = load(
                file,
                options.parameters,
                options.all_content,
                commit=options.commit,
                txn=_transaction(options.txn, job.label, len(files)),
                named=len(files) > 1,
            )
        except JobFileError as error:
            job.error = error
            if len(files) > 1:
                say(f"{file}: {error}", error=True)
        jobs.append(job)
    return jobs


def _transaction(txn: str | None, label: str, jobs: int) -> str | None:
    """Return the transaction id of one of `jobs`: two jobs that write one table must not pass for reruns of one."""
    if txn is None or jobs == 1:
        return txn
    name, colon, version = txn.rpartition(":") if ":" in txn else (txn, "", "")
    return f"{name}/{label}{colon}{version}"


def _notes(specs: Sequence[TransferSpec], options: RunOptions) -> list[str]:
    """Return hints on features that the jobs could use."""
    adds = options.commit != "job" and any(
        not spec.writer.spark_format
        and str(spec.writer.options.get("commit", "")).lower() != "job"
        and is_database(spec.writer.name)
        and not {"txn", "txnappid"} & {name.lower() for name in spec.writer.options}
        for spec in specs
    )
    limited = options.rows_per_second or options.bytes_per_second
    has_own_limits = any(spec.rows_per_second or spec.bytes_per_second for spec in specs)
    both = "the limit of the command holds for all jobs together, and each job's own limit for that job"
    return [*([_AT_LEAST_ONCE] if adds else []), *([both] if limited and has_own_limits else [])]


@contextlib.contextmanager
def _shared_limit(options: RunOptions) -> Iterator[dict[str, Any]]:
    """The options of each job that make one limit hold for all of them."""
    limit_speeds = options.rows_per_second, options.bytes_per_second
    if options.shared_limit is not None and (any(limit_speeds) or options.windows):
        raise OptionError(
            "options '--shared-limit' and '--rows-per-second', '--bytes-per-second' or '--window' contradict each "
            "other: the first names a limit that is served elsewhere, the others serve one for this command. "
            "Give one of them",
            option="--shared-limit",
        )
    if options.shared_limit is not None:
        yield {"sharedLimit": options.shared_limit}
        return
    if options.windows or options.timezone != "UTC":
        from spark_channel.service.windows import parse_windows, speeds_of, windowed_limit

        windows, zone = parse_windows(options.windows, options.timezone, "--window")
        otherwise = speeds_of(*limit_speeds)
        with windowed_limit(f"run-{os.getpid()}", otherwise, windows, zone) as (shared, keeper):
            try:
                yield {"sharedLimit": shared.name}
            finally:
                for at, window, speeds in keeper.changes:
                    message = (
                        f"limit from {at.astimezone(zone):%Y-%m-%d %H:%M:%S}: {speeds} ({window})"
                    )
                    say(message, error=True)
        return
    if not any(limit_speeds):
        yield {}
        return

    from spark_channel.service import SharedLimit

    with SharedLimit(f"run-{os.getpid()}", *limit_speeds) as limit:
        yield {"sharedLimit": limit.name}


@contextlib.contextmanager
def open_engine(
    engine: str,
    specs: Sequence[TransferSpec],
    master: str | None,
    settings: dict[str, str],
    display: "JobListener | None" = None,
) -> Iterator[tuple[_Move, _Last, Callable[[], None]]]:
    """What carries out a transfer, gives the last report of a job, and ends all jobs.

    `display` shows the jobs of the local engine. Without `specs` the transfers are not known yet.
    """
    local = engine == "local"
    with (
        _local_engine(specs, display)
        if local
        else _spark_engine(master, settings) as engine_functions
    ):
        yield engine_functions


@contextlib.contextmanager
def _local_engine(
    specs: Sequence[TransferSpec], display: "JobListener | None"
) -> Iterator[tuple[_Move, _Last, Callable[[], None]]]:
    from spark_channel.local import LocalMove, has_speed, local_engine, may_be_found

    served = any(has_speed(spec, {}) for spec in specs) if specs else may_be_found()
    with local_engine(served=served, display=display) as engine:
        yield LocalMove(engine), engine.report, engine.cancel


@contextlib.contextmanager
def _spark_engine(
    master: str | None, settings: dict[str, str]
) -> Iterator[tuple[_Move, _Last, Callable[[], None]]]:
    from spark_channel.local import first_line
    from spark_channel.spark.engine import open_session
    from spark_channel.spark.session import context_of, kept_report
    from spark_channel.spark.transfer import carry_out
    from spark_channel.spark.worker import own_error

    with open_session(master, settings, "spark-channel") as spark:

        def move(spec: TransferSpec, overrides: Mapping[str, Any]) -> TransferReport:
            try:
                return carry_out(spark, spec, overrides)
            except ChannelError as error:
                raise_if_ended(error)
                raise
            except Exception as error:
                # Spark's own: a page of stack traces, of which one line says it.
                raise_if_ended(error)
                raise own_error(error) or ChannelError(first_line(error)) from error

        def cancel() -> None:
            context = context_of(spark)
            if context is None:
                spark.interruptAll()
            else:
                context.cancelAllJobs()

        yield move, kept_report, cancel


def _tell(run: RunOutcome, options: RunOptions) -> None:
    if options.report is not None:
        try:
            publish_text(
                options.report, json.dumps(run.to_plain(), ensure_ascii=False, indent=1) + "\n"
            )
        except OptionError as error:  # the rows are written: the exit code is about them
            say(f"warning: {error}", error=True)
    if options.json_output:
        typer.echo(json_line(run.to_plain()))
        return
    if len(run.jobs) > 1:
        from spark_channel.cli.job_results import print_summary

        print_summary(run)
    if options.datax_summary:
        typer.echo(closing_table(run))
