"""One queue: order, bounds, slices, and every odd batch."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.channel import MemoryChannel, Overflow
from spark_channel.channel.batches import measure
from spark_channel.errors import ChannelClosedError, EndOfChannel
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, Thread, conserved, numbers, rows


def test_batches_leave_in_the_order_they_came() -> None:
    channel = MemoryChannel()
    first, second = rows(3), rows(2, 3)
    assert channel.push(first) is True
    assert channel.push(second) is True
    assert channel.backlog == 5
    assert channel.pull() is first  # the very object: nothing is copied or rebuilt
    assert channel.pull() is second
    assert channel.backlog == 0


def test_push_all_and_pull_all() -> None:
    channel = MemoryChannel()
    assert channel.push_all([rows(3), rows(3, 3), rows(3, 6)]) is True
    assert [batch.num_rows for batch in channel.pull_all(7)] == [3, 3, 1]
    assert numbers(channel.pull_all()) == [7, 8]


def test_push_all_consumes_its_iterable_as_room_allows(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    made: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        n = 0
        while True:
            made.append(n)
            yield rows(1, n)
            n += 1

    producer = Thread(lambda: channel.push_all(endless()))
    clock.wait_until_blocked(producer)
    assert made == [0, 1, 2]
    assert numbers(channel.pull()) == [0]
    clock.wait_until_blocked(producer)
    assert made == [0, 1, 2, 3]
    channel.close()
    with pytest.raises(ChannelClosedError):
        producer.result()


def test_pull_all_waits_for_the_first_batch_only(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    consumer = Thread(channel.pull_all)
    clock.wait_until_blocked(consumer)
    channel.push(rows(2))
    assert numbers(consumer.result()) == [0, 1]


def test_timeouts_of_pull_and_pull_all(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    one = Thread(lambda: channel.pull(timeout=2.0))
    many = Thread(lambda: channel.pull_all(timeout=2.0))
    clock.wait_until_blocked([one, many])
    clock.advance(1.999)
    clock.wait_until_blocked([one, many])
    clock.advance(0.001)
    assert one.result() is None
    assert many.result() == []


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0])
def test_a_timeout_of_zero_does_not_wait(timeout: float, clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    assert channel.pull(timeout=timeout) is None
    assert channel.pull_all(timeout=timeout) == []
    channel.push(rows(1))
    assert numbers(channel.pull_all(timeout=timeout)) == [0]


def test_an_endless_timeout_is_no_timeout() -> None:
    channel = MemoryChannel()
    consumer = Thread(lambda: channel.pull(timeout=float("inf")))
    channel.push(rows(1))
    assert numbers(consumer.result()) == [0]


def test_drain_takes_all_that_is_there_without_waiting() -> None:
    channel = MemoryChannel()
    assert channel.drain() == []
    channel.push_all([rows(3), rows(3, 3)])
    assert numbers(channel.drain(4)) == [0, 1, 2, 3]
    assert numbers(channel.drain()) == [4, 5]
    channel.close()
    assert channel.drain() == []


def test_iteration_stops_at_the_end() -> None:
    channel = MemoryChannel()
    channel.push_all([rows(2), rows(2, 2)])
    channel.close()
    assert numbers(channel) == [0, 1, 2, 3]
    assert list(channel) == []
    with pytest.raises(EndOfChannel):
        channel.pull()


# ---- capacity and slices


def test_rows_are_bounded(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push(rows(6))
    producer = Thread(lambda: channel.push(rows(5, 6)))
    clock.wait_until_blocked(producer)
    assert channel.backlog == 6
    channel.pull()
    assert producer.result() is True
    assert channel.backlog == 5


def test_bytes_are_bounded_by_single_pushes_too(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_bytes=10 * ROW, clock=clock)
    channel.push(rows(6))
    producer = Thread(lambda: channel.push(rows(5, 6)))
    clock.wait_until_blocked(producer)
    channel.pull()
    assert producer.result() is True


@pytest.mark.parametrize(
    ("capacity_rows", "capacity_bytes", "expected"),
    [
        (4, 1000, [4, 4, 2]),
        (1000, 4 * ROW, [4, 4, 2]),
        (1000, 4 * ROW + 7, [4, 4, 2]),
        (5, 3 * ROW, [3, 3, 3, 1]),
    ],
)
def test_a_batch_larger_than_the_channel_is_sliced(
    capacity_rows: int, capacity_bytes: int, expected: list[int], clock: VirtualClock
) -> None:
    channel = MemoryChannel(capacity_rows, capacity_bytes, clock=clock)
    batch = rows(10)
    producer = Thread(lambda: channel.push(batch))
    pieces = []
    for _ in expected:
        pieces.append(channel.pull())
        conserved(channel)
    assert producer.result() is True
    assert [piece.num_rows for piece in pieces] == expected
    assert numbers(pieces) == list(range(10))
    addresses = {piece.column(0).buffers()[1].address for piece in pieces}
    assert addresses == {batch.column(0).buffers()[1].address}
    assert channel.statistics().bytes_pulled == 10 * ROW


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 12), st.integers(1, 60))
def test_slicing_loses_doubles_and_reorders_nothing(
    count: int, nbytes: int, capacity_rows: int, capacity_bytes: int
) -> None:
    channel = MemoryChannel(capacity_rows, capacity_bytes)
    producer = Thread(lambda: channel.push(rows(count), nbytes=nbytes))
    pulled: list[int] = []
    while len(pulled) < count:
        pulled += numbers(channel.pull())
        conserved(channel)
    producer.result()
    assert pulled == list(range(count))
    s = channel.statistics()
    assert (s.rows_pushed, s.bytes_pushed, s.rows_pulled, s.bytes_pulled) == (
        count,
        nbytes,
        count,
        nbytes,
    )
    assert (s.put_attempts, s.put_successes, s.bytes_stored) == (1, 1, 0)


def test_one_row_larger_than_the_channel_passes_alone(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_bytes=100, clock=clock)
    channel.push(rows(1), nbytes=10)
    huge = Thread(lambda: channel.push(rows(1, 1), nbytes=1000))
    clock.wait_until_blocked(huge)
    after = Thread(lambda: channel.push(rows(1, 2), nbytes=10))
    clock.wait_until_blocked(after)
    assert numbers(channel.pull()) == [0]  # now it is empty
    assert huge.result() is True
    clock.wait_until_blocked(after)
    assert channel.statistics().bytes_stored == 1000
    conserved(channel)
    assert numbers(channel.pull()) == [1]
    assert after.result() is True
    assert numbers(channel.pull()) == [2]


def test_a_batch_of_huge_rows_passes_row_by_row(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_bytes=100, clock=clock)
    producer = Thread(lambda: channel.push(rows(3), nbytes=3000))
    for n in range(3):
        assert numbers(channel.pull()) == [n]
    assert producer.result() is True
    assert channel.statistics().bytes_pulled == 3000


def test_a_slice_of_a_huge_batch_has_the_bytes_of_the_slice() -> None:
    channel = MemoryChannel(capacity_bytes=100 * ROW)
    channel.push(rows(1_000_000).slice(500_000, 10))
    assert channel.statistics().bytes_stored == 10 * ROW


# ---- odd batches


def test_a_batch_without_rows_carries_nothing() -> None:
    channel = MemoryChannel(capacity_rows=1)
    channel.push(rows(1))
    assert channel.push(rows(0)) is True  # in a full channel, too
    s = channel.statistics()
    assert (s.put_attempts, s.put_successes, s.rows_pushed) == (2, 2, 1)
    assert numbers(channel.drain()) == [0]


def test_a_batch_without_columns_keeps_its_rows(clock: VirtualClock) -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    channel = MemoryChannel(capacity_rows=3, clock=clock)
    producer = Thread(lambda: channel.push(batch))
    assert [channel.pull().num_rows, channel.pull().num_rows] == [3, 2]
    producer.result()
    assert channel.statistics().bytes_pushed == 0


def _nested() -> dict[str, pa.Array]:
    return {
        "dictionary": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "list": pa.array([[1], [], None, [2, 3]]),
        "struct": pa.array([{"x": 1, "y": "p"}, None, {"x": 2, "y": None}, {"x": 3, "y": "q"}]),
        "map": pa.array(
            [[("k", 1)], [], None, [("l", 2), ("m", 3)]], pa.map_(pa.string(), pa.int32())
        ),
        "union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0, 1], pa.int8()),
            pa.array([0, 0, 1, 1], pa.int32()),
            [pa.array([1, 2]), pa.array(["a", "b"])],
        ),
        "bool": pa.array([True, None, False, True]),
        "null": pa.nulls(4),
        "decimal": pa.array([1, 2, None, 4], pa.decimal128(10, 2)),
        "run_ends": pa.RunEndEncodedArray.from_arrays(
            pa.array([1, 4], pa.int32()), pa.array(["x", "y"])
        ),
        "view": pa.array(["x" * 40, "y", None, "z" * 20]).cast(pa.string_view()),
        "extension": pa.ExtensionArray.from_storage(
            pa.opaque(pa.string(), "numeric", "PostgreSQL"), pa.array(["1", "2", None, "4"])
        ),
    }


@pytest.mark.parametrize("name", _nested())
def test_every_type_is_sliced_and_measured(name: str) -> None:
    batch = pa.record_batch({name: _nested()[name]})
    channel = MemoryChannel(capacity_rows=1)
    producer = Thread(lambda: channel.push(batch))
    pieces = [channel.pull() for _ in range(4)]
    producer.result()
    assert [piece.column(0).to_pylist() for piece in pieces] == [
        batch.slice(n, 1).column(0).to_pylist() for n in range(4)
    ]
    assert all(piece.schema == batch.schema for piece in pieces)
    assert channel.statistics().bytes_pulled == measure(batch)[1]


def test_all_types_in_one_batch() -> None:
    batch = pa.record_batch(_nested())
    channel = MemoryChannel()
    channel.push(batch)
    assert channel.statistics().bytes_stored == measure(batch)[1]
    assert [piece.num_rows for piece in (*channel.drain(1), *channel.drain(3))] == [1, 3]


@pytest.mark.parametrize("name", _nested())
def test_every_type_passes_through_transactions(name: str) -> None:
    batch = pa.record_batch({name: _nested()[name]})
    channel = MemoryChannel(transaction_rows=4)
    with channel.transaction() as transaction:
        transaction.put(batch)
    with channel.transaction() as transaction:
        taken = transaction.take()
    assert taken is not None
    assert taken.column(0).to_pylist() == batch.column(0).to_pylist()
    s = channel.statistics()
    assert (s.bytes_pushed, s.bytes_pulled, s.rows_stored) == (
        measure(batch)[1],
        measure(batch)[1],
        0,
    )


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (rows(0), (0, 0)),
        (pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([]))), (5, 0)),
        (rows(1_000_000).slice(500_000, 10), (10, 10 * ROW)),
    ],
    ids=["no rows", "no columns", "a slice of a huge one"],
)
def test_odd_batches_pass_through_transactions(
    batch: pa.RecordBatch, expected: tuple[int, int]
) -> None:
    channel = MemoryChannel(100, 100 * ROW)
    with channel.transaction() as transaction:
        transaction.put(batch)
    s = channel.statistics()
    assert (s.rows_stored, s.bytes_stored) == expected
    with channel.transaction() as transaction:
        taken = transaction.take() if batch.num_rows else None
    assert (0 if taken is None else taken.num_rows) == expected[0]


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "not NoneType"),
        ([], "not list"),
        ({"n": [1]}, "not dict"),
        (pa.array([1]), "not Int64Array"),
        (pa.table({"n": [1]}), r"not Table; pass table.to_batches\(\)"),
    ],
)
def test_what_is_not_a_batch_is_refused(thing: Any, message: str) -> None:
    channel = MemoryChannel()
    with pytest.raises(TypeError, match=message):
        channel.push(thing)
    with pytest.raises(TypeError, match=message):
        channel.push_all([thing])
    with channel.transaction() as transaction, pytest.raises(TypeError, match=message):
        transaction.put(thing)
    assert channel.statistics().put_attempts == 0


# ---- construction


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity_rows": 0}, "capacity_rows=0"),
        ({"capacity_rows": 1.5}, r"capacity_rows=1\.5"),
        ({"capacity_rows": True}, "capacity_rows=True"),
        ({"capacity_bytes": -1}, "capacity_bytes=-1"),
        ({"transaction_rows": 0}, "transaction_rows=0"),
        ({"capacity_rows": 5, "transaction_rows": 6}, "above capacity_rows=5"),
        ({"keep_alive": -0.1}, "keep_alive"),
        ({"keep_alive": float("nan")}, "keep_alive"),
        ({"overflow": "spill"}, "spill"),
    ],
)
def test_nonsense_is_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryChannel(**arguments)


@pytest.mark.parametrize("max_rows", [0, -1, 2.0])
def test_max_rows_is_a_positive_number(max_rows: Any) -> None:
    channel = MemoryChannel()
    with pytest.raises(ValueError, match="max_rows"):
        channel.pull_all(max_rows)
    with pytest.raises(ValueError, match="max_rows"):
        channel.drain(max_rows)


def test_defaults_are_those_of_the_documentation() -> None:
    channel = MemoryChannel()
    assert (channel.capacity_rows, channel.capacity_bytes) == (1_048_576, 64 << 20)
    assert (channel.transaction_rows, channel.keep_alive) == (1_048_576, 3.0)
    assert channel.overflow is Overflow.BLOCK
    assert repr(channel) == "<MemoryChannel open: 0 of 1048576 rows, 0 of 67108864 bytes>"
