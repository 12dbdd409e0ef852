"""The interface of an engine, and the code that each task group runs in it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from spark_channel.channel import Limiter
from spark_channel.errors import ChannelError, ServiceUnavailableError
from spark_channel.limits import StaticShare
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.pipeline import (
    FanOutOutcome,
    FanOutTargetRun,
    FanOutWork,
    GroupFanOut,
    GroupOutcome,
    GroupTransfer,
    TransferWork,
)
from spark_channel.pipeline.dirty import DirtyBudget, dirty_limit_of
from spark_channel.pipeline.threads import StallWatch
from spark_channel.plain_text import log_of
from spark_channel.planning import Task, TaskGroup
from spark_channel.processes import keep_loaded
from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ServiceAddress, SharedLimitAddress
from spark_channel.transfers.limits import is_limited

if TYPE_CHECKING:
    from spark_channel.connectors import Health
    from spark_channel.service import ServiceClient

__all__ = [
    "Engine",
    "FanOutRunner",
    "GroupRunner",
    "Runner",
    "TargetJob",
    "TaskGroupAttempt",
    "TaskServiceClient",
]


_log = log_of(__name__)


_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class TaskGroupAttempt:
    """One attempt of a task group. `number` is unique in the job; `again`: an earlier attempt was made.

    `cancelling` calls back, while a `with` block runs, when the engine needs no more rows.
    """

    def __init__(
        self,
        number: int,
        *,
        again: bool = False,
        cancelling: Callable[[Callable[[], None]], AbstractContextManager[None]],
    ) -> None:
        self.number = number
        self.again = again
        self.cancelling = cancelling


class Runner(Protocol[_T_co]):
    """Runs a task group in whatever process the engine gives it. Picklable."""

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> _T_co: ...


class Engine(Protocol):
    """Where a transfer's task groups run. Used by the process that plans and commits."""

    def parallelism(self) -> int:
        """How many channels a job has that does not say."""

    def slots(self) -> int | None:
        """How many task groups run at a time; None when it is not known."""

    def one_host(self) -> bool:
        """Whether they run on this process's host."""

    def here(self) -> bool:
        """Whether they run in this process, so that all rows pass through it."""

    def service(self) -> ServiceAddress:
        """Where jobs are counted and their limits are kept.

        Raises:
            LimitError: nowhere.
        """

    def named(self, source: str, target: str) -> AbstractContextManager[None]:
        """Show the work in the `with` block under these names."""

    def run(self, runner: Runner[_T], groups: Sequence[TaskGroup], job: str) -> list[_T]:
        """Run each group; of several attempts the outcome of the first that succeeds counts.

        Raises:
            ChannelError: what a group met; the other groups have ended then.
        """

    def own_error(self, error: BaseException) -> ChannelError | None:
        """The error of this package that made `run` fail; None = another one."""


