"""Which threads wait, which wake, and that no others do."""

import threading
from typing import Any

import pytest

from spark_channel.channel import MemoryChannel
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, Thread, numbers, rows


class CountingClock(VirtualClock):
    """Counts how often threads come back from a wait."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes: dict[str, int] = {}

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        try:
            return super().wait(condition, timeout)
        finally:
            name = threading.current_thread().name
            self.wakes[name] = self.wakes.get(name, 0) + 1


def blocked(clock: VirtualClock, work: Any) -> Thread[Any]:
    thread: Thread[Any] = Thread(work)
    clock.wait_until_blocked(thread)
    assert thread.is_alive()
    return thread


def test_a_large_push_is_not_starved_by_small_ones(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push_all([rows(2, 10 * n) for n in range(5)])
    large = blocked(clock, lambda: channel.push(rows(9, 100)))
    small = [blocked(clock, lambda n=n: channel.push(rows(1, 200 + n))) for n in range(3)]
    for _ in range(4):
        channel.pull()  # room for every small one, but the large one came first
        assert all(thread.is_alive() for thread in small)
    channel.pull()
    assert large.result() is True
    assert small[0].result() is True  # 9 + 1 rows
    clock.wait_until_blocked(small[1:])
    assert numbers(channel.drain()) == [*range(100, 109), 200]
    for thread in small:
        thread.result()
    assert numbers(channel.drain()) == [201, 202]


def test_a_newcomer_does_not_overtake(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, clock=clock)
    channel.push(rows(8))
    first = blocked(clock, lambda: channel.push(rows(3, 100)))
    second = blocked(clock, lambda: channel.push(rows(1, 200)))  # there is room for it
    assert channel.backlog == 8
    channel.drain()
    first.result()
    second.result()
    assert numbers(channel.drain()) == [100, 101, 102, 200]


def test_large_batches_take_turns_slice_by_slice(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    channel.push(rows(2, 900))
    one = blocked(clock, lambda: channel.push(rows(4, 0)))
    two = blocked(clock, lambda: channel.push(rows(4, 100)))
    order = [numbers(channel.pull())[0] for _ in range(5)]
    assert order == [900, 0, 100, 2, 102]
    one.result()
    two.result()


def test_room_wakes_exactly_those_that_got_it() -> None:
    clock = CountingClock()
    channel = MemoryChannel(capacity_rows=4, clock=clock)
    channel.push(rows(4))
    waiting = [blocked(clock, lambda n=n: channel.push(rows(2, n))) for n in range(6)]
    channel.pull()  # room for two of them
    assert [thread.result() for thread in waiting[:2]] == [True, True]
    clock.wait_until_blocked(waiting[2:])
    assert clock.wakes == {thread.name: 1 for thread in waiting[:2]}
    channel.close()
    for thread in waiting[2:]:
        with pytest.raises(Exception, match="closed"):
            thread.result()


def test_a_large_batch_wakes_its_producer_once() -> None:
    clock = CountingClock()
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    producer = blocked(clock, lambda: channel.push(rows(20)))
    assert [numbers(channel.pull())[0] for _ in range(10)] == list(range(0, 20, 2))
    producer.result()
    assert clock.wakes == {producer.name: 1}


def test_a_batch_wakes_one_consumer_in_the_order_they_came() -> None:
    clock = CountingClock()
    channel = MemoryChannel(clock=clock)
    consumers = [blocked(clock, channel.pull) for _ in range(4)]
    for n, consumer in enumerate(consumers):
        channel.push(rows(1, n))
        assert numbers(consumer.result()) == [n]
        clock.wait_until_blocked(consumers[n + 1 :])
    assert clock.wakes == {consumer.name: 1 for consumer in consumers}


def test_batches_that_come_at_once_are_handed_on_from_consumer_to_consumer(
    clock: VirtualClock,
) -> None:
    channel = MemoryChannel(clock=clock)
    consumers = [blocked(clock, channel.pull) for _ in range(3)]
    with channel.transaction() as transaction:  # all three in one commit, one wake-up
        for n in range(3):
            transaction.put(rows(1, n))
    assert [numbers(consumer.result()) for consumer in consumers] == [[0], [1], [2]]


def test_a_consumer_that_times_out_hands_on_what_it_was_woken_for(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    first = blocked(clock, lambda: channel.pull(timeout=1.0))
    second = blocked(clock, channel.pull)
    with channel._queue._lock:
        # The time is up, but the consumer cannot leave before the batch comes.
        clock.advance(1.0)
        producer = Thread(lambda: channel.push(rows(1)))
    producer.result()
    if first.result() is not None:
        channel.push(rows(1))
    assert numbers(second.result()) == [0]
    assert channel.backlog == 0


def test_a_commit_that_times_out_lets_the_next_one_in(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=4, keep_alive=3.0, clock=clock)
    channel.push(rows(3))

    def commit() -> None:
        with channel.transaction() as transaction:
            transaction.put(rows(3))

    large = blocked(clock, commit)
    small = blocked(clock, lambda: channel.push(rows(1, 50)))
    clock.advance(3.0)
    with pytest.raises(Exception, match="no room"):
        large.result()
    assert small.result() is True
    assert numbers(channel.drain()) == [0, 1, 2, 50]


def test_a_drain_does_not_lose_the_consumer_it_overtook(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    consumer = blocked(clock, channel.pull)
    with channel.transaction() as transaction:
        transaction.put(rows(1))
    drained = numbers(channel.drain())  # races with the consumer that was woken
    channel.push(rows(1, 7))
    assert sorted(drained + numbers(consumer.result()) + numbers(channel.drain())) == [0, 7]


def test_listeners_hear_of_batches_and_of_the_end() -> None:
    channel = MemoryChannel()
    heard: list[int] = []

    def listener() -> None:
        heard.append(channel.backlog)  # the lock is free

    channel.add_listener(listener)
    channel.push(rows(2))
    channel.push(rows(3))
    assert heard == [2, 5]
    channel.pull()
    channel.pull()
    assert heard == [2, 5]
    channel.push(rows(1))
    channel.close()
    assert heard == [2, 5, 1, 1]
    assert not channel.ended
    channel.pull()
    assert heard == [2, 5, 1, 1, 0]
    assert channel.ended


def test_listeners_hear_of_rollbacks_and_failures() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    heard: list[bool] = []
    channel.add_listener(lambda: heard.append(channel.ended))
    transaction = channel.transaction()
    transaction.begin()
    transaction.take()
    assert heard == []
    transaction.rollback()
    assert heard == [False]
    channel.fail(OSError("gone"))
    assert heard == [False, True]


def test_the_end_that_a_transaction_held_up_is_heard_at_its_commit() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    with channel.transaction() as transaction:
        transaction.take()
        channel.close()
        heard: list[bool] = []
        channel.add_listener(lambda: heard.append(channel.ended))
        assert not channel.ended
    assert heard == [True]


def test_listeners_hear_of_what_a_consumer_published_for_a_waiting_producer(
    clock: VirtualClock,
) -> None:
    channel = MemoryChannel(capacity_rows=1, clock=clock)
    channel.push(rows(1))
    producer = blocked(clock, lambda: channel.push(rows(1, 1)))
    heard: list[int] = []
    channel.add_listener(lambda: heard.append(channel.backlog))
    channel.pull()
    assert heard == [1]
    producer.result()


def test_a_removed_listener_hears_nothing() -> None:
    channel = MemoryChannel()
    heard: list[int] = []

    def listener() -> None:
        heard.append(1)

    channel.add_listener(listener)
    channel.remove_listener(listener)
    channel.remove_listener(listener)
    channel.push(rows(1))
    assert heard == []


def test_what_a_listener_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    channel = MemoryChannel()

    def broken() -> None:
        raise RuntimeError("broken listener")

    channel.add_listener(broken)
    assert channel.push(rows(1)) is True
    assert "broken listener" in caplog.text
    assert channel.backlog == 1


def test_a_block_is_heard_once_per_push_and_without_the_lock(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    heard: list[tuple[str, int]] = []

    def listener() -> None:
        heard.append((threading.current_thread().name, channel.backlog))

    channel.add_block_listener(listener)
    channel.push(rows(2))
    assert heard == []
    producer = blocked(clock, lambda: channel.push(rows(6, 2)))
    assert heard == [(producer.name, 2)]
    got = [n for _ in range(4) for n in numbers(channel.pull())]
    producer.result()
    assert got == list(range(8))
    assert len(heard) == 1
    channel.remove_block_listener(listener)
    channel.push(rows(2))
    with channel.transaction() as transaction:
        transaction.put(rows(1))
        transaction.take()
    assert len(heard) == 1


def test_a_block_listener_may_make_the_room_itself() -> None:
    channel = MemoryChannel(capacity_rows=2)
    channel.push(rows(2))
    channel.add_block_listener(lambda: channel.resize(capacity_rows=4))
    assert channel.push(rows(2, 2)) is True
    assert numbers(channel.drain()) == [0, 1, 2, 3]


def test_one_producer_keeps_its_order_over_slices_and_waits(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=3, capacity_bytes=2 * ROW, clock=clock)
    producer = Thread(
        lambda: [channel.push(rows(n, start)) for n, start in ((1, 0), (5, 1), (2, 6))]
    )
    assert [n for _ in range(8) for n in numbers(channel.pull_all(1))] == list(range(8))
    producer.result()
