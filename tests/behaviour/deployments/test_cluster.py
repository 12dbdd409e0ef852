"""Executors that are other processes: `local-cluster` has a worker process and an executor JVM for each."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.service import SharedLimit
from tests.spark import recorded
from tests.spark.recorded import PROMPT, RATE, ROWS, TIMEOUT, worst_second
from tests.spark.remote_driver import RemoteDriver

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.real_time, pytest.mark.soak]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RemoteDriver]:
    with RemoteDriver(
        "local-cluster[2,1,1024]", {"spark.executor.memory": "512m", **PROMPT}
    ) as driver:
        yield driver


def executors(spark: Any) -> int:
    spark_channel.register(spark)
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def reported(spark: SparkSession) -> tuple[int, int] | None:
    """(rows, Spark tasks) of the last job."""
    until = time.monotonic() + 5.0
    while (report := spark_channel.last_report()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return None if report is None else (report.rows, report.tasks)


def test_there_are_two_executors(cluster: RemoteDriver) -> None:
    assert cluster.run(executors) == 2


@pytest.mark.parametrize(
    "path", [recorded.read, recorded.write, recorded.throttle, recorded.transfer]
)
def test_two_executors_together_obey_the_limit_of_the_job(
    cluster: RemoteDriver, tmp_path: Path, path: Any
) -> None:
    cluster.run(path, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE


def test_a_write_is_reported(cluster: RemoteDriver, tmp_path: Path) -> None:
    cluster.run(recorded.write, str(tmp_path), {}, timeout=TIMEOUT)
    assert cluster.run(reported)[0] == ROWS


def test_two_executors_together_obey_a_shared_limit(cluster: RemoteDriver, tmp_path: Path) -> None:
    with SharedLimit("cluster-test", rows_per_second=RATE):
        cluster.run(recorded.read, str(tmp_path), {"sharedLimit": "cluster-test"}, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE
