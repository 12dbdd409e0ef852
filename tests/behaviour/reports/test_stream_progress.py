"""What is reported of a stream while it runs: for each micro-batch its rows, the limit, and how far it is behind."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_channel.connectors.base.feed import FeedLag
from spark_channel.errors import SourceError
from spark_channel.progress import JobProgress, TransferReport
from spark_channel.spark import session as sessions
from spark_channel.testing import VirtualClock
from spark_channel.tunnel.positions import LagWatch, base_words, brief_words, kept_words
from tests.spark.test_stream_read import fill, run
from tests.tunnel.children import ADMISSION


class Heard:
    """Hears of the jobs that are over."""

    def __init__(self) -> None:
        self.batches: list[tuple[JobProgress, TransferReport]] = []

    def job_opened(self, progress: JobProgress) -> None:
        """It is counted when it is over."""

    def job_closed(self, progress: JobProgress) -> None:
        if progress.spec.batch is not None:
            self.batches.append((progress, progress.report()))

    def rows(self, kind: str) -> dict[int | None, int]:
        """Rows by the number of the batch."""
        return {job.spec.batch: report.rows for job, report in self.batches if report.kind == kind}


@pytest.fixture
def heard(spark: SparkSession) -> Iterator[Heard]:
    (server,) = sessions._services.values()
    listener = Heard()
    server.jobs.subscribe(listener)
    yield listener
    server.jobs.unsubscribe(listener)


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_each_micro_batch_is_counted_at_both_ends(
    spark: SparkSession, heard: Heard, tmp_path: Path
) -> None:
    shop, target = tmp_path / "shop.db", tmp_path / "copy.db"
    run(shop, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(shop, 1, 100)
    options = {
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
        "rowsPerSecond": "1k",
        "jobId": "shop",
        **({"maxRowsPerTrigger": "40"} if ADMISSION else {}),
    }
    query = (
        spark.readStream.format("channel")
        .options(**options)
        .load(str(shop))
        .writeStream.format("channel")
        .option("path", str(target))
        .option("dbtable", "copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    expected = {0: 40, 1: 40, 2: 20} if ADMISSION else {0: 100}
    assert heard.rows("read") == expected
    assert heard.rows("write") == expected
    specs = [job.spec for job, report in heard.batches if report.kind == "read"]
    assert {(spec.name, spec.rows_per_second) for spec in specs} == {("shop", 1000)}
    assert specs[0].behind == ("behind 60 rows (1.14kB)" if ADMISSION else "up to date")


def test_the_source_is_seldom_asked_how_far_it_is_ahead() -> None:
    clock, asked = VirtualClock(), []

    def lag() -> FeedLag:
        asked.append(clock.now())
        clock.advance(0.5)
        return FeedLag(len(asked) * 1000, None, None)

    watch = LagWatch(clock=clock)
    said = []
    for _ in range(120):
        said.append(watch.look(lag))
        clock.advance(1)
    assert len(asked) == 3, "a question of half a second is asked again after 50"
    assert said[0] == ("behind 1k rows", {"rows": 1000, "seconds_ago": 0.0})
    assert said[7] == ("behind 1k rows (7 s ago)", {"rows": 1000, "seconds_ago": 7.0})
    assert list(dict.fromkeys(text.partition(" (")[0] for text, _ in said)) == [
        "behind 1k rows",
        "behind 2k rows",
        "behind 3k rows",
    ]


def test_a_source_that_does_not_answer_fails_no_stream() -> None:
    clock = VirtualClock()
    watch = LagWatch(clock=clock)

    def broken() -> FeedLag:
        raise SourceError("it is away")

    assert watch.look(broken) == ("", {})
    clock.advance(11)
    assert watch.look(lambda: FeedLag(0, 0, 0.0))[0] == "up to date"
    clock.advance(11)
    assert watch.look(broken) == ("", {}), "an unknown lag is not reported"


def test_a_source_that_fails_late_is_asked_again_soon() -> None:
    """After an answer that took half a minute, the next question would wait for 50 minutes."""
    clock = VirtualClock()
    watch = LagWatch(clock=clock)

    def late() -> FeedLag:
        clock.advance(30.0)
        raise SourceError("timeout")

    assert watch.look(late) == ("", {})
    clock.advance(299.0)
    assert watch.look(lambda: FeedLag(0, 0, 0.0)) == ("", {})
    clock.advance(1.0)
    assert watch.look(lambda: FeedLag(0, 0, 0.0))[0] == "up to date"


def test_it_tells_how_much_of_the_base_is_read_and_what_the_slot_keeps() -> None:
    watch = LagWatch(clock=VirtualClock())
    lag = FeedLag(380_000, 5_000, 2.0, 8 << 20, 100_000, 480_000, 5)
    text, numbers = watch.look(lambda: lag)
    assert text == (
        "behind 380k rows (5kB), 2 s, base 5 of 24 chunks (100k of 480k rows), slot keeps 8.39MB of WAL"
    )
    assert numbers == {
        "rows": 380_000,
        "bytes": 5_000,
        "seconds": 2.0,
        "wal_kept_bytes": 8 << 20,
        "base_rows_read": 100_000,
        "base_rows": 480_000,
        "base_chunks_read": 5,
        "base_chunks": 24,
        "seconds_ago": 0.0,
    }
    held = replace(lag, base_held=True)
    assert brief_words(held) == (
        "base 5 of 24 chunks (100k of 480k rows) paused by maxSlotLag, slot keeps 8.39MB of WAL"
    )
    assert base_words(held) == (
        "5 of about 24 chunks, 100 000 of about 480 000 existing rows are read, "
        "paused since the slot keeps more than maxSlotLag"
    )
    assert base_words(replace(lag, base_rows=None, base_chunks=None), paused=True) == (
        "100 000 existing rows are read, paused by pause-base"
    )
    assert kept_words(lag) == "its slot makes the server keep 8 388 608 bytes of WAL"
    assert {each(FeedLag(5)) for each in (base_words, kept_words, brief_words)} == {""}


def test_it_says_that_new_rows_wait_for_late_ones() -> None:
    clock = VirtualClock()
    watch = LagWatch(10.0, clock=clock)
    assert (
        watch.look(lambda: FeedLag(60, None, None))[0]
        == "behind 60 rows, new rows wait 10 s for late ones"
    )
    clock.advance(11)
    assert watch.look(lambda: FeedLag(0, 0, 0.0))[0] == "up to date"
