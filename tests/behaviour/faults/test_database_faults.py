"""Transfers into databases whose tasks die in every way in turn: rows counted by key, none lost, none doubled."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import Receipt, TaskWriter
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.spark.places import Place, duckdb_place, mysql_place, postgres_place
from tests.spark.remote_driver import RemoteDriver

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(600)]

ROWS = 40_000
FAULTS = ("killed in mid-write", "killed after its receipt", "fails", "fails again")


@pytest.fixture(scope="module")
def driver() -> Iterator[RemoteDriver]:
    """A session in which a task is tried once more than there are faults."""
    with RemoteDriver(f"local[2,{len(FAULTS) + 1}]") as running:
        yield running


@pytest.fixture(
    params=[
        "mysql task",
        "postgresql job",
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in ("duckdb job", "mysql job", "postgresql task")
        ),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, str]]:
    kind, commit = request.param.split()
    if kind == "duckdb":
        yield duckdb_place(tmp_path / "t.duckdb"), commit
    elif kind == "mysql":
        server: MariadbServer = request.getfixturevalue("mariadb_server")
        with mysql_place(server) as made:
            yield made, commit
    else:
        other: PostgresServer = request.getfixturevalue("postgres_server")
        with postgres_place(other) as made:
            yield made, commit


def writers(kind: type[TaskWriter] = TaskWriter) -> list[type[TaskWriter]]:
    return [each for below in kind.__subclasses__() for each in (below, *writers(below))]


def die_after_the_next_receipt(mark: Path) -> None:
    """The task ends, durably, and the driver never hears of it."""

    def patch(kind: type[TaskWriter]) -> None:
        close = kind.close

        def close_and_die(self: TaskWriter) -> Receipt:
            close(self)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        kind.close = close_and_die  # type: ignore[method-assign] # replaced for a while

    for kind in writers():
        if "close" in vars(kind) and not kind.__abstractmethods__:
            patch(kind)


class Dies:
    """A step on the way: the first task group meets one of `FAULTS` in each of its attempts, and then none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        task = TaskContext.get()
        if task is None or batch.num_rows == 0 or task.partitionId() != 0:
            return batch
        number = task.attemptNumber()
        if number >= len(FAULTS):
            return batch
        self._seen += 1
        if self._seen == 3:  # rows of its first task are at the target
            mark = self._folder / FAULTS[number]
            if number == 1:
                die_after_the_next_receipt(mark)
                return batch
            mark.touch()
            if number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(FAULTS[number])
        return batch


def copy(spark: SparkSession, writer: dict[str, Any], commit: str, folder: str) -> tuple[int, int]:
    report = spark_channel.transfer(
        spark,
        {
            "name": "generator",
            "rows": ROWS,
            "schema": "id BIGINT, name STRING",
            "rowsPerBatch": 500,
        },
        {**writer, "dbtable": "t", "batchSize": "500"},
        transformers=[Dies(Path(folder))],
        channels=2,
        commit=commit,
    )
    return report.rows, report.attempts - report.tasks


def test_the_first_group_dies_four_times(
    driver: RemoteDriver, place: tuple[Place, str], tmp_path: Path
) -> None:
    target, commit = place
    target.run("CREATE TABLE t (id BIGINT, name VARCHAR(200))")
    marks = tmp_path / "marks"
    marks.mkdir()
    rows, again = driver.run(copy, target.writer, commit, str(marks), timeout=300)
    assert sorted(each.name for each in marks.iterdir()) == sorted(FAULTS)
    assert rows == ROWS
    assert again > 0
    assert target.held() == [ROWS, ROWS, ROWS * (ROWS - 1) // 2]
    assert target.staged() == []
