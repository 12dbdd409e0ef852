"""Heartbeats of open attempts: they distinguish a long job on another machine from one whose driver was killed.

`connectors.commit.liveness` says what follows when the beats end. An attempt shows life when it
begins, when it ends, and every `BEAT_SECONDS` between, also while a paused limit or a stalled source brings it no rows.
"""

import logging
import threading
import weakref
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.claims import BEAT_SECONDS

__all__ = ["HeartbeatThread"]

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class HeartbeatThread:
    """Calls `show` every `seconds` from its own thread, until `end`, or until no reference holds this object.

    `show` opens what it needs and closes it; when it fails, it is called again at the next beat. It must not hold the
    attempt, whose end it would put off.
    """

    def __init__(
        self, show: Callable[[], None], *, seconds: float | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pulse = _Pulse(show, BEAT_SECONDS if seconds is None else seconds, clock)
        self._thread = threading.Thread(
            target=self._pulse.beat, name="spark-channel-life", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._pulse.end)

    def end(self) -> None:
        """Show no more life. Safe twice."""
        self._pulse.end()
        self._thread.join(_JOIN_SECONDS)  # a `show` that hangs ends with its connection


class _Pulse:
    def __init__(self, show: Callable[[], None], seconds: float, clock: Clock) -> None:
        self._show, self._seconds, self._clock = show, seconds, clock
        self._condition = threading.Condition()
        self._ended = False

    def beat(self) -> None:
        while self._pause():
            try:
                self._show()
            except Exception as error:  # whatever a driver raises, the next beat may do
                _log.warning(
                    "could not show that the job lives; again in %d s: %s", self._seconds, error
                )

    def end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def _pause(self) -> bool:
        """Wait for the next beat; False = there is none."""
        with self._condition:
            until = self._clock.now() + self._seconds
            while not self._ended and (left := until - self._clock.now()) > 0:
                self._clock.wait(self._condition, left)
            return not self._ended
