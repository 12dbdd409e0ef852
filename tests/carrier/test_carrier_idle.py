"""A consumer that buffers is notified when nothing is left; adaptive lingering; priorities; metrics; resize."""

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_channel.carrier import (
    BulkConsumePool,
    CarrierMetrics,
    ConsumerDriver,
    DataCarrier,
    Partitioner,
    PoolThreadMetrics,
)
from spark_channel.carrier.consumer import ReadyQueue
from spark_channel.errors import ChannelFullError
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import JOIN_SECONDS, Collector, Gate, batch, consumer_threads, values


class Buffering(Collector):
    """Flushes when it is idle."""

    def on_idle(self) -> None:
        self._note("on_idle")

    def wait_for_event(self, event: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.events.count(event) >= times, JOIN_SECONDS), (
                self.events
            )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["own thread", "pool"])
def begin(
    request: pytest.FixtureRequest, clock: VirtualClock
) -> Callable[[DataCarrier, Collector], ConsumerDriver]:
    def consume(carrier: DataCarrier, consumer: Collector) -> ConsumerDriver:
        pool = None
        if request.param == "pool":
            pool = BulkConsumePool(clock=clock)
            request.addfinalizer(pool.close)
        driver = carrier.consume(consumer, pool=pool)
        with consumer.changed:
            assert consumer.changed.wait_for(lambda: consumer.events, JOIN_SECONDS)
        clock.wait_until_blocked(consumer_threads())
        return driver

    return consume


Begin = Callable[[DataCarrier, Collector], ConsumerDriver]


def test_an_idle_consumer_is_called_once_after_its_last_batches(
    clock: VirtualClock, begin: Begin
) -> None:
    carrier, consumer = DataCarrier(2, clock=clock), Buffering()
    begin(carrier, consumer)
    carrier.produce(batch(1))
    consumer.wait_for(1)
    clock.wait_until_blocked(consumer_threads())
    assert "on_idle" not in consumer.events, "it may be a short gap"
    clock.advance(1.0)
    consumer.wait_for_event("on_idle")
    clock.advance(100.0)
    clock.wait_until_blocked(consumer_threads())
    assert consumer.events == ["init", "consume", "on_idle"]
    carrier.produce(batch(2))
    consumer.wait_for(2)
    clock.wait_until_blocked(consumer_threads())
    clock.advance(1.0)
    consumer.wait_for_event("on_idle", 2)
    carrier.shutdown()
    assert consumer.events == ["init", "consume", "on_idle", "consume", "on_idle", "on_exit"]


def test_batches_within_the_lull_put_the_idle_call_off(clock: VirtualClock, begin: Begin) -> None:
    carrier, consumer = DataCarrier(clock=clock), Buffering()
    begin(carrier, consumer)
    for number in range(12):  # 0.1 s apart, which soon is the usual time
        carrier.produce(batch(number))
        consumer.wait_for(number + 1)
        clock.wait_until_blocked(consumer_threads())
        clock.advance(0.1)
        clock.wait_until_blocked(consumer_threads())
    early = consumer.events.count("on_idle")
    assert early <= 6
    assert consumer.events[-3:] == ["consume"] * 3
    clock.advance(0.15)
    consumer.wait_for_event("on_idle", early + 1)
    carrier.shutdown()


def test_threads_of_one_channel_are_each_told(clock: VirtualClock) -> None:
    carrier, consumer = DataCarrier(clock=clock), Buffering()
    carrier.consume(consumer, threads=2)
    for number in range(6):
        carrier.produce(batch(number))
    consumer.wait_for(6)
    consumer.wait_for_event("on_idle")
    carrier.shutdown()


def test_an_idle_call_that_raises_fails_the_carrier(clock: VirtualClock, begin: Begin) -> None:
    class Broken(Collector):
        def on_idle(self) -> None:
            raise OSError("flush")

    carrier, consumer = DataCarrier(clock=clock), Broken()
    driver = begin(carrier, consumer)
    carrier.produce(batch(1))
    consumer.wait_for(1)
    clock.wait_until_blocked(consumer_threads())
    clock.advance(1.0)
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(OSError, match="flush"):
        carrier.produce(batch(2))


