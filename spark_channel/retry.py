"""Retries after a transient error, with exponential backoff and jitter, until a deadline.

The one policy for everything that waits for a server, a file or a slot. stamina runs the loop, calls its hooks, and
can be switched off. This module shortens the pauses so that the last attempt begins at the deadline and none after.
"""

import functools
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_text import log_of

__all__ = [
    "Backoff",
    "Retry",
    "RetryingCalls",
    "commit_pauses",
    "reconnect_delay",
]


_log = log_of(__name__)
# Where a program has set up no logging, each retry would print a bare "stamina.retry_scheduled".
logging.getLogger("stamina").addHandler(logging.NullHandler())

_T = TypeVar("_T")
_JITTER = 0.5
_ENOUGH_ROWS = 500
_ENOUGH_BYTES = 900 << 10
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_LOOKS, _LONGEST_LOOK = 4.0, 10.0
"""So many times as long as a look took is waited before the next one, up to so many seconds."""


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
        """Return the result of `work`. Call it again after each error that `passes` declares transient.

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
            remaining = end - self.clock.now()
            verdict = remaining > 0 and isinstance(error, Exception) and passes(error)
            pause_asked = verdict if isinstance(verdict, float) else 0.0
            if not verdict or pause_asked > remaining:
                return False
            failed += 1
            seconds = min(remaining, max(pause_asked, self.pause(failed)))
            _log.debug(
                "%s failed with %s; again in %.2f s", self.what, type(error).__name__, seconds
            )
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
        """Seconds to wait after so many failures, at random: not all who lost one server come back at the same time."""
        base = min(self.longest, self.first * 2.0 ** min(failed - 1, 30))
        return base * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - spreads load, keeps no secret


class Backoff:
    """10 ms, times 5, up to 2 s, each 25 % more or less; starts over after a round with enough rows.

    Where nothing comes for long, a look that takes long, as at thousands of tables, has a fifth of the time; at most
    10 s are waited after it.

    Args:
        chance: a number of [0, 1) per call, `random.random` by default.
    """

    def __init__(
        self,
        first: float = 0.01,
        factor: float = 5.0,
        most: float = 2.0,
        jitter: float = 0.25,
        *,
        chance: "random.Random | None" = None,
    ) -> None:
        self._first = first
        self._factor = factor
        self._most = most
        self._jitter = jitter
        self._random = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._next = first

    def after(self, rows: int, nbytes: int, took: float = 0.0) -> float:
        """Seconds to wait after a round of `rows` and `nbytes`, whose look `took` so long; 0 when it had enough."""
        if rows > _ENOUGH_ROWS or nbytes > _ENOUGH_BYTES:
            self._next = self._first
            return 0.0
        base = self._next
        self._next = min(self._most, base * self._factor)
        wait = base * (1 + self._jitter * (2 * self._random.random() - 1))
        return wait if base < self._most else max(wait, min(_LONGEST_LOOK, _LOOKS * took))


def reconnect_delay(attempt: int = 0, chance: "random.Random | None" = None) -> float:
    """Seconds before a lost connection is renewed for the `attempt`-th time (from 0): at random up to 0.1 s,
    then up to three times as long each time, 10 s at most. At random, so that not all come at the same time.
    """
    most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 3.0 ** min(attempt, 10))
    return (chance or random.Random()).uniform(0.001, most)  # noqa: S311 - spreads load, keeps no secret


def commit_pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait each time that another job has committed first: at random up to `first`, then up to half as
    much again each time, `longest` at most.
    """
    most = first
    while True:
        yield most * random.uniform(0.0, 1.0)  # noqa: S311 - spreads load, keeps no secret
        most = min(most * 1.5, longest)


class RetryingCalls:
    """Makes calls for one thread.

    Args:
        seconds: how long a call is made again; then its error is raised.
    """

    def __init__(self, seconds: float, *, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK

    def call(self, operation: Callable[[], _T], passes: Callable[[BaseException], bool]) -> _T:
        """Return the result of `operation`. Call it again after errors that `passes` declares transient."""
        until = self._clock.now() + self._seconds
        attempt = 0
        while True:
            try:
                return operation()
            except Exception as error:
                wait = reconnect_delay(attempt)
                if not passes(error) or self._clock.now() + wait > until:
                    raise
                _log.warning("%s; trying again in %.1f s", error, wait)
            attempt += 1
            self._clock.sleep(wait)

    def wrap(self, target: _T, passes: Callable[[BaseException], bool]) -> _T:
        """`target`, each of whose methods is called in this way: they must be safe to call twice."""
        return cast(_T, _Renewed(self, target, passes))


class _Renewed:
    def __init__(
        self, renewal: RetryingCalls, target: object, passes: Callable[[BaseException], bool]
    ) -> None:
        self._renewal = renewal
        self._target = target
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*args: Any, **named: Any) -> Any:
            return self._renewal.call(lambda: attribute(*args, **named), self._passes)

        return call
