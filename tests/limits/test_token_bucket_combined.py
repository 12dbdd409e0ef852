"""A job's own limit and a shared one at once."""

import pytest

from spark_channel.channel.capacity import Limiter
from spark_channel.errors import OptionError
from spark_channel.limits import CombinedLimiter, RateLimiter
from tests.limits.conftest import HandClock


def nothing() -> None:
    """Needs no waking."""


def test_the_longest_wait_counts_and_the_smallest_slice(clock: HandClock) -> None:
    slow, fast = RateLimiter(10, clock=clock), RateLimiter(100, 1000, clock=clock)
    both: Limiter = CombinedLimiter([slow, fast])
    assert both.slice_size() == (1, 20)
    assert both.pay(10, 10, nothing).remaining().seconds == 0.0
    second = both.pay(1, 5000, nothing)
    assert second.remaining().seconds == pytest.approx(1.0)
    clock.at += 1
    assert second.remaining().seconds == 0.0
    third = both.pay(1, 1, nothing)
    assert third.remaining().reason == "bytes"


def test_cancel_gives_back_what_none_of_them_has_spent(clock: HandClock) -> None:
    one, two = RateLimiter(10, clock=clock), RateLimiter(10, clock=clock)
    both = CombinedLimiter([one, two])
    both.pay(10, 0, nothing).remaining()
    both.pay(10, 0, nothing).cancel()
    for meter in (one, two):
        assert meter.pay(1, 0, nothing).remaining().seconds == pytest.approx(1.0)


def test_a_payment_that_one_refuses_is_paid_to_none(clock: HandClock) -> None:
    one = RateLimiter(10, clock=clock)
    with pytest.raises(OptionError):
        CombinedLimiter([one, RateLimiter(10, clock=clock)]).pay(-1, 0, nothing)
    assert one.pay(1, 0, nothing).remaining().seconds == 0.0


def test_nothing_to_combine_is_refused() -> None:
    with pytest.raises(OptionError):
        CombinedLimiter([])
