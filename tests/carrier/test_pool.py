"""Pools: a few threads for many carriers, and one carrier's end is its own."""

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.carrier import (
    BulkConsumePool,
    Consumer,
    ConsumerDriver,
    ConsumerPools,
    DataCarrier,
    consumer_pools,
)
from spark_channel.channel import MemoryChannel
from spark_channel.errors import FlowError
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import (
    JOIN_SECONDS,
    Collector,
    CountingClock,
    Gate,
    at_once,
    batch,
    consumer_threads,
    start,
    values,
)


@pytest.fixture
def pool() -> Iterator[BulkConsumePool]:
    with BulkConsumePool(2, name="test") as pool:
        yield pool


def test_two_threads_serve_many_carriers(pool: BulkConsumePool) -> None:
    carriers = [DataCarrier(2) for _ in range(20)]
    consumers = [Collector() for _ in carriers]
    for carrier, consumer in zip(carriers, consumers, strict=True):
        carrier.consume(consumer, pool=pool)
    assert pool.carriers() == [10, 10]
    for n in range(10):
        for place, carrier in enumerate(carriers):
            carrier.produce(batch(place, n))
    for place, (carrier, consumer) in enumerate(zip(carriers, consumers, strict=True)):
        assert carrier.shutdown() is True
        assert sorted(consumer.values()) == sorted([place] * 10 + list(range(10)))
        assert consumer.events[0] == "init"
        assert consumer.events[-1] == "on_exit"
        assert len(set(consumer.threads)) == 1, "one thread serves a carrier to its end"
    assert len({name for consumer in consumers for name in consumer.threads}) == 2
    assert pool.carriers() == [0, 0]


def test_a_new_carrier_goes_to_the_thread_with_the_least_backlog_not_the_fewest_carriers(
    pool: BulkConsumePool,
) -> None:
    busy, idle = DataCarrier(), [DataCarrier() for _ in range(3)]
    gate = Gate()
    busy.produce(batch(*range(1_000)))
    busy.consume(gate, pool=pool)
    assert gate.entered.wait(JOIN_SECONDS)
    assert sorted(each.backlog_rows for each in pool.metrics()) == [0, 1_000], (
        "rows being consumed are backlog too"
    )
    consumers = [Collector() for _ in idle]
    for carrier, consumer in zip(idle, consumers, strict=True):
        carrier.consume(consumer, pool=pool)
    assert sorted(pool.carriers()) == [1, 3]
    for carrier in idle:
        carrier.produce(batch(1))
        assert carrier.shutdown() is True, "none of them waits for the busy one"
    gate.opened.set()
    assert busy.shutdown() is True
    assert {name for c in consumers for name in c.threads}.isdisjoint(gate.threads)


def test_among_equal_backlogs_the_fewer_carriers_win(pool: BulkConsumePool) -> None:
    carriers = [DataCarrier() for _ in range(4)]
    for expected, carrier in zip([[1, 0], [1, 1], [2, 1], [2, 2]], carriers, strict=True):
        carrier.consume(Collector(), pool=pool)
        assert pool.carriers() == expected
    for carrier in carriers:
        carrier.shutdown()


def test_closing_one_carrier_leaves_the_others_running() -> None:
    with BulkConsumePool() as pool:
        first, second = DataCarrier(), DataCarrier()
        consumers = Collector(), Collector()
        first.consume(consumers[0], pool=pool)
        driver = second.consume(consumers[1], pool=pool)
        first.produce(batch(1))
        assert first.shutdown() is True
        assert consumers[0].events == ["init", "consume", "on_exit"]
        second.produce(batch(2))
        consumers[1].wait_for(1)
        assert driver.is_running()
        assert second.shutdown() is True


@pytest.mark.parametrize("where", ["init", "consume", "on_exit"])
def test_a_carrier_that_fails_leaves_the_others_running(where: str) -> None:
    class Broken(Collector):
        def _note(self, event: str) -> None:
            super()._note(event)
            if event == where:
                raise SystemExit(1)

    with BulkConsumePool() as pool:
        first, second = DataCarrier(), DataCarrier()
        consumer = Collector()
        driver = second.consume(consumer, pool=pool)
        first.produce(batch(1))
        first.consume(Broken(), pool=pool)
        with pytest.raises(SystemExit):
            first.shutdown()
        second.produce(batch(2))
        consumer.wait_for(1)
        assert driver.is_running()
        assert second.shutdown() is True


