"""What one task group of a transfer runs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_channel.limits import StaticShare
from spark_channel.options import WriteOptions
from spark_channel.pipeline import GroupOutcome, GroupTransfer, TransferWork
from spark_channel.pipeline.stall import StallWatch
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ServiceAddress, SharedLimitAddress
from spark_channel.transfers.dirty import dirty_budget
from spark_channel.transfers.engine import Attempt
from spark_channel.transfers.link import TaskLink

__all__ = ["GroupRunner", "stall_watch"]


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

    def run(self, group: TaskGroup, attempt: Attempt) -> GroupOutcome:
        with contextlib.ExitStack() as stack:
            stall: StallWatch | None = None
            link = stack.enter_context(
                TaskLink(
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
                made = link.counters(
                    one.id, attempt.number, rows_expected=split.rows, bytes_expected=split.nbytes
                )
                return made if stall is None else stall.add(made)

            running = GroupTransfer(
                self._work,
                group,
                attempt.number,
                budget=dirty_budget(link, self._options),
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


def stall_watch(options: WriteOptions, stalled: Callable[[BaseException], None]) -> StallWatch | None:
    """What ends a task that makes no progress, where that is asked for."""
    seconds = options.stall_timeout if options.on_stall == "fail" else None
    return None if seconds is None else StallWatch(seconds, stalled)
