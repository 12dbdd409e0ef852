"""Staged rows are added to their table in pieces of about a millisecond, with rests between them."""

from collections import deque
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["in_pieces"]

_PIECE_SECONDS = 0.001
_SEEN = 256
_REST, _BUSY, _LONGEST_REST = 3.0, 4.0, 0.5
"""The server rests three times as long as a piece took: as it counts, at most four times what is usual, and half a
second."""


def in_pieces(
    work: Callable[[int, int], float | None],
    begin: int,
    end: int,
    *,
    first: int,
    most: int,
    seconds: float = _PIECE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """`work(a, b)` for ranges that cover `begin` to `end`, none shorter than `first` but the last, none longer than
    `most`.

    A range takes the server about `seconds`, and then it rests for three times as long: it uses a quarter of a core.
    The least that was seen counts: one that is busy with others, or waits for a lock, takes longer for the same work.
    `work` may return the seconds that the server says.
    """
    seen: deque[float] = deque(maxlen=_SEEN)
    at, step = begin, first
    while at < end:
        length, begun = min(step, end - at), clock.now()
        told = work(at, at + length)
        took = clock.now() - begun if told is None else told
        at += length
        seen.append(took / length)
        each = sorted(seen)[len(seen) // 8]
        step = max(first, min(2 * step, most, int(seconds / each) if each else most))
        if at < end:
            clock.sleep(min(_REST * took, _REST * _BUSY * length * each, _LONGEST_REST))
