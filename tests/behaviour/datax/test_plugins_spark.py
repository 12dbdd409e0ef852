"""Spark's engine gives for the jobs of plugins.json what the local engine gives: `make soak` runs all, a test some."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.behaviour.datax.test_matrix_spark import code_on_spark
from tests.behaviour.datax.test_plugins import JOBS, end_of
from tests.datax.plugin_ends import End, rows_after, written_job

__all__ = ["end_of"]

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.full]


def _gives_the_same(spark: SparkSession, job: dict[str, Any], folder: Path, end: End) -> None:
    code = code_on_spark(spark, written_job(job, folder, end))
    wanted = job.get("here", job)
    assert bool(code) == bool(wanted["exit"])
    assert rows_after(job, folder, end) == wanted["rows"]


@pytest.mark.parametrize("job", JOBS[::15])
def test_spark_gives_the_same_rows(
    spark: SparkSession,
    job: dict[str, Any],
    tmp_path: Path,
    end_of: Callable[[str], End],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = end_of(job["system"])  # the server is in UTC
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    _gives_the_same(spark, job, tmp_path, end)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_spark_gives_the_same_rows_for_every_job(
    spark: SparkSession,
    job: dict[str, Any],
    tmp_path: Path,
    end_of: Callable[[str], End],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = end_of(job["system"])  # the server is in UTC
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    _gives_the_same(spark, job, tmp_path, end)
