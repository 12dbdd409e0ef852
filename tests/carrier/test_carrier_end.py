"""How a carrier ends: close, fail, shutdown, the `with` block - and iteration up to that end."""

import gc
from functools import partial

import pytest

from spark_channel.carrier import DataCarrier
from spark_channel.carrier.consumer import ReadyQueue
from spark_channel.errors import ChannelClosedError
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

# ---- close and shutdown


def test_close_leaves_what_is_there_to_be_drained() -> None:
    carrier = DataCarrier(2)
    for n in range(4):
        carrier.produce(batch(n))
    carrier.close()
    carrier.close()
    assert (carrier.closed, carrier.ended) == (True, False)
    assert values(carrier.drain()) == [0, 2, 1, 3]
    assert carrier.drain() == []
    assert (carrier.closed, carrier.ended) == (True, True)
    with pytest.raises(ChannelClosedError):
        carrier.produce(batch(5))


def test_close_wakes_producers_that_wait_for_room() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, capacity_rows=1, clock=clock)
    for n in range(2):
        carrier.produce(batch(n))
    producers = [start(lambda: carrier.produce(batch(9))) for _ in range(2)]
    clock.wait_until_blocked(producers)
    carrier.close()
    for producer in producers:
        with pytest.raises(ChannelClosedError):
            producer.get()
    assert values(carrier.drain()) == [0, 1]


def test_shutdown_waits_for_the_consumer() -> None:
    carrier, consumer = DataCarrier(), Gate()
    carrier.consume(consumer)
    carrier.produce(batch(1))
    assert consumer.entered.wait(JOIN_SECONDS)
    assert carrier.shutdown(timeout=0) is False
    with pytest.raises(ChannelClosedError):
        carrier.produce(batch(2))
    consumer.opened.set()
    assert carrier.shutdown() is True
    assert carrier.shutdown() is True
    assert consumer.events == ["init", "consume", "on_exit"]


def test_shutdown_gives_up_in_time() -> None:
    clock = VirtualClock()
    carrier, consumer = DataCarrier(clock=clock), Gate()
    carrier.consume(consumer)
    carrier.produce(batch(1))
    ender = start(lambda: (carrier.shutdown(2.5), clock.now()))
    clock.wait_until_blocked(ender)
    clock.advance(2.5)
    assert ender.get() == (False, 2.5)
    consumer.opened.set()
    assert carrier.shutdown() is True


def test_shutdown_by_several_threads_at_once() -> None:
    carrier, consumer = DataCarrier(2), Collector()
    carrier.consume(consumer, threads=2)
    for n in range(10):
        carrier.produce(batch(n))
    with at_once(*[carrier.shutdown] * 4) as runners:
        pass
    assert [runner.get() for runner in runners] == [True] * 4
    assert sorted(consumer.values()) == list(range(10))


def test_shutdown_without_a_consumer_says_that_rows_are_left() -> None:
    carrier = DataCarrier()
    carrier.produce(batch(1))
    assert carrier.shutdown() is False
    assert values(carrier.drain()) == [1]
    assert carrier.shutdown() is True


def test_shutdown_says_that_rows_are_left_which_a_transaction_holds() -> None:
    carrier = DataCarrier()
    carrier.produce(batch(1))
    with carrier.channels[0].transaction() as transaction:
        assert transaction.take() is not None
        assert carrier.shutdown() is False
    assert carrier.shutdown() is True


# ---- fail


def test_fail_reaches_everybody_at_once_and_the_first_error_counts() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, capacity_rows=1, clock=clock)
    carrier.partitioner = lambda _batch, _channels: 0
    carrier.produce(batch(0))
    producer = start(lambda: carrier.produce(batch(1)))
    clock.wait_until_blocked(producer)
    first = OSError("first")
    carrier.fail(first)
    carrier.fail(OSError("second"))
    for use in (producer.get, lambda: carrier.produce(batch(2)), carrier.drain, carrier.shutdown):
        with pytest.raises(OSError, match="first"):
            use()
    with pytest.raises(OSError, match="first"):
        next(iter(carrier))
    assert carrier.error is first
    assert carrier.ended


def test_two_failures_at_once_leave_one_error_in_every_channel() -> None:
    for _ in range(50):
        carrier = DataCarrier(4)
        with at_once(*[partial(carrier.fail, OSError(n)) for n in range(3)]):
            pass
        for channel in carrier.channels:
            with pytest.raises(OSError) as raised:
                channel.push(batch(1))
            assert raised.value is carrier.error


