"""When a client tells what its existing rows wait for."""

from spark_channel.clock import Clock
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import ChangeFeed, has_base
from spark_channel.errors import ChannelError

__all__ = ["HoldUp"]

_ASKED_SECONDS = 15.0
"""How often the source is asked, until something was told."""
_TOLD_SECONDS = (600.0, 3600.0)
"""What was told is told again after the first of these, and then each time after the last one."""


class HoldUp:
    """Asks a channel's feed what holds it up: what still does after 15 s is to be told, and seldom again."""

    def __init__(self, feed: ChangeFeed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock
        self._is_held = False
        self._told = 0
        self._next = clock.now() + _ASKED_SECONDS

    def look(self, start: Token) -> str:
        """What is to be told now of a channel that is read from `start` next; empty: nothing."""
        now = self._clock.now()
        if now < self._next or not has_base(start):
            return ""
        try:
            found = self._feed.held_up(start)
        except ChannelError:  # the channel's own calls tell of it
            found = ""
        was_held, self._is_held = self._is_held, bool(found)
        if not found:
            self._told = 0
        if not found or not was_held:
            self._next = now + _ASKED_SECONDS
            return ""
        self._next = now + _TOLD_SECONDS[min(self._told, len(_TOLD_SECONDS) - 1)]
        self._told += 1
        return found
