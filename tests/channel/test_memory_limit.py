"""Reserve, pay, publish: which calls the limiter gets, when, and how an unused payment is returned."""

import functools
import threading
from typing import Any

import pytest

from spark_channel.channel import Limiter, MemoryChannel, Payment
from spark_channel.errors import ChannelClosedError, ChannelFullError, LimitError
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, FakeLimiter, FakePayment, Thread, conserved, numbers, rows


def test_the_fake_is_a_limiter(clock: VirtualClock) -> None:
    limiter: Limiter = FakeLimiter(clock)
    payment: Payment = limiter.pay(1, 1, lambda: None)
    assert payment.remaining().seconds == 0.0


def test_every_published_row_is_paid_before_it_is_seen(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=10)
    channel = MemoryChannel(limiter=limiter, clock=clock)
    channel.push(rows(20))  # debt: the next one waits 2 s
    producer = Thread(lambda: channel.push(rows(5, 20)))
    clock.wait_until_blocked(producer)
    s = channel.statistics()
    assert (s.rows_pushed, s.rows_reserved, s.bytes_reserved) == (20, 5, 5 * ROW)
    clock.advance(1.99)
    clock.wait_until_blocked(producer)
    assert channel.backlog == 20
    clock.advance(0.01)
    producer.result()
    assert channel.backlog == 25
    assert limiter.spent == [(20, 20 * ROW), (5, 5 * ROW)]
    conserved(channel)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((3, None), [(3, 24), (3, 24), (3, 24), (1, 8)]),
        ((None, 30), [(3, 24), (3, 24), (3, 24), (1, 8)]),
        ((4, 17), [(2, 16), (2, 16), (2, 16), (2, 16), (2, 16)]),
        ((None, 1), [(1, 8)] * 10),
        ((None, None), [(10, 80)]),
    ],
)
def test_a_batch_is_sliced_to_what_the_limiter_takes_at_once(
    size: tuple[int | None, int | None], expected: list[tuple[int, int]], clock: VirtualClock
) -> None:
    limiter = FakeLimiter(clock, slice_size=size)
    channel = MemoryChannel(limiter=limiter, clock=clock)
    channel.push(rows(10))
    assert limiter.spent == expected
    assert numbers(channel.drain()) == list(range(10))


def test_the_bytes_that_are_paid_sum_exactly(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, slice_size=(3, None))
    channel = MemoryChannel(limiter=limiter, clock=clock)
    channel.push(rows(10), nbytes=101)
    assert sum(nbytes for _, nbytes in limiter.spent) == 101


def test_a_change_of_the_slice_size_acts_on_the_batch_under_way(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1, slice_size=(2, None))
    channel = MemoryChannel(limiter=limiter, clock=clock)
    producer = Thread(lambda: channel.push(rows(10)))
    clock.wait_until_blocked(producer)
    limiter.size = (100, None)
    limiter.rate = 1000.0
    clock.advance(2.0)
    clock.wait_until_blocked(producer)
    clock.advance(2.0)
    producer.result()
    assert [amount[0] for amount in limiter.spent] == [2, 2, 6]


