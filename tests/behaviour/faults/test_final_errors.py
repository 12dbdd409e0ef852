"""What a repeated task would meet again is met once, and ends the tasks that run beside it."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_channel import transfer
from spark_channel.errors import ChannelError, SchemaError, TargetError
from spark_channel.final_errors import HeardError, final, first_original
from spark_channel.local import TaskGroupThreads
from spark_channel.pipeline import DirtyBudget
from spark_channel.planning import TaskGroup
from spark_channel.progress import Counters, JobProgress, JobSpec, Phase
from spark_channel.progress.spec import DirtyLimit
from spark_channel.transfers.task import TaskGroupAttempt
from tests.small_disk import small_disk

ROWS = 200_000


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "source.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT);"
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
            f"{ROWS}) INSERT INTO t SELECT i, 'a name that takes some room ' || i FROM n"
        )
    return f"sqlite:{file}"


def failed_tasks(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(group)
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ())
    ]
    assert stages
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def copy(spark: SparkSession, road: str, source: str, target: str) -> None:
    if road == "transfer":
        transfer(spark, {"url": source, "dbtable": "t"}, {"url": target, "dbtable": "t"})
        return
    read = spark.read.format("channel").options(url=source, dbtable="t").load()
    read.write.format("channel").options(url=target, dbtable="t").mode("append").save()


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("road", ["transfer", "df.write"])
def test_a_full_disk_is_met_by_no_second_attempt(
    spark: SparkSession, source: str, tmp_path: Path, road: str
) -> None:
    full = "No space left on device; free space on the"
    with small_disk(tmp_path / "small", 2) as place:
        spark.sparkContext.setJobGroup(road, "a full disk")
        try:
            with pytest.raises(Exception, match=full) as met:
                copy(spark, road, source, f"sqlite:{place}/a.db")
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description"):
                spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]
    assert failed_tasks(spark, road) == 0
    assert road == "df.write" or (isinstance(met.value, ChannelError) and met.value.is_final)


def test_the_other_tasks_hear_of_it() -> None:
    progress = JobProgress("job", JobSpec("transfer"))
    counters = Counters(0, 0)
    counters.enter(Phase.FAILED)
    counters.explain("the disk is full", ends_job=True)
    progress.update(counters.snapshot())
    budget = DirtyBudget(DirtyLimit(0, None), failure=lambda: progress.failure)
    with pytest.raises(TargetError, match="the disk is full") as met:
        budget.check()
    assert met.value.is_final


def test_an_error_that_may_pass_ends_no_other_task() -> None:
    progress = JobProgress("job", JobSpec("transfer"))
    counters = Counters(0, 0)
    counters.enter(Phase.FAILED)
    counters.explain("the connection was lost")
    progress.update(counters.snapshot())
    assert progress.failure == ""
    assert not final(TargetError("lost"), is_final=False).is_final


class _MetLate:
    """Group 1 meets an error; group 0 hears of it, and ends before it."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Barrier(2, timeout=20), threading.Event()

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> None:
        with attempt.cancelling(self._ended.set):
            self._begun.wait()
            if group.id == 0:
                raise HeardError("column a")
            assert self._ended.wait(20)
            raise SchemaError("column a")


def test_the_job_fails_with_the_error_that_was_met_and_not_with_its_echo() -> None:
    """Whose class is the job's exit code."""
    groups = [TaskGroup(number, (), 1) for number in range(2)]
    with pytest.raises(SchemaError, match="column a"):
        TaskGroupThreads(_MetLate(), groups).run()
    heard, met = HeardError("a"), SchemaError("a")
    assert first_original([heard, met]) is met
    assert first_original([heard]) is heard
    assert first_original([]) is None
