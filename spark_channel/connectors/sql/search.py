"""Finds the value of an array that makes a conversion fail."""

from collections.abc import Callable

import pyarrow as pa

__all__ = ["first_failure"]


def first_failure(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> int:
    """The index of the first value that `convert` refuses with `ArrowInvalid`, when it refuses the whole.

    Takes about log2(n) conversions of ever smaller parts.
    """
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(array.slice(good, middle - good))
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good
