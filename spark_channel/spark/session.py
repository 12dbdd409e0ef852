"""`register`: prepares a Spark session, keeps the reports of its jobs, and handles SIGTERM."""

import atexit
import contextlib
import os
import queue
import re
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_channel import version
from spark_channel.errors import ChannelError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.requirements import check_versions
from spark_channel.signals import TERMINATED, wake_on_signals
from spark_channel.spark.shipping import check_server, ship_archive
from spark_channel.spark.source import ChannelDataSource
from spark_channel.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from spark_channel.observe.page import PageServer
    from spark_channel.progress import JobProgress, JobSpec, TransferReport
    from spark_channel.service import (
        ProgressDisplay,
        ServiceAddress,
        ServiceServer,
        ServiceSettings,
    )

__all__ = [
    "BatchLags",
    "context_of",
    "directory_of",
    "end_on_sigterm",
    "is_local",
    "kept_report",
    "last_report",
    "prepare_session",
    "register",
    "service_of",
    "session_slots",
    "slots_of",
]


_KEPT = 100
_log = log_of(__name__)
_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_LOCAL = re.compile(r"local(?:\[.*\])?")
_GRACE_SECONDS = 4.0
"""The time that a program has to end after its jobs were cancelled; docker kills it after 10 s."""
_HIDDEN = "spark.sql.redaction.options.regex"
_OF_EVERY_CONNECTOR = ("sharedLimitToken", "tunnelStore", "url")
_LOGIN_IN_A_PATH = (
    r"//[^/\s]*:[^@]*@"
    r"|[?&;][\w.\-]*(passw|pwd|passphrase|token|credential|signature|auth|key|sig)[\w.\-]*="
)
"""As in s3://KEY:SECRET@bucket and s3://bucket/a?token=SECRET: Spark holds the pattern against values, too. So names of
options are whole words there: a table named tokens is shown."""
_REPORTS_KEPT = 100
_CELL_SECONDS = 30.0
"""The longest time that a cell waits for its reports: the first one imports matplotlib, which takes seconds."""
_LEAVE_SECONDS = 2.0
"""A worker below a LIMIT notices that Spark needs no more rows when it sends the next ones."""
_NO_MUTATION = "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE"


class BatchLags:
    """Knows a batch by its query and its number. A query that reads several sources has no lag in the reports of its
    writes: it would be that of one of them.
    """

    def __init__(self) -> None:
        self._reads: OrderedDict[tuple[str, int], dict[str, JobSpec]] = OrderedDict()

    def opened(self, job: str, spec: "JobSpec") -> None:
        """A job that begins."""
        if spec.kind == "read" and spec.query and spec.batch is not None:
            self._reads.setdefault((spec.query, spec.batch), {})[job] = spec
            while len(self._reads) > _KEPT:
                self._reads.popitem(last=False)

    def with_lag(self, spec: "JobSpec", report: "TransferReport") -> "TransferReport":
        """Return `report` of a job with `spec`; with the lag of its batch, if the job writes it."""
        if spec.kind != "write" or spec.batch is None:
            return report
        reads = self._reads.get((spec.query, spec.batch), {})
        if len(reads) != 1:
            return report
        (read,) = reads.values()
        return replace(report, behind=read.behind, lag=read.lag)


@contextmanager
def without_warning(context: Any) -> Iterator[None]:
    """Silence Spark's warning that `register` replaces the statically registered class of `format("channel")`.

    The replacement is the same class, which also knows the session. Spark logs only errors of data sources while the
    block runs. `context`: None where no session of this process has a JVM.
    """
    before = None
    try:
        if context is not None:
            log4j = context._jvm.org.apache.logging.log4j  # noqa: SLF001 - no public road
            before = log4j.LogManager.getLogger(_LOGGER).getLevel()
            log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)
    except Exception as error:  # another logger, or a gateway that refuses access
        _log.debug("Spark may warn that 'channel' was replaced: %s", error)
    try:
        yield
    finally:
        if before is not None:
            context._jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(  # noqa: SLF001 - no public road
                _LOGGER, before
            )


_Get = Callable[[str], str | None]


