"""How far a query is behind its source, measured rarely enough to cost almost nothing."""

import logging
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.feed import FeedLag
from spark_channel.errors import ChannelError
from spark_channel.tunnel.lag_words import brief_words

__all__ = ["LagWatch"]

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 10.0
_SHARE = 100
"""Asking takes at most one part in so many of the time."""


class LagWatch:
    """Keeps what was last heard; asks again after 10 s, or after 100 times what the last question took.

    `waits_seconds`: for so long the newest changes wait for late ones, which the text says.
    """

    def __init__(self, waits_seconds: float = 0.0, clock: Clock | None = None) -> None:
        self._waits = waits_seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._due = self._clock.now()
        self._text = ""

    def text(self, ask: Callable[[], FeedLag]) -> str:
        """As people read it; empty when it is not known. A source that does not answer fails no stream."""
        began = self._clock.now()
        if began < self._due:
            return self._text
        try:
            lag = ask()
        except ChannelError as error:
            _log.debug("the lag of the stream cannot be measured: %s", error)
            self._text = ""
        else:
            from spark_channel.progress import lag_text

            self._text = lag_text(lag.rows, lag.nbytes, lag.seconds)
            if self._waits and (lag.rows or lag.nbytes):
                self._text += f", new rows wait {self._waits:g} s for late ones"
            self._text = ", ".join(each for each in (self._text, brief_words(lag)) if each)
        now = self._clock.now()
        self._due = now + max(_EVERY_SECONDS, _SHARE * (now - began))
        return self._text
