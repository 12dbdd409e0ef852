"""Loops that size their steps by the time of the last one, where a step takes long whatever its size is."""

import pytest

from spark_channel.clock import FixedSeconds
from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.testing.clock import VirtualClock
from spark_channel.tunnel.channel import RangeSize
from spark_channel.verification.in_database import _next_count

_FIXED, _PER_ROW = 3.0, 1e-5


def test_the_part_that_the_size_does_not_change_is_left_out() -> None:
    fixed = FixedSeconds()
    assert fixed.took(100, 5.0) == 5.0
    assert fixed.took(50, 4.5) == pytest.approx(0.5)
    assert fixed.seconds == pytest.approx(4.0)
    assert fixed.took(49, 4.49) == pytest.approx(0.49)
    assert fixed.took(100, 1.0) == pytest.approx(0.0), "a step is never shorter than its fixed part"
    assert fixed.took(50, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("fixed", [0.0, 1.0, _FIXED, 60.0])
def test_ten_times_the_changes_take_about_ten_times_the_ranges_at_most(fixed: float) -> None:
    counts = []
    for changes in (100_000, 1_000_000):
        size, left, ranges = RangeSize(FeedLimit(), 0.4), changes, 0
        while left:
            rows = min(left, size.limit().rows or left)
            size.took(fixed + rows * _PER_ROW, rows)
            left, ranges = left - rows, ranges + 1
        counts.append(ranges)
    assert counts[1] <= min(40, 10 * counts[0]), counts


def test_a_range_whose_rows_take_long_shrinks_all_the_same() -> None:
    size = RangeSize(FeedLimit(), 0.4)
    for _ in range(20):
        rows = size.limit().rows or 0
        size.took(0.1 + rows * 1e-3, rows)
    assert (size.limit().rows or 0) <= 500


def test_a_statement_that_scans_its_table_is_not_divided_down_to_one_bucket() -> None:
    count, fixed, statements, left = 1000, FixedSeconds(), 0, 100_000
    while left:
        asked = min(count, left)
        count = _next_count(count, asked, asked * 10, 10**9, fixed.took(asked, 30.0 + asked * 1e-4))
        left, statements = left - asked, statements + 1
    assert statements <= 60, statements


def test_a_read_whose_statements_search_long_keeps_their_rows() -> None:
    pacer = ReadPacer(0.01, seconds=5.0, clock=VirtualClock())
    pacer.fits(BatchSize(10_000, 1 << 30), 100)
    asked = 10_000
    for _ in range(20):
        pacer.answered(asked, asked, asked * 100, 20.0 + asked * 1e-5)
        asked = pacer._fitting
    assert asked >= 5_000


@pytest.mark.parametrize("tables", [300, 3_000, 30_000])
def test_ranges_that_plan_all_tables_and_read_some_take_twice_their_rows_at_most(
    tables: int,
) -> None:
    """Each table has five rows."""
    size, left, seconds = RangeSize(FeedLimit(), 0.4), tables, 0.0
    while left:
        read = min(left, (size.limit().rows or 0) // 5)
        planning, reading = tables * 1e-3, read * 0.05
        size.took(reading, 5 * read, planning)
        left, seconds = left - read, seconds + planning + reading
    assert seconds <= 2.1 * tables * 0.05
