"""The code that each task group of a transfer to several targets runs in an engine."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_channel.options import WriteOptions
from spark_channel.pipeline import FanOutOutcome, FanOutTargetRun, FanOutWork, GroupFanOut
from spark_channel.pipeline.threads import StallWatch
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters
from spark_channel.transfers.job_link import JobLink, TaskServiceClient
from spark_channel.transfers.task import TaskGroupAttempt, stall_watch

__all__ = ["FanOutRunner"]


class FanOutRunner:
    """Runs a task group; pickled by reference to this class, with all that the groups share."""

    def __init__(self, work: FanOutWork, links: Sequence[JobLink]) -> None:
        self._work = work
        self._links = tuple(links)

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> FanOutOutcome:
        with contextlib.ExitStack() as stack:
            links = [
                stack.enter_context(self._client(number, group))
                for number in range(len(self._links))
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

    def _client(self, number: int, group: TaskGroup) -> TaskServiceClient:
        return self._links[number].connect(
            self._options(number),
            f"group {group.id}",
            share=group.id,
            mark=group.tasks[0].reader_mark,
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
