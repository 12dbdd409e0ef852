"""A capacity that changes while it is in use."""

from typing import Any

import pytest

from spark_channel.channel import MemoryChannel
from spark_channel.errors import ChannelFullError, TransactionFullError
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, Actor, FakeLimiter, Thread, conserved, numbers, rows


def test_growing_wakes_who_waits(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, capacity_bytes=2 * ROW, clock=clock)
    channel.push(rows(2))
    producers = [Thread(lambda: channel.push(rows(2, 2)))]
    clock.wait_until_blocked(producers)
    channel.resize(capacity_rows=10)
    clock.wait_until_blocked(producers)  # the bytes are missing still
    assert channel.backlog == 2
    channel.resize(capacity_bytes=4 * ROW)
    producers[0].result()
    assert channel.backlog == 4
    assert (channel.capacity_rows, channel.capacity_bytes) == (10, 4 * ROW)


def test_growing_does_not_wait_behind_those_it_is_for(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, keep_alive=0, clock=clock)
    channel.push(rows(2))
    producer = Thread(lambda: channel.push(rows(2, 2)))
    clock.wait_until_blocked(producer)
    channel.resize(capacity_rows=4)
    producer.result()


def test_shrinking_to_what_is_free_is_at_once() -> None:
    channel = MemoryChannel(capacity_rows=10, keep_alive=0)
    channel.push(rows(4))
    channel.resize(capacity_rows=4, capacity_bytes=4 * ROW)
    assert (channel.capacity_rows, channel.capacity_bytes) == (4, 4 * ROW)


@pytest.mark.parametrize("wanted", [{"capacity_rows": 3}, {"capacity_bytes": 31}])
def test_shrinking_below_what_is_stored_is_refused_after_keep_alive(
    wanted: dict[str, int], clock: VirtualClock
) -> None:
    channel = MemoryChannel(capacity_rows=10, capacity_bytes=100, keep_alive=3.0, clock=clock)
    channel.push(rows(4))
    resizer = Thread(lambda: channel.resize(**wanted))
    clock.wait_until_blocked(resizer)
    clock.advance(2.999)
    clock.wait_until_blocked(resizer)
    clock.advance(0.001)
    with pytest.raises(ChannelFullError, match="cannot shrink"):
        resizer.result()
    assert (channel.capacity_rows, channel.capacity_bytes) == (10, 100)
    assert numbers(channel.drain()) == [0, 1, 2, 3]


