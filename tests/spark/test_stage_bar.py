"""Spark's bar of stages and our live line share a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import spark_channel

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.ui.showConsoleProgress", "true").getOrCreate()
)
spark_channel.register(spark)
rows = spark.read.format("channel").option("reader", "generator").option("rows", 3000).option("columns", "id")
rows.option("rowsPerSecond", 1000).option("jobId", "slow-rows").load().write.format("noop").mode("overwrite").save()
print("OURS ENDED", file=sys.stderr, flush=True)
spark.range(1).rdd.map(lambda row: __import__("time").sleep(3)).count()
"""


@pytest.mark.timeout(180)
def test_sparks_bar_does_not_run_into_the_live_line_and_is_back_afterwards(tmp_path: Path) -> None:
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.DEVNULL,
        stderr=other,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"},
    )
    os.close(other)
    seen = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        seen += part
    os.close(main)
    assert process.wait(60) == 0, seen
    ours, after = seen.decode().split("OURS ENDED")
    shown = ours[ours.index("slow-rows") :]
    assert re.search(r"\d % \d+ rows", re.sub(r"\x1b\[[\d;]*m", "", shown)), "the live line"
    assert "[Stage" not in shown
    assert "[Stage" in after
