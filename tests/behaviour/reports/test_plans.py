"""Plans around a job: shuffles that Spark joins, kept reads, an executor that is lost. Each row counts once."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import spark_channel
from tests.spark.remote_driver import RemoteDriver

pytestmark = pytest.mark.spark

ROWS = 6_000


def counted(database: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(database)) as connection:
        count, distinct = connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM t"
        ).fetchone()
    return int(count), int(distinct)


def read_rows() -> tuple[str, int, int]:
    report = spark_channel.last_report()
    assert report is not None
    return report.kind, report.rows, report.attempts


@pytest.mark.parametrize("keep", ["cache", "localCheckpoint", "checkpoint"])
def test_a_limited_read_that_is_kept_reads_once(
    spark: SparkSession, tmp_path: Path, keep: str
) -> None:
    spark.sparkContext.setCheckpointDir(str(tmp_path / "checkpoints"))
    read = spark.read.format("channel").options(reader="generator", rows=ROWS, columns="id")
    df = read.options(rowsPerSecond="1M", channels=2).load()
    kept: DataFrame = getattr(df, keep)()
    try:
        assert kept.count() == ROWS
        write = kept.write.format("channel").option("dbtable", "t").mode("append")
        for number in (1, 2):
            write.save(str(tmp_path / "t.db"))
            assert counted(tmp_path / "t.db") == (number * ROWS, ROWS)
            assert read_rows() == ("write", ROWS, 2), "the kept rows were not read again"
    finally:
        kept.unpersist()


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_shuffle_that_spark_changes_while_it_runs_is_written_once(
    spark: SparkSession, tmp_path: Path, commit: str
) -> None:
    """Adaptive execution splits the partition with most of the rows, and joins small ones, below the write."""
    conf = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16k",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "16k",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    before = {name: spark.conf.get(name) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        skewed = spark.range(ROWS).selectExpr(
            "id", "IF(id < 5500, 0, id % 50) AS k", "repeat('x', 50) AS v"
        )
        names = spark.range(50).selectExpr("id AS k", "cast(id AS string) AS name")
        joined = skewed.repartition(4).join(names, "k").select("id", "v", "name")
        written = joined.write.format("channel").options(
            dbtable="t", commit=commit, rowsPerSecond="1M"
        )
        written.mode("append").save(str(tmp_path / "t.db"))
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
    assert counted(tmp_path / "t.db") == (ROWS, ROWS)
    kind, rows, attempts = read_rows()
    assert (kind, rows) == ("write", ROWS)
    assert attempts != 8, "Spark changed the shuffle"


class EndsItsExecutor:
    """Kills the executor's JVM after the first batch of one task, once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if task.partitionId() == 0 and number == 1:
                try:
                    Path(self.folder, "killed").touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os.kill(_jvm_above(), signal.SIGKILL)
            yield batch


def _jvm_above() -> int:
    process = os.getpid()
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(fields[1])
    return process


def written_by_a_lost_executor(spark: Any, path: str, commit: str) -> None:
    spark_channel.register(spark)
    df = spark.range(0, ROWS, 1, 4).mapInArrow(EndsItsExecutor(str(Path(path).parent)), "id long")
    write = df.write.format("channel").options(dbtable="t", commit=commit, rowsPerSecond="1M")
    write.mode("append").save(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RemoteDriver]:
    conf = {
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    with RemoteDriver("local-cluster[2,1,1024]", conf) as driver:
        yield driver


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("commit", ["job", "task"])
def test_the_rows_of_a_lost_executor_are_written_once(
    cluster: RemoteDriver, tmp_path: Path, commit: str
) -> None:
    cluster.run(written_by_a_lost_executor, str(tmp_path / "t.db"), commit, timeout=200)
    assert (tmp_path / "killed").exists()
    assert counted(tmp_path / "t.db") == (ROWS, ROWS)