def slots_of(get: _Get, cores: int | None) -> int | None:
    """The most tasks that run at the same time; None when nothing bounds them (dynamic allocation without a maximum).

    `get` reads a setting of Spark's, `cores` are those that its executors have now; None = it has none yet. Executors
    that Spark starts in the place of lost ones are the same number.
    """
    cpus = _number(get("spark.task.cpus")) or 1
    if cores is not None and _LOCAL.fullmatch(get("spark.master") or ""):
        return max(1, cores // cpus)
    if (most := _number(get("spark.cores.max"))) is not None:
        return max(1, most // cpus)
    dynamic = (get("spark.dynamicAllocation.enabled") or "").lower() == "true"
    executors = _number(
        get("spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances")
    )
    executor_cores = _number(get("spark.executor.cores"))
    if executors is not None and executor_cores is not None:
        return max(1, executors * (executor_cores // cpus))
    return None if dynamic or cores is None else max(1, cores // cpus)


def _cores_of(context: Any) -> int | None:
    """The cores of the executors; None on a cluster whose executors have not registered, of which Spark counts two."""
    beside_driver = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # noqa: SLF001 - no public road
    is_one_process = _LOCAL.fullmatch(context.master) is not None
    return int(context.defaultParallelism) if is_one_process or beside_driver else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


_ends: list[int] = []
"""The exit code of a program that SIGTERM ends, from then on."""


def end_on_sigterm(spark: SparkSession) -> None:
    """Have SIGTERM cancel the jobs of `spark`, remove what they staged, and end the program with exit code 143.

    Only in the main thread, and only where the program has not set a handler.
    """
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        wake_on_signals()
        signal.signal(signal.SIGTERM, _Termination(spark).handle)


class _Termination:
    """The first signal cancels the jobs, so that a call of Spark in the main thread raises. The second raises there.

    The second one comes from here: when no job was left to cancel, else after the grace. The handler makes no call of
    the JVM, which would break one that it interrupts, and takes no lock: threads do.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._came = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle = threading.Event()
        threading.Thread(target=self._end, name="spark-channel-sigterm", daemon=True).start()

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._came:
            raise SystemExit(TERMINATED)
        self._came = True
        _ends.append(TERMINATED)
        atexit.register(_exit_terminated)
        self._news.put(None)  # safe in a signal handler, as no lock of a condition is

    handle.gives_way = True  # type: ignore[attr-defined]  # to a tunnel that is consumed: see `SigtermHandler`

    def _end(self) -> None:
        self._news.get()
        _log.warning("SIGTERM was received: the jobs of this driver are cancelled")
        threading.Thread(target=self._cancel, name="spark-channel-cancel", daemon=True).start()
        self._idle.wait(_GRACE_SECONDS)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)

    def _cancel(self) -> None:
        spark = self._spark
        try:
            for query in spark.streams.active:
                query.stop()  # returns when the query has ended
            if not _cancel_jobs(spark):
                self._idle.set()
        except Exception as error:  # the JVM was sent the signal, too
            _log.warning("the jobs could not be cancelled: %s", error)


def _cancel_jobs(spark: SparkSession) -> bool:
    """Cancel what runs beside streaming queries; whether there was anything, or a target is being published."""
    context = context_of(spark)
    if context is None:
        return bool(spark.interruptAll())
    publishing = any(
        not job.spec.query for server in _services.values() for job in server.jobs.live()
    )
    active = bool(context.statusTracker().getActiveJobsIds())
    context.cancelAllJobs()
    return publishing or active


def _exit_terminated() -> None:
    """At the exit of a program that SIGTERM has ended: whatever it made of its cancelled jobs, they did not succeed."""
    atexit.unregister(_exit_terminated)
    atexit._run_exitfuncs()  # noqa: SLF001 - those of the program, which `os._exit` leaves out
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or None
            stream.flush()
    os._exit(TERMINATED)


_services: "dict[int, ServiceServer]" = {}
"""By the pid of the driver's JVM: one Python process has one, or another one after it died."""

_displays: "dict[int, ProgressDisplay]" = {}
_pages: "dict[int, PageServer]" = {}

_reports: "OrderedDict[str, TransferReport]" = OrderedDict()
"""By job, in the order in which they finished."""

_ended: dict[str, float] = {}
"""When each of them finished, on this process's clock."""


_registered: "WeakKeyDictionary[SparkSession, bool | None]" = WeakKeyDictionary()
"""With what `_times_of` said. Spark warns each time that a name is registered again."""

_prepared: "WeakSet[SparkSession]" = WeakSet()

_remote: set[int] = set()
"""Spark Connect sessions that had a job or were registered; their jobs are counted elsewhere."""


def register(spark: SparkSession, *, progress: bool = True, ui: bool = False) -> None:
    """Register the `channel` format with `spark`, and show the progress of its jobs. Calling it again is safe.

    It is not needed where the package is installed: Spark finds the format. In a file that defines a declarative
    pipeline it registers nothing, since Spark would end a good run with exit code 1.

    With `progress`, the service that every job reports to runs in this Python process, and shows a
    progress line in a terminal, a cell in a notebook, and otherwise a log line every 30 s. Under Spark Connect
    the driver runs elsewhere: `format("channel")` is registered, and jobs with a limit log their summary there. The
    server is asked for its spark-channel.

    With `ui`, this process also serves a page for a browser on 127.0.0.1, which shows all jobs and limits of this
    user on this host, and changes limits. Its link, with a token, is shown before the next job.

    Times of day are TIME where `spark.sql.timeType.enabled` is true at this moment, else text: after a change of that
    setting, call it again. Spark knows Python data sources only in a thread that has a session: call it in each thread
    of your own that loads or saves.

    SIGTERM, in a program whose main thread registers and that does not handle it, cancels the jobs and ends the
    program with 143.

    Raises:
        UnsupportedError: the server of Spark Connect has no spark-channel, or another version of it.
        MissingPackageError: a library of this process is older than the package works with.
    """
    check_versions()
    context = context_of(spark)
    if context is not None:
        _activate(spark)
    elif _defines_pipeline(spark):
        _log.info("a pipeline finds format('channel') without register, which does nothing here")
        return
    _prepare(spark, context)
    times = _times_of(spark)
    if spark not in _registered:
        with _loading_the_service():
            _register_format(spark, context, times)
        _hide_logins(spark)
    elif _registered[spark] != times:
        _register_format(spark, context, times)
    _registered[spark] = times
    if context is not None and (progress or ui):
        _show_progress(context, ui=ui)


def prepare_session(spark: SparkSession) -> None:
    """Do what a job of task groups needs of `register`: all but `format("channel")`.

    Spark starts a Python process to look for formats, and loads its SQL for it: half a second and more of a session's
    first job.

    Raises: as `register`.
    """
    check_versions()
    context = context_of(spark)
    if context is None and _defines_pipeline(spark):
        return
    _prepare(spark, context)
    if context is not None:
        _show_progress(context)


def _prepare(spark: SparkSession, context: Any) -> None:
    if spark in _prepared:
        return
    if context is None:
        check_server(spark)
        _remote.add(id(spark))
    else:
        ship_archive(context)
    end_on_sigterm(spark)
    _prepared.add(spark)


def _show_progress(context: Any, *, ui: bool = False) -> None:
    try:
        _serve(context)
        if ui:
            _show_page(_jvm_of(context))
    except (ChannelError, OSError) as error:
        _log.warning("progress is not shown: %s", error)


def _defines_pipeline(spark: SparkSession) -> bool:
    """Whether `spark-pipelines` runs this program to find its definitions: then no setting can be set."""
    if "pyspark.pipelines" not in sys.modules:
        return False
    try:
        spark.conf.set(_HIDDEN, spark.conf.get(_HIDDEN, "(?i)url") or "")
    except PySparkException as error:
        return (error.getCondition() or "").startswith(_NO_MUTATION)
    return False


def _activate(spark: SparkSession) -> None:
    """Give this thread the session, as `createDataFrame` does, unless it has one."""
    sessions = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")  # noqa: SLF001 - no public road
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as above


@contextlib.contextmanager
def _loading_the_service() -> Iterator[None]:
    """Import what the service and its display need while Spark starts a Python process to look for data sources.

    Each takes its time on its own core. Nothing of it is imported by the block.
    """
    thread = threading.Thread(target=_load_service, name="spark-channel-load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _load_service() -> None:
    with contextlib.suppress(ImportError):  # it is raised where it is used
        import spark_channel.connectors.base.registry
        import spark_channel.service.display
        import spark_channel.service.server
        import spark_channel.spark.driver  # noqa: F401 - imported while Spark works


def _register_format(spark: SparkSession, context: Any, times: bool | None) -> None:
    source: type[ChannelDataSource] = ChannelDataSource
    if context is None and (times or spark in _registered):
        source = type(
            "ChannelDataSource", (ChannelDataSource,), {"times": times, "__module__": "__main__"}
        )
    if context is not None:
        facts = {
            "version": version.__version__,
            "parallelism": int(context.defaultParallelism),
            "directory": directory_of(context),
            "times": bool(times),
            "driver_host": setting_of(spark, "spark.driver.host"),
            "slots": session_slots(spark),
            "__module__": "__main__",
        }
        source = type("ChannelDataSource", (ChannelDataSource,), facts)
    try:
        with without_warning(context):
            spark.dataSource.register(source)
    except PySparkException as error:
        # Spark 4.0 takes a name once, and has found this class through pyspark_channel before.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _hide_logins(spark: SparkSession) -> None:
    """Plans and event logs show a source's options, but for those whose names or values match this."""
    from spark_channel.connectors.base.registry import all_connectors

    try:
        # Unset, or Spark's default: another is the user's.
        if spark.conf.get(_HIDDEN, None) in (None, "(?i)url"):
            secrets = {name for connector in all_connectors() for name in connector.secrets}
            names = "|".join(re.escape(name) for name in sorted(secrets | {*_OF_EVERY_CONNECTOR}))
            spark.conf.set(_HIDDEN, f"(?i)^({names})$|password|secret|{_LOGIN_IN_A_PATH}")
    except Exception as error:
        # Serverless compute and declarative pipelines let no session set, or even read.
        _log.warning(
            "the session's settings are closed (%s), so Spark shows options such as 'uri', 'driverOptions' "
            "and 'tunnelStore' in plans: put logins into 'user' and 'password', or set %s for the compute",
            type(error).__name__,
            _HIDDEN,
        )


def setting_of(spark: SparkSession, name: str) -> str | None:
    """A setting of the session; None when it is unset, or may not be read."""
    try:
        value = spark.conf.get(name, None)
    except Exception:  # what a closed session raises differs from platform to platform
        return None
    return None if value is None else str(value)


def is_local(spark: SparkSession) -> bool:
    """Whether all tasks of `spark` run on the driver's host."""
    context = context_of(spark)
    # A session's own settings would load Spark's SQL.
    master = setting_of(spark, "spark.master") if context is None else context.master
    return (master or "").startswith("local")


def session_slots(spark: SparkSession) -> int | None:
    """How many Spark tasks of `spark` run at a time; None when it is not known."""
    context = context_of(spark)
    if context is None:
        cores = setting_of(spark, "spark.default.parallelism")
        is_readable = setting_of(spark, "spark.master") is not None
        return (
            slots_of(lambda name: setting_of(spark, name), int(cores))
            if is_readable and cores
            else None
        )
    return slots_of(context.getConf().get, _cores_of(context))


def service_of(spark: SparkSession) -> "ServiceAddress":
    """The service of `spark`'s driver, started if there is none; any session, Spark Connect's too.

    Its token is for the jobs of this caller alone.

    Raises:
        ServiceUnavailableError: it cannot be started.
    """
    context = context_of(spark)
    if context is None:
        from spark_channel.spark.driver import ask_planner

        return ask_planner(spark)
    from spark_channel.service import ensure_service, new_job_id

    jvm = _jvm_of(context)
    server = _services.get(jvm)
    service = (
        ensure_service(_settings(context, jvm), watch_pid=jvm) if server is None else server.address
    )
    return service.for_jobs_of(new_job_id())


def last_report() -> "TransferReport | None":
    """Return the report of the last finished job of this process, or None if there is none.

    Jobs are known after `register`. A write has finished when `save()` returns, a read or a throttled
    DataFrame when the action that ran it has. A read that a LIMIT ended (`show`, `take`) comes before the jobs
    that finished after it began, such as the write of its rows.

    Raises:
        UnsupportedError: only Spark Connect sessions were registered, whose jobs are counted on the
            driver's host.
    """
    if not _services and _remote:
        raise UnsupportedError(
            "last_report has nothing under Spark Connect: jobs are counted on the driver's host, "
            "and the summary of those with a limit is in the driver's log"
        )
    for server in _services.values():
        server.jobs.settle()
    return next(reversed(_reports.values()), None)


def kept_report(job: str) -> "TransferReport | None":
    """The last report of the jobs whose name begins with `job`; None = there is none, or it is not counted here."""
    for server in _services.values():
        server.jobs.settle()
    return next((_reports[name] for name in reversed(_reports) if name.startswith(job)), None)


class _ReportStore:
    """Keeps the reports of finished jobs; one that was closed too early and went on has one report."""

    def __init__(self) -> None:
        self._lags = BatchLags()

    def job_opened(self, progress: "JobProgress") -> None:
        self._lags.opened(progress.job, progress.spec)

    def job_closed(self, progress: "JobProgress") -> None:
        """By when they finished: a read is only known to be over some time later.

        One that a LIMIT ended may hear of it after the write of its rows has finished: its beginning counts.
        """
        from spark_channel.progress import Phase

        _reports.pop(progress.job, None)
        _reports[progress.job] = self._lags.with_lag(progress.spec, progress.report())
        _ended[progress.job] = (
            progress.began if progress.phase is Phase.ENDED else progress.last_heard
        )
        for job in sorted(_reports, key=lambda job: _ended[job]):
            _reports.move_to_end(job)
        while len(_reports) > _REPORTS_KEPT:
            del _ended[_reports.popitem(last=False)[0]]


def context_of(spark: SparkSession) -> Any:
    """The SparkContext, or None under Spark Connect, where there is none on this side."""
    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


def _jvm_of(context: Any) -> int:
    """The pid of the driver's JVM."""
    return int(context._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001 - no public road


def _times_of(spark: SparkSession) -> bool | None:
    """Whether a column may be a time of day, which Spark 4.1 and later ask a setting for; None = it is not known."""
    setting = setting_of(spark, "spark.sql.timeType.enabled")
    return None if setting is None else setting.lower() == "true"


def directory_of(context: Any) -> WorkingDirectory:
    """Where relative paths begin: as those of Spark's own formats, also after `os.chdir` in Python."""
    jvm = context._jvm  # noqa: SLF001 - no public road
    default_fs = context._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001 - no public road
    return WorkingDirectory(
        str(jvm.java.lang.System.getProperty("user.dir")), str(default_fs or "")
    )


def _settings(context: Any, jvm: int) -> "ServiceSettings":
    from spark_channel.spark.driver import command_of, service_settings

    return service_settings(command_of(jvm), context.getConf().get("spark.driver.host"), jvm)


def _serve(context: Any) -> None:
    from spark_channel.service import ProgressDisplay, ServiceServer, advertise

    jvm = _jvm_of(context)
    if jvm in _services:
        return
    settings = _settings(context, jvm)
    _pass_parent_run(context.getConf().get)
    server, display = (
        ServiceServer(
            settings.host, settings.port, advertise_host=settings.advertise_host, tls=settings.tls
        ),
        ProgressDisplay(),
    )
    server.slots = lambda: slots_of(context.getConf().get, _cores_of(context))
    server.jobs.subscribe(_ReportStore())
    server.jobs.subscribe(display)
    address = server.start()
    try:
        # The last to register shows the progress: in a shared driver that is the notebook in use.
        take_back = advertise(address, jvm)
    except ChannelError:
        server.stop()
        raise
    _services[jvm] = server
    _displays[jvm] = display
    take_off = _after_each_cell(server, display)

    def end() -> None:
        with contextlib.suppress(OSError):  # the runtime directory went before this process
            take_back()
        take_off()
        failed = getattr(sys, "last_value", None) is not None  # the error that ends the program
        if not failed and not _ends and context._jsc is not None:  # noqa: SLF001 - how pyspark itself asks whether it was stopped
            server.jobs.wait_left(_LEAVE_SECONDS)
        if page := _pages.pop(jvm, None):
            page.stop()
        server.stop(failed=failed)
        display.close()

    atexit.register(end)


def _pass_parent_run(get: _Get) -> None:
    """Name the run that started this program, which Airflow writes into Spark's settings, to OpenLineage's events."""
    names = ("parentJobNamespace", "parentJobName", "parentRunId")
    parent = [get(f"spark.openlineage.{name}") for name in names]
    if all(parent):
        os.environ.setdefault("OPENLINEAGE_PARENT_ID", "/".join(map(str, parent)))


def _show_page(jvm: int) -> None:
    """Serve the page of a driver's jobs, unless it is served already."""
    from spark_channel.observe.page import PageServer

    if jvm not in _pages:
        server = _services[jvm]
        _pages[jvm] = PageServer({server.address: server.view})
        _displays[jvm].link = _pages[jvm].link(change=True)


def _after_each_cell(server: "ServiceServer", display: "ProgressDisplay") -> Callable[[], None]:
    """Have a notebook show the jobs of a cell under that cell. Returns what undoes it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return lambda: None
    from spark_channel.progress.report import begin_cell

    def settle(_result: object) -> None:
        server.jobs.settle()
        display.flush(_CELL_SECONDS)

    def begin(_info: object) -> None:
        begin_cell()

    begin_cell()
    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", settle)

    def take_off() -> None:
        shell.events.unregister("pre_run_cell", begin)
        shell.events.unregister("post_run_cell", settle)

    return take_off
