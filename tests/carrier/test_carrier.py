"""Producing: which channel a batch goes to, and what happens without room."""

import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.carrier import DataCarrier, RollingPartitioner, ThreadPartitioner
from spark_channel.channel import Overflow
from spark_channel.errors import ChannelClosedError
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import at_once, batch, start, values


def stored(carrier: DataCarrier) -> list[list[int]]:
    """What each channel holds; empties them."""
    return [values(channel.drain()) for channel in carrier.channels]


def test_rolling_gives_each_channel_its_turn() -> None:
    carrier = DataCarrier(3)
    for n in range(7):
        assert carrier.produce(batch(n)) is True
    assert stored(carrier) == [[0, 3, 6], [1, 4], [2, 5]]


def test_rolling_is_even_over_many_threads() -> None:
    partitioner = RollingPartitioner()
    turns: list[int] = []

    def take() -> None:
        mine = [partitioner(batch(), 4) for _ in range(2_000)]
        turns.extend(mine)

    with at_once(take, take, take, take):
        pass
    assert [turns.count(channel) for channel in range(4)] == [2_000] * 4


def test_a_thread_keeps_to_one_channel_and_threads_are_dealt_out_evenly() -> None:
    partitioner = ThreadPartitioner()
    picks: list[set[int]] = []

    def pick() -> None:
        picks.append({partitioner(batch(), 4) for _ in range(100)})

    with at_once(*[pick] * 8):
        pass
    assert sorted(map(list, picks)) == [[0], [0], [1], [1], [2], [2], [3], [3]]


def test_two_carriers_deal_their_threads_apart() -> None:
    first, second = (DataCarrier(2, partitioner="thread") for _ in range(2))
    start(lambda: first.produce(batch(1))).get()
    first.produce(batch(2))
    second.produce(batch(3))
    assert (stored(first), stored(second)) == ([[1], [2]], [[3], []])


def test_a_callable_picks_by_what_the_batch_holds() -> None:
    def by_key(each: pa.RecordBatch, channels: int) -> int:
        key: int = each.column("n")[0].as_py()
        return key % channels

    carrier = DataCarrier(3, partitioner=by_key)
    for n in (4, 1, 5, 3):
        carrier.produce(batch(n))
    assert stored(carrier) == [[3], [4, 1], [5]]


@pytest.mark.parametrize("index", [-1, 3, 1_000_000])
def test_a_partitioner_that_gives_no_channel_is_named(index: int) -> None:
    carrier = DataCarrier(3, partitioner=lambda _batch, _channels: index)
    with pytest.raises(ValueError, match=f"gave channel {index}; there are 0 to 2"):
        carrier.produce(batch(1))
    assert carrier.statistics().put_attempts == 0


def test_what_a_partitioner_raises_reaches_its_producer_and_nothing_is_published() -> None:
    def broken(_batch: pa.RecordBatch, _channels: int) -> int:
        raise KeyError("no key")

    carrier = DataCarrier(2, partitioner=broken)
    with pytest.raises(KeyError):
        carrier.produce(batch(1))
    assert carrier.backlog == 0
    carrier.partitioner = "rolling"
    assert carrier.produce(batch(1))


@pytest.mark.parametrize("wrong", [None, {"n": [1]}, pa.table({"n": [1]})])
def test_only_batches_are_carried_and_no_partitioner_sees_anything_else(wrong: Any) -> None:
    seen: list[Any] = []

    def watch(each: pa.RecordBatch, _channels: int) -> int:
        seen.append(each)
        return 0

    carrier = DataCarrier(2, partitioner=watch)
    with pytest.raises(TypeError, match="RecordBatch"):
        carrier.produce(wrong)
    assert seen == []


