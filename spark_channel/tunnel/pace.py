"""How large a range should be, so that a channel is checkpointed about as often as was asked. Pure."""

from spark_channel.connectors.feed import FeedLimit

__all__ = ["RangeSize"]

_FIRST_ROWS = 10_000
_LEAST_ROWS = 100
_MOST_ROWS = 10_000_000


class RangeSize:
    """Grows or shrinks a range, at most twofold a time, towards `seconds`; never above `most`."""

    def __init__(self, most: FeedLimit, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._rows = min(_FIRST_ROWS, most.rows or _FIRST_ROWS)

    def limit(self) -> FeedLimit:
        """The next range's limit."""
        return FeedLimit(self._rows, self._most.nbytes)

    def is_full(self, rows: int, nbytes: int) -> bool:
        """Whether the limit cut a range of this size, so that there is more to read at once."""
        return rows >= self._rows or (self._most.nbytes is not None and nbytes >= self._most.nbytes)

    def took(self, seconds: float, rows: int) -> None:
        """A range of `rows` took `seconds` to be read and processed."""
        if rows < self._rows / 2 and seconds <= self._seconds:
            return  # there was no more to read
        factor = 2.0 if seconds <= 0 else min(2.0, max(0.5, self._seconds / seconds))
        self._rows = int(min(self._most.rows or _MOST_ROWS, max(_LEAST_ROWS, self._rows * factor)))
