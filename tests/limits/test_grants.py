"""Max-min fairness."""

from hypothesis import given
from hypothesis import strategies as st

from spark_channel.limits.grants import max_min


def test_small_demands_are_met_and_the_rest_is_even() -> None:
    assert max_min(100, [10, None, None]) == [10, 45, 45]
    assert max_min(100, [None, 30, 5]) == [65, 30, 5]
    assert max_min(100, [60, 60]) == [50, 50]
    assert max_min(100, [10, 20]) == [10, 20]
    assert max_min(100, []) == []


@given(
    total=st.integers(0, 10**12), demands=st.lists(st.none() | st.integers(0, 10**12), max_size=8)
)
def test_nobody_gets_more_while_another_wants_and_has_less(
    total: int, demands: list[int | None]
) -> None:
    shares = max_min(total, demands)
    assert sum(shares) <= total
    wanting = [
        share
        for share, demand in zip(shares, demands, strict=True)
        if demand is None or share < demand
    ]
    for share, demand in zip(shares, demands, strict=True):
        assert demand is None or share <= demand
        assert all(share <= other + len(demands) for other in wanting)
    if wanting:
        assert sum(shares) > total - len(demands)
