"""Sums of runs of buckets: by bucket where the sides differ, as wholes elsewhere."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.verification.compare import Buckets, Checksums
from spark_channel.verification.in_database import Run, Summed, sums_of_runs

BUCKETS = Buckets(np.arange(1, 200, dtype=np.int64))


class Sides:
    """Two sides of one row in each bucket, and the runs that were summed."""

    def __init__(self, differ: Sequence[int]) -> None:
        self.rows = [np.ones(BUCKETS.count, np.int64) for _ in range(2)]
        self.sums = [np.arange(BUCKETS.count, dtype=np.uint64) for _ in range(2)]
        changed = np.array(differ, np.int64)
        self.sums[1][changed] += (changed + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self.asked: list[tuple[Summed, int]] = []

    def summed(self, runs: Sequence[Run], what: Summed) -> tuple[Checksums, Checksums]:
        found = Checksums.none(BUCKETS.count), Checksums.none(BUCKETS.count)
        self.asked.append((what, sum(last - first + 1 for first, last in runs)))
        for number, own in enumerate(found):
            for first, last in runs:
                here = slice(first, last + 1)
                if what == "buckets":
                    own.rows[here] += self.rows[number][here]
                    own.sums[here] += self.sums[number][here]
                    continue
                own.rows[first] += self.rows[number][here].sum()
                if what == "runs":
                    own.sums[first] += self.sums[number][here].sum()
        return found


@given(st.sets(st.integers(0, BUCKETS.count - 1)), st.integers(0, 20_000_000))
@settings(max_examples=60, deadline=None)
def test_the_buckets_that_differ_are_found_whatever_the_size_of_a_run(
    differ: set[int], rows: int
) -> None:
    sides = Sides(sorted(differ))
    one, other = sums_of_runs(BUCKETS, rows, sides.summed)
    found = set(np.flatnonzero(one.differ(other)).tolist())
    assert found >= differ
    assert found == differ or ("counts", 201 - sides.asked[0][1]) in sides.asked
    assert (one.rows.sum(), other.rows.sum()) == (BUCKETS.count, BUCKETS.count)
    assert sum(count for _, count in sides.asked) <= 2 * BUCKETS.count


def test_equal_tables_are_summed_once_and_mostly_in_whole_runs() -> None:
    sides = Sides([])
    sums_of_runs(BUCKETS, 20_000_000, sides.summed)
    assert sides.asked == [("buckets", 14), ("runs", BUCKETS.count - 14)]


def test_a_run_that_differs_is_summed_again_and_no_other() -> None:
    sides = Sides([100])
    sums_of_runs(BUCKETS, 20_000_000, sides.summed)
    assert sides.asked[2:] == [("buckets", 1)]


def test_runs_of_which_many_differ_are_summed_once() -> None:
    sides = Sides(range(0, BUCKETS.count, 8))
    sums_of_runs(BUCKETS, 1_600_000, sides.summed)
    assert [what for what, _ in sides.asked] == ["buckets", "buckets"]
    assert sum(count for _, count in sides.asked) == BUCKETS.count


def test_buckets_of_which_most_differ_are_counted_and_not_summed() -> None:
    sides = Sides(range(0, BUCKETS.count, 2))
    one, other = sums_of_runs(BUCKETS, 1_600_000, sides.summed)
    assert [what for what, _ in sides.asked] == ["buckets", "counts"]
    assert one.rows.sum() == other.rows.sum() == BUCKETS.count
    assert np.count_nonzero(one.differ(other)) > 0.9 * BUCKETS.count
