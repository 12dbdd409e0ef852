"""Bisecting: every good row is written once and in order, every bad row is refused once."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.base.contract import bisect_refused
from spark_channel.errors import BatchRefusedError, TargetError
from tests.pipeline.fakes import batch


class Target:
    """Refuses batches that hold a bad number, or a number it has already."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.held: list[int] = []
        self.calls = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self.calls += 1
        numbers = rows.column(0).to_pylist()
        if (
            len(set(numbers)) < len(numbers)
            or self.bad & set(numbers)
            or set(self.held) & set(numbers)
        ):
            raise BatchRefusedError(f"one of {numbers} is refused")
        self.held += numbers


def sifted(target: Target, rows: pa.RecordBatch) -> list[tuple[int, str]]:
    refused: list[tuple[int, str]] = []
    bisect_refused(
        rows, target.write, lambda row, why: refused.append((row.column(0)[0].as_py(), why))
    )
    return refused


@given(st.integers(1, 200), st.sets(st.integers(0, 199)))
def test_the_bad_rows_are_found_and_no_good_one_is_lost(rows: int, bad: set[int]) -> None:
    target = Target(bad)
    refused = sifted(target, batch(0, rows))
    assert target.held == [n for n in range(rows) if n not in bad]
    assert [n for n, _ in refused] == sorted(n for n in bad if n < rows)
    assert all(why == f"one of [{n}] is refused" for n, why in refused)


def test_one_bad_row_costs_two_calls_a_level() -> None:
    target = Target({777})
    assert [n for n, _ in sifted(target, batch(0, 1024))] == [777]
    assert target.calls <= 2 * math.log2(1024) + 1


@pytest.mark.parametrize("every", [1, 2, 3, 10, 100])
def test_many_bad_rows_cost_less_than_the_halves_of_each_batch(every: int) -> None:
    rows, most = 1000, {1: 1010, 2: 1510, 3: 1350, 10: 710, 100: 140}
    target = Target(set(range(0, rows, every)))
    assert len(sifted(target, batch(0, rows))) == rows // every + (rows % every > 0)
    assert target.calls <= most[every]


def test_a_batch_without_bad_rows_is_written_as_it_is() -> None:
    target = Target(set())
    assert sifted(target, batch(0, 50)) == []
    assert target.calls == 1


def test_of_two_rows_with_one_key_the_first_stays() -> None:
    target = Target(set())
    rows = pa.record_batch({"n": pa.array([1, 2, 1, 3], pa.int64())})
    assert [n for n, _ in sifted(target, rows)] == [1]
    assert target.held == [1, 2, 3]


def test_other_errors_end_it() -> None:
    def broken(_rows: pa.RecordBatch) -> None:
        raise TargetError("the disk is full")

    with pytest.raises(TargetError, match="disk is full"):
        bisect_refused(batch(0, 4), broken, lambda _row, _why: None)


def test_a_batch_without_rows_that_is_refused_is_an_error() -> None:
    def broken(_rows: pa.RecordBatch) -> None:
        raise BatchRefusedError("nothing")

    with pytest.raises(BatchRefusedError, match="nothing"):
        bisect_refused(batch(0, 0), broken, lambda _row, _why: None)


def test_too_many_bad_rows_end_it_at_once() -> None:
    target, refused = Target(set(range(100))), []

    def refuse(row: pa.RecordBatch, _why: str) -> None:
        refused.append(row)
        if len(refused) == 3:
            raise TargetError("too many")

    with pytest.raises(TargetError, match="too many"):
        bisect_refused(batch(0, 100), target.write, refuse)
    assert len(refused) == 3
