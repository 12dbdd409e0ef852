"""Engine without Spark: task groups as threads here."""

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spark_channel.connectors.sql.session_pool import keeping_sessions
from spark_channel.errors import ChannelError, JobCancelledError, ServiceUnavailableError
from spark_channel.final_errors import HeardError
from spark_channel.plain_text import log_of
from spark_channel.planning import TaskGroup, TransferSpec
from spark_channel.progress import JobProgress, TransferReport
from spark_channel.service import ProgressDisplay, ServiceAddress, ServiceServer
from spark_channel.signals import ending_on_sigterm
from spark_channel.transfers.fan_out import carry_out
from spark_channel.transfers.task import Runner, TaskGroupAttempt

if TYPE_CHECKING:
    from spark_channel.connectors.base.together import SmallTable, Together
    from spark_channel.service.jobs import JobListener, JobRegistry

__all__ = [
    "LocalEngine",
    "LocalMove",
    "TaskGroupThreads",
    "carry_out_here",
    "cores",
    "first_line",
    "has_speed",
    "local_engine",
]


_log = log_of(__name__)

# Runs task groups beside each other in this process, a thread for each.


_Cancel = Callable[[], None]


class TaskGroupThreads:
    """Some task groups of one job, each tried once. `run` is called once; `cancel` ends it from any thread.

    The first that fails ends the others. `first` is the number of the first attempt: unique in the job.
    """

    def __init__(self, runner: Runner[Any], groups: Sequence[TaskGroup], first: int = 0) -> None:
        self._runner = runner
        self._groups = groups
        self._first = first
        self._lock = threading.Lock()
        self._cancels: dict[int, _Cancel] = {}
        self._cancelled = False
        self._ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def run(self) -> list[Any]:
        """The outcome of each group, in their order.

        Raises:
            ChannelError: the error of the first group that failed.
        """
        threads = [
            threading.Thread(
                target=self._run, args=(index,), name=f"spark-channel-group-{group.id}", daemon=True
            )
            for index, group in enumerate(self._groups)
        ]
        outcomes: list[Any] = [None] * len(threads)
        failed: BaseException | None = None
        started = 0
        try:
            for thread in threads:
                thread.start()
                started += 1
            for _ in threads:
                index, outcomes[index], error = self._ended.get()
                if error is not None and failed is None:
                    failed = error
                    self.cancel()
                elif isinstance(failed, HeardError) and isinstance(error, ChannelError):
                    # What the others met after the cancel is not final.
                    failed = error if error.is_final else failed
        except BaseException:
            self.cancel()
            raise
        finally:
            for thread in threads[:started]:
                thread.join()  # bounded by the group, which leaves behind what is stuck in its source or target
        if failed is not None:
            raise failed
        return outcomes

    def cancel(self) -> None:
        """No more rows are wanted: those that run end soon, and others do not begin."""
        with self._lock:
            self._cancelled = True
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()

    def _run(self, index: int) -> None:
        outcome: Any = None
        failed: BaseException | None = None
        try:
            outcome = self._runner.run(
                self._groups[index],
                TaskGroupAttempt(
                    self._first + index, cancelling=lambda cancel: self._cancelling(index, cancel)
                ),
            )
        except BaseException as error:
            failed = error
        self._ended.put((index, outcome, failed))

    @contextlib.contextmanager
    def _cancelling(self, index: int, cancel: _Cancel) -> Iterator[None]:
        with self._lock:
            if self._cancelled:
                raise JobCancelledError("the job ended before this task group had begun")
            self._cancels[index] = cancel
        try:
            yield
        finally:
            with self._lock:
                del self._cancels[index]


# `LocalEngine`: task groups on this machine, without Spark.


_T = TypeVar("_T")
_REPORTS_KEPT = 1000


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