def test_shrinking_takes_effect_as_soon_as_it_fits(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push_all([rows(4), rows(4, 4)])
    resizer = Thread(lambda: channel.resize(capacity_rows=5))
    clock.wait_until_blocked(resizer)
    late = Thread(lambda: channel.push(rows(1, 8)))  # would fit, but came after the resize
    clock.wait_until_blocked(late)
    channel.pull()
    resizer.result()
    late.result()
    assert channel.capacity_rows == 5
    assert numbers(channel.drain()) == [4, 5, 6, 7, 8]
    assert channel.statistics().wait_writer_seconds == 0.0


def test_both_dimensions_change_together_or_not_at_all(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=4, capacity_bytes=100, keep_alive=0, clock=clock)
    channel.push(rows(4))
    with pytest.raises(ChannelFullError):
        channel.resize(capacity_rows=8, capacity_bytes=10)
    assert (channel.capacity_rows, channel.capacity_bytes) == (4, 100)


def test_what_is_held_and_what_is_reserved_count(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(capacity_rows=10, keep_alive=0, limiter=limiter, clock=clock)
    channel.push(rows(3))
    with channel.transaction() as transaction:
        transaction.take()
        producer = Thread(lambda: channel.push(rows(3, 3)))
        clock.wait_until_blocked(producer)
        with pytest.raises(ChannelFullError, match="6 rows"):
            channel.resize(capacity_rows=5)
        channel.resize(capacity_rows=6)
        clock.advance(3.0)
        producer.result()
    conserved(channel)


def test_a_waiting_batch_is_sliced_anew_for_the_smaller_channel(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push(rows(1))
    producer = Thread(lambda: channel.push(rows(10, 1)))
    clock.wait_until_blocked(producer)
    channel.resize(capacity_rows=4)
    got = [n for _ in range(11) for n in numbers(channel.pull_all(1))]
    producer.result()
    assert got == list(range(11))
    conserved(channel)


def test_growing_while_one_huge_row_passes() -> None:
    channel = MemoryChannel(capacity_bytes=10, keep_alive=0)
    channel.push(rows(1), nbytes=100)
    channel.resize(capacity_bytes=20)
    with pytest.raises(ChannelFullError):
        channel.resize(capacity_bytes=15)
    assert channel.capacity_bytes == 20


def test_a_closed_channel_can_be_resized_and_a_failed_one_raises(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push_all([rows(3), rows(3, 3)])
    resizer = Thread(lambda: channel.resize(capacity_rows=3))
    clock.wait_until_blocked(resizer)
    channel.close()
    clock.wait_until_blocked(resizer)
    channel.pull()
    resizer.result()
    other = Thread(lambda: channel.resize(capacity_rows=1))
    clock.wait_until_blocked(other)
    channel.fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        other.result()
    with pytest.raises(OSError, match="gone"):
        channel.resize(capacity_rows=20)


@pytest.mark.parametrize(
    "wanted", [{"capacity_rows": 0}, {"capacity_bytes": -5}, {"capacity_rows": 1.5}]
)
def test_nonsense_is_refused(wanted: dict[str, Any]) -> None:
    channel = MemoryChannel()
    with pytest.raises(ValueError, match=next(iter(wanted))):
        channel.resize(**wanted)


def test_transaction_rows_and_keep_alive_change_with_the_capacity(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, transaction_rows=4, keep_alive=3.0, clock=clock)
    with channel.transaction() as transaction:
        transaction.put(rows(4))
        channel.resize(transaction_rows=2)
        with pytest.raises(TransactionFullError, match="5 rows put, transaction_rows is 2"):
            transaction.put(rows(1, 4))
    assert channel.backlog == 4, "what was put before may be committed"
    channel.resize(capacity_rows=6, transaction_rows=6, keep_alive=0.5)
    assert (channel.capacity_rows, channel.transaction_rows, channel.keep_alive) == (6, 6, 0.5)
    with channel.transaction() as transaction:
        assert numbers([batch for batch in [transaction.take()] if batch]) == [0, 1, 2, 3]
        taking = Actor()
        try:

            def take() -> object:
                with channel.transaction() as other:
                    return other.take()

            answer = taking.begin(take)
            clock.wait_until_blocked(taking.thread)
            clock.advance(0.5)
            assert answer.result() is None
        finally:
            taking.stop()


@pytest.mark.parametrize(
    "wanted",
    [
        {"transaction_rows": 11},
        {"transaction_rows": 0},
        {"keep_alive": -1.0},
        {"capacity_rows": 3},
        {"capacity_rows": 5, "transaction_rows": 6},
        {"keep_alive": float("nan")},
    ],
)
def test_a_resize_that_makes_no_sense_changes_nothing(wanted: dict[str, Any]) -> None:
    channel = MemoryChannel(capacity_rows=10, transaction_rows=4)
    with pytest.raises(ValueError):
        channel.resize(**wanted)
    assert (channel.capacity_rows, channel.transaction_rows, channel.keep_alive) == (10, 4, 3.0)


def test_a_resize_that_is_given_up_changes_no_bound(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, transaction_rows=4, keep_alive=3.0, clock=clock)
    channel.push(rows(9))
    resizer = Thread(lambda: channel.resize(capacity_rows=5, transaction_rows=2, keep_alive=1.0))
    clock.wait_until_blocked(resizer)
    with pytest.raises(ValueError, match="contradict a resize that waits, to capacity_rows=5"):
        channel.resize(transaction_rows=8)
    clock.advance(1.0)
    with pytest.raises(ChannelFullError, match="after 1 s"):
        resizer.result()
    assert (channel.capacity_rows, channel.transaction_rows, channel.keep_alive) == (10, 4, 3.0)