def test_a_ring_that_comes_after_its_carrier_has_left_is_harmless() -> None:
    with BulkConsumePool() as pool:
        carriers, consumers = [DataCarrier(), DataCarrier()], [Collector(), Collector()]
        for carrier, consumer in zip(carriers, consumers, strict=True):
            carrier.consume(consumer, pool=pool)
        ready = pool._members[0]._ready
        ready.put("one that has left")
        for carrier, consumer in zip(carriers, consumers, strict=True):
            carrier.produce(batch(1))
            consumer.wait_for(1)
            assert carrier.shutdown() is True


def test_closing_the_driver_leaves_the_carrier_open_for_another(pool: BulkConsumePool) -> None:
    carrier, first, second = DataCarrier(), Collector(), Collector()
    driver = carrier.consume(first, pool=pool)
    carrier.produce(batch(1))
    assert driver.close() is True
    assert first.values() == [1]
    carrier.produce(batch(2))
    carrier.consume(second, pool=pool)
    assert carrier.shutdown() is True
    assert second.values() == [2]


def test_closing_the_pool_consumes_what_is_there_and_leaves_the_carriers_open() -> None:
    pool = BulkConsumePool(2)
    carriers = [DataCarrier() for _ in range(5)]
    consumers = [Collector() for _ in carriers]
    for carrier, consumer in zip(carriers, consumers, strict=True):
        carrier.consume(consumer, pool=pool)
        carrier.produce(batch(1))
    assert pool.close() is True
    assert pool.close() is True
    assert pool.closed
    for carrier, consumer in zip(carriers, consumers, strict=True):
        assert consumer.values() == [1]
        assert consumer.events[-1] == "on_exit"
        carrier.produce(batch(2))
        assert values(carrier.drain()) == [2]
    with pytest.raises(FlowError, match="closed"):
        carriers[0].consume(Collector(), pool=pool)
    carriers[0].consume(consumers[0])
    carriers[0].shutdown()


def test_a_pool_that_was_never_used_has_no_thread() -> None:
    before = consumer_threads()
    pool = BulkConsumePool(8)
    assert consumer_threads() == before
    assert pool.close() is True


def test_close_gives_up_in_time() -> None:
    clock = VirtualClock()
    pool = BulkConsumePool(clock=clock)
    carrier, gate = DataCarrier(), Gate()
    carrier.consume(gate, pool=pool)
    carrier.produce(batch(1))
    assert gate.entered.wait(JOIN_SECONDS)
    closer = start(lambda: pool.close(5.0))
    clock.wait_until_blocked(closer)
    clock.advance(5.0)
    assert closer.get() is False
    gate.opened.set()
    assert pool.close() is True
    assert gate.values() == [1]


def test_a_pool_may_be_closed_from_within_a_consumer() -> None:
    pool = BulkConsumePool()

    class Closing(Collector):
        def consume(self, batches: list[Any]) -> None:
            super().consume(batches)
            assert pool.close() is False

    carrier, consumer = DataCarrier(), Closing()
    driver = carrier.consume(consumer, pool=pool)
    carrier.produce(batch(1))
    assert driver.wait(JOIN_SECONDS)
    assert pool.close() is True
    assert consumer.errors == []


def test_a_consumer_may_end_another_carrier_of_its_own_thread() -> None:
    class Ending(Collector):
        def consume(self, batches: list[Any]) -> None:
            super().consume(batches)
            assert other.shutdown() is False, "it would wait for its own thread"

    with BulkConsumePool() as pool:
        other, carrier = DataCarrier(), DataCarrier()
        left, ending = Collector(), Ending()
        other.produce(batch(7))
        driver = other.consume(left, pool=pool)
        carrier.consume(ending, pool=pool)
        carrier.produce(batch(1))
        assert driver.wait(JOIN_SECONDS)
        assert left.values() == [7]
        assert carrier.shutdown() is True
        assert ending.errors == []


