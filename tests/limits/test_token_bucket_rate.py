"""`RateLimiter`, the limiter of one process."""

import itertools

import pytest

from spark_channel.channel.capacity import Limiter, Payment
from spark_channel.errors import OptionError
from spark_channel.limits import RateLimiter
from tests.limits.conftest import HandClock


def never() -> None:
    raise AssertionError("nothing changed, so no thread may be woken")


def go(clock: HandClock, payment: Payment) -> float:
    """Wait as a channel does; the seconds it took."""
    start = clock.now()
    while wait := payment.remaining().seconds:
        clock.sleep(wait)
    assert payment.remaining().seconds == 0.0
    return clock.now() - start


def test_it_is_a_limiter(clock: HandClock) -> None:
    limiter: Limiter = RateLimiter(1, clock=clock)
    assert limiter.slice_size() == (1, None)


def test_without_rates_everything_goes_at_once(clock: HandClock) -> None:
    meter = RateLimiter(clock=clock)
    assert meter.slice_size() == (None, None)
    assert all(go(clock, meter.pay(10**9, 10**12, never)) == 0.0 for _ in range(3))


def test_the_longer_wait_wins_and_is_named(clock: HandClock) -> None:
    meter = RateLimiter(10, 1000, clock=clock)
    go(clock, meter.pay(5, 2000, never))
    second = meter.pay(1, 1, lambda: None)
    assert (second.remaining().seconds, second.remaining().reason) == (2.0, "bytes")
    meter.set_rates(1, 1000)
    wait = meter.pay(1, 1, never).remaining()
    assert (wait.seconds, wait.reason) == (6.0, "rows")


def test_slices_are_twenty_milliseconds_and_at_least_one(clock: HandClock) -> None:
    assert RateLimiter(1000, 64_000_000, clock=clock).slice_size() == (20, 1_280_000)
    assert RateLimiter(0.5, 7, clock=clock).slice_size() == (1, 1)


def test_payments_go_in_order_and_stay_paid(clock: HandClock) -> None:
    meter = RateLimiter(10, clock=clock)
    first, second, third = (meter.pay(10, 0, never) for _ in range(3))
    assert first.remaining().seconds == 0.0
    assert second.remaining().seconds == 1.0
    assert third.remaining().seconds == 2.0
    clock.sleep(1.5)
    assert second.remaining().seconds == 0.0
    assert second.remaining().seconds == 0.0
    assert third.remaining().seconds == 0.5


def test_a_cancelled_payment_moves_those_behind_up(clock: HandClock) -> None:
    meter = RateLimiter(10, clock=clock)
    go(clock, meter.pay(10, 0, never))
    gone, behind = meter.pay(100, 0, never), meter.pay(1, 0, never)
    assert behind.remaining().seconds == 11.0
    gone.cancel()
    gone.cancel()
    assert behind.remaining().seconds == 1.0
    assert gone.remaining().seconds == 0.0


def test_cancel_after_paid_gives_nothing_back(clock: HandClock) -> None:
    meter = RateLimiter(10, clock=clock)
    paid = meter.pay(10, 0, never)
    go(clock, paid)
    paid.cancel()
    assert meter.pay(1, 0, never).remaining().seconds == 1.0


def test_a_live_change_wakes_all_who_wait_with_no_lock_held(clock: HandClock) -> None:
    meter = RateLimiter(1, clock=clock)
    go(clock, meter.pay(10, 0, never))
    woken = []
    waiting = [meter.pay(1, 0, lambda: woken.append(meter.slice_size())) for _ in range(2)]
    meter.set_rates(100, 500)
    assert woken == [(2, 10), (2, 10)]
    assert (meter.rows_per_second, meter.bytes_per_second) == (100, 500)
    assert waiting[0].remaining().seconds == pytest.approx(0.1)


def test_lifting_a_limit_lets_go_who_waited_for_it(clock: HandClock) -> None:
    meter = RateLimiter(1, clock=clock)
    go(clock, meter.pay(1000, 0, never))
    waiting = meter.pay(1, 0, lambda: None)
    meter.set_rates(None, None)
    assert waiting.remaining().seconds == 0.0
    meter.set_rates(5, None)
    assert meter.pay(1, 0, never).remaining().seconds == 0.0


def test_a_bad_rate_changes_nothing(clock: HandClock) -> None:
    meter = RateLimiter(10, 1000, clock=clock)
    with pytest.raises(OptionError) as refused:
        meter.set_rates(99, -1)
    assert refused.value.option == "bytes_per_second"
    assert (meter.rows_per_second, meter.bytes_per_second) == (10, 1000)


@pytest.mark.parametrize(("rows", "nbytes"), [(-1, 0), (0, -1)])
def test_a_negative_payment_is_refused(clock: HandClock, rows: int, nbytes: int) -> None:
    with pytest.raises(OptionError):
        RateLimiter(1, 1, clock=clock).pay(rows, nbytes, never)


def test_fast_producer_never_has_more_than_one_twentieth_over_in_a_second(clock: HandClock) -> None:
    meter = RateLimiter(1000, clock=clock)
    clock.sleep(5)
    events = []
    for _ in range(500):
        go(clock, meter.pay(20, 0, never))
        events.append(clock.now())
    worst = max(sum(20 for at in events if start <= at < start + 1) for start in events)
    assert worst <= 1050
    assert max(b - a for a, b in itertools.pairwise(events)) <= 0.3


def test_one_row_batches_in_debt_run_at_exactly_the_rate(clock: HandClock) -> None:
    meter = RateLimiter(bytes_per_second=40, clock=clock)
    spent = 0
    while clock.now() < 600:
        clock.sleep(0.025)
        go(clock, meter.pay(1, 8, never))
        spent += 8
    assert spent / clock.now() == pytest.approx(40, rel=0.005)