def test_an_automatic_linger_is_as_long_as_the_last_call_took(clock: VirtualClock) -> None:
    class Slow(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            clock.sleep(0.05)
            super().consume(batches)

    carrier, consumer = DataCarrier(clock=clock), Slow()
    carrier.consume(consumer, linger="auto")
    clock.wait_until_blocked(consumer_threads())
    carrier.produce(batch(0))  # nothing is known yet: at once
    clock.wait_until_blocked(consumer_threads())
    clock.advance(0.05)
    consumer.wait_for(1)
    clock.wait_until_blocked(consumer_threads())
    carrier.produce(batch(1))
    clock.wait_until_blocked(consumer_threads())
    clock.advance(0.04)
    carrier.produce(batch(2))
    clock.wait_until_blocked(consumer_threads())
    assert consumer.calls == [[0]]
    clock.advance(0.01)
    clock.wait_until_blocked(consumer_threads())
    clock.advance(0.05)
    consumer.wait_for(3)
    assert consumer.calls == [[0], [1, 2]]
    assert carrier.metrics().consume_seconds == pytest.approx(0.1)
    carrier.close()


def test_a_linger_is_a_number_or_auto() -> None:
    with pytest.raises(
        ValueError, match='linger=-1 is not a number of seconds, 0 or more, or "auto"'
    ):
        DataCarrier().consume(Collector(), linger=-1)


def test_a_pool_serves_the_higher_priority_first_and_starves_none(clock: VirtualClock) -> None:
    pool = BulkConsumePool(clock=clock)
    gate, order = Gate(), []
    lock = threading.Lock()

    class Noting(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            with lock:
                order.extend(values(batches))
            super().consume(batches)

    busy = DataCarrier(clock=clock)
    busy.consume(gate, pool=pool)
    busy.produce(batch(0))
    assert gate.entered.wait(JOIN_SECONDS)
    carriers = [DataCarrier(clock=clock) for _ in range(4)]
    for number, carrier in enumerate(carriers):
        carrier.consume(Noting(), pool=pool, priority=[0, 5, 1, 5][number])
        carrier.produce(batch(number))
    gate.opened.set()
    for carrier in (busy, *carriers):
        assert carrier.shutdown() is True
    assert order == [1, 3, 2, 0]
    assert pool.close() is True
    ready: ReadyQueue[str] = ReadyQueue(clock)
    ready.prefer("high", 9)
    ready.put("low")
    clock.advance(1.0)
    ready.put("high")
    assert [ready.get(), ready.get()] == ["low", "high"], "it has waited for a second"


def test_every_queue_and_thread_has_metrics() -> None:
    with BulkConsumePool(1, name="seen") as pool:
        carrier, gate = DataCarrier(3, 100), Gate()
        carrier.consume(gate, pool=pool)
        carrier.produce(batch(1, 2))
        assert gate.entered.wait(JOIN_SECONDS)
        for _ in range(3):
            carrier.produce(batch(3))
        seen = carrier.metrics()
        assert isinstance(seen, CarrierMetrics)
        assert [queue.rows_stored for queue in seen.queues] == [1, 1, 1]
        assert (seen.backlog_rows, seen.consume_calls, seen.consumed_rows) == (3, 0, 0)
        (thread,) = pool.metrics()
        assert isinstance(thread, PoolThreadMetrics)
        assert (thread.name, thread.carriers, thread.backlog_rows) == ("spark-channel-seen-0", 1, 5)
        gate.opened.set()
        carrier.shutdown()
        seen = carrier.metrics()
        assert (seen.backlog_rows, seen.consumed_rows) == (0, 5)
        assert seen.consume_seconds > 0
        assert pool.metrics()[0].busy_seconds >= seen.consume_seconds


def test_a_carrier_is_resized_in_all_bounds(clock: VirtualClock) -> None:
    carrier = DataCarrier(2, 10, clock=clock)
    carrier.resize(capacity_rows=5, capacity_bytes=80, transaction_rows=3, keep_alive=0.0)
    for channel in carrier.channels:
        assert (channel.capacity_rows, channel.capacity_bytes) == (5, 80)
        assert (channel.transaction_rows, channel.keep_alive) == (3, 0.0)
    assert carrier.produce(batch(*range(5)))
    with pytest.raises(ChannelFullError):
        carrier.resize(capacity_rows=4)


def test_any_callable_chooses_the_channel_of_a_batch() -> None:
    by_size: Partitioner = lambda rows, channels: rows.num_rows % channels  # noqa: E731
    carrier = DataCarrier(3, 100, partitioner=by_size)
    for rows in (batch(1), batch(2, 3), batch(4, 5, 6), batch(7)):
        carrier.produce(rows)
    assert [queue.rows_stored for queue in carrier.metrics().queues] == [3, 2, 2]
    carrier.shutdown()
