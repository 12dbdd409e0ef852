"""Micro-batches as their stream's lines."""

from typing import Any

import pytest

from spark_channel.progress import (
    Counters,
    JobProgress,
    JobSpec,
    Phase,
    StreamLog,
    TransferReport,
    lag_text,
)
from spark_channel.testing import VirtualClock


def batch(
    clock: VirtualClock,
    number: int,
    rows: int = 500,
    *,
    job: str = "",
    failed: bool = False,
    **spec: Any,
) -> JobProgress:
    """A micro-batch of `rows` in one second, over."""
    given: dict[str, Any] = {
        "name": "orders",
        "source": "sqlite shop.db#orders",
        "rows_per_second": 1000,
        **spec,
    }
    progress = JobProgress(
        job or f"job-{number}", JobSpec("read", batch=number, **given), clock=clock
    )
    counters = Counters(0, 1, clock=clock)
    clock.advance(1)
    counters.pushed(rows, rows * 8)
    counters.enter(Phase.DONE)
    progress.update(counters.snapshot())
    progress.enter(Phase.FAILED if failed else Phase.DONE, error="no room" if failed else "")
    return progress


def test_a_line_tells_rows_speed_limit_and_lag() -> None:
    clock, board = VirtualClock(), StreamLog()
    board.closed(batch(clock, 11), 0.0)
    board.closed(batch(clock, 12, 1500, behind="behind 12.4k rows, 3 s"), 1.0)
    (line,) = board.last()
    assert line == (
        "orders - batch 12: 1 500 rows (12kB) in 1.0 s, 1.5k/s of 1k/s - behind 12.4k rows, 3 s - "
        "2 000 rows in 2 batches"
    )


def test_a_batchs_report_tells_how_far_it_was_behind() -> None:
    report = batch(VirtualClock(), 1, behind="behind 5 rows, slot keeps 8MB of WAL").report()
    assert report.behind == "behind 5 rows, slot keeps 8MB of WAL"
    assert TransferReport.from_json(report.to_json()) == report
    assert "at its end: behind 5 rows, slot keeps 8MB of WAL" in str(report).splitlines()
    without = batch(VirtualClock(), 1).report().to_json()
    assert "behind" not in without
    assert '"lag"' not in without
    lag = {"rows": 5, "seconds": 2.5, "wal_kept_bytes": 8 << 20, "seconds_ago": 0.0}
    report = batch(VirtualClock(), 1, lag=lag).report()
    assert report.lag == lag
    assert TransferReport.from_json(report.to_json()).lag == lag
    assert JobSpec.from_json(JobSpec("read", lag=lag).to_json()).lag == lag


def test_the_speed_of_a_batch_names_the_time_it_is_of() -> None:
    """1 500 rows in 4 s are no 1.5k rows/s: Spark needed 3 s to start its workers."""
    clock, board = VirtualClock(), StreamLog()
    progress = JobProgress("j", JobSpec("read", name="orders", batch=1), clock=clock)
    clock.advance(3)
    counters = Counters(0, 1, clock=clock)
    clock.advance(1)
    counters.pushed(1500, 12_000)
    counters.enter(Phase.DONE)
    progress.update(counters.snapshot())
    progress.enter(Phase.DONE)
    board.closed(progress, 4.0)
    assert board.last()[0].startswith(
        "orders - batch 1: 1 500 rows (12kB) in 4.0 s, 1.5k/s over the 1.0 s in which rows moved - "
    )


def test_the_lines_before_come_once_per_stream() -> None:
    clock, board = VirtualClock(), StreamLog()
    first = board.opened(batch(clock, 0), 0.0)
    assert first[0] == "stream orders: shop.db orders -> Spark"
    assert first[-1] == "limit 1k rows/s for the whole job"
    assert board.opened(batch(clock, 1), 1.0) == []
    other = board.opened(batch(clock, 0, name="items"), 1.0)
    assert other[0].startswith("stream items:")


def test_a_log_has_the_first_batch_and_one_each_half_minute() -> None:
    clock, board = VirtualClock(), StreamLog()
    said = []
    for number in range(70):
        board.closed(batch(clock, number), clock.now())
        said += [line.partition(":")[0] for line in board.due(clock.now(), 30.0)]
    assert said == ["orders - batch 0", "orders - batch 30", "orders - batch 60"]
    (last,) = board.silent(clock.now() + 60)
    assert "batch 69" in last
    assert "35 000 rows in 70 batches" in last
    assert board.is_empty()
    assert board.silent(clock.now() + 120) == []


def test_a_stream_that_has_said_all_ends_without_a_word_and_goes_on_later() -> None:
    clock, board = VirtualClock(), StreamLog()
    board.closed(batch(clock, 0), 0.0)
    assert len(board.due(0.0, 30.0)) == 1
    assert board.silent(59.0) == []
    assert not board.is_empty()
    assert board.silent(60.0) == []
    assert board.is_empty()
    assert board.opened(batch(clock, 1), 300.0) == []
    board.closed(batch(clock, 1), 301.0)
    assert "1 000 rows in 2 batches" in board.due(301.0, 30.0)[0]


def test_the_ranges_of_one_batch_are_one_batch() -> None:
    clock, board = VirtualClock(), StreamLog()
    for part in range(3):
        board.closed(batch(clock, 4, 100, job=f"range-{part}"), 0.0)
    again = batch(clock, 4, 130, job="range-1")  # it was closed too early, and went on
    board.closed(again, 0.0)
    assert "batch 4: 330 rows" in board.last()[0]
    assert board.last()[0].endswith("330 rows in 1 batch")


def test_a_batch_that_failed_says_why() -> None:
    clock, board = VirtualClock(), StreamLog()
    board.closed(batch(clock, 4, failed=True), 0.0)
    assert "failed: no room" in board.last()[0]


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        ((0, 0, 0.0), "up to date"),
        ((0, None, None), "up to date"),
        ((12_400, 99, 3.2), "behind 12.4k rows (99B), 3 s"),
        ((0, 5_000_000, 0.0), "behind 0 rows (5MB)"),
        ((12_400, None, None), "behind 12.4k rows"),
        ((None, 5_000_000, 200.0), "behind 5MB, 3:20"),
        ((None, None, 7.0), "behind 7 s"),
        ((None, None, None), ""),
    ],
)
def test_lag_is_told_by_what_is_known(
    lag: tuple[int | None, int | None, float | None], text: str
) -> None:
    assert lag_text(*lag) == text
