"""Many short Spark tasks under a limit: a task's start and end must cost no budget.

Where a machine cannot run so many tasks as fast as the limit, the same tasks without one say what could be had: the
figure of the second kind is the share of that.
"""

import statistics
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

import spark_channel
from tests.benchmarks.harness import Row, spark_session

ROWS = 336_776
LIMIT = 60_000
COUNTS = (2, 8, 50, 200)
ROUNDS = 3


def moving_seconds(frame: DataFrame, **options: int) -> float:
    """From the first task's beginning to the last row."""
    frame.write.format("channel").option("writer", "discard").options(**options).mode(
        "append"
    ).save()
    report = spark_channel.last_report()
    assert report is not None
    assert report.rows == ROWS
    return report.moving_seconds


def rows_of(spark: SparkSession, count: int) -> list[Row]:
    frame = spark.range(0, ROWS, 1, count)
    limited: Callable[[], float] = lambda: moving_seconds(frame, rowsPerSecond=LIMIT)  # noqa: E731 - two of a kind, side by side
    free: Callable[[], float] = lambda: moving_seconds(frame)  # noqa: E731 - two of a kind, side by side
    free()
    pairs = [(limited(), free()) for _ in range(ROUNDS)]
    used = statistics.median(ROWS / LIMIT / held for held, _ in pairs)
    had = statistics.median(max(ROWS / LIMIT, alone) / held for held, alone in pairs)
    alone = statistics.median(each for _, each in pairs)
    note = f"without a limit the same tasks take {alone:.1f} s, {ROWS / alone / LIMIT:.1f} times the limit"
    return [
        Row(
            f"{count} tasks through Spark: share of the limit used", 100 * used, ">= 95", "%", note
        ),
        Row(f"{count} tasks through Spark: share of what could be had", 100 * had, ">= 95", "%"),
    ]


def main() -> list[Row]:
    spark = spark_session(progress=True, unix_sockets=True)
    try:
        return [row for count in COUNTS for row in rows_of(spark, count)]
    finally:
        spark.stop()
