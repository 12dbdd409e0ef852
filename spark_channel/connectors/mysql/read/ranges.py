"""Ranges of an integer key with about equal rows, by the server's index estimates, without a scan."""

import heapq
from collections.abc import Callable
from itertools import accumulate, pairwise

__all__ = ["even_ranges"]


_CELLS_PER_RANGE = 16
_MOST_CELLS = 4096
"""Each costs the server two dives into an index, about 0.5 ms."""


def even_ranges(
    least: int, most: int, parts: int, estimate: Callable[[int, int], int]
) -> list[tuple[int, int, float]]:
    """Up to `parts` ranges [start, end) from `least` to `most`, each with its share of the rows.

    `estimate` returns about how many rows have keys in [start, end). The fullest range is halved again and again, until
    what is left is small beside a part; skewed keys only make it halve more often in one place.
    """
    cells = [(-estimate(least, most + 1), least, most + 1)]
    single: list[tuple[int, int, int]] = []
    cells_wanted = min(_CELLS_PER_RANGE * parts, max(_MOST_CELLS, parts))
    while cells and len(cells) + len(single) < cells_wanted:
        rows, start, end = heapq.heappop(cells)
        if end - start == 1:
            single.append((rows, start, end))
            continue
        middle = (start + end) // 2
        for low, high in ((start, middle), (middle, end)):
            heapq.heappush(cells, (-estimate(low, high), low, high))
    ordered = sorted((end, -rows) for rows, _, end in (*cells, *single))
    ends = [end for end, _ in ordered]
    sums = list(accumulate(rows for _, rows in ordered))
    total = max(1, sums[-1])
    chosen = [least, *_nearest(ends, sums, total, parts), most + 1]
    below = dict(zip(ends, sums, strict=True))
    below[least] = 0
    return [(start, end, (below[end] - below[start]) / total) for start, end in pairwise(chosen)]


def _nearest(ends: list[int], sums: list[int], total: int, parts: int) -> list[int]:
    """For each inner boundary the end of a cell that is nearest to its place; each is taken once."""
    nearest: list[int] = []
    at = 0
    for part in range(1, parts):
        boundary = total * part / parts
        while at + 1 < len(ends) and abs(sums[at + 1] - boundary) <= abs(sums[at] - boundary):
            at += 1
        if ends[at] < ends[-1] and (not nearest or ends[at] > nearest[-1]):
            nearest.append(ends[at])
    return nearest
