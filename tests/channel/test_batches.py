"""Shares of bytes: sums are exact, bounds are kept, and nothing smaller would have done."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.channel.batches import (
    BatchQueue,
    SizedBatch,
    bytes_between,
    measure,
    rows_within,
)
from tests.channel.helpers import numbers, rows

sizes = st.tuples(st.integers(0, 500), st.integers(1, 60))


@settings(deadline=None)
@given(sizes, st.data())
def test_shares_of_adjoining_slices_sum_exactly(size: tuple[int, int], data: st.DataObject) -> None:
    nbytes, count = size
    cuts = sorted(data.draw(st.lists(st.integers(0, count))))
    bounds = [0, *cuts, count]
    shares = [bytes_between(nbytes, count, a, b) for a, b in itertools.pairwise(bounds)]
    assert sum(shares) == nbytes
    assert min(shares) >= 0


@settings(deadline=None)
@given(sizes, st.data())
def test_rows_within_is_the_most_that_fits(size: tuple[int, int], data: st.DataObject) -> None:
    nbytes, count = size
    start = data.draw(st.integers(0, count - 1))
    max_rows = data.draw(st.integers(1, count + 5))
    max_bytes = data.draw(st.integers(1, nbytes + 5))
    fitting = [
        n
        for n in range(1, min(max_rows, count - start) + 1)
        if bytes_between(nbytes, count, start, start + n) <= max_bytes
    ]
    assert rows_within(nbytes, count, start, max_rows, max_bytes) == max(fitting, default=1)


def test_a_split_batch_keeps_rows_bytes_and_place() -> None:
    head, rest = SizedBatch(rows(10), 10, 81, 100).split(3)
    assert (head.rows, head.nbytes, head.position) == (3, 24, 100)
    assert (rest.rows, rest.nbytes, rest.position) == (7, 57, 103)
    assert numbers([head.batch, rest.batch]) == list(range(10))


def test_a_split_copies_nothing() -> None:
    batch = rows(10)
    head, rest = SizedBatch(batch, 10, 80, 0).split(4)
    address = batch.column(0).buffers()[1].address
    assert head.batch.column(0).buffers()[1].address == address
    assert rest.batch.column(0).buffers()[1].address == address


def test_measure_takes_a_size_that_is_known() -> None:
    assert measure(rows(3)) == (3, 24)
    assert measure(rows(3), 7) == (3, 7)
    with pytest.raises(ValueError, match="negative"):
        measure(rows(3), -1)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_batches_return_to_their_places_in_any_order(
    lengths: list[int], data: st.DataObject
) -> None:
    queue = BatchQueue()
    position = 0
    for length in lengths:
        queue.append(SizedBatch(rows(length, position), length, length * 8, position))
        position += length
    taken: list[list[SizedBatch]] = [[], [], []]
    for _ in range(data.draw(st.integers(0, 20))):
        if queue.rows:
            taken[data.draw(st.integers(0, 2))].append(queue.pop(data.draw(st.integers(1, 9))))
    for index in data.draw(st.permutations(range(3))):
        queue.restore(taken[index])
    assert (queue.rows, queue.nbytes) == (position, position * 8)
    assert numbers(queue.pop().batch for _ in iter(lambda: queue.rows > 0, False)) == list(
        range(position)
    )


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(-5, 30),
    st.integers(-5, 120),
)
def test_eviction_drops_the_fewest_oldest_rows(
    entries: list[tuple[int, int]], need_rows: int, need_bytes: int
) -> None:
    queue = BatchQueue()
    position = 0
    every_row: list[int] = []
    for count, nbytes in entries:
        queue.append(SizedBatch(rows(count, position), count, nbytes, position))
        every_row += [bytes_between(nbytes, count, n, n + 1) for n in range(count)]
        position += count
    total_bytes = sum(nbytes for _, nbytes in entries)
    expected = 0
    while expected < position and (expected < need_rows or sum(every_row[:expected]) < need_bytes):
        expected += 1
    dropped_rows, dropped_bytes = queue.evict(need_rows, need_bytes)
    assert (dropped_rows, dropped_bytes) == (expected, sum(every_row[:expected]))
    assert (queue.rows, queue.nbytes) == (position - dropped_rows, total_bytes - dropped_bytes)
    left = numbers(queue.pop().batch for _ in iter(lambda: queue.rows > 0, False))
    assert left == list(range(expected, position))
