"""The default of `commit`: all rows or none, whatever the table holds when the job begins."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_channel.errors import ChannelError
from spark_channel.local import LocalEngine
from spark_channel.progress import TransferReport
from tests.behaviour.exactly_once.test_own_source import copy, end
from tests.connectors.sql.places import Place, open_place

ROWS = 300
_KINDS = ("sqlite", "postgresql", "mysql", "duckdb", "adbc-sqlite", "adbc-postgresql")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        yield made


def ids(place: Place, table: str) -> list[int]:
    return sorted(place.read(table, columns="id")["id"].to_pylist())


@pytest.mark.parametrize("place", _KINDS, indirect=True)
def test_the_second_night_is_all_or_none_as_the_first(engine: LocalEngine, place: Place) -> None:
    """Its last split has a key that the target has."""
    one, two = range(ROWS), [*range(ROWS, 2 * ROWS), 9]
    place.create("one", {"id": "int", "night": "int"}, [(n, n) for n in one])
    place.create("two", {"id": "int", "night": "int"}, [(n, 1000 + k) for k, n in enumerate(two)])

    def night(table: str) -> TransferReport:
        source = end(place, table, partitionColumn="night")
        return copy(engine, source, end(place, "orders"), splits_per_channel=5)

    assert night("one").commit == "job"
    table, key = place.in_schema("orders"), place.quoted("id")
    place.run(f"CREATE UNIQUE INDEX orders_id ON {table} ({key})")
    with pytest.raises(ChannelError):
        night("two")
    assert ids(place, "orders") == list(one)
    place.run(f"DELETE FROM {place.in_schema('two')} WHERE {key} = 9")
    assert night("two").commit == "job"
    assert ids(place, "orders") == list(range(2 * ROWS))


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_a_dataframe_that_fails_adds_no_row(spark: SparkSession, place: Place) -> None:
    place.create("orders", {"id": "int", "night": "int"}, [(n, n) for n in range(ROWS)])
    table, key = place.in_schema("orders"), place.quoted("id")
    place.run(f"CREATE UNIQUE INDEX orders_id ON {table} ({key})")
    rows = spark.range(ROWS - 1, 2 * ROWS, numPartitions=2).selectExpr("id", "id AS night")
    options = end(place, "orders").options
    with pytest.raises(PySparkException):
        rows.write.format("channel").options(**options).mode("append").save()
    assert ids(place, "orders") == list(range(ROWS))


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_rows_that_may_be_left_out_are_judged_where_they_are_written(
    engine: LocalEngine, place: Place
) -> None:
    place.create("one", {"id": "int", "v": "int"}, [(1, 1), (2, 2)])
    place.create("orders", {"id": "int", "v": "int"}, [(2, 2)])
    table, key = place.in_schema("orders"), place.quoted("id")
    place.run(f"CREATE UNIQUE INDEX orders_id ON {table} ({key})")
    report = copy(engine, end(place, "one"), end(place, "orders", maxDirtyRows="1"))
    assert (report.commit, report.rows_dirty) == ("task", 1)
    assert ids(place, "orders") == [1, 2]


@pytest.mark.parametrize(
    "script",
    [{"preSql": "TRUNCATE orders"}, {"postSql": "ALTER TABLE orders COMMENT 'filled'"}],
    ids=str,
)
@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_a_script_that_commits_leaves_mysql_the_task_alone(
    engine: LocalEngine, place: Place, caplog: pytest.LogCaptureFixture, script: dict[str, str]
) -> None:
    """Whether the table is there or not; and the log says why, and what to write instead."""
    place.create("one", {"id": "int"}, [(1,), (2,)])
    if "preSql" in script:
        place.create("orders", {"id": "int"}, [(7,)])
    with caplog.at_level(logging.WARNING):
        report = copy(engine, end(place, "one"), end(place, "orders", **script))
    assert report.commit == "task"
    assert ids(place, "orders") == [1, 2]
    assert f"option '{next(iter(script))}' holds a statement that commits" in caplog.text
