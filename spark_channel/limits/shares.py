"""Max-min fairness: no client gets more than it can use while another wants and has less."""

from collections.abc import Sequence

__all__ = ["max_min"]


def max_min(total: int, demands: Sequence[int | None]) -> list[int]:
    """Divide `total` over `demands` (None = all that can be had): small demands are met, the rest is even."""
    shares = [0] * len(demands)
    left = total
    open_ends = [index for index, demand in enumerate(demands) if demand is None]
    bounded = [(demand, index) for index, demand in enumerate(demands) if demand is not None]
    count = len(demands)
    for demand, index in sorted(bounded):
        shares[index] = min(demand, left // count)
        left -= shares[index]
        count -= 1
    for index in open_ends:
        shares[index] = left // count
        left -= shares[index]
        count -= 1
    return shares