def test_a_failure_that_comes_while_another_spreads_changes_nothing() -> None:
    carrier = DataCarrier(3)
    carrier.channels[0].add_listener(lambda: carrier.fail(OSError("second")))
    carrier.fail(OSError("first"))
    for channel in carrier.channels:
        with pytest.raises(OSError, match="first"):
            channel.push(batch(1))


def test_fail_takes_an_exception() -> None:
    carrier = DataCarrier()
    with pytest.raises(TypeError, match="'broken'"):
        carrier.fail("broken")  # type: ignore[arg-type] # wrong on purpose
    assert carrier.produce(batch(1))


def test_raising_the_error_many_times_does_not_grow_its_traceback() -> None:
    carrier = DataCarrier()
    carrier.fail(OSError("gone"))
    depths = []
    for _ in range(5):
        with pytest.raises(OSError) as raised:
            carrier.shutdown()
        depths.append(len(raised.traceback))
    assert len(set(depths)) == 1


# ---- the with block


def test_a_with_block_ends_with_everything_consumed() -> None:
    consumer = Collector()
    with DataCarrier(2) as carrier:
        carrier.consume(consumer, threads=2)
        for n in range(10):
            carrier.produce(batch(n))
    assert sorted(consumer.values()) == list(range(10))
    assert consumer.events[-1] == "on_exit"
    assert carrier.ended


def test_a_with_block_tells_what_its_consumer_could_not_do() -> None:
    class LastFlush(Collector):
        def on_exit(self) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), DataCarrier() as carrier:
        carrier.consume(LastFlush())


def test_an_exception_in_the_block_fails_the_carrier_and_passes_through() -> None:
    consumer = Collector()
    carrier = DataCarrier()

    def block() -> None:
        with carrier:
            carrier.consume(consumer)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()
    with pytest.raises(KeyError, match="mine"):
        carrier.produce(batch(1))
    assert consumer.events[-1] == "on_exit"


def test_an_interrupt_of_the_block_is_not_raised_in_the_producers() -> None:
    with pytest.raises(KeyboardInterrupt), DataCarrier() as carrier:
        raise KeyboardInterrupt
    with pytest.raises(ChannelClosedError, match="KeyboardInterrupt"):
        carrier.produce(batch(1))


def test_a_consumer_that_hangs_does_not_hold_a_failed_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    consumer = Gate()

    def block() -> None:
        with DataCarrier(clock=clock) as carrier:
            carrier.consume(consumer)
            carrier.produce(batch(1))
            assert consumer.entered.wait(JOIN_SECONDS)
            raise KeyError("mine")

    leaver = start(block)
    assert consumer.entered.wait(JOIN_SECONDS)
    clock.wait_until_blocked(leaver)
    clock.advance(5.0)
    with pytest.raises(KeyError):
        leaver.get()
    assert "left behind" in caplog.text
    consumer.opened.set()


# ---- iteration


def test_iteration_takes_all_channels_until_all_are_closed() -> None:
    carrier = DataCarrier(3)

    def produce() -> None:
        for n in range(100):
            carrier.produce(batch(n))
        carrier.close()

    producer = start(produce)
    assert sorted(values(carrier)) == list(range(100))
    producer.get()
    assert list(carrier) == []


def test_iteration_keeps_each_channels_order_and_lets_channels_take_turns() -> None:
    carrier = DataCarrier(2, partitioner=lambda each, _channels: each.column("n")[0].as_py() % 2)
    for n in (0, 2, 4, 1, 3, 5):
        carrier.produce(batch(n))
    carrier.close()
    assert values(carrier) == [0, 1, 2, 3, 4, 5]


def test_iteration_waits_until_each_channel_is_closed() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, clock=clock)
    reader = start(lambda: values(carrier))
    clock.wait_until_blocked(reader)
    carrier.channels[0].close()
    carrier.channels[1].push(batch(1))
    clock.wait_until_blocked(reader)
    carrier.channels[1].close()
    assert reader.get() == [1]


def test_a_loop_that_is_left_early_takes_no_batch_with_it() -> None:
    carrier = DataCarrier(2)
    for n in range(6):
        carrier.produce(batch(n))
    carrier.close()
    seen = []
    for each in carrier:
        seen += values([each])
        if len(seen) == 2:
            break
    assert sorted(seen + values(carrier)) == [0, 1, 2, 3, 4, 5]


def test_an_iterator_that_has_gone_is_forgotten() -> None:
    carrier = DataCarrier()
    carrier.produce(batch(1))
    rings: list[int] = []
    for _ in carrier:
        break
    gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadyQueue, "put", lambda *_: rings.append(1))
        carrier.produce(batch(2))
    assert rings == []


