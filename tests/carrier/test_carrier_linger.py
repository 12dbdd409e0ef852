"""Lingering: fewer and longer lists, never at the price of a blocked producer."""

from collections.abc import Callable

import pytest

from spark_channel.carrier import BulkConsumePool, ConsumerDriver, DataCarrier
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import JOIN_SECONDS, Collector, batch, consumer_threads, start


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["own thread", "pool"])
def linger(
    request: pytest.FixtureRequest, clock: VirtualClock
) -> Callable[[DataCarrier, Collector], ConsumerDriver]:
    """Consumes with a linger of 10 s and waits until the consumer thread sleeps."""

    def begin(carrier: DataCarrier, consumer: Collector) -> ConsumerDriver:
        pool = None
        if request.param == "pool":
            pool = BulkConsumePool(clock=clock)
            request.addfinalizer(pool.close)
        driver = carrier.consume(consumer, linger=10.0, pool=pool)
        with consumer.changed:
            assert consumer.changed.wait_for(lambda: consumer.events, JOIN_SECONDS)
        clock.wait_until_blocked(consumer_threads())
        return driver

    return begin


Begin = Callable[[DataCarrier, Collector], ConsumerDriver]


def test_batches_wait_for_more_from_the_first_one_on(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(2, clock=clock), Collector()
    linger(carrier, consumer)
    clock.advance(7.0)
    carrier.produce(batch(0))
    clock.wait_until_blocked(consumer_threads())
    clock.advance(6.0)
    carrier.produce(batch(1))
    clock.wait_until_blocked(consumer_threads())
    clock.advance(3.999)
    clock.wait_until_blocked(consumer_threads())
    assert consumer.calls == []
    clock.advance(0.001)
    consumer.wait_for(2)
    assert consumer.calls == [[0, 1]]
    clock.wait_until_blocked(consumer_threads())
    carrier.produce(batch(2))
    clock.wait_until_blocked(consumer_threads())
    clock.advance(10.0)
    consumer.wait_for(3)
    assert consumer.calls == [[0, 1], [2]]
    carrier.shutdown()


def test_the_end_does_not_linger(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(clock=clock), Collector()
    linger(carrier, consumer)
    carrier.produce(batch(0))
    assert carrier.shutdown() is True
    assert consumer.calls == [[0]]
    assert clock.now() == 0.0


def test_a_failure_does_not_linger(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(clock=clock), Collector()
    driver = linger(carrier, consumer)
    carrier.produce(batch(0))
    carrier.fail(OSError("gone"))
    assert driver.wait() is True
    assert consumer.events == ["init", "on_exit"]
    assert clock.now() == 0.0


def test_closing_the_driver_does_not_linger(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(clock=clock), Collector()
    driver = linger(carrier, consumer)
    carrier.produce(batch(0))
    assert driver.close() is True
    assert consumer.calls == [[0]]
    assert clock.now() == 0.0


def test_a_blocked_producer_ends_the_lingering(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(capacity_rows=2, clock=clock), Collector()
    linger(carrier, consumer)
    producer = start(lambda: [carrier.produce(batch(n)) for n in range(6)])
    assert producer.get() == [True] * 6
    assert clock.now() == 0.0
    carrier.shutdown()
    assert consumer.values() == [0, 1, 2, 3, 4, 5]


def test_a_rejected_batch_ends_the_lingering(clock: VirtualClock, linger: Begin) -> None:
    carrier, consumer = DataCarrier(capacity_rows=2, overflow="reject", clock=clock), Collector()
    linger(carrier, consumer)
    assert [carrier.produce(batch(n)) for n in range(3)] == [True, True, False]
    consumer.wait_for(2)
    assert clock.now() == 0.0
    carrier.shutdown()


def test_threads_of_one_channel_linger_together(clock: VirtualClock) -> None:
    carrier, consumer = DataCarrier(clock=clock), Collector()
    carrier.consume(consumer, threads=2, linger=10.0)
    clock.wait_until_blocked(consumer_threads())
    for n in range(4):
        carrier.produce(batch(n))
    clock.wait_until_blocked(consumer_threads())
    assert consumer.calls == []
    clock.advance(10.0)
    consumer.wait_for(4)
    carrier.shutdown()
    assert sorted(consumer.values()) == [0, 1, 2, 3]
