"""`TokenBucket`, alone and with threads."""

import threading

import pytest

from spark_channel.clock import SystemClock
from spark_channel.errors import OptionError
from spark_channel.limits import TokenBucket
from tests.limits.conftest import HandClock


def test_waits_read_as_event_strings(clock: HandClock) -> None:
    bucket = TokenBucket(5, clock=clock)
    events = [f"R{bucket.acquire(amount):.2f}" for amount in (1, 1, 5, 1)]
    assert events == ["R0.00", "R0.20", "R0.20", "R1.00"]


def test_reserve_never_blocks_and_counts_what_was_reserved_before(clock: HandClock) -> None:
    bucket = TokenBucket(10, clock=clock)
    assert [bucket.reserve(10) for _ in range(3)] == [0.0, 1.0, 2.0]
    assert clock.now() == 0.0


def test_idle_time_saves_up_a_burst_of_twenty_milliseconds(clock: HandClock) -> None:
    bucket = TokenBucket(1000, clock=clock)
    clock.sleep(60)
    assert bucket.reserve(20) == 0.0
    assert bucket.reserve(1) == 0.0
    assert bucket.reserve(1) == pytest.approx(0.001)


def test_set_rate_keeps_the_debt(clock: HandClock) -> None:
    bucket = TokenBucket(10, clock=clock)
    bucket.reserve(10)
    bucket.set_rate(1)
    assert bucket.rate == 1
    assert bucket.reserve(0) == 10.0


def test_a_raised_rate_wakes_who_waits_already() -> None:
    bucket = TokenBucket(0.001)
    bucket.acquire(1)
    done = threading.Event()

    def wait() -> None:
        bucket.acquire(1)
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not done.wait(0.05)
    bucket.set_rate(1_000_000)
    assert done.wait(30)
    waiter.join(30)
    assert not waiter.is_alive()


class _Interrupted(BaseException):
    pass


def test_a_wait_that_is_interrupted_gives_its_amount_back() -> None:
    class Interrupts(SystemClock):
        def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
            raise _Interrupted

    bucket = TokenBucket(1, clock=Interrupts())
    bucket.acquire(10)
    with pytest.raises(_Interrupted):
        bucket.acquire(1000)
    assert bucket.reserve(0) == pytest.approx(10, abs=0.5)


def test_threads_share_the_rate_first_come_first_served() -> None:
    bucket = TokenBucket(400)
    spent = [0] * 4

    def spend(index: int) -> None:
        for _ in range(20):
            bucket.acquire(1)
            spent[index] += 1

    bucket_clock = SystemClock()
    start = bucket_clock.now()
    threads = [threading.Thread(target=spend, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert spent == [20] * 4
    assert bucket_clock.now() - start >= (80 - 1) / 400 - 0.02


@pytest.mark.parametrize("burst", [-0.1, float("nan"), float("inf")])
def test_a_burst_that_makes_no_sense_is_refused(burst: float) -> None:
    with pytest.raises(OptionError) as refused:
        TokenBucket(1, burst_seconds=burst)
    assert refused.value.option == "burst_seconds"


def test_a_negative_amount_is_refused(clock: HandClock) -> None:
    bucket = TokenBucket(1, clock=clock)
    for call in (bucket.reserve, bucket.acquire):
        with pytest.raises(OptionError) as refused:
            call(-1)
        assert refused.value.option == "amount"