def test_an_empty_batch_is_accepted_and_carries_nothing() -> None:
    carrier = DataCarrier(2)
    assert carrier.produce(batch()) is True
    assert carrier.drain() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 0}, "channels=0"),
        ({"channels": True}, "channels=True"),
        ({"channels": 2.0}, "channels=2.0"),
        ({"capacity_rows": 0}, "capacity_rows=0"),
        ({"capacity_bytes": -1}, "capacity_bytes=-1"),
        ({"partitioner": "roling"}, "partitioner='roling'"),
        ({"partitioner": None}, "partitioner=None"),
        ({"overflow": "drop"}, "drop"),
    ],
)
def test_what_a_carrier_does_not_take_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCarrier(**arguments)


def test_rejecting_rolling_tries_each_other_channel_once() -> None:
    carrier = DataCarrier(3, capacity_rows=2, overflow="reject")
    assert [carrier.produce(batch(n)) for n in range(7)] == [True] * 6 + [False]
    carrier.channels[1].drain()
    assert carrier.produce(batch(7)) is True, "channel 1 has room, whoever's turn it is"
    assert carrier.produce(batch(8)) is True
    assert carrier.produce(batch(9)) is False
    assert stored(carrier) == [[0, 3], [7, 8], [2, 5]]


def test_a_batch_offered_to_every_channel_is_counted_once() -> None:
    carrier = DataCarrier(3, capacity_rows=1, overflow="reject")
    for n in range(4):
        carrier.produce(batch(n))
    s = carrier.statistics()
    assert (s.put_attempts, s.put_successes, s.rows_pushed) == (4, 3, 3)
    assert (s.rows_rejected, s.bytes_rejected) == (1, 8)
    assert [channel.statistics().rows_rejected for channel in carrier.channels] == [1, 1, 1]


def test_rejecting_by_thread_keeps_the_promise() -> None:
    carrier = DataCarrier(3, capacity_rows=1, partitioner="thread", overflow="reject")
    assert [carrier.produce(batch(n)) for n in range(3)] == [True, False, False]
    assert stored(carrier) == [[0], [], []]
    assert carrier.statistics().rows_rejected == 2


def test_a_callable_keeps_its_promise_unless_it_says_otherwise() -> None:
    class First:
        may_try_others = False

        def __call__(self, _batch: pa.RecordBatch, _channels: int) -> int:
            return 0

    first = First()
    carrier = DataCarrier(2, capacity_rows=1, partitioner=first, overflow="reject")
    assert [carrier.produce(batch(n)) for n in range(2)] == [True, False]
    first.may_try_others = True
    assert carrier.produce(batch(2)) is True
    assert stored(carrier) == [[0], [2]]


def test_overwriting_drops_the_oldest_of_that_channel_and_counts_them() -> None:
    carrier = DataCarrier(2, capacity_rows=2, overflow="overwrite")
    for n in range(8):
        assert carrier.produce(batch(n)) is True
    s = carrier.statistics()
    assert (s.rows_pushed, s.rows_dropped, s.rows_stored) == (8, 4, 4)
    assert stored(carrier) == [[4, 6], [5, 7]]


def test_blocking_waits_for_room_in_the_channel_that_was_picked() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, capacity_rows=1, clock=clock)
    carrier.produce(batch(0))
    carrier.produce(batch(1))
    producer = start(lambda: carrier.produce(batch(2)))
    clock.wait_until_blocked(producer)
    carrier.channels[1].drain()
    clock.wait_until_blocked(producer)
    assert values(carrier.channels[0].drain()) == [0]
    assert producer.get() is True
    assert stored(carrier) == [[2], []]


def test_callbacks_hear_of_a_block_once_per_produce_in_the_producers_thread() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, capacity_rows=1, clock=clock)
    heard: list[int] = []

    def listen() -> None:
        heard.append(threading.get_ident())

    carrier.add_block_listener(listen)
    carrier.produce(batch(0))
    carrier.produce(batch(1))
    assert heard == []
    # three rows through a channel of one: three slices, three waits
    producer = start(lambda: carrier.produce(batch(2, 3, 4)))
    for _ in range(3):
        clock.wait_until_blocked(producer)
        assert heard == [producer.ident]
        carrier.channels[0].drain()
    producer.get()
    carrier.remove_block_listener(listen)
    producer = start(lambda: carrier.produce(batch(5)))
    clock.wait_until_blocked(producer)
    carrier.drain()
    producer.get()
    assert len(heard) == 1


