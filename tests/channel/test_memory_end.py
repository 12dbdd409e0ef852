"""close() and fail(): who wakes, with what, and what is left."""

from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.channel import MemoryChannel
from spark_channel.errors import ChannelClosedError, EndOfChannel
from spark_channel.testing import VirtualClock
from tests.channel.helpers import FakeLimiter, Thread, conserved, numbers, rows


def committing(channel: MemoryChannel) -> Callable[[], None]:
    def commit() -> None:
        with channel.transaction() as transaction:
            transaction.put(rows(2, 50))

    return commit


def taking(channel: MemoryChannel) -> Callable[[], Any]:
    def take() -> Any:
        with channel.transaction() as transaction:
            return transaction.take()

    return take


def test_close_ends_producers_and_lets_consumers_drain() -> None:
    channel = MemoryChannel()
    channel.push_all([rows(1), rows(1, 1)])
    channel.close()
    channel.close()
    assert (channel.closed, channel.ended) == (True, False)
    pushes: list[Callable[[], Any]] = [
        lambda: channel.push(rows(1)),
        lambda: channel.push(rows(0)),
        lambda: channel.push_all([rows(1)]),
    ]
    for push in pushes:
        with pytest.raises(ChannelClosedError):
            push()
    assert numbers(channel.pull()) == [0]
    assert numbers(channel.pull_all()) == [1]
    assert (channel.closed, channel.ended) == (True, True)
    pulls: list[Callable[[], Any]] = [
        channel.pull,
        channel.pull_all,
        lambda: channel.pull(timeout=0),
    ]
    for pull in pulls:
        with pytest.raises(EndOfChannel):
            pull()
    assert repr(channel).startswith("<MemoryChannel ended: 0 of")


def test_close_wakes_every_producer_that_waits_and_loses_nothing(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    channel.push(rows(2))
    producers: list[Thread[Any]] = [
        Thread(lambda: channel.push(rows(1, 10))),
        Thread(committing(channel)),
    ]
    producers.append(Thread(lambda: channel.push(rows(9, 20))))
    clock.wait_until_blocked(producers)
    channel.close()
    for producer in producers:
        with pytest.raises(ChannelClosedError):
            producer.result()
    assert numbers(channel) == [0, 1]
    s = channel.statistics()
    assert (s.rows_failed, s.rows_pushed, s.rows_reserved) == (12, 2, 0)


def test_a_batch_half_published_when_the_channel_closes_is_counted_by_halves(
    clock: VirtualClock,
) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    producer = Thread(lambda: channel.push(rows(10)))
    clock.wait_until_blocked(producer)
    assert numbers(channel.pull()) == [0, 1]
    channel.close()
    with pytest.raises(ChannelClosedError):
        producer.result()
    assert numbers(channel) == [2, 3]
    s = channel.statistics()
    assert (s.rows_pushed, s.rows_failed, s.put_successes) == (4, 6, 0)
    assert s.bytes_pushed + s.bytes_failed == 80


def test_close_wakes_every_consumer_that_waits(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    consumers: list[Thread[Any]] = [
        Thread(channel.pull),
        Thread(channel.pull_all),
        Thread(taking(channel)),
    ]
    clock.wait_until_blocked(consumers)
    channel.close()
    for consumer in consumers:
        with pytest.raises(EndOfChannel):
            consumer.result()


def test_the_last_batch_goes_to_one_consumer_and_the_end_to_the_others(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    consumers = [Thread(channel.pull) for _ in range(5)]
    clock.wait_until_blocked(consumers)
    channel.push(rows(1))
    channel.close()
    got, ends = 0, 0
    for consumer in consumers:
        try:
            got += consumer.result().num_rows
        except EndOfChannel:
            ends += 1
    assert (got, ends) == (1, 4)


def test_fail_raises_the_same_error_on_both_sides_at_once(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    channel = MemoryChannel(capacity_rows=2, limiter=limiter, clock=clock)
    channel.push(rows(2))
    limiter.paused = True
    waiting: list[Thread[Any]] = [
        Thread(lambda: channel.push(rows(1))),
        Thread(committing(channel)),
    ]
    clock.wait_until_blocked(waiting)
    error = OSError("disk is gone")
    channel.fail(error)
    for thread in waiting:
        with pytest.raises(OSError) as caught:
            thread.result()
        assert caught.value is error
    calls: list[Callable[[], Any]] = [
        lambda: channel.push(rows(1)),
        lambda: channel.push(rows(0)),
        channel.pull,
        channel.pull_all,
        channel.drain,
        lambda: next(iter(channel)),
        lambda: channel.resize(capacity_rows=5),
        committing(channel),
        taking(channel),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value is error
    assert channel.ended
    conserved(channel)


def test_fail_wakes_consumers(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    consumers: list[Thread[Any]] = [
        Thread(channel.pull),
        Thread(channel.pull_all),
        Thread(taking(channel)),
    ]
    clock.wait_until_blocked(consumers)
    channel.fail(KeyError("k"))
    for consumer in consumers:
        with pytest.raises(KeyError):
            consumer.result()


def test_the_first_error_counts_and_outranks_the_end() -> None:
    channel = MemoryChannel()
    channel.close()
    channel.fail(OSError("first"))
    channel.fail(OSError("second"))
    channel.close()
    with pytest.raises(OSError, match="first"):
        channel.pull()
    with pytest.raises(OSError, match="first"):
        channel.push(rows(1))


@pytest.mark.parametrize("thing", [None, "an error", OSError])
def test_fail_takes_an_exception(thing: Any) -> None:
    with pytest.raises(TypeError, match="takes an exception"):
        MemoryChannel().fail(thing)


def test_an_error_raised_by_many_does_not_grow() -> None:
    channel = MemoryChannel()
    try:
        raise OSError("made elsewhere")
    except OSError as error:
        channel.fail(error)
    depths = []
    for _ in range(5):
        with pytest.raises(OSError, match="made elsewhere") as caught:
            channel.pull()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