def test_a_consumer_may_bring_another_carrier_to_its_own_pool() -> None:
    class Bringing(Collector):
        def consume(self, batches: list[Any]) -> None:
            super().consume(batches)
            other.consume(brought, pool=pool)

    with BulkConsumePool() as pool:
        other, carrier = DataCarrier(), DataCarrier()
        brought, bringing = Collector(), Bringing()
        other.produce(batch(7))
        carrier.consume(bringing, pool=pool)
        carrier.produce(batch(1))
        brought.wait_for(1)
        assert carrier.shutdown() is True
        assert other.shutdown() is True
        assert bringing.errors == []


def test_a_pool_serves_a_consumer_in_one_of_its_own_threads(pool: BulkConsumePool) -> None:
    with pytest.raises(ValueError, match="threads=2"):
        DataCarrier().consume(Collector(), threads=2, pool=pool)


@pytest.mark.parametrize("threads", [0, -1, True, 1.0])
def test_a_pool_has_a_thread_or_more(threads: Any) -> None:
    with pytest.raises(ValueError, match="threads="):
        BulkConsumePool(threads)


def test_idle_threads_sleep_without_a_timeout() -> None:
    clock = CountingClock()
    with BulkConsumePool(clock=clock) as pool:
        carriers = [DataCarrier() for _ in range(3)]
        consumer = Collector()
        for carrier in carriers:
            carrier.consume(consumer, pool=pool)
        for carrier in carriers:
            carrier.produce(batch(1))
        consumer.wait_for(3)
        for carrier in carriers:
            carrier.shutdown()
        assert set(clock.timeouts) <= {None}


# ---- pools by name


@pytest.fixture
def pools() -> ConsumerPools:
    return ConsumerPools()


def test_a_named_pool_is_made_once(pools: ConsumerPools) -> None:
    pool = pools.create("orders", threads=2)
    assert pools.create("orders", threads=2) is pool
    assert pools.get("orders") is pool
    assert (pool.name, pool.threads) == ("orders", 2)
    assert pools.create("other") is not pool


def test_threads_that_meet_get_the_same_pool(pools: ConsumerPools) -> None:
    with at_once(*[lambda: pools.create("orders", 2)] * 8) as runners:
        pass
    assert len({id(runner.get()) for runner in runners}) == 1


def test_a_pool_of_another_size_is_refused(pools: ConsumerPools) -> None:
    pools.create("orders", threads=2)
    with pytest.raises(FlowError, match="has 2 threads, not 3"):
        pools.create("orders", threads=3)


def test_an_unknown_pool_is_named_with_those_that_are(pools: ConsumerPools) -> None:
    with pytest.raises(FlowError, match=r"'orders'.*none"):
        pools.get("orders")
    pools.create("b")
    pools.create("a")
    with pytest.raises(FlowError, match="Pools: a, b"):
        pools.get("orders")


def test_a_closed_pool_is_forgotten(pools: ConsumerPools) -> None:
    pool = pools.create("orders")
    assert pools.close("orders") is True
    assert pool.closed
    assert pools.close("orders") is True
    with pytest.raises(FlowError):
        pools.get("orders")
    second = pools.create("orders", threads=3)
    second.close()
    with pytest.raises(FlowError, match="none"):
        pools.get("orders")
    assert pools.create("orders") is not second


def test_the_processs_pools_serve_carriers() -> None:
    pool = consumer_pools.create("tests.carrier", threads=1)
    carrier, consumer = DataCarrier(), Collector()
    carrier.consume(consumer, pool=pool)
    carrier.produce(batch(1))
    assert carrier.shutdown() is True
    assert consumer.values() == [1]
    assert consumer_pools.close("tests.carrier") is True


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_starts_without_pools() -> None:
    consumer_pools.create("tests.fork")
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            consumer_pools.get("tests.fork")
            os.write(question, b"there")
        except FlowError:
            os.write(question, b"gone")
        finally:
            os._exit(0)
    os.close(question)
    assert os.read(answer, 10) == b"gone"
    os.close(answer)
    os.waitpid(child, 0)
    assert consumer_pools.close("tests.fork") is True