def test_the_partitioner_can_be_changed() -> None:
    carrier = DataCarrier(2)
    assert isinstance(carrier.partitioner, RollingPartitioner)
    carrier.produce(batch(0))
    carrier.partitioner = "thread"
    assert isinstance(carrier.partitioner, ThreadPartitioner)
    carrier.produce(batch(1))
    carrier.produce(batch(2))
    carrier.partitioner = lambda _batch, channels: channels - 1
    carrier.produce(batch(3))
    assert stored(carrier) == [[0, 1, 2], [3]]
    with pytest.raises(ValueError):
        carrier.partitioner = "random"  # type: ignore[assignment] # wrong on purpose
    carrier.produce(batch(4))
    assert stored(carrier) == [[], [4]], "a refused change changes nothing"


def test_the_strategy_can_be_changed_and_waiting_producers_go_on() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, capacity_rows=1, clock=clock)
    for n in range(2):
        carrier.produce(batch(n))
    producers = [start(lambda n=n: carrier.produce(batch(n))) for n in (2, 3)]  # type: ignore[misc] # mypy infers no lambda with a default
    clock.wait_until_blocked(producers)
    carrier.overflow = "overwrite"
    assert [producer.get() for producer in producers] == [True, True]
    assert carrier.overflow is Overflow.OVERWRITE
    carrier.overflow = Overflow.REJECT
    assert carrier.produce(batch(4)) is False
    with pytest.raises(ValueError):
        carrier.overflow = "drop"
    assert {channel.overflow for channel in carrier.channels} == {Overflow.REJECT}


def test_the_limit_is_paid_by_all_channels_together() -> None:
    from spark_channel.limits import RateLimiter

    clock = VirtualClock()
    carrier = DataCarrier(4, limiter=RateLimiter(rows_per_second=100, clock=clock), clock=clock)

    def produce() -> float:
        for n in range(100):
            carrier.produce(batch(n))
        return clock.now()

    producers = [start(produce) for _ in range(2)]
    while any(producer.is_alive() for producer in producers):
        clock.wait_until_blocked(producers)
        clock.advance(0.01)
    s = carrier.statistics()
    assert s.rows_stored == 200
    assert 1.9 <= clock.now() <= 2.1, "200 rows at 100 rows/s, however many channels"
    assert s.throttled_seconds["rows"] > 1.0


def test_after_the_end_nothing_is_taken() -> None:
    carrier = DataCarrier(2, overflow="reject")
    carrier.close()
    with pytest.raises(ChannelClosedError):
        carrier.produce(batch(1))
    assert carrier.statistics().rows_failed == 1


@given(
    channels=st.integers(1, 5),
    capacity=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 6), max_size=30),
    drains=st.sets(st.integers(0, 29)),
)
def test_under_rejection_every_row_is_accepted_or_counted(
    channels: int, capacity: int, sizes: list[int], drains: set[int]
) -> None:
    carrier = DataCarrier(channels, capacity_rows=capacity, overflow="reject")
    accepted: list[int] = []
    refused: list[int] = []
    out: list[int] = []
    number = 0
    for turn, size in enumerate(sizes):
        rows = list(range(number, number + size))
        number += size
        room = any(capacity - channel.backlog >= size for channel in carrier.channels)
        assert carrier.produce(batch(*rows)) is (room or size == 0)
        (accepted if room or size == 0 else refused).extend(rows)
        if turn in drains:
            out += values(carrier.drain())
    s = carrier.statistics()
    assert (s.rows_pushed, s.rows_rejected, s.put_attempts) == (
        len(accepted),
        len(refused),
        len(sizes),
    )
    assert sorted(out + values(carrier.drain())) == accepted
