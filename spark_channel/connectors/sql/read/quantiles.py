"""Ranges of about equal rows, from where the values of a sorted column begin. Pure.

A value that many rows have is a separate range, with the few values behind it: no key of that column can divide it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spark_channel.planning import Split

__all__ = [
    "LARGE",
    "Key",
    "Quantiles",
    "beginnings",
    "divisions",
    "fair_rows",
    "is_odd",
    "places_of",
    "quantiles_of",
]


LARGE = 1.5
"""So many times more rows than a fair part: such a range is divided once more, by another key."""
_FINEST, _MOST_PLACES = 8, 1024

Key = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Inner boundaries of ranges of about equal rows; how many rows have a key, and how many have none.

    None = not known. `counts`: the rows of each range, about; None = equal ones.
    """

    bounds: list[Key]
    rows: int | None
    nulls: int | None
    counts: list[int] | None = None


def places_of(parts: int) -> int:
    """At how many places of a sorted column one looks, to make `parts` ranges of it."""
    return parts * max(1, min(_FINEST, _MOST_PLACES // parts))


def is_odd(value: object) -> bool:
    """Whether it is an infinity or NaN: not every SQL has a literal for it, so it cannot be a boundary."""
    return isinstance(value, float) and not math.isfinite(value)


def beginnings(places: Sequence[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Of (value, rows before it) at ascending places those where another value begins."""
    starts: list[tuple[Any, float]] = []
    for value, before in places:
        if not starts or (before > starts[-1][1] and not is_odd(value)):
            starts.append((value, before))
    return starts


def fair_rows(rows: int, nulls: int, advice: int) -> float:
    """The rows of a range where `rows` have a key. Those without one count where they are more than a part."""
    whole = (rows + nulls) / advice
    return max(1.0, whole if nulls >= LARGE * whole else rows / advice)


def quantiles_of(
    starts: Sequence[tuple[Any, float]], rows: int, nulls: int, advice: int
) -> Quantiles:
    """`starts`: ascending values, and how many of the `rows` come before each, 0 for the first."""
    fair = fair_rows(rows, nulls, advice)
    firsts: list[Any] = []
    sizes: list[float] = []
    is_open = False
    for (value, start), (_, end) in pairwise([*starts, (None, rows)]):
        size = end - start
        if is_open and size < fair and sizes[-1] + size / 2 <= fair:
            sizes[-1] += size
        else:
            firsts.append(value)
            sizes.append(size)
            is_open = size < fair
    counts = [round(size) for size in sizes] or [rows]
    return Quantiles([[value] for value in firsts[1:]], rows, nulls, counts)


def divisions(splits: Sequence[Split]) -> list[str]:
    """By what the rows of one value, or without one, were divided, for people: one line for each column."""
    counts = Counter(
        (str(split.params["key"][0]), ", ".join(part["key"]))
        for split in splits
        if (part := split.params.get("part")) is not None
    )
    return [
        f"{name!r} has the same value, or none, in more rows than a split: they are {parts} splits by {key}"
        for (name, key), parts in counts.items()
    ]
