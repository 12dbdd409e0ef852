"""Under a low limit rows reach Spark as they come, not 64 KiB at a time."""

import io
from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import spark_channel
from spark_channel.spark.worker import sent_as_they_come
from spark_channel.testing import VirtualClock
from tests.behaviour.faults.test_cancel import within
from tests.spark.daemon import in_a_worker_of_the_daemon


class Wire(io.RawIOBase):
    def __init__(self, *, is_broken: bool = False) -> None:
        self.came = b""
        self.is_broken = is_broken

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.is_broken:
            raise BrokenPipeError
        self.came += bytes(data)
        return len(data)


@pytest.mark.parametrize(("seconds", "at_the_third"), [(0.5, b"01"), (0.01, b"0")])
def test_batches_are_sent_before_the_next_one_is_waited_for(
    seconds: float, at_the_third: bytes
) -> None:
    """Not each of them, where they come fast."""
    wire, clock = Wire(), VirtualClock()
    outfile = io.BufferedWriter(wire)
    seen: list[bytes] = []

    def batches() -> Generator[bytes, None, None]:
        for number in range(3):
            seen.append(wire.came)
            clock.advance(seconds)
            yield b"%d" % number

    def work() -> None:
        for batch in sent_as_they_come(batches(), clock):
            outfile.write(batch)

    in_a_worker_of_the_daemon(work, outfile=outfile)
    assert seen == [b"", b"0", at_the_third]


def test_a_jvm_that_has_hung_up_is_left_to_its_watch() -> None:
    outfile = io.BufferedWriter(Wire(is_broken=True))
    ended: list[str] = []

    def batches() -> Generator[bytes, None, None]:
        try:
            yield b"0"
            yield b"1"
        finally:
            ended.append("closed")

    def work() -> None:
        found = sent_as_they_come(batches(), VirtualClock())
        outfile.write(next(found))
        assert next(found) == b"1"
        found.close()

    in_a_worker_of_the_daemon(work, outfile=outfile)
    assert ended == ["closed"]
    with pytest.raises(BrokenPipeError):
        outfile.flush()
    outfile.raw.is_broken = False  # or it would raise again when it is collected


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(batches)
    for _ in range(1_000):
        yield pa.record_batch({"n": pa.array(range(1_000), pa.int64())})


@pytest.mark.spark
@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["read", "throttle"])
def test_a_limited_show_waits_for_the_rows_that_it_shows(spark: SparkSession, kind: str) -> None:
    """64 KiB of one whole number a row are thousands of rows."""
    if kind == "read":
        frame = (
            spark.read.format("channel")
            .options(reader="generator", rows="1000000", rowsPerSecond="200", channels="1")
            .load()
            .select("id")
        )
    else:
        schema = StructType([StructField("n", LongType())])
        numbers = spark.range(1, numPartitions=1).mapInArrow(_numbers, schema)
        frame = spark_channel.throttle(numbers, rows_per_second=200)
    before = spark_channel.last_report()
    assert len(frame.take(3)) == 3
    assert within(60, lambda: spark_channel.last_report() is not before)
    report = spark_channel.last_report()
    assert report is not None
    assert report.rows < 2_000
