"""The number of rows of the next short statement. Pure.

Three things bound it: what half a second of the limit is, how long a statement may last, and how long it may keep a
core of the server busy. The last is measured: what a statement of so many rows took, less what one without rows takes
(the way to the server and back). The least that was seen counts, since a server that is busy with others takes longer.
"""

from collections import deque

from spark_channel.connectors.sql.session import BatchSize

__all__ = ["StatementSize"]

_SEEN, _LEAST_ROWS = 16, 50
_LEAST_SHARE = 32
"""Bursts are cut to this part of the limit's half second at most: each statement costs a server about 0.5 ms."""


class StatementSize:
    """`rows` is what the next statement asks for.

    `most` is what may be fetched at once, `width` a row's bytes (0 = not known). `seconds` is how long a statement may
    last, `burst_seconds` how long the server may work for it without a break (0 = as long as it needs), and
    `empty_seconds` what a statement without rows takes.
    """

    def __init__(
        self,
        most: BatchSize,
        width: int,
        *,
        seconds: float,
        burst_seconds: float = 0.0,
        empty_seconds: float = 0.0,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._burst_seconds = burst_seconds
        self._empty_seconds = empty_seconds
        self._ceiling = most.rows
        self._row_seconds: deque[float] = deque(maxlen=_SEEN)
        self.rows = self._allowed(width)

    def took(self, asked: int, came: int, nbytes: int, seconds: float) -> None:
        """A statement for `asked` rows returned `came` in so many seconds."""
        rows = self.rows
        if seconds > self._seconds / 2:
            rows = min(rows, max(came, 1), int(asked * self._seconds / 2 / seconds))
        elif came == asked and seconds < self._seconds / 8:
            rows *= 2
        # Half of the width: what was estimated of a row is not exact, and is what the most bytes were made from.
        allowed = self._allowed(nbytes // came // 2 if came else 0)
        if came >= min(_LEAST_ROWS, asked) and seconds > self._empty_seconds:
            self._row_seconds.append((seconds - self._empty_seconds) / came)
        self.rows = max(1, min(rows, allowed, self._burst(allowed)))

    def ended(self, asked: int, came: int) -> None:
        """A time limit of the server ended a statement for `asked` rows, of which `came` had come."""
        self._ceiling = max(1, came, asked // 2 if not came else 0)
        self.rows = max(1, min(self._ceiling, asked // 4))

    def _burst(self, allowed: int) -> int:
        least = min(self._row_seconds, default=0.0)
        if not self._burst_seconds or not least:
            return allowed
        return max(int(self._burst_seconds / least), allowed // _LEAST_SHARE)

    def _allowed(self, width: int) -> int:
        most = min(self._most.rows, self._ceiling)
        return max(1, min(most, self._most.nbytes // width) if width else most)