def test_a_wake_ends_a_wait_early(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    limiter.paused = True
    channel = MemoryChannel(limiter=limiter, clock=clock)
    producer = Thread(lambda: channel.push(rows(1)))
    clock.wait_until_blocked(producer)
    limiter.wake_all()  # nothing has changed: it asks again and waits on
    clock.wait_until_blocked(producer)
    assert producer.is_alive()
    limiter.paused = False
    limiter.wake_all()
    producer.result()
    limiter.wake_all()  # too late: has no effect


def test_a_wake_that_comes_before_the_wait_is_not_lost(clock: VirtualClock) -> None:
    class Hasty(FakeLimiter):
        def pay(self, rows: int, nbytes: int, wake: Any) -> FakePayment:
            payment = super().pay(rows, nbytes, wake)
            self.paused = False
            wake()  # from the same call chain, which only remaining() and cancel() must not do
            return payment

    limiter = Hasty(clock)
    limiter.paused = True
    channel = MemoryChannel(limiter=limiter, clock=clock)
    assert channel.push(rows(1)) is True


@pytest.mark.parametrize("ending", ["close", "fail"])
def test_the_end_wakes_a_payer_and_gives_back_room_and_payment(
    ending: str, clock: VirtualClock
) -> None:
    limiter = FakeLimiter(clock)
    limiter.paused = True
    channel = MemoryChannel(limiter=limiter, clock=clock)
    producer = Thread(lambda: channel.push(rows(3)))
    clock.wait_until_blocked(producer)
    if ending == "close":
        channel.close()
    else:
        channel.fail(OSError("gone"))
    with pytest.raises(ChannelClosedError if ending == "close" else OSError):
        producer.result()
    assert (limiter.spent, limiter.cancelled) == ([], [(3, 24)])
    s = channel.statistics()
    assert (s.rows_reserved, s.bytes_reserved, s.rows_failed, s.bytes_failed) == (0, 0, 3, 24)


def test_a_limit_that_is_lost_fails_the_push_and_not_the_channel(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1, slice_size=(2, None))
    channel = MemoryChannel(limiter=limiter, clock=clock)
    producer = Thread(lambda: channel.push(rows(10)))
    clock.wait_until_blocked(producer)
    limiter.error = LimitError("the service is gone")
    limiter.wake_all()
    with pytest.raises(LimitError, match="the service is gone"):
        producer.result()
    s = channel.statistics()
    assert (s.rows_pushed, s.rows_failed, s.rows_reserved) == (2, 8, 0)
    limiter.error = None
    clock.advance(100.0)
    assert channel.push(rows(1, 2)) is True
    assert numbers(channel.drain()) == [0, 1, 2]


def test_a_limiter_whose_pay_raises_costs_no_room(clock: VirtualClock) -> None:
    class Broken(FakeLimiter):
        def pay(self, rows: int, nbytes: int, wake: Any) -> FakePayment:
            raise LimitError("no")

    channel = MemoryChannel(limiter=Broken(clock), clock=clock)
    for overflow in ("block", "overwrite", "reject"):
        channel.overflow = overflow
        with pytest.raises(LimitError):
            channel.push(rows(2))
    s = channel.statistics()
    assert (s.rows_reserved, s.rows_stored, s.rows_failed) == (0, 0, 6)


def test_a_push_without_room_has_not_paid(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    channel = MemoryChannel(capacity_rows=2, limiter=limiter, clock=clock)
    channel.push(rows(2))
    producer = Thread(lambda: channel.push(rows(2, 2)))
    clock.wait_until_blocked(producer)
    assert len(limiter.payments) == 1
    channel.drain()
    producer.result()
    assert limiter.spent == [(2, 16), (2, 16)]


def test_one_producers_batches_keep_their_order_while_another_pays(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1, slice_size=(1, None))
    channel = MemoryChannel(limiter=limiter, clock=clock)

    def produce(start: int) -> None:
        for n in range(0, 6, 2):
            channel.push(rows(2, start + n))

    producers = [Thread(functools.partial(produce, start)) for start in (0, 100, 200)]
    got: list[int] = []
    while len(got) < 18:
        clock.advance(1.0)
        got += numbers(channel.drain())
    for producer in producers:
        producer.result()
    for start in (0, 100, 200):
        assert [n for n in got if start <= n < start + 100] == list(range(start, start + 6))
    assert clock.now() >= 17.0
    conserved(channel)


# ---- transactions


def test_a_transaction_pays_at_commit(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, slice_size=(1, None))
    channel = MemoryChannel(limiter=limiter, clock=clock)
    with channel.transaction() as transaction:
        transaction.put(rows(2))
        transaction.put(rows(3, 2))
        assert limiter.payments == []
    assert limiter.spent == [(5, 40)]  # once for all: it is published at once
    with channel.transaction() as transaction:
        transaction.take()
    assert len(limiter.payments) == 1  # the consumers' side is not limited


def test_a_rolled_back_transaction_pays_nothing(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    channel = MemoryChannel(limiter=limiter, clock=clock)
    transaction = channel.transaction()
    transaction.begin()
    transaction.put(rows(2))
    transaction.rollback()
    assert limiter.payments == []


def test_a_commit_waits_for_the_limit_longer_than_keep_alive(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(keep_alive=3.0, limiter=limiter, clock=clock)
    channel.push(rows(100))

    def produce() -> None:
        with channel.transaction() as transaction:
            transaction.put(rows(2, 100))

    producer = Thread(produce)
    clock.wait_until_blocked(producer)
    clock.advance(99.0)
    clock.wait_until_blocked(producer)
    assert channel.statistics().rows_reserved == 2
    clock.advance(1.0)
    producer.result()
    assert channel.backlog == 102


@pytest.mark.parametrize("overflow", ["block", "overwrite"])
def test_a_commit_that_is_tried_again_pays_once(overflow: str, clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    channel = MemoryChannel(
        capacity_rows=4, keep_alive=0, overflow=overflow, limiter=limiter, clock=clock
    )
    channel.push(rows(4))
    spent = len(limiter.spent)

    refused = threading.Event()

    def produce() -> None:
        transaction = channel.transaction()
        transaction.begin()
        transaction.put(rows(2, 10))
        for _ in range(3):
            with pytest.raises(ChannelFullError):
                transaction.commit()
        refused.set()
        released.wait(20)
        transaction.commit()
        transaction.close()

    released = threading.Event()
    with channel.transaction() as holder:
        holder.take()  # there is nothing to overwrite, either
        producer = Thread(produce)
        assert refused.wait(20)
    released.set()
    producer.result()
    assert limiter.spent[spent:] == [(2, 16)]
    assert numbers(channel.drain()) == [10, 11]
    conserved(channel)


def test_a_commit_that_takes_more_than_it_puts_still_pays(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(capacity_rows=10, limiter=limiter, clock=clock)
    channel.push(rows(10))

    def exchange() -> None:
        with channel.transaction() as transaction:
            transaction.take()
            transaction.put(rows(3, 100))

    worker = Thread(exchange)
    clock.wait_until_blocked(worker)
    s = channel.statistics()
    assert (s.rows_stored, s.rows_held, s.rows_reserved) == (10, 10, 0)
    clock.advance(10.0)
    worker.result()
    assert numbers(channel.drain()) == [100, 101, 102]
    conserved(channel)


# ---- reports to the limiter


def test_throttled_seconds_are_told_by_reason_and_while_they_last(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(limiter=limiter, clock=clock)
    channel.push(rows(4))
    producer = Thread(lambda: channel.push(rows(1, 4)))
    clock.wait_until_blocked(producer)
    clock.advance(1.5)
    clock.wait_until_blocked(producer)
    assert channel.statistics().throttled_seconds == {"rows": 1.5}
    limiter.paused = True
    limiter.wake_all()
    clock.wait_until_blocked(producer)
    clock.advance(10.0)
    clock.wait_until_blocked(producer)
    assert channel.statistics().throttled_seconds == {"rows": 1.5, "paused": 10.0}
    limiter.paused = False
    limiter.wake_all()
    producer.result()
    s = channel.statistics()
    assert s.throttled_seconds == {"rows": 1.5, "paused": 10.0}
    assert (s.wait_writer_seconds, s.wait_reader_seconds) == (0.0, 0.0)
