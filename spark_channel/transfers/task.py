"""The interface of an engine, and the code that each task group runs in it."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, TypeVar

from spark_channel.errors import ChannelError
from spark_channel.options import WriteOptions
from spark_channel.pipeline import GroupOutcome, GroupTransfer, TransferWork
from spark_channel.pipeline.threads import StallWatch
from spark_channel.plain_text import log_of
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters
from spark_channel.service import ServiceAddress
from spark_channel.transfers.job_link import JobLink

__all__ = [
    "Engine",
    "GroupRunner",
    "Runner",
    "TaskGroupAttempt",
    "stall_watch",
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


class GroupRunner:
    """Runs a task group; pickled by reference to this class, with all that the groups share."""

    def __init__(
        self,
        work: TransferWork,
        link: JobLink,
    ) -> None:
        self._work = work
        self._link = link

    @property
    def _options(self) -> WriteOptions:
        options: WriteOptions = self._work.targets[0][0].options
        return options

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> GroupOutcome:
        with contextlib.ExitStack() as stack:
            stall: StallWatch | None = None
            link = stack.enter_context(
                self._link.connect(
                    self._options,
                    f"group {group.id}",
                    share=group.id,
                    mark=group.tasks[0].reader_mark,
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
                keeps=self._link.spec.max_connections is None,
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
