"""The arithmetic under every limit: exact, and never more than the window bound."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.errors import OptionError
from spark_channel.limits.token_bucket import NANOS, TokenBucket

YEAR = 365 * 24 * 3600


def test_first_amount_goes_through_and_the_next_caller_pays_for_it() -> None:
    level = TokenBucket(100, 0.02, 0)
    first, second = level.reserve(50, 0), level.reserve(1, 0)
    assert level.wait(first, 0) == 0
    assert level.wait(second, 0) == NANOS // 2


def test_a_simulated_year_at_seven_rows_drifts_by_less_than_one_row() -> None:
    rng = random.Random(7)
    level, now, paid = TokenBucket(7, 0.02, 0), 0, 0
    while now < YEAR * NANOS:
        amount = rng.choice((1, 1, 2, 13, 997, 10_007))
        reservation = level.reserve(amount, now)
        now += level.wait(reservation, now)
        level.settle(reservation)
        assert abs(paid - 7 * now / NANOS) < 1
        paid += amount
    assert paid > 7 * YEAR


def test_float_clock_readings_of_a_year_add_no_drift() -> None:
    level, paid, now = TokenBucket(7, 0.02, 0), 0, 0
    for step in range(200_000):
        reservation = level.reserve(1103, now)
        seconds = (now + level.wait(reservation, now)) / NANOS
        now = round(seconds * NANOS)
        level.settle(reservation)
        if step % 1000 == 0:
            assert abs(paid - 7 * now / NANOS) < 1
        paid += 1103
    assert now > 0.99 * YEAR * NANOS


def test_surplus_is_saved_for_the_burst_and_no_longer() -> None:
    level = TokenBucket(1000, 0.02, 0)
    assert level.balance(10 * NANOS) == 20


def test_set_rate_keeps_a_debt_and_clamps_a_surplus() -> None:
    level = TokenBucket(1000, 0.02, 0)
    level.settle(level.reserve(500, 0))
    level.set_rate(100, 0)
    assert level.balance(0) == -500
    assert level.balance(5 * NANOS) == 0
    level.set_rate(1000, 5 * NANOS)
    assert level.balance(6 * NANOS) == 20
    level.set_rate(100, 6 * NANOS)
    assert level.balance(6 * NANOS) == 2


def test_a_cancelled_claim_moves_those_behind_it_up_and_nobody_else() -> None:
    level = TokenBucket(10, 0.0, 0)
    ahead, gone, behind = level.reserve(10, 0), level.reserve(20, 0), level.reserve(1, 0)
    assert level.wait(gone, 0) == NANOS
    assert level.wait(behind, 0) == 3 * NANOS
    level.cancel(gone, 0)
    level.cancel(gone, 0)
    assert level.wait(ahead, 0) == 0
    assert level.wait(behind, 0) == NANOS
    assert level.balance(0) == -11


def test_a_settled_claim_cannot_be_given_back() -> None:
    level = TokenBucket(10, 0.0, 0)
    reservation = level.reserve(10, 0)
    level.settle(reservation)
    level.cancel(reservation, 0)
    assert level.balance(0) == -10


def test_a_clock_that_goes_back_refills_nothing() -> None:
    level = TokenBucket(10, 10.0, 5 * NANOS)
    assert level.balance(4 * NANOS) == 0
    assert level.balance(6 * NANOS) == 10


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1 << 62, True, "7"])
def test_a_rate_that_makes_no_sense_is_refused(rate: float) -> None:
    with pytest.raises(OptionError, match="above 0"):
        TokenBucket(rate, 0.02, 0)


@given(
    rate=st.integers(1, 10**9) | st.floats(0.01, 1e6),
    burst=st.sampled_from([0.0, 0.02, 1.0]),
    steps=st.lists(
        st.tuples(st.integers(0, 2_000_000_000), st.integers(0, 5000)), min_size=2, max_size=40
    ),
)
def test_no_window_passes_more_than_rate_burst_and_last_amount(
    rate: float, burst: float, steps: list[tuple[int, int]]
) -> None:
    level, now, passed = TokenBucket(rate, burst, 0), 0, []
    for idle, amount in steps:
        now += idle
        reservation = level.reserve(amount, now)
        now += level.wait(reservation, now)
        level.settle(reservation)
        passed.append((now, amount))
    for first in range(len(passed)):
        total = 0
        for at, amount in passed[first:]:
            total += amount
            window = (at - passed[first][0]) / NANOS
            assert total <= rate * (window + burst + 2e-6) + amount + 1e-6 * total


@given(
    amounts=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    cancelled=st.sets(st.integers(0, 19)),
)
def test_cancelling_leaves_the_line_as_if_the_claim_had_never_been(
    amounts: list[int], cancelled: set[int]
) -> None:
    level, clean = TokenBucket(7, 0.0, 0), TokenBucket(7, 0.0, 0)
    reservations = [level.reserve(amount, 0) for amount in amounts]
    for index in cancelled & set(range(len(reservations))):
        level.cancel(reservations[index], 0)
    kept = [index for index in range(len(reservations)) if index not in cancelled]
    clean_reservations = {index: clean.reserve(amounts[index], 0) for index in kept}
    for index in kept:
        assert level.wait(reservations[index], 0) == clean.wait(clean_reservations[index], 0)
    assert level.balance(0) == clean.balance(0)
