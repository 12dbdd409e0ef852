"""Reports of plans that one job reads more than once: each row counts as often as it was read."""

from collections.abc import Callable
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
