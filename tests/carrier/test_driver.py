"""Threads and channels: the three layouts, and a driver's beginning and end."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.carrier import ConsumerDriver, DataCarrier
from spark_channel.channel import MemoryChannel
from spark_channel.errors import FlowError
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import (
    JOIN_SECONDS,
    Collector,
    CountingClock,
    Gate,
    batch,
    consumer_threads,
    start,
    values,
)


def collectors(carrier: DataCarrier, threads: int, feed: Callable[[], object]) -> list[Collector]:
    """One collector per thread, after `feed` and the end."""
    made: list[Collector] = []

    class Own(Collector):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    carrier.consume(Own, threads=threads)
    feed()
    assert carrier.shutdown() is True
    return made


def by_value(each: Any, channels: int) -> int:
    value: int = each.column("n")[0].as_py()
    return value % channels


def test_equal_numbers_are_one_to_one_and_each_channel_stays_in_order() -> None:
    carrier = DataCarrier(3, partitioner=by_value)
    seen = collectors(carrier, 3, lambda: [carrier.produce(batch(n)) for n in range(300)])
    assert sorted(consumer.values() for consumer in seen) == [
        list(range(i, 300, 3)) for i in range(3)
    ]


def test_fewer_threads_share_the_channels_out_evenly() -> None:
    carrier = DataCarrier(5, partitioner=by_value)
    seen = collectors(carrier, 2, lambda: [carrier.produce(batch(n)) for n in range(100)])
    by_channels = [sorted({n % 5 for n in consumer.values()}) for consumer in seen]
    assert sorted(by_channels) == [[0, 2, 4], [1, 3]]
    for consumer in seen:
        for channel in range(5):
            mine = [n for n in consumer.values() if n % 5 == channel]
            assert mine == sorted(mine), "order is kept per channel"


def test_one_call_gets_what_all_of_a_threads_channels_have() -> None:
    carrier, consumer = DataCarrier(4), Collector()
    for n in range(8):
        carrier.produce(batch(n))
    carrier.consume(consumer)
    assert carrier.shutdown() is True
    assert consumer.calls == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_more_threads_split_one_channels_backlog_in_whole_batches() -> None:
    carrier, consumer = DataCarrier(), Gate()
    for n in range(0, 32, 2):
        carrier.produce(batch(n, n + 1))
    carrier.consume(consumer, threads=4)
    assert consumer.entered.wait(JOIN_SECONDS)
    consumer.opened.set()
    assert carrier.shutdown() is True
    assert len(consumer.calls[0]) <= 8, "no thread takes more than its share at first"
    assert max(map(len, consumer.calls)) <= 8
    assert all(len(call) % 2 == 0 for call in consumer.calls), "whole batches"
    assert sorted(consumer.values()) == list(range(32))


def test_threads_of_one_channel_consume_at_the_same_time() -> None:
    together = threading.Barrier(4)

    class Meeting(Collector):
        def consume(self, batches: list[Any]) -> None:
            together.wait(JOIN_SECONDS)
            super().consume(batches)

    carrier, consumer = DataCarrier(), Meeting()
    carrier.consume(consumer, threads=4)
    for n in range(4):
        carrier.produce(batch(n))
    assert carrier.shutdown(JOIN_SECONDS) is True
    assert sorted(consumer.values()) == [0, 1, 2, 3]
    assert consumer.errors == []


def test_uneven_threads_are_dealt_to_channels_in_turn() -> None:
    carrier = DataCarrier(2, partitioner=by_value)
    seen = collectors(carrier, 5, lambda: [carrier.produce(batch(n)) for n in range(200)])
    assert len(seen) == 5
    for consumer in seen:
        assert len({n % 2 for n in consumer.values()}) <= 1, "each thread has one channel"
    assert sorted(n for consumer in seen for n in consumer.values()) == list(range(200))


@pytest.mark.parametrize(("channels", "threads"), [(1, 1), (4, 2), (2, 4)])
def test_idle_threads_sleep_without_a_timeout(channels: int, threads: int) -> None:
    clock = CountingClock()
    carrier, consumer = DataCarrier(channels, clock=clock), Collector()
    carrier.consume(consumer, threads=threads)
    for _ in range(threads):
        assert clock.sleeping.acquire(timeout=JOIN_SECONDS)
    assert clock.timeouts == [None] * threads, "one sleep each, and no waking to look"
    carrier.produce(batch(1))
    consumer.wait_for(1)
    carrier.shutdown()
    assert set(clock.timeouts) == {None}


def test_a_driver_serves_channels_without_a_carrier() -> None:
    channels = [MemoryChannel(), MemoryChannel()]
    consumer = Collector()
    driver = ConsumerDriver(channels, consumer, threads=2)
    assert not driver.is_running()
    driver.begin()
    driver.begin()
    assert driver.is_running()
    for n, channel in enumerate(channels):
        channel.push(batch(n))
        channel.close()
    assert driver.wait(JOIN_SECONDS)
    assert not driver.is_running()
    assert sorted(consumer.values()) == [0, 1]
    assert consumer.events.count("init") == 1


def test_a_drivers_own_error_fails_all_its_channels() -> None:
    class Unready(Collector):
        def init(self) -> None:
            raise OSError("no connection")

    channels = [MemoryChannel(), MemoryChannel()]
    driver = ConsumerDriver(channels, Unready())
    driver.begin()
    assert driver.wait(JOIN_SECONDS)
    for channel in channels:
        with pytest.raises(OSError, match="no connection"):
            channel.push(batch(1))


def test_a_failed_channel_fails_its_carrier() -> None:
    carrier, consumer = DataCarrier(2), Collector()
    driver = carrier.consume(consumer)
    carrier.channels[1].fail(OSError("gone"))
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(OSError, match="gone"):
        carrier.channels[0].push(batch(1))
    assert consumer.events == ["init", "on_exit"]


def test_a_closed_channel_leaves_the_others_running() -> None:
    carrier, consumer = DataCarrier(2, partitioner=by_value), Collector()
    driver = carrier.consume(consumer)
    carrier.channels[0].close()
    carrier.produce(batch(1))
    consumer.wait_for(1)
    assert driver.is_running()
    assert carrier.shutdown() is True


def test_close_consumes_what_is_there_and_leaves_the_carrier_open() -> None:
    carrier, consumer = DataCarrier(2), Gate()
    driver = carrier.consume(consumer, threads=2)
    for n in range(10):
        carrier.produce(batch(n))
    assert consumer.entered.wait(JOIN_SECONDS)
    assert driver.close(timeout=0) is False, "it is busy"
    consumer.opened.set()
    assert driver.close() is True
    assert driver.close() is True
    assert not driver.is_running()
    assert sorted(consumer.values()) == list(range(10))
    assert consumer.events[-1] == "on_exit"
    carrier.produce(batch(10))
    second = Collector()
    carrier.consume(second)
    assert carrier.shutdown() is True
    assert second.values() == [10]


def test_close_consumes_all_of_a_split_channel_too() -> None:
    carrier, consumer = DataCarrier(), Gate()
    driver = carrier.consume(consumer, threads=2)
    carrier.produce(batch(0))
    assert consumer.entered.wait(JOIN_SECONDS)
    carrier.channels[0].push_all(batch(n) for n in range(1, 40))
    assert driver.close(timeout=0) is False
    consumer.opened.set()
    assert driver.close() is True
    assert sorted(consumer.values()) == list(range(40))


def test_a_consumer_that_has_gone_is_forgotten() -> None:
    carrier = DataCarrier(2)
    gone = Collector()
    carrier.consume(gone, threads=2, linger=1.0).close()
    for threads in (1, 4):
        carrier.consume(Collector(), threads=threads).close()
    forgotten = weakref.ref(gone)
    del gone
    gc.collect()
    assert forgotten() is None, "its channels still know it"


def test_close_before_begin_means_never() -> None:
    channel, consumer = MemoryChannel(), Collector()
    driver = ConsumerDriver([channel], consumer)
    assert driver.close() is True
    driver.begin()
    assert not driver.is_running()
    assert driver.wait() is True
    assert consumer.events == []


def test_one_consumer_at_a_time() -> None:
    carrier = DataCarrier()
    driver = carrier.consume(Collector())
    with pytest.raises(FlowError, match="close it first"):
        carrier.consume(Collector())
    driver.close()
    carrier.consume(Collector())
    carrier.shutdown()


def test_a_failed_carrier_takes_no_consumer() -> None:
    carrier, consumer = DataCarrier(), Collector()
    carrier.fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        carrier.consume(consumer)
    assert consumer.events == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": 1.5}, ValueError, "threads=1.5"),
        ({"linger": -1.0}, ValueError, "linger=-1.0"),
        ({"linger": float("nan")}, ValueError, "linger=nan"),
        ({"consumer": None}, TypeError, "None"),
    ],
)
def test_what_consume_does_not_take_is_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    carrier = DataCarrier()
    with pytest.raises(error, match=message):
        carrier.consume(**{"consumer": Collector(), **arguments})
    carrier.consume(Collector())
    carrier.shutdown()


def test_a_driver_needs_a_channel() -> None:
    with pytest.raises(ValueError, match="one channel"):
        ConsumerDriver([], Collector())


def test_wait_gives_up_in_time() -> None:
    clock = VirtualClock()
    carrier, consumer = DataCarrier(clock=clock), Gate()
    driver = carrier.consume(consumer)
    carrier.produce(batch(1))
    waiter = start(lambda: (driver.wait(5.0), clock.now()))
    clock.wait_until_blocked(waiter)
    clock.advance(5.0)
    assert waiter.get() == (False, 5.0)
    consumer.opened.set()
    assert carrier.shutdown() is True


def test_a_machine_without_threads_to_give_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(consumer_threads())
    real = threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if thread.name.endswith("-1"):
            raise RuntimeError("can't start new thread")
        real(thread)

    carrier, consumer = DataCarrier(3), Collector()
    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start"):
        carrier.consume(consumer, threads=3)
    monkeypatch.undo()
    for thread in set(consumer_threads()) - before:
        thread.join(JOIN_SECONDS)
    assert set(consumer_threads()) <= before
    carrier.produce(batch(1))
    assert values(carrier.drain()) == [1], "the carrier itself is unharmed"
