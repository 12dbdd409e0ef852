"""Where a client that is to end when all is read stops reading a channel."""

from spark_channel.clock import Clock
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import ChangeFeed, has_base

__all__ = ["Goal"]


class Goal:
    """The end of a channel's source as it was when this client opened the channel: later changes do not move it.

    Existing rows that are read beside the changes end before they have a goal: a row that changes while its chunk is
    read arrives by that change alone. So the end is fixed again after the last chunk.
    """

    def __init__(self, feed: ChangeFeed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock
        self._end: Token | None = None
        self._settled_at = 0.0
        self._had_base = False

    def fix(self, start: Token) -> float:
        """Fix the end, where it is not; the seconds until all rows up to there have come to light.

        `start`: the position that the channel is read from next.
        """
        has_base_left = has_base(start)
        if self._end is None or (self._had_base and not has_base_left):
            self._end = self._feed.end_of(start)
            self._settled_at = self._clock.now() + self._feed.waits_seconds
        self._had_base = has_base_left
        left = self._settled_at - self._clock.now()
        return left if left > 0 and self._feed.lag(start).rows != 0 else 0.0

    def upto(self, start: Token, *, is_paused: bool) -> Token | None:
        """The position that the next range does not pass; None = any. `is_paused`: no existing rows are read."""
        return None if has_base(start) and not is_paused else self._end

    def is_reached(self, start: Token) -> bool:
        """Whether all changes up to the end are read. Of a database's log."""
        return self._end is not None and self._feed.reaches(start, self._end)
