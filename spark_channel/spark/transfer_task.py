"""What one Spark task of a transfer runs, and how its task groups become Spark tasks."""

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_channel.limits import StaticShare
from spark_channel.options import WriteOptions
from spark_channel.pipeline import GroupOutcome, GroupTransfer, TransferWork
from spark_channel.pipeline.stall import StallWatch
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ServiceAddress, SharedLimitAddress
from spark_channel.spark.dirty import dirty_budget
from spark_channel.spark.hangup import HangupWatch
from spark_channel.spark.session import context_of
from spark_channel.spark.task import TaskLink

__all__ = ["GroupRunner", "run_groups", "stall_watch"]

_T = TypeVar("_T")


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

    def __call__(self, group: TaskGroup) -> GroupOutcome:
        watch = HangupWatch()
        task = TaskContext.get()
        assert task is not None
        attempt = task.taskAttemptId()
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
                made = link.counters(one.id, attempt, rows_expected=split.rows, bytes_expected=split.nbytes)
                return made if stall is None else stall.add(made)

            running = GroupTransfer(
                self._work,
                group,
                attempt,
                budget=dirty_budget(link, self._options),
                limiter=link.limiter,
                counters=counters,
                permit=link.permit,
                again=task.attemptNumber() > 0,
            )
            stack.enter_context(watch.calling(running.cancel))
            stall = stall_watch(self._options, running.cancel)
            if stall is not None:
                stack.enter_context(stall)
            return replace(running.run(), static=link.is_static)


def stall_watch(options: WriteOptions, stalled: Callable[[BaseException], None]) -> StallWatch | None:
    """What ends a task that makes no progress, where that is asked for."""
    seconds = options.stall_timeout if options.on_stall == "fail" else None
    return None if seconds is None else StallWatch(seconds, stalled)


class _ByNumber:
    """The same for `mapInArrow`: rows are numbers of groups, and outcomes are bytes."""

    def __init__(self, runner: Callable[[TaskGroup], Any], groups: Sequence[TaskGroup]) -> None:
        self._runner = runner
        self._groups = groups

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pickle.dumps(self._runner(self._groups[number]))
                yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])


def run_groups(
    spark: SparkSession, runner: Callable[[TaskGroup], _T], groups: Sequence[TaskGroup], tag: str
) -> list[_T]:
    """Run each group as one Spark task; of several attempts the outcome of the first that succeeds counts.

    A group is a partition of its own, in classic sessions of an RDD (nothing shuffles, reorders or merges
    partitions, and no pandas is needed), under Spark Connect of `mapInArrow`. Spark hands the driver exactly
    one result per partition, whatever was retried or speculated; the others' staging is dropped at the
    commit. The Spark jobs carry `tag`; an interrupt ends them.
    """
    context = context_of(spark)
    if not groups:
        return []
    if context is not None:
        context.addJobTag(tag)
        try:
            outcomes: list[_T] = context.parallelize(groups, len(groups)).map(runner).collect()
        except BaseException:
            context.cancelJobsWithTag(tag)
            raise
        finally:
            context.removeJobTag(tag)
        return outcomes
    spark.addTag(tag)
    try:
        numbers = spark.range(0, len(groups), 1, len(groups))
        rows: list[Any] = numbers.mapInArrow(_ByNumber(runner, groups), "outcome binary").collect()
    except BaseException:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
    return [pickle.loads(bytes(row.outcome)) for row in rows]  # noqa: S301 - what `_ByNumber` made
