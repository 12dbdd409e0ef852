"""Spark's engine gives for the jobs that DataX ran what the local engine gives: `make soak` runs all, a test each 15th.

Its workers have another zone than the driver, which decides what times mean.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.cli.exit_codes import exit_code
from spark_channel.errors import ChannelError
from tests.datax.matrix import JOBS, Databases, name_of, prepare, rows_after
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.full]


@pytest.fixture(scope="module")
def databases(
    mariadb_server: MariadbServer, postgres_server: PostgresServer
) -> Iterator[Databases]:
    both = Databases(mariadb_server, postgres_server)
    with both.open():
        yield both


def code_on_spark(spark: SparkSession, path: Path) -> int:
    """The exit code of a job file that Spark runs."""
    try:
        spark_channel.run(spark, str(path))
    except ChannelError as error:
        return exit_code(error)
    return 0


def _gives_the_same(
    spark: SparkSession, job: dict[str, Any], folder: Path, databases: Databases
) -> None:
    code = code_on_spark(spark, prepare(job, folder, databases))
    wanted = job.get("here", job)
    assert bool(code) == bool(wanted["exit"])
    assert repr(rows_after(job, folder, databases)) == repr(wanted["rows"])


@pytest.mark.parametrize("job", JOBS[::15], ids=name_of)
def test_spark_gives_the_same_rows(
    spark: SparkSession,
    job: dict[str, Any],
    tmp_path: Path,
    databases: Databases,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    _gives_the_same(spark, job, tmp_path, databases)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_spark_gives_the_same_rows_for_every_job(
    spark: SparkSession,
    job: dict[str, Any],
    tmp_path: Path,
    databases: Databases,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    _gives_the_same(spark, job, tmp_path, databases)
