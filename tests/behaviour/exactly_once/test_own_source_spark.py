"""A DataFrame that is written into the table it is read from: each row is there once, or the write is refused."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_channel
from spark_channel.errors import OptionError

pytestmark = [pytest.mark.spark, pytest.mark.newest]

ROWS = 400
BY_JOB = "Set 'commit' to job, or omit it"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER, v INTEGER)")
        connection.execute("CREATE TABLE other (id INTEGER, v INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, n) for n in range(ROWS)])
        connection.execute("CREATE VIEW seen AS SELECT id, v FROM t")
    return path


def read(spark: SparkSession, path: Path, table: str = "t") -> DataFrame:
    return spark.read.format("channel").options(dbtable=table, channels=5).load(str(path))


def write(
    frame: DataFrame, path: Path, table: str = "t", mode: str = "append", **options: str
) -> None:
    frame.write.format("channel").options(dbtable=table, **options).mode(mode).save(str(path))


def counts(path: Path, table: str = "t") -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute(
            f"SELECT count(*), count(DISTINCT id) FROM {table}"
        ).fetchall()
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("table", ["t", "seen"])
def test_rows_are_staged_where_the_table_may_be_the_source(
    spark: SparkSession, shop: Path, tmp_path: Path, table: str
) -> None:
    linked = tmp_path / "linked.db"
    linked.symlink_to(shop)
    write(read(spark, linked, table), shop)
    assert counts(shop) == (2 * ROWS, ROWS)


@pytest.mark.parametrize(
    "through",
    [
        lambda frame: frame,
        lambda frame: frame.unionByName(frame.sparkSession.range(5).selectExpr("id", "id AS v")),
    ],
)
def test_a_task_commits_no_row_of_its_own_source(
    spark: SparkSession, shop: Path, through: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(PySparkException, match=BY_JOB):
        write(through(read(spark, shop)).coalesce(1), shop, commit="task")
    assert counts(shop) == (ROWS, ROWS)


def test_what_was_read_whole_before_is_committed_by_task(spark: SparkSession, shop: Path) -> None:
    write(read(spark, shop).orderBy("v"), shop, commit="task")
    assert counts(shop) == (2 * ROWS, ROWS)
    last = read(spark, shop).agg({"id": "max"}).first()
    assert last is not None
    write(spark.range(5).selectExpr(f"id + {last[0]} + 1 AS id", "id AS v"), shop, commit="task")
    write(read(spark, shop), shop, "other", commit="task")
    assert counts(shop) == counts(shop, "other") == (2 * ROWS + 5, ROWS + 5)


def test_a_table_is_not_emptied_before_it_is_read(spark: SparkSession, shop: Path) -> None:
    with pytest.raises(PySparkException, match="empties it before its rows are read"):
        write(read(spark, shop).orderBy("v"), shop, mode="overwrite", commit="task")
    assert counts(shop) == (ROWS, ROWS)
    write(read(spark, shop).where("v >= 100"), shop, mode="overwrite")
    assert counts(shop) == (ROWS - 100, ROWS - 100)


def test_a_transfer(spark: SparkSession, shop: Path) -> None:
    table = {"name": "sqlite", "path": str(shop), "dbtable": "t"}
    with pytest.raises(OptionError, match="'commit' to job"):
        spark_channel.transfer(spark, table, {**table, "commit": "task"}, channels=5)
    assert counts(shop) == (ROWS, ROWS)
    assert spark_channel.transfer(spark, table, table, channels=5).commit == "job"
    assert counts(shop) == (2 * ROWS, ROWS)
