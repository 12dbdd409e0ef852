"""A call that fails because a connection was lost: made again, after waits that grow, for a while."""

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.tunnel.backoff import reconnect_delay

__all__ = ["Renewal"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Renewal:
    """Makes calls for one thread.

    Args:
        seconds: how long a call is made again; then its error is raised.
    """

    def __init__(self, seconds: float, *, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK

    def call(self, what: Callable[[], _T], passes: Callable[[BaseException], bool]) -> _T:
        """What `what` returns. It is called again after errors that `passes` says to be of the moment."""
        until = self._clock.now() + self._seconds
        attempt = 0
        while True:
            try:
                return what()
            except Exception as error:
                wait = reconnect_delay(attempt)
                if not passes(error) or self._clock.now() + wait > until:
                    raise
                _log.warning("%s; trying again in %.1f s", error, wait)
            attempt += 1
            self._clock.sleep(wait)

    def of(self, target: _T, passes: Callable[[BaseException], bool]) -> _T:
        """`target`, each of whose methods is called in this way: they must be safe to call twice."""
        return cast(_T, _Renewed(self, target, passes))


class _Renewed:
    def __init__(self, renewal: Renewal, target: object, passes: Callable[[BaseException], bool]) -> None:
        self._renewal = renewal
        self._target = target
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **named: Any) -> Any:
            return self._renewal.call(lambda: found(*args, **named), self._passes)

        return call
