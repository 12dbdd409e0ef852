"""Heartbeats of a run, which distinguish a long job on another machine from one whose driver was killed.

`connectors.base.claims` says what follows when they end. An attempt sends one when it begins, when it ends, and every
`HEARTBEAT_SECONDS` between, also while a paused limit or a stalled source brings it no rows.
"""

import threading
import weakref
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.claims import HEARTBEAT_SECONDS
from spark_channel.plain_text import log_of

__all__ = ["HeartbeatThread"]

_log = log_of(__name__)
_JOIN_SECONDS = 5.0


class HeartbeatThread:
    """Calls `show` every `seconds` from its own thread, until `end`, or until no reference holds this object.

    `show` opens what it needs and closes it; when it fails, it is called again at the next beat. It must not hold the
    attempt, whose end it would put off.
    """

    def __init__(
        self, show: Callable[[], None], *, seconds: float | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._loop = _HeartbeatLoop(show, HEARTBEAT_SECONDS if seconds is None else seconds, clock)
        self._thread = threading.Thread(
            target=self._loop.run, name="spark-channel-heartbeat", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._loop.end)

    def end(self) -> None:
        """Show no more life. Safe twice."""
        self._loop.end()
        self._thread.join(_JOIN_SECONDS)  # a `show` that hangs ends with its connection


class _HeartbeatLoop:
    def __init__(self, show: Callable[[], None], seconds: float, clock: Clock) -> None:
        self._show, self._seconds, self._clock = show, seconds, clock
        self._condition = threading.Condition()
        self._ended = False

    def run(self) -> None:
        while self._pause():
            try:
                self._show()
            except Exception as error:  # whatever a driver raises, the next beat may do
                _log.warning("heartbeat of the job failed, again in %d s: %s", self._seconds, error)

    def end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def _pause(self) -> bool:
        """Wait for the next beat; False = there is none."""
        with self._condition:
            until = self._clock.now() + self._seconds
            while not self._ended and (seconds_left := until - self._clock.now()) > 0:
                self._clock.wait(self._condition, seconds_left)
            return not self._ended
