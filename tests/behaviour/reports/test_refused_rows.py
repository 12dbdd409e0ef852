"""Dirty rows of `df.write.format("channel")`: counted over the job, kept with the reason."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_channel

pytestmark = [pytest.mark.spark, pytest.mark.newest]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A table that refuses ids below 0, and ids that it has."""
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY CHECK (id >= 0), s TEXT)")
    return path


def ids(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [each for (each,) in connection.execute("SELECT id FROM t ORDER BY id")]


def write(spark: SparkSession, query: str, target: Path, **options: object) -> None:
    frame = spark.sql(query).write.format("channel").options(dbtable="t", **options)  # type: ignore[arg-type] # mypy does not see what a mapping has
    frame.mode("append").save(str(target))


BAD = "select if(id % 100 = 7, -id, id) id, concat('s', id) s from range(0, 1000, 1, 4)"


def test_the_good_rows_arrive_and_the_bad_ones_are_kept(
    spark: SparkSession, tmp_path: Path, target: Path
) -> None:
    kept = tmp_path / "dirty"
    write(spark, BAD, target, maxDirtyRows=10, dirtyRowsPath=str(kept), jobId="nightly")
    assert ids(target) == [n for n in range(1000) if n % 100 != 7]
    dirty = spark.read.parquet(str(kept)).orderBy("row").collect()
    assert sorted(-json.loads(row.row)["id"] for row in dirty) == list(range(7, 1000, 100))
    assert {row.job.rpartition("-")[0] for row in dirty} == {"nightly"}
    assert {row.target for row in dirty} == {f"sqlite {target}#t"}
    assert {row.task for row in dirty} == {0, 1, 2, 3}
    assert all("CHECK constraint failed" in row.reason for row in dirty)
    report = spark_channel.last_report()
    assert report is not None
    assert (report.rows, report.rows_dirty) == (990, 10)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"maxDirtyRows": 9}, r"rows were refused, and maxDirtyRows is 9"),
        (
            {"maxDirtyFraction": 0.009},
            r"10 rows were refused of 1000 \(1 %\), and maxDirtyFraction is 0.009",
        ),
    ],
)
def test_one_row_too_many_ends_the_job_and_keeps_the_rows(
    spark: SparkSession, tmp_path: Path, target: Path, options: dict[str, object], why: str
) -> None:
    kept = tmp_path / "dirty"
    with pytest.raises(PySparkException, match=rf"(?s)DirtyRowsError.*{why}"):
        write(spark, BAD, target, dirtyRowsPath=str(kept), **options)
    assert spark.read.parquet(str(kept)).count() == 10
    report = spark_channel.last_report()
    assert report is not None
    assert report.phase == "failed"
    assert "refused" in report.error


def test_all_rows_dirty_stop_early(spark: SparkSession, target: Path) -> None:
    query = "select -1 - id id, 's' s from range(0, 120000, 1, 12)"
    with pytest.raises(PySparkException, match=r"(?s)DirtyRowsError.*maxDirtyRows is 20"):
        write(spark, query, target, maxDirtyRows=20)
    assert ids(target) == []
    report = spark_channel.last_report()
    assert report is not None
    assert report.rows_dirty < 12 * 21 / 2, "tasks that began later heard of it"


def test_without_leave_a_bad_row_fails_the_job(spark: SparkSession, target: Path) -> None:
    with pytest.raises(PySparkException, match="CHECK constraint failed"):
        write(spark, BAD, target)
    with pytest.raises(PySparkException, match=r"(?s)OptionError.*need commit=task"):
        write(spark, BAD, target, maxDirtyRows=1, commit="job")


def test_files_refuse_nothing_and_take_the_options(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        spark.range(10)
        .write.format("channel")
        .option("writer", "parquet")
        .option("maxDirtyRows", 5)
    )
    frame.option("dirtyRowsPath", str(tmp_path / "dirty")).mode("append").save(
        str(tmp_path / "out")
    )
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10
