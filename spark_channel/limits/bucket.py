"""`TokenBucket`: one rate, kept exactly, for threads that block."""

import threading

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError
from spark_channel.limits.level import NANOS, SLICE_SECONDS, Level, nanoseconds

__all__ = ["TokenBucket"]


class TokenBucket:
    """`rate` units per second, for any number of threads, first come, first served.

    A GCRA with debt: an amount of any size goes through as soon as what went before it is paid off, and
    the next caller waits for it. So in any window of W seconds, at most
    `rate * (W + burst_seconds) + the last amount` units go through. Idle time is saved up for
    `burst_seconds` and no longer. `OptionError` when `rate` is not above 0.
    """

    def __init__(self, rate: float, *, burst_seconds: float = SLICE_SECONDS, clock: Clock | None = None):
        if not 0 <= burst_seconds < float("inf"):
            raise OptionError(
                f"burst_seconds must be 0 or more, not {burst_seconds!r}",
                option="burst_seconds",
                got=repr(burst_seconds),
                takes="seconds, 0 or more",
            )
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._level = Level(rate, burst_seconds, nanoseconds(self._clock.now()))

    @property
    def rate(self) -> float:
        """Units per second."""
        return self._level.rate

    def reserve(self, amount: int) -> float:
        """Take `amount` units now and return the seconds to wait before using them.

        Never blocks. A later `set_rate` changes the waits of later callers alone.
        """
        _require_amount(amount)
        with self._changed:
            now = nanoseconds(self._clock.now())
            reservation = self._level.reserve(amount, now)
            wait = self._level.wait(reservation, now)
            self._level.settle(reservation)
            return wait / NANOS

    def acquire(self, amount: int) -> float:
        """Block until `amount` units may be used, and return the seconds waited.

        A `set_rate` in the meantime counts at once. An exception that ends the wait (`KeyboardInterrupt`)
        gives the amount back.
        """
        _require_amount(amount)
        with self._changed:
            start = now = nanoseconds(self._clock.now())
            reservation = self._level.reserve(amount, now)
            try:
                while wait := self._level.wait(reservation, now):
                    self._clock.wait(self._changed, wait / NANOS)
                    now = nanoseconds(self._clock.now())
                self._level.settle(reservation)
            except BaseException:
                self._level.cancel(reservation, now)
                self._changed.notify_all()
                raise
            return (now - start) / NANOS

    def set_rate(self, rate: float) -> None:
        """Change the rate for waiting and later payments: debt stays, surplus is clamped."""
        with self._changed:
            self._level.set_rate(rate, nanoseconds(self._clock.now()))
            self._changed.notify_all()


def _require_amount(amount: int) -> None:
    if amount < 0:
        raise OptionError(
            f"an amount must be 0 or more, not {amount!r}",
            option="amount",
            got=repr(amount),
            takes="0 or more",
        )