def test_several_threads_may_iterate_beside_a_consumer() -> None:
    carrier, consumer = DataCarrier(2, capacity_rows=4), Collector()
    carrier.consume(consumer)
    readers = [start(lambda: values(carrier)) for _ in range(3)]
    for n in range(300):
        carrier.produce(batch(n))
    assert carrier.shutdown(JOIN_SECONDS) in (True, False)
    taken = [reader.get() for reader in readers]
    seen = consumer.values() + [n for each in taken for n in each]  # type: ignore[attr-defined] # a part of this kind
    assert sorted(seen) == list(range(300))


def test_a_failure_wakes_iterators_that_sleep() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, clock=clock)
    readers = [start(lambda: list(carrier)) for _ in range(2)]
    clock.wait_until_blocked(readers)
    carrier.fail(OSError("gone"))
    for reader in readers:
        with pytest.raises(OSError, match="gone"):
            reader.get()


def test_one_failed_channel_fails_the_carrier_for_iterators_too() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(2, clock=clock)
    reader = start(lambda: list(carrier))
    clock.wait_until_blocked(reader)
    carrier.channels[1].fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        reader.get()
    with pytest.raises(OSError, match="gone"):
        carrier.channels[0].push(batch(1))


def test_rows_that_a_transaction_holds_come_back_to_the_iterator() -> None:
    clock = VirtualClock()
    carrier = DataCarrier(clock=clock)
    channel = carrier.channels[0]
    carrier.produce(batch(1))
    carrier.close()
    transaction = channel.transaction()
    transaction.begin()
    assert transaction.take() is not None
    reader = start(lambda: values(carrier))
    clock.wait_until_blocked(reader)
    transaction.rollback()
    assert reader.get() == [1]


def test_an_iterator_that_waits_sleeps_without_a_timeout() -> None:
    clock = CountingClock()
    carrier = DataCarrier(3, clock=clock)
    reader = start(lambda: values(carrier))
    assert clock.sleeping.acquire(timeout=JOIN_SECONDS)
    carrier.produce(batch(1))
    carrier.close()
    assert reader.get() == [1]
    assert set(clock.timeouts) == {None}


# ---- looking


def test_statistics_are_the_channels_sums_with_the_consumers_wait() -> None:
    clock = VirtualClock()
    carrier, consumer = (
        DataCarrier(2, capacity_rows=10, capacity_bytes=1_000, clock=clock),
        Collector(),
    )
    driver = carrier.consume(consumer)
    with consumer.changed:
        assert consumer.changed.wait_for(lambda: consumer.events, JOIN_SECONDS)
    clock.wait_until_blocked(consumer_threads())
    clock.advance(3.0)
    carrier.produce(batch(1, 2))
    carrier.produce(batch(3))
    consumer.wait_for(3)
    driver.close()
    s = carrier.statistics()
    assert (s.rows_pushed, s.rows_pulled, s.rows_stored) == (3, 3, 0)
    assert (s.bytes_pushed, s.put_attempts, s.put_successes) == (24, 2, 2)
    assert (s.capacity_rows, s.capacity_bytes) == (20, 2_000)
    assert s.wait_reader_seconds == 3.0

    reader = start(lambda: values(carrier))
    clock.wait_until_blocked(reader)
    clock.advance(2.0)
    assert carrier.statistics().wait_reader_seconds == 5.0, "a wait under way counts"
    carrier.close()
    reader.get()
    carrier.consume(Collector())
    carrier.shutdown()
    assert carrier.statistics().wait_reader_seconds == 5.0


def test_a_carrier_shows_its_state() -> None:
    carrier = DataCarrier(2, capacity_rows=5, capacity_bytes=50)
    carrier.produce(batch(1))
    assert repr(carrier) == "<DataCarrier open: 2 channels, 1 of 10 rows, 8 of 100 bytes>"
    carrier.close()
    assert repr(carrier).startswith("<DataCarrier closed:")
    carrier.drain()
    assert repr(carrier).startswith("<DataCarrier ended:")
    carrier.fail(OSError())
    assert repr(carrier).startswith("<DataCarrier failed:")


def test_backlog_is_what_waits_and_the_drivers_includes_what_is_in_hand() -> None:
    carrier, consumer = DataCarrier(2), Gate()
    driver = carrier.consume(consumer)
    carrier.produce(batch(1, 2))
    assert consumer.entered.wait(JOIN_SECONDS)
    carrier.produce(batch(3))
    assert carrier.backlog == 1
    assert driver.backlog == 3
    consumer.opened.set()
    carrier.shutdown()
    assert driver.backlog == 0
