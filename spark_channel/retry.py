"""Retries after a transient error, with exponential backoff and jitter, until a deadline.

The one policy of everything that waits for a server, a file or a slot. stamina makes the loop, tells its hooks, and
can be switched off; the pauses are cut here, so that the last attempt begins at the deadline and none after.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["Retry"]

_log = logging.getLogger(__name__)
# Where a program has set up no logging, each retry would print a bare "stamina.retry_scheduled".
logging.getLogger("stamina").addHandler(logging.NullHandler())

_T = TypeVar("_T")
_JITTER = 0.5


@dataclass(frozen=True, slots=True)
class Retry:
    """For how long, and with what pauses.

    The first pause is half to one and a half of `first` seconds, each is twice the one before, `longest` at
    most. `timeout` counts from the first attempt's beginning; 0 = one attempt. `what` is for the log.
    """

    timeout: float
    first: float = 0.1
    longest: float = 5.0
    what: str = ""
    clock: Clock = SYSTEM_CLOCK

    def call(self, work: Callable[[], _T], passes: Callable[[Exception], bool | float]) -> _T:
        """What `work` returns. It is called again after each error that `passes` says to be of the moment.

        `passes` may return seconds, a `float` above 0, for which the server asks to wait: the pause lasts at least
        as long. A pause that would end behind the deadline is not begun.

        The last error is raised unchanged. `work` may have had an effect when it raises: where that matters, it begins
        by asking for it.
        """
        end = self.clock.now() + self.timeout
        failed = 0
        met: list[Exception] = []
        try:
            return work()
        except Exception as error:
            met.append(error)

        import stamina  # 40 ms, which a process whose work succeeds need not pay

        def pause(error: BaseException) -> bool | float:
            nonlocal failed
            left = end - self.clock.now()
            verdict = left > 0 and isinstance(error, Exception) and passes(error)
            asked = verdict if isinstance(verdict, float) else 0.0
            if not verdict or asked > left:
                return False
            failed += 1
            seconds = min(left, max(asked, self.pause(failed)))
            _log.debug("%s failed with %s; again in %.2f s", self.what, type(error).__name__, seconds)
            if self.clock is SYSTEM_CLOCK:
                return seconds
            self.clock.sleep(seconds)
            return 0.0

        for attempt in stamina.retry_context(
            on=cast(Callable[[Exception], bool | float], pause), attempts=None, timeout=None
        ):
            with attempt:
                if met:
                    raise met.pop()
                return work()
        raise AssertionError("stamina ends with a result or an exception")

    def pause(self, failed: int) -> float:
        """Seconds to wait after so many failures, at random: not all who lost one server come back at once."""
        base = min(self.longest, self.first * 2.0 ** min(failed - 1, 30))
        return base * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - spreads load, keeps no secret