def test_carriers_that_come_at_once_are_spread_over_the_threads() -> None:
    with BulkConsumePool(4) as pool, ThreadPoolExecutor(8) as callers:
        carriers = [DataCarrier() for _ in range(40)]

        def consume(carrier: DataCarrier) -> Callable[..., bool]:
            carrier.consume(Collector(), pool=pool)
            return carrier.shutdown

        ends = list(callers.map(consume, carriers))
        assert pool.carriers() == [10, 10, 10, 10]
        assert all(end() for end in ends)


class Slow(Consumer):
    """Takes `seconds` for each call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.rows: list[int] = []
        self.threads: list[str] = []
        self.events: list[str] = []

    def init(self) -> None:
        self.events.append("init")

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        time.sleep(self.seconds)
        self.rows += values(batches)
        self.threads.append(threading.current_thread().name)

    def on_exit(self) -> None:
        self.events.append("on_exit")


@pytest.mark.real_time
@pytest.mark.parametrize("made", [False, True])
def test_two_busy_carriers_of_one_thread_do_not_leave_the_other_idle(made: bool) -> None:
    """The idle carriers came between the busy ones, so both busy ones have the same thread."""
    consumers: dict[int, list[Slow]] = {number: [] for number in range(4)}

    def make(number: int) -> Slow:
        consumers[number].append(Slow(0.3 if number in (0, 2) else 0.0))
        return consumers[number][-1]

    def produce(carrier: DataCarrier) -> None:
        for row in range(5):
            carrier.produce(batch(row))
        carrier.close()

    with BulkConsumePool(2) as pool:
        carriers = [DataCarrier(capacity_rows=1) for _ in range(4)]
        for number, carrier in enumerate(carriers):
            carrier.consume(functools.partial(make, number) if made else make(number), pool=pool)
        assert pool.carriers() == [2, 2]
        began = time.monotonic()
        for number in (0, 2):
            start(functools.partial(produce, carriers[number]))
        for number in (0, 2):
            driver = carriers[number]._driver
            assert driver is not None
            assert driver.wait(JOIN_SECONDS)
        took = time.monotonic() - began
        for carrier in carriers:
            assert carrier.shutdown() is True
    for number in (0, 2):
        assert [row for each in consumers[number] for row in each.rows] == list(range(5))
        assert all(each.events == ["init", "on_exit"] for each in consumers[number])
        assert not made or all(len(set(each.threads)) <= 1 for each in consumers[number])
    assert took < 2.4, "two carriers of 1.5 s each, one after the other, take 3 s"


def test_a_fail_callback_that_raises_ends_its_own_carrier_alone() -> None:
    class Broken(Collector):
        def consume(self, batches: list[Any]) -> None:
            raise OSError("disk full")

        def on_error(self, batches: list[Any], error: Exception) -> None:
            raise error

    def fail(error: BaseException) -> None:
        raise RuntimeError("the callback fails")

    with BulkConsumePool(1) as pool:
        channel, carrier, consumer = MemoryChannel(), DataCarrier(), Collector()
        driver = ConsumerDriver([channel], Broken(), pool=pool, fail=fail)
        driver.begin()
        carrier.consume(consumer, pool=pool)
        channel.push(batch(1))
        assert driver.wait(JOIN_SECONDS)
        with pytest.raises(OSError, match="disk full"):
            channel.push(batch(2))
        carrier.produce(batch(3))
        consumer.wait_for(1)
        assert carrier.shutdown() is True


def test_carriers_that_move_lose_nothing_and_keep_their_order() -> None:
    """Many carriers, some slow, on few threads: whatever moves when, each has its rows once and in order."""
    with BulkConsumePool(3) as pool:
        carriers = [DataCarrier(capacity_rows=8) for _ in range(9)]
        consumers = [Slow(0.12 if number % 3 == 0 else 0.0) for number in range(9)]
        for carrier, consumer in zip(carriers, consumers, strict=True):
            carrier.consume(consumer, pool=pool)

        def produce(carrier: DataCarrier) -> None:
            for row in range(40):
                carrier.produce(batch(row))

        with at_once(*[functools.partial(produce, carrier) for carrier in carriers]):
            pass
        for carrier, consumer in zip(carriers, consumers, strict=True):
            assert carrier.shutdown() is True
            assert consumer.rows == list(range(40))
            assert consumer.events == ["init", "on_exit"]
        assert pool.carriers() == [0, 0, 0]
