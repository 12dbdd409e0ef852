"""SIGTERM to a program that has registered its session: real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_channel.connectors.base.registry import find_connector
from spark_channel.errors import SourceError

pytestmark = [pytest.mark.spark, pytest.mark.newest]

ROOT = Path(__file__).resolve().parents[3]
BEGIN = """
import sys, time
from pyspark.sql import SparkSession
from spark_channel import register, transfer
from spark_channel.spark import session
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
target = sys.argv[1]
session._GRACE_SECONDS = 30  # of a busy machine
"""
WRITES = {
    "write": 'spark.range(1_000_000).repartition(2).write.format("channel").option("writer", "parquet")'
    '.option("rowsPerSecond", "1000").mode("append").save(target)',
    "transfer": 'transfer(spark, {"name": "generator", "rows": 1_000_000, "rowsPerSecond": 1000, '
    '"schema": "id BIGINT"}, {"name": "parquet", "path": target})',
}


def start(work: str, target: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", f"{BEGIN}\n{work}\nprint('went on', flush=True)\n", str(target)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", [pytest.param("write", marks=pytest.mark.soak), "transfer"])
def test_a_job_is_cancelled_and_what_it_staged_is_removed(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    program = start(f"print('begun', flush=True)\n{WRITES[kind]}", target)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    until = time.monotonic() + 90
    while (
        not list(target.rglob("*.parquet")) and program.poll() is None and time.monotonic() < until
    ):
        time.sleep(0.2)
    assert list(target.rglob("*.parquet")), "its tasks write"
    began = time.monotonic()
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 143, err[-3000:]
    assert "went on" not in out
    assert time.monotonic() - began < 20
    assert list(target.rglob("*.parquet")) == []


STREAM = """
rows = spark.readStream.format("rate").option("rowsPerSecond", 500).load().select("value")
writing = rows.writeStream.format("channel").option("writer", "parquet").option("path", target)
query = writing.option("checkpointLocation", target + "-checkpoint").trigger(processingTime="1 second").start()
print('begun', flush=True)
query.awaitTermination()
"""


@pytest.mark.soak
def test_a_streaming_query_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """Ended in the middle of a micro-batch or between two: the next start adds what is missing, and nothing twice."""
    target = tmp_path / "out"
    for times in (1, 2):
        program = start(STREAM, target)
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        before = len(published(target))
        until = time.monotonic() + 90
        while (
            len(published(target)) == before and program.poll() is None and time.monotonic() < until
        ):
            time.sleep(0.2)
        program.send_signal(signal.SIGTERM)
        _, err = program.communicate(timeout=60)
        assert program.returncode == 143, err[-3000:]
        values = published(target)
        assert len(values) > before, f"start {times} published"
        assert sorted(values) == list(range(len(values)))


def published(target: Path) -> list[int]:
    if not target.exists():
        return []
    options = {"path": str(target), "reader": "parquet"}
    try:
        reader, _ = find_connector(options, "reader").reader_with(options)
        read = (batch for split in reader.split(1) for batch in reader.read(split))
        return [value for batch in read for value in batch.column("value").to_pylist()]
    except SourceError:
        return []  # nothing is published yet


@pytest.mark.soak
def test_a_program_that_does_nothing_ends_at_once(tmp_path: Path) -> None:
    program = start("print('begun', flush=True)\ntime.sleep(600)", tmp_path)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=30)
    assert program.returncode == 143


@pytest.mark.soak  # tests/behaviour/faults/test_terminated.py has it without Spark
def test_a_handler_of_the_programs_own_stays(tmp_path: Path) -> None:
    work = (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "other = SparkSession.builder.getOrCreate().newSession()\nregister(other)\n"
        "print('begun', flush=True)\ntime.sleep(600)"
    )
    program = start(work, tmp_path)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=30)
    assert program.returncode == 7
