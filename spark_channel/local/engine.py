"""`LocalEngine`: task groups on this machine, without Spark."""

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from spark_channel.errors import ChannelError, JobCancelledError, ServiceUnavailableError
from spark_channel.local.threads import Cancel, TaskGroupThreads
from spark_channel.plain_text import log_of
from spark_channel.planning import TaskGroup
from spark_channel.processes import cores
from spark_channel.progress import JobProgress, TransferReport
from spark_channel.service import ProgressDisplay, ServiceAddress, ServiceServer
from spark_channel.transfers.task import Runner

if TYPE_CHECKING:
    from spark_channel.service.jobs import JobListener, JobRegistry


__all__ = [
    "LocalEngine",
]

_log = log_of(__name__)
_T = TypeVar("_T")
_REPORTS_KEPT = 1000


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
        self._cancels: set[Cancel] = set()
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
    def cancelling(self, cancel: Cancel, noun: str = "a group of tables") -> Iterator[None]:
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
