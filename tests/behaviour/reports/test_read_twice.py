"""Reports of plans that one job reads more than once: each row counts as often as it was read."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_channel

pytestmark = pytest.mark.spark

ROWS = 1000


@pytest.mark.parametrize(
    ("use", "passes", "rows"),
    [
        (lambda df: df.union(df), 2, 2 * ROWS),
        (lambda df: df.union(df).coalesce(1), 2, 2 * ROWS),
        (lambda df: df.union(df).union(df).coalesce(2), 3, 3 * ROWS),
        (lambda df: df.coalesce(1), 1, ROWS),
        (lambda df: df.hint("merge").join(df.filter("id >= 0"), "name"), 2, ROWS),
    ],
    ids=[
        "union",
        "union in one task",
        "three in two tasks",
        "one task",
        "self-join",
    ],
)
@pytest.mark.parametrize("is_throttled", [False, True])
def test_each_pass_over_a_plan_counts(
    spark: SparkSession,
    tmp_path: Path,
    use: Callable[[DataFrame], DataFrame],
    passes: int,
    rows: int,
    is_throttled: bool,
) -> None:
    for name in ("a", "b"):
        lines = "".join(f"{n},{name}{n}\n" for n in range(ROWS // 2))
        (tmp_path / f"{name}.csv").write_text(f"id,name\n{lines}")
    df = spark.read.format("channel").options(reader="csv", channels=2).load(str(tmp_path))
    if is_throttled:
        df = spark_channel.throttle(spark.read.csv(str(tmp_path), header=True), "10M")
    assert len(use(df).collect()) == rows
    report = spark_channel.last_report()
    assert report is not None
    assert (report.kind, report.rows) == ("throttle" if is_throttled else "read", passes * ROWS)
    assert report.attempts == report.tasks


def test_a_cached_dataframe_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id\n" + "".join(f"{n}\n" for n in range(ROWS)))
    df = spark.read.format("channel").load(str(path)).cache()
    try:
        assert df.union(df).count() == 2 * ROWS
        report = spark_channel.last_report()
        assert report is not None
        assert report.rows == ROWS
    finally:
        df.unpersist()


def test_a_checkpointed_dataframe_is_read_once(spark: SparkSession) -> None:
    options = {"reader": "generator", "rows": str(ROWS), "rowsPerSecond": "10k"}
    df = spark.read.format("channel").options(**options).load().localCheckpoint()
    report = spark_channel.last_report()
    assert report is not None
    assert (report.kind, report.rows) == ("read", ROWS)
    assert df.union(df).count() == 2 * ROWS
    again = spark_channel.last_report()
    assert again is not None
    assert again.job == report.job


def test_a_join_that_spark_plans_anew_while_it_runs_is_written_once(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """AQE splits the partition of the frequent key, and joins small ones: no one knows the tasks before."""
    settings = {
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1k",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1.5",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4k",
        "spark.sql.adaptive.forceOptimizeSkewedJoin": "true",
        "spark.sql.shuffle.partitions": "8",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)

    def put_back() -> None:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)

    request.addfinalizer(put_back)
    orders = spark.range(0, 20 * ROWS, 1, 4).selectExpr("id", "if(id % 20 < 17, 0, id % 20) k")
    names = spark.range(20).selectExpr("id k", "cast(id AS string) name")
    joined = orders.join(names.hint("shuffle_merge"), "k")
    options = {"dbtable": "t", "rowsPerSecond": "100k"}
    joined.write.format("channel").options(**options).mode("append").save(str(tmp_path / "t.db"))
    report = spark_channel.last_report()
    assert report is not None
    assert report.rows == 20 * ROWS
    assert report.tasks not in (4, 8), "AQE did not change the plan"
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone()
    assert counts == (20 * ROWS, 20 * ROWS)
