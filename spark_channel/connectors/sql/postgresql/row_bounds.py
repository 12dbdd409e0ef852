"""The bounds of rows in COPY's binary format: found for all rows together, and verified. Pure."""

import struct

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "row_bounds"]

_LENGTH = struct.Struct(">i")
_COUNT = struct.Struct(">h")

Bounds = npt.NDArray[np.int64]


def row_bounds(data: bytes, columns: int) -> Bounds:
    """The start of each row in `data`, and the end of the last one. `data` holds whole rows of `columns` values.

    A row begins with the number of its columns, and so may anything else: wherever these two bytes occur, the lengths
    that follow are added up, in all places at once. When each place then leads to the next, and the first is 0, they
    are the rows. Where other bytes pass for a row, the rows are walked one by one, which takes ten times as long.

    Raises:
        ValueError: it holds something else.
    """
    if not data:
        return np.zeros(1, np.int64)
    starts = _likely(data, columns)
    if starts is None:
        return _walked(data, columns)
    ends = _ends(data, starts, columns)
    bounds = _chain(starts, ends, len(data))
    if bounds is None:
        likely = _linked(starts, ends, len(data))
        bounds = _chain(starts[likely], ends[likely], len(data))
    return _walked(data, columns) if bounds is None else bounds


def _likely(data: bytes, columns: int) -> Bounds | None:
    """Where the number of columns is; None when it is everywhere: places take eight times their bytes."""
    octets = np.frombuffer(data, np.uint8)
    high, low = _COUNT.pack(columns)
    found = octets[1:] == low  # the rarer one of the two
    if np.count_nonzero(found) > len(data) // 4:
        return None
    places = np.flatnonzero(found)
    return np.asarray(places[octets[places] == high])


def _ends(data: bytes, starts: Bounds, columns: int) -> Bounds:
    """Where a row would end that begins at each of `starts`; of what is not a row, anything."""
    last = len(data) - _LENGTH.size
    if last < 0:
        return starts
    lengths = np.ndarray((last + 1,), ">i4", data, strides=(1,))
    at = starts + _COUNT.size
    for _ in range(columns):
        np.minimum(at, last, out=at)
        at += np.maximum(lengths[at], 0)
        at += _LENGTH.size
    return at


def _linked(starts: Bounds, ends: Bounds, size: int) -> npt.NDArray[np.bool_]:
    """Which lead to another one or to the end, and have another one leading to them: all rows, and hardly more."""
    follower = np.searchsorted(starts, ends)
    follower[follower == len(starts)] = 0
    leads = (starts[follower] == ends) | (ends == size)
    led = np.zeros(len(starts), np.bool_)
    led[follower[leads]] = True
    led[:1] = True
    return np.asarray(leads & led)


def _chain(starts: Bounds, ends: Bounds, size: int) -> Bounds | None:
    if not len(starts) or starts[0] != 0 or ends[-1] != size or not np.array_equal(starts[1:], ends[:-1]):
        return None
    return np.append(starts, size)


def _walked(data: bytes, columns: int) -> Bounds:
    found, at = [0], 0
    try:
        while at < len(data):
            if _COUNT.unpack_from(data, at)[0] != columns:
                raise ValueError(f"the row at byte {at} has not {columns} columns")
            at += _COUNT.size
            for _ in range(columns):
                at += _LENGTH.size + max(0, _LENGTH.unpack_from(data, at)[0])
            found.append(at)
    except struct.error:
        at = len(data) + 1
    if at != len(data):
        raise ValueError("the last row is cut off")
    return np.array(found, np.int64)
