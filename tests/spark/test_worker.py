"""What pyspark collects after each task of a reused worker: next to nothing of what is loaded."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

_TWICE = """
import gc
import spark_channel.spark.read, spark_channel.transfers.task
from spark_channel.processes import keep_loaded
before, begun = len(gc.get_objects()), gc.get_freeze_count()  # Python 3.12 begins with some
keep_loaded()
frozen = gc.get_freeze_count()
keep_loaded()
print(before, len(gc.get_objects()), frozen - begun, gc.get_freeze_count() - begun)
"""


@pytest.mark.parametrize("reused", [True, False])
def test_what_is_loaded_is_left_out_once_in_a_reused_worker(reused: bool) -> None:
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **({"SPARK_REUSE_WORKER": "1"} if reused else {}),
    }
    command = [sys.executable, "-c", _TWICE]
    counts = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    before, after, frozen, again = map(int, counts)
    if reused:
        assert after < before / 10
        assert frozen == again > before / 2, "later objects are collected as ever"
    else:
        assert frozen == again == 0


@pytest.mark.spark
@pytest.mark.newest
def test_after_a_read_its_worker_is_settled(spark: SparkSession) -> None:
    """Before Spark 4.1 the workers of data sources run nothing else that could look."""
    frame = (
        spark.read.format("channel").options(reader="generator", rows="100", channels="1").load()
    )
    assert frame.count() == 100

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    rows = spark.range(0, 8, 1, 8).mapInArrow(frozen, "frozen long").collect()
    assert max(row.frozen for row in rows) > 10_000
