"""Reads without a consumer, and cancelled jobs: all work ends, nothing is left."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import JobCancelledError

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.spark,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (n integer)")
        connection.executemany("insert into t values (?)", ((n,) for n in range(200_000)))
    connection.close()
    return path


def holders(path: Path) -> list[int]:
    """Processes that have `path` open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                links = {os.readlink(entry) for entry in (process / "fd").iterdir()}  # noqa: PTH115 - a string
            except OSError:
                continue
            if str(path) in links:
                found.append(int(process.name))
    return found


def reader_threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in every Python worker that Spark reuses."""
    list(batches)
    names = [
        thread.name for thread in threading.enumerate() if thread.name.startswith("spark-channel")
    ]
    yield pa.record_batch({"names": [",".join(names)]})


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    """Other processes cannot notify a test: look often, for a bounded time."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_limit_over_a_throttled_read_ends_the_reader(spark: SparkSession, database: Path) -> None:
    df = (
        spark.read.format("channel")
        .options(dbtable="t", channels="2", rowsPerSecond="2000")
        .load(str(database))
        .limit(5)
    )
    started = time.monotonic()
    assert len(df.collect()) == 5
    assert within(5, lambda: not holders(database))
    assert time.monotonic() - started < 60, "the whole table takes 100 s at this limit"
    left = {
        row.names
        for row in spark.range(0, 8, 1, 4).mapInArrow(reader_threads, "names string").collect()
    }
    assert left == {""}


def test_a_cancelled_job_leaves_the_target_as_it_was(
    spark: SparkSession, database: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.db"
    rows = spark.range(10)
    rows.write.format("channel").option("dbtable", "t").mode("append").save(str(target))
    source = spark.read.format("channel").options(dbtable="t", channels="2").load(str(database))
    staged: list[bool] = []

    def cancel() -> None:
        staged.append(within(60, lambda: any(tmp_path.rglob("*.arrow"))))
        spark.sparkContext.cancelJobGroup("cancel-me")

    # The write runs in this thread: Spark finds Python data sources only where its session is active.
    spark.sparkContext.setJobGroup("cancel-me", "a copy that is cancelled", interruptOnCancel=True)
    canceller = InheritableThread(target=cancel)
    canceller.start()
    try:
        with pytest.raises((PySparkException, Py4JJavaError), match="cancel"):
            (
                source.selectExpr("n as id")
                .write.format("channel")
                .options(dbtable="t", commit="job", rowsPerSecond="1000")
                .mode("append")
                .save(str(target))
            )
    finally:
        canceller.join(90)
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type] # None removes it
    assert staged == [True], "no task had begun to stage"
    assert within(5, lambda: not holders(database))
    with sqlite3.connect(target) as connection:
        assert connection.execute("select count(*) from t").fetchall() == [(10,)]
    connection.close()
    # A task that was killed half way may leave its own staging behind; the next write clears it.
    rows.write.format("channel").option("dbtable", "t").mode("append").save(str(target))
    with sqlite3.connect(target) as connection:
        assert connection.execute("select count(*) from t").fetchall() == [(20,)]
    connection.close()


SATISFIED = """
import sys
from pyspark.sql import SparkSession
import spark_channel
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.log.level", "ERROR").getOrCreate()
spark_channel.register(spark)
spark.range(10).write.format("channel").option("dbtable", "kept").mode("append").save(sys.argv[2])
source = spark.read.format("channel").options(dbtable="t", channels="2").load(sys.argv[1])
for number in range(3):
    assert len(source.limit(5 + number).collect()) == 5 + number
    source.where("n >= 0").limit(10).write.format("channel").option("dbtable", f"t{number}").mode(
        "append").save(sys.argv[2])
    report = spark_channel.last_report()
    print("REPORT", report.kind, report.phase, report.rows)
print("THE LAST LINE", file=sys.stderr, flush=True)
spark.read.format("channel").options(dbtable="t", rowsPerSecond="20k").load(sys.argv[1]).show(3)
if sys.argv[3] == "stop":
    spark.stop()
"""


@pytest.mark.newest
@pytest.mark.parametrize("end", ["exit", pytest.param("stop", marks=pytest.mark.soak)])
def test_a_satisfied_limit_is_no_failure(database: Path, tmp_path: Path, end: str) -> None:
    """Nor is it as the last line of a program."""
    done = subprocess.run(
        [sys.executable, "-c", SATISFIED, str(database), str(tmp_path / "target.db"), end],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("REPORT write done 10") == 3, done.stdout
    assert "only showing top 3 rows" in done.stdout
    for said in done.stderr.split("THE LAST LINE"):
        assert "wanted no more, as with a LIMIT" in said
    # pyspark's traceback of its flush to a JVM that wants no more rows is none.
    for word in ("spark_channel/", "spark_channel.errors", "; failed", "is not shown"):
        assert word not in done.stderr, done.stderr


def test_a_cancelled_transfer_says_so(spark: SparkSession, database: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"

    def cancel() -> None:
        within(60, lambda: any(tmp_path.rglob("*.arrow")))
        spark.sparkContext.cancelJobGroup("cancel-me")

    spark.sparkContext.setJobGroup(
        "cancel-me", "a transfer that is cancelled", interruptOnCancel=True
    )
    canceller = InheritableThread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(
            JobCancelledError, match=r"was cancelled in Spark \(.*cancel-me.*Run it again"
        ):
            spark_channel.transfer(
                spark,
                {"name": "sqlite", "path": str(database), "dbtable": "t"},
                {"name": "sqlite", "path": str(target), "dbtable": "t", "commit": "job"},
                rows_per_second=1000,
            )
    finally:
        canceller.join(90)
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type] # None removes it
    assert not target.exists()