class TaskServiceClient:
    """The link of one Spark task to the service; without a service, it counts for itself alone.

    `limiter` is None for an unlimited job, a `RateLimiter` of this process for a limit per task, and otherwise spends
    the grants of the job's coordinator, or `static` where the coordinator cannot be reached. `healths`: the health
    checks of source and target, by side. The end of the `with` block sends the last counters and gives back the
    unspent rest.
    """

    def __init__(
        self,
        address: "ServiceAddress | None",
        job: str,
        spec: JobSpec,
        options: CommonOptions,
        task_name: str,
        shared_limit: "SharedLimitAddress | None" = None,
        mark: str | None = None,
        static: "StaticShare | None" = None,
        permit_option: str = "maxConnections",
        healths: "Mapping[str, Callable[[], Health | None]] | None" = None,
    ) -> None:
        self._client = (
            None if address is None else _client(address, job, spec, shared_limit, static)
        )
        self._permit_option = permit_option
        self._static_alone = False
        if self._client is not None and healths and spec.protected:
            self._client.watch_health(healths)
        self.limiter: Limiter | None = None
        if self._client is not None and is_limited(options):
            self.limiter = self._client.limiter(task_name, mark=mark)
        elif options.rows_per_second_per_task or options.bytes_per_second_per_task:
            from spark_channel.limits import RateLimiter

            self.limiter = RateLimiter(
                options.rows_per_second_per_task, options.bytes_per_second_per_task
            )
        elif static is not None:
            from spark_channel.limits import RateLimiter

            self.limiter = RateLimiter(*static.paces)
            self._static_alone = True

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        opening: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
        execution: str = "",
    ) -> Counters:
        """Counters of this attempt, reported twice a second when there is a service."""
        make = Counters if self._client is None else self._client.counters
        return make(
            task,
            attempt,
            scan=scan,
            opening=opening,
            rows_expected=rows_expected,
            bytes_expected=bytes_expected,
            execution=execution,
        )

    @property
    def is_static(self) -> bool:
        """Whether this task keeps its static share of the limit, since the service is out of reach."""
        return self._static_alone or (self._client is not None and self._client.is_static)

    def check_stop(self) -> None:
        """Ask the service now whether the job should stop: a task that begins late has heard nothing yet.

        Without an answer the task continues: too many refused rows are found when the job is to be published.
        """
        if self._client is not None:
            try:
                self._client.introduce()
            except ServiceUnavailableError as error:
                _log.warning("refused rows are counted at the end of the job only: %s", error)

    def stop_reason(self) -> str:
        """Why the whole job should stop, as last heard; empty while it should not."""
        return "" if self._client is None else self._client.stop_reason

    def failure(self) -> str:
        """The error of another task that this one would meet, too, as last heard; else empty."""
        return "" if self._client is None else self._client.failure

    def dirty_budget(self, options: WriteOptions) -> DirtyBudget:
        """What the task's attempts may refuse; its first `check` knows what the job has refused before."""
        limit = dirty_limit_of(options)
        path = options.dirty_rows_path
        budget = DirtyBudget(
            limit,
            self.stop_reason,
            self.failure,
            hint=f". The refused rows are in {path}" if path else "",
        )
        if limit.tolerant and limit.limited:
            self.check_stop()
        return budget

    def permit(self) -> AbstractContextManager[object]:
        """One of the job's `maxConnections`, for a `with` block; waits while others hold them all."""
        return nullcontext() if self._client is None else self._client.permit(self._permit_option)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._client is not None:
            self._client.close()
        keep_loaded()


def _client(
    address: "ServiceAddress",
    job: str,
    spec: JobSpec,
    shared_limit: "SharedLimitAddress | None",
    static: "StaticShare | None",
) -> "ServiceClient":
    from spark_channel.service import ServiceClient

    return ServiceClient(address, job, spec, shared_limit=shared_limit, static=static)


class GroupRunner:
    """Runs a task group; pickled by reference to this class, with all that the groups share."""

    def __init__(
        self,
        work: TransferWork,
        spec: JobSpec,
        service: ServiceAddress | None,
        shared_limit: SharedLimitAddress | None,
        shares: Sequence[StaticShare | None] = (),
        permit_option: str = "maxConnections",
    ) -> None:
        self._shares = shares
        self._permit_option = permit_option
        self._work = work
        self._spec = spec
        self._service = service
        self._shared_limit = shared_limit

    @property
    def _options(self) -> WriteOptions:
        options: WriteOptions = self._work.targets[0][0].options
        return options

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> GroupOutcome:
        with contextlib.ExitStack() as stack:
            stall: StallWatch | None = None
            link = stack.enter_context(
                TaskServiceClient(
                    self._service,
                    self._work.job,
                    self._spec,
                    self._options,
                    f"group {group.id}",
                    self._shared_limit,
                    mark=group.tasks[0].reader_mark if self._spec.per_mark else None,
                    static=self._shares[group.id] if self._shares else None,
                    permit_option=self._permit_option,
                    healths={
                        "source": self._work.sources[0].reader.health,
                        "target": self._work.targets[0][0].health,
                    },
                )
            )

            def counters(one: Task) -> Counters:
                split = one.split
                task_counters = link.counters(
                    one.id, attempt.number, rows_expected=split.rows, bytes_expected=split.nbytes
                )
                return task_counters if stall is None else stall.add(task_counters)

            running = GroupTransfer(
                self._work,
                group,
                attempt.number,
                budget=link.dirty_budget(self._options),
                limiter=link.limiter,
                counters=counters,
                permit=link.permit,
                keeps=self._spec.max_connections is None,
                again=attempt.again,
            )
            stack.enter_context(attempt.cancelling(running.cancel))
            stall = stall_watch(self._options, running.cancel)
            if stall is not None:
                stack.enter_context(stall)
            return replace(running.run(), static=link.is_static)


