"""Ranges of about equal rows, whatever share of them one value has; no database is asked."""

import math
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.sql.read.quantiles import (
    LARGE,
    beginnings,
    divisions,
    fair_rows,
    places_of,
    quantiles_of,
)
from spark_channel.planning import Split


def starts_of(rows: list[int]) -> list[tuple[int, float]]:
    """The beginnings of values 0, 1, 2, ... with so many rows each."""
    return [(value, before) for value, before in enumerate([0, *accumulate(rows)][:-1])]


@pytest.mark.parametrize(
    ("rows", "nulls", "advice", "bounds", "counts"),
    [
        ([1] * 8, 0, 4, [2, 4, 6], [2, 2, 2, 2]),
        ([1] * 5 + [90] + [1] * 5, 0, 10, [5, 6], [5, 90, 5]),
        ([90, 5, 5], 0, 10, [1], [90, 10]),
        ([5, 5, 90], 0, 10, [2], [10, 90]),
        ([100], 0, 4, [], [100]),
        ([7, 7, 7, 7], 0, 4, [1, 2, 3], [7, 7, 7, 7]),
        ([25, 25, 25], 25, 3, [1, 2], [25, 25, 25]),  # a third of the keys each, as without NULL
        ([10] * 10, 100, 4, [5], [50, 50]),  # NULLs are two of the parts
        ([1, 1], 0, 10, [1], [1, 1]),
        ([], 9, 3, [], [0]),
    ],
)
def test_a_value_of_many_rows_is_a_range_of_its_own(
    rows: list[int], nulls: int, advice: int, bounds: list[int], counts: list[int]
) -> None:
    found = quantiles_of(starts_of(rows), sum(rows), nulls, advice)
    assert found.bounds == [[bound] for bound in bounds]
    assert found.counts == counts
    assert (found.rows, found.nulls) == (sum(rows), nulls)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=80), st.integers(1, 20))
def test_only_a_range_that_begins_with_a_large_value_is_large(rows: list[int], advice: int) -> None:
    found = quantiles_of(starts_of(rows), sum(rows), 0, advice)
    fair = fair_rows(sum(rows), 0, advice)
    assert found.counts is not None
    assert sum(found.counts) == sum(rows)
    firsts = [0, *(bound[0] for bound in found.bounds)]
    assert firsts == sorted(set(firsts))
    for first, count in zip(firsts, found.counts, strict=True):
        assert count <= LARGE * fair + 1 or rows[first] >= fair
    assert sum(count < fair / 2 for count in found.counts) <= 1 + sum(n >= fair / 2 for n in rows)


@pytest.mark.parametrize(("parts", "places"), [(1, 8), (10, 80), (200, 1000), (5000, 5000)])
def test_more_places_than_ranges_are_looked_at_up_to_a_thousand(parts: int, places: int) -> None:
    assert places_of(parts) == places


def test_equal_values_and_those_without_a_literal_begin_nothing() -> None:
    places = [(-math.inf, 0), (-math.inf, 0), (1.5, 2), (1.5, 2), (2.5, 9), (math.inf, 12)]
    assert beginnings(places) == [(-math.inf, 0), (1.5, 2), (2.5, 9)]


def test_a_division_is_told_once_for_each_column() -> None:
    part = {"key": ["id"], "lower": None, "upper": [5]}
    null = {"kind": "null", "key": ["k"]}
    splits = [Split({"kind": "all"}), Split({**null, "part": part}), Split({**null, "part": part})]
    (line,) = divisions(splits)
    assert Counter(line.split())["2"] == 1
    assert line.startswith("'k' has the same value")
    assert line.endswith("by id")
