"""Sums of runs of buckets: by bucket where the sides differ, as wholes elsewhere; and DuckDB's sums."""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_channel
from spark_channel.connectors.duckdb.dialect import DuckdbDialect
from spark_channel.connectors.sql.catalog import Column
from spark_channel.verification import run as run_module
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


# DuckDB

OTHER_VALUES = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("1", "-1"),
    "INTEGER": ("0", "NULL"),
    "BIGINT": ("9223372036854775807", "-9223372036854775808"),
    "UBIGINT": ("18446744073709551615", "9223372036854775807"),
    "HUGEINT": ("99999999999999999999999999999999999999", "1"),
    "DECIMAL(10,2)": ("1.25", "1.26"),
    "FLOAT": ("0.1", "0.10000001"),
    "DOUBLE": ("'nan'", "'inf'"),
    "VARCHAR": ("'a'", "'a '"),
    "VARCHAR COLLATE NOCASE": ("'a'", "'A'"),
    "BLOB": ("'a'", "''"),
    "DATE": ("'2026-01-31'", "'2026-02-01'"),
    "TIME": ("'10:00:00.000001'", "'10:00:00'"),
    "TIMESTAMP": ("'2026-01-31 10:00:00.000001'", "'2026-01-31 10:00:00'"),
    "TIMESTAMP_NS": ("'2026-01-31 10:00:00.000000001'", "'2026-01-31 10:00:00'"),
    "TIMESTAMP WITH TIME ZONE": ("'2026-01-31 10:00:00+00'", "'2026-01-31 10:00:00+01'"),
    "UUID": (
        "'00000000-0000-0000-0000-000000000000'",
        "'00000000-0000-0000-0000-000000000001'",
    ),
    "JSON": ("'[1]'", "'[2]'"),
    "INTERVAL": ("INTERVAL 1 MONTH", "INTERVAL 30 DAY"),
    "BIT": ("'01'", "'1'"),
    "ENUM('x', 'y')": ("'x'", "'y'"),
}
"""Two values of each type, which differ."""
SAME_VALUES = {"DOUBLE": ("0.0", "-0.0"), "FLOAT": ("'nan'", "'-nan'"), "VARCHAR": ("NULL", "NULL")}
"""Two values of a type, which are compared as equal."""


def duck(path: Path, values: dict[str, tuple[str, str]], other: int) -> dict[str, Any]:
    """A table with a column of each type, in which row n has the other value of column n, if there is an `other`."""
    columns = [f"c{number}" for number in range(len(values))]
    types = ", ".join(f"{name} {kind}" for name, kind in zip(columns, values, strict=True))
    with duckdb.connect(str(path)) as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {types})")
        for row in range(len(values)):
            texts = [pair[other * (row == n)] for n, pair in enumerate(values.values())]
            db.execute(f"INSERT INTO t VALUES ({row}, {', '.join(texts)})")
        db.execute("CREATE MACRO hash(value) AS 1")
    return {"name": "duckdb", "path": str(path), "dbtable": "t"}


def test_duckdb_finds_a_changed_value_of_each_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_ROWS_PER_BUCKET", 1)
    one, same, other = (
        duck(tmp_path / f"{name}.duckdb", OTHER_VALUES, name == "other")
        for name in ("one", "same", "other")
    )
    report = spark_channel.verify(None, one, same, confirm=0)
    assert (report.outcome, report.equal, report.looks) == ("equal", len(OTHER_VALUES), 1)
    assert report.method.endswith("computed in the databases")
    report = spark_channel.verify(None, one, other, confirm=0)
    assert report.method.endswith("computed in the databases")
    assert report.columns == {f"c{number}": 1 for number in range(len(OTHER_VALUES))}


def test_duckdb_hashes_values_alike_that_are_compared_as_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (
        duck(tmp_path / f"{name}.duckdb", SAME_VALUES, name == "other") for name in ("one", "other")
    )
    monkeypatch.delattr(run_module.Verification, "_candidates")  # no range is read as rows
    report = spark_channel.verify(None, one, other, confirm=0)
    assert (report.outcome, report.equal) == ("equal", len(SAME_VALUES))
    assert report.method.endswith("computed in the databases")


def test_duckdb_hashes_no_nested_values_which_may_hold_texts() -> None:
    for declared in ("INTEGER[]", "STRUCT(a VARCHAR)", "MAP(VARCHAR, INTEGER)"):
        assert DuckdbDialect().row_hash([(Column("a", declared), "a")]) is None


@given(
    st.one_of(
        st.sets(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=40),
        st.builds(
            lambda least, span, count: {least + span * n // count for n in range(count)},
            st.integers(-(1 << 63), 1 << 62),
            st.integers(1, 1 << 61),
            st.integers(1, 40),
        ),
    ),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20),
)
@settings(max_examples=50, deadline=None)
def test_duckdb_numbers_a_range_by_the_edges_up_to_it(found: set[int], more: list[int]) -> None:
    edges = sorted(found)
    numbers = [*more, *edges, *(edge - 1 for edge in edges if edge > -(1 << 63)), (1 << 63) - 1]
    sql = (
        f"SELECT {DuckdbDialect().range_number('n', edges)} FROM (SELECT unnest(?::BIGINT[]) AS n)"
    )
    with duckdb.connect() as db:
        got = [number for (number,) in db.execute(sql, [numbers]).fetchall()]
    assert got == [bisect_right(edges, number) for number in numbers]
