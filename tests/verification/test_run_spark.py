"""Verification by Spark tasks."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_channel
from tests.verification.test_run import ROWS, differ, sqlite


@pytest.mark.spark
@pytest.mark.newest
def test_spark_tasks_compare_and_repair(spark: SparkSession, tmp_path: Path) -> None:
    pair = sqlite(tmp_path / "a.db", ROWS), sqlite(tmp_path / "b.db", ROWS)
    assert spark_channel.verify(spark, *pair, rows_per_second="1M").equal == 2_000
    differ(tmp_path)
    report = spark_channel.verify(spark, *pair, confirm=0, repair=True, delete=True)
    assert (report.different, report.missing, report.extra, report.outcome) == (3, 1, 1, "equal")
