"""SparkEngine: task groups as Spark tasks."""

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_channel.errors import ChannelError
from spark_channel.final_errors import first_original
from spark_channel.plain_text import log_of
from spark_channel.planning import TaskGroup
from spark_channel.service import ServiceAddress
from spark_channel.signals import ending_on_signals, raise_if_ended
from spark_channel.spark.session import context_of, is_local, service_of, session_slots
from spark_channel.spark.worker import HangupWatch, Versioned, own_error
from spark_channel.transfers.task import Runner, TaskGroupAttempt

__all__ = [
    "SparkEngine",
    "described",
    "open_session",
]


_log = log_of(__name__)
_DESCRIPTION = "spark.job.description"
_T = TypeVar("_T")


@contextmanager
def described(spark: SparkSession, source: str, target: str) -> Iterator[None]:
    """Jobs of this thread are named `channel: source -> target`, unless the user named them.

    Spark Connect has no such setting on this side.
    """
    context = context_of(spark)
    if context is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    context.setLocalProperty(_DESCRIPTION, f"channel: {source or 'Spark'} -> {target or 'Spark'}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, None)


class SparkEngine:
    """See `Engine`: a task group is a Spark task."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def parallelism(self) -> int:
        """Return how many Spark tasks the session runs at a time, as far as its settings show."""
        context = context_of(self._spark)
        if context is not None:
            return max(1, int(context.defaultParallelism))
        try:
            return max(1, int(self._spark.conf.get("spark.default.parallelism") or 0))
        except (PySparkException, ValueError):
            return os.cpu_count() or 1

    def slots(self) -> int | None:
        return session_slots(self._spark)

    def one_host(self) -> bool:
        return is_local(self._spark)

    def here(self) -> bool:
        return False

    def service(self) -> ServiceAddress:
        return service_of(self._spark)

    def named(self, source: str, target: str) -> AbstractContextManager[None]:
        return described(self._spark, source, target)

    def run(self, runner: Runner[_T], groups: Sequence[TaskGroup], job: str) -> list[_T]:
        outcomes = run_groups(self._spark, _SparkTask(runner), groups, job)
        ended = first_original(outcome.error for outcome in outcomes if isinstance(outcome, _Ended))
        if ended is not None:
            raise ended
        return outcomes

    def own_error(self, error: BaseException) -> ChannelError | None:
        return own_error(error)


@dataclass(frozen=True)
class _Ended(Versioned):
    """The outcome of a task with an error that a repeated one would meet again: Spark repeats what raises."""

    error: ChannelError


class _SparkTask(Versioned):
    """Runs a task group in a Spark task; pickled by reference to this class."""

    def __init__(self, runner: Runner[Any]) -> None:
        self._runner = runner

    def __call__(self, group: TaskGroup) -> Any:
        watch = HangupWatch()
        task = TaskContext.get()
        assert task is not None
        attempt = TaskGroupAttempt(
            task.taskAttemptId(), again=task.attemptNumber() > 0, cancelling=watch.calling
        )
        try:
            return self._runner.run(group, attempt)
        except ChannelError as error:
            if not error.is_final:
                raise
            return _Ended(error)


class _ByNumber(Versioned):
    """The same for `mapInArrow`: rows are numbers of groups, and outcomes are bytes."""

    def __init__(self, runner: Callable[[TaskGroup], Any], groups: Sequence[TaskGroup]) -> None:
        self._runner = runner
        self._groups = groups

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pickle.dumps(self._runner(self._groups[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([outcome], pa.binary())], names=["outcome"]
                )


def run_groups(
    spark: SparkSession, runner: Callable[[TaskGroup], _T], groups: Sequence[TaskGroup], tag: str
) -> list[_T]:
    """Run each group as one Spark task; of several attempts the outcome of the first that succeeds counts.

    A group is its own partition, in classic sessions of an RDD (nothing shuffles, reorders or merges
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


@contextmanager
def open_session(master: str | None, conf: dict[str, str], name: str) -> Iterator[SparkSession]:
    """A session for a `with` block; `master` None is `spark-submit`'s own, else this machine."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    local = (
        master is None
        and not submitted
        and "spark.master" not in conf
        and "spark.remote" not in conf
    )
    here = local or (master or "").startswith("local")
    if here:
        # One machine: no look-up of the host's name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master is not None or local:
        builder = builder.master(master or "local[*]")
    # nonstrict: the partitions of a table of Hive are those that the rows name, as hivewriter writes.
    defaults = {
        "spark.ui.showConsoleProgress": "false",
        "hive.exec.dynamic.partition.mode": "nonstrict",
    }
    if not submitted:
        # FATAL: spark-channel prints the reason of a failed task once; the JVM would log a page before it.
        defaults |= {"spark.ui.enabled": "false", "spark.log.level": "FATAL"}
    for key, value in (defaults | conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        ending_on_signals()
    try:
        try:
            yield spark
        except Exception as error:
            raise_if_ended(error)
            raise
    except (KeyboardInterrupt, SystemExit):
        try:
            spark.stop()
        except Exception as error:
            # The signal came amid a call of the JVM, which ends with this process.
            _log.debug("Spark could not be stopped: %s", error)
        raise
    except BaseException:
        spark.stop()
        raise
    spark.stop()
