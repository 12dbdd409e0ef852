"""What one task group of a transfer to several targets runs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_channel.limits import StaticShare
from spark_channel.options import WriteOptions
from spark_channel.pipeline import BranchRun, FanOutOutcome, FanOutWork, GroupFanOut
from spark_channel.pipeline.stall import StallWatch
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ServiceAddress, SharedLimitAddress
from spark_channel.transfers.dirty import dirty_budget
from spark_channel.transfers.engine import Attempt
from spark_channel.transfers.group import stall_watch
from spark_channel.transfers.link import TaskLink

__all__ = ["FanOutRunner", "TargetJob"]


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

    def run(self, group: TaskGroup, attempt: Attempt) -> FanOutOutcome:
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(self._link(number, group)) for number in range(len(self._jobs))]
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
                outcome, targets=tuple(replace(each, static=link.is_static) for each, link in targets)
            )

    def _options(self, number: int) -> WriteOptions:
        options: WriteOptions = self._work.branches[number].writer.options
        return options

    def _link(self, number: int, group: TaskGroup) -> TaskLink:
        job = self._jobs[number]
        return TaskLink(
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

    def _run(self, number: int, link: TaskLink, attempt: int) -> BranchRun:
        run = BranchRun(dirty_budget(link, self._options(number)), link.limiter, permit=link.permit)
        return replace(run, counters=_counters(link, attempt, run.watches))


def _counters(link: TaskLink, attempt: int, watches: Sequence[StallWatch]) -> Callable[[Task], Counters]:
    def counters(one: Task) -> Counters:
        split = one.split
        made = link.counters(one.id, attempt, rows_expected=split.rows, bytes_expected=split.nbytes)
        for watch in watches:
            watch.add(made)
        return made

    return counters
