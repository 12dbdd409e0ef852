"""The bounds of rows in COPY's binary format: found for all rows together, and verified. Pure."""

import struct
from array import array
from typing import TYPE_CHECKING, TypeAlias

from spark_channel import lazy

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt
else:
    np = lazy.LazyModule("numpy")

__all__ = ["Bounds", "row_bounds"]


_LENGTH = struct.Struct(">i")
_COUNT = struct.Struct(">h")

Bounds: TypeAlias = "npt.NDArray[np.int64] | array[int]"
Places: TypeAlias = "npt.NDArray[np.int64]"

_WALKED = 4_096
"""So many bytes are walked sooner than numpy looks for rows, which it takes 60 ms to import for."""


def row_bounds(data: bytes, columns: int) -> Bounds:
    """The start of each row in `data`, and the end of the last one. `data` holds whole rows of `columns` values.

    A row begins with the number of its columns, and so may anything else: wherever these two bytes occur, the lengths
    that follow are added up, in all places at once. When each place then leads to the next, and the first is 0, they
    are the rows; else those are that others lead to. Places whose first value is as long as that of the first row are
    tried alone, before all places. Where other bytes pass for a row, the rows are walked one by one, which takes ten
    times as long.

    Raises:
        ValueError: it holds something else.
    """
    if len(data) <= _WALKED:
        return _walked(data, columns)
    starts = _likely(data, columns)
    if starts is None:
        return _walked(data, columns)
    alike = _alike(data, starts)
    bounds = _among(data, alike, columns)
    if bounds is None and len(alike) < len(starts):
        bounds = _among(data, starts, columns)
    return _walked(data, columns) if bounds is None else bounds


def _among(data: bytes, starts: Places, columns: int) -> "Places | None":
    """The bounds, where all rows begin at some of `starts`; None = other bytes pass for rows."""
    ends = _ends(data, starts, columns)
    bounds = _chain(starts, ends, len(data))
    if bounds is not None:
        return bounds
    likely = _linked(starts, ends, len(data))
    return _chain(starts[likely], ends[likely], len(data))


def _likely(data: bytes, columns: int) -> "Places | None":
    """Where the number of columns is; None when it is everywhere: places take eight times their bytes."""
    octets = np.frombuffer(data, np.uint8)
    high, low = _COUNT.pack(columns)
    matches = octets[1:] == low  # the rarer one of the two
    if np.count_nonzero(matches) > len(data) // 4:
        return None
    places = np.flatnonzero(matches)
    return np.asarray(places[octets[places] == high])


def _alike(data: bytes, starts: Places) -> Places:
    """Those of `starts` behind which a length is that of the first one: all rows, where the first column has one."""
    first = _COUNT.size
    places = starts[: np.searchsorted(starts, len(data) - first - _LENGTH.size, "right")]
    if not len(places):
        return starts
    lengths = _lengths(data)[places + first]
    return np.asarray(places[lengths == lengths[0]])


def _lengths(data: bytes) -> "npt.NDArray[Any]":
    """What each four bytes of `data` are as a length."""
    return np.ndarray((len(data) - _LENGTH.size + 1,), ">i4", data, strides=(1,))


def _ends(data: bytes, starts: Places, columns: int) -> Places:
    """Where a row would end that begins at each of `starts`; of what is not a row, anything."""
    last = len(data) - _LENGTH.size
    if last < 0:
        return starts
    lengths = _lengths(data)
    at = starts + _COUNT.size
    for _ in range(columns):
        np.minimum(at, last, out=at)
        at += np.maximum(lengths[at], 0)
        at += _LENGTH.size
    return at


def _linked(starts: Places, ends: Places, size: int) -> "npt.NDArray[np.bool_]":
    """Which lead to another one or to the end, and have another one leading to them: all rows, and hardly more."""
    follower = np.searchsorted(starts, ends)
    follower[follower == len(starts)] = 0
    leads = (starts[follower] == ends) | (ends == size)
    led = np.zeros(len(starts), np.bool_)
    led[follower[leads]] = True
    led[:1] = True
    return np.asarray(leads & led)


def _chain(starts: Places, ends: Places, size: int) -> "Places | None":
    if (
        not len(starts)
        or starts[0] != 0
        or ends[-1] != size
        or not np.array_equal(starts[1:], ends[:-1])
    ):
        return None
    return np.append(starts, size)


def _walked(data: bytes, columns: int) -> Bounds:
    bounds, at = array("q", [0]), 0
    try:
        while at < len(data):
            if _COUNT.unpack_from(data, at)[0] != columns:
                raise ValueError(f"the row at byte {at} has not {columns} columns")
            at += _COUNT.size
            for _ in range(columns):
                at += _LENGTH.size + max(0, _LENGTH.unpack_from(data, at)[0])
            bounds.append(at)
    except struct.error:
        at = len(data) + 1
    if at != len(data):
        raise ValueError("the last row is cut off")
    return bounds