def stall_watch(
    options: WriteOptions, stalled: Callable[[BaseException], None]
) -> StallWatch | None:
    """Return the watch that ends a task without progress; None without `onStall=fail`."""
    seconds = options.stall_timeout if options.on_stall == "fail" else None
    return None if seconds is None else StallWatch(seconds, stalled)


@dataclass(frozen=True)
class TargetJob:
    """One target as a separate job: its progress, its limit, and the shares of it without the service."""

    spec: JobSpec
    service: ServiceAddress | None
    shared_limit: SharedLimitAddress | None
    shares: Sequence[StaticShare | None] = ()


class FanOutRunner:
    """Runs a task group; pickled by reference to this class, with all that the groups share."""

    def __init__(self, work: FanOutWork, jobs: Sequence[TargetJob]) -> None:
        self._work = work
        self._jobs = tuple(jobs)

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> FanOutOutcome:
        with contextlib.ExitStack() as stack:
            links = [
                stack.enter_context(self._link(number, group)) for number in range(len(self._jobs))
            ]
            runs = [self._run(number, link, attempt.number) for number, link in enumerate(links)]
            running = GroupFanOut(self._work, group, attempt.number, runs)
            stack.enter_context(attempt.cancelling(running.cancel))
            for number, run in enumerate(runs):
                stall = stall_watch(self._options(number), running.cancel)
                if stall is not None:
                    run.watches.append(stack.enter_context(stall))
            outcome = running.run()
            targets = zip(outcome.targets, links, strict=True)
            return replace(
                outcome,
                targets=tuple(replace(outcome, static=link.is_static) for outcome, link in targets),
            )

    def _options(self, number: int) -> WriteOptions:
        options: WriteOptions = self._work.branches[number].writer.options
        return options

    def _link(self, number: int, group: TaskGroup) -> TaskServiceClient:
        job = self._jobs[number]
        return TaskServiceClient(
            job.service,
            self._work.branches[number].job,
            job.spec,
            self._options(number),
            f"group {group.id}",
            job.shared_limit,
            mark=group.tasks[0].reader_mark if job.spec.per_mark else None,
            static=job.shares[group.id] if job.shares else None,
            healths={
                "source": self._work.sources[0].reader.health,
                "target": self._work.branches[number].writer.health,
            },
        )

    def _run(self, number: int, link: TaskServiceClient, attempt: int) -> FanOutTargetRun:
        run = FanOutTargetRun(
            link.dirty_budget(self._options(number)), link.limiter, permit=link.permit
        )
        return replace(run, counters=_counters(link, attempt, run.watches))


def _counters(
    link: TaskServiceClient, attempt: int, watches: Sequence[StallWatch]
) -> Callable[[Task], Counters]:
    def counters(one: Task) -> Counters:
        split = one.split
        task_counters = link.counters(
            one.id, attempt, rows_expected=split.rows, bytes_expected=split.nbytes
        )
        for watch in watches:
            watch.add(task_counters)
        return task_counters

    return counters