class LocalEngine:
    """See `Engine`. All channels of a job run beside each other, whatever number of cores there is.

    Used in a `with` block, whose end shows what was not shown yet and ends the service. With `served`, the limits
    of its jobs can be looked at and changed by `spark-channel limits`. `display` shows the jobs, which are otherwise
    shown one by one.
    """

    def __init__(self, *, served: bool = False, display: "JobListener | None" = None) -> None:
        self._served = served
        self._display = display
        self._ends = contextlib.ExitStack()
        self._server: ServiceServer | None = None
        self._lock = threading.Lock()
        self._cancels: set[_Cancel] = set()
        self._cancelled = False
        self._reports: dict[str, TransferReport] = {}

    def parallelism(self) -> int:
        return cores()

    def slots(self) -> int | None:
        return None

    def one_host(self) -> bool:
        return True

    def here(self) -> bool:
        return True

    def service(self) -> ServiceAddress:
        with self._lock:
            if self._server is None:
                self._server = self._serve()
            return self._server.address

    def named(self, source: str, target: str) -> AbstractContextManager[None]:
        del source, target
        return contextlib.nullcontext()

    def run(self, runner: Runner[_T], groups: Sequence[TaskGroup], job: str) -> list[_T]:
        running = TaskGroupThreads(runner, groups)
        with self.cancelling(running.cancel, f"job {job}"):
            return running.run()

    @contextlib.contextmanager
    def cancelling(self, cancel: _Cancel, noun: str = "a group of tables") -> Iterator[None]:
        """Call `cancel` when the jobs are ended while the block runs.

        Raises:
            JobCancelledError: they were ended before.
        """
        with self._lock:
            if self._cancelled:
                raise JobCancelledError(
                    f"{noun} was cancelled before it had moved a row: run it again"
                )
            self._cancels.add(cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancels.discard(cancel)

    def registry(self) -> "JobRegistry":
        """The jobs of the service."""
        self.service()
        assert self._server is not None
        return self._server.jobs

    def cancel(self) -> None:
        """End all jobs, from any thread: those that run fail soon, and others do not begin."""
        with self._lock:
            self._cancelled = True
            cancels = list(self._cancels)
        for cancel in cancels:
            cancel()

    def report(self, job: str) -> TransferReport | None:
        """What the jobs whose name begins with `job` counted last, also one that failed; None = nothing."""
        server = self._server
        if server is not None:
            server.jobs.settle()
        return next(
            (self._reports[name] for name in reversed(self._reports) if name.startswith(job)), None
        )

    def job_opened(self, progress: JobProgress) -> None:
        """Nothing to keep yet."""

    def job_closed(self, progress: JobProgress) -> None:
        self._reports.pop(progress.job, None)
        self._reports[progress.job] = progress.report()
        while len(self._reports) > _REPORTS_KEPT:
            del self._reports[next(iter(self._reports))]

    def own_error(self, error: BaseException) -> ChannelError | None:
        return error if isinstance(error, ChannelError) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        atexit.unregister(self._ends.close)
        self._server = None
        self._ends.close()

    def _serve(self) -> ServiceServer:
        server = ServiceServer()
        server.jobs.subscribe(self)
        display = self._display or self._ends.enter_context(ProgressDisplay())
        server.jobs.subscribe(display)
        address = server.start()
        self._ends.callback(server.stop)
        if self._served:
            self._advertise(address)
        atexit.register(self._ends.close)
        return server

    def _advertise(self, address: ServiceAddress) -> None:
        from spark_channel.service import advertise

        try:
            take_back = advertise(address, os.getpid())
        except ServiceUnavailableError as error:
            _log.warning(
                "`spark-channel ui` and `limits` do not find the jobs of this run: %s", error
            )
            return

        def withdraw() -> None:
            with contextlib.suppress(OSError):  # the runtime directory went before this process
                take_back()

        self._ends.callback(withdraw)


# How the command line, and `transfer` without a session, use the engine.


_SPEEDS = {"rowspersecond", "bytespersecond"}


@contextlib.contextmanager
def local_engine(*, served: bool, display: "JobListener | None" = None) -> Iterator[LocalEngine]:
    """The engine for a `with` block, in which SIGTERM ends the jobs as Ctrl-C does."""
    with ending_on_sigterm(), LocalEngine(served=served, display=display) as engine:
        yield engine


def may_be_found() -> bool:
    """Whether other programs may find an engine's service: not beside another one of this process, as Spark's."""
    from spark_channel.service.discovery import ServiceDirectory, advert_name

    try:
        other = ServiceDirectory().read(advert_name(os.getpid()))
    except ServiceUnavailableError:  # no directory belongs to the user alone
        return False
    return other is None or not other.live


def carry_out_here(
    engine: LocalEngine, spec: TransferSpec, job_settings: Mapping[str, Any]
) -> TransferReport:
    """Run a transfer; `job_settings` are options of the whole job beside those of `spec`.

    Its steps use sessions again, which cost a server 5 to 15 ms of a core each. With Spark they run in other processes.

    Raises:
        ChannelError: as `spark_channel.transfer`; of another error, its class and first line.
    """
    try:
        with keeping_sessions():
            return carry_out(engine, spec, job_settings)
    except ChannelError:
        raise
    except Exception as error:
        _log.debug("the error was raised here", exc_info=True)
        raise ChannelError(first_line(error)) from error


class LocalMove:
    """Carries out transfers on one engine; `together` small tables in groups."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def __call__(self, spec: TransferSpec, job_settings: Mapping[str, Any]) -> TransferReport:
        """See `carry_out_here`."""
        return carry_out_here(self._engine, spec, job_settings)

    def together(
        self,
        together: "Together",
        tables: "Sequence[SmallTable]",
        placed: "Callable[[SmallTable], None]",
        ended: "Callable[[SmallTable, TransferReport], None]",
        job_settings: Mapping[str, Any],
        part_of: str,
    ) -> None:
        """See `carry_out_together`."""
        from spark_channel.transfers.together import carry_out_together

        carry_out_together(self._engine, together, tables, placed, ended, job_settings, part_of)


def first_line(error: Exception) -> str:
    """An error of other code in one line: its class, and how its message begins."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def has_speed(spec: TransferSpec, job_settings: Mapping[str, Any]) -> bool:
    """Whether a transfer has its own limit, which can be changed while it runs."""
    names = {
        key.lower()
        for options in (job_settings, *(end.options for end in spec.ends))
        for key in options
    }
    return bool(spec.rows_per_second or spec.bytes_per_second or names & _SPEEDS)
