"""How far a query is behind its source, measured rarely enough to cost almost nothing."""

import logging
from collections.abc import Callable, Mapping

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.feed import FeedLag
from spark_channel.errors import ChannelError
from spark_channel.tunnel.lag_words import brief_words, lag_numbers

__all__ = ["LagWatch"]

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 10.0
_SHARE = 100
"""Asking takes at most one part in so many of the time."""
_FRESH_SECONDS = 1.0
"""What was heard longer ago is told with its age."""


class LagWatch:
    """Keeps what was last heard; asks again after 10 s, or after 100 times what the last question took.

    `waits_seconds`: for so long the newest changes wait for late ones, which the text says.
    """

    def __init__(self, waits_seconds: float = 0.0, clock: Clock | None = None) -> None:
        self._waits = waits_seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._due = self._heard = self._clock.now()
        self._text = ""
        self._numbers: Mapping[str, int | float] = {}

    def look(self, ask: Callable[[], FeedLag]) -> tuple[str, Mapping[str, int | float]]:
        """As people read it, and as numbers; empty when it is not known. A source that does not answer fails no
        stream.
        """
        began = self._clock.now()
        if began >= self._due:
            self._ask(ask)
            self._heard = self._clock.now()
            self._due = self._heard + max(_EVERY_SECONDS, _SHARE * (self._heard - began))
        ago = self._clock.now() - self._heard
        text = f"{self._text} ({ago:.0f} s ago)" if self._text and ago >= _FRESH_SECONDS else self._text
        return text, {**self._numbers, "seconds_ago": round(ago, 1)} if self._numbers else {}

    def _ask(self, ask: Callable[[], FeedLag]) -> None:
        try:
            lag = ask()
        except ChannelError as error:
            _log.debug("the lag of the stream cannot be measured: %s", error)
            self._text, self._numbers = "", {}
            return
        from spark_channel.progress import lag_text

        text = lag_text(lag.rows, lag.nbytes, lag.seconds)
        if self._waits and (lag.rows or lag.nbytes):
            text += f", new rows wait {self._waits:g} s for late ones"
        self._text = ", ".join(each for each in (text, brief_words(lag)) if each)
        self._numbers = lag_numbers(lag)
