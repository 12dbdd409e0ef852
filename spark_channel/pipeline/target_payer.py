"""Rows that are added to a target pay once more: there, too, all tasks of a job together keep its limit.

The rows of a task pay when they are read, and are added together when all of them have come. How much later that is
differs from task to task: without a second payment, those of several tasks would overlap.
"""

import math
import threading
from collections.abc import Callable
from functools import partial

from spark_channel.channel import Limiter
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_of

__all__ = ["TargetPayer"]

_log = log_of(__name__)
_LONGEST_SECONDS = 4.0
"""For so long the rows of one task wait in all, and then no more: their transaction is open."""


class TargetPayer:
    """Pays for the tasks of one process; `limiter` is called once, for the first of them. Any thread may use it.

    Nothing depends on these payments but how evenly rows arrive: where the limiter fails, rows do not wait for it.
    """

    def __init__(
        self, limiter: Callable[[], Limiter | None], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._make, self._clock = limiter, clock
        self._limiter: Limiter | None = None
        self._is_made = False
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def admission(self, rows: int, nbytes: int) -> Callable[[float], bool] | None:
        """What lets the rows of a task pass, see `TaskWriter.admit`; it has paid for so much. None = no limit."""
        with self._changed:
            if not self._is_made:
                self._limiter, self._is_made = self._make(), True
        if self._limiter is None:
            return None
        return _Admission(partial(self._pay, self._limiter), self._limiter, rows, nbytes)

    def cancel(self, error: BaseException) -> None:
        """Whoever waits now or later raises `error`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _pay(self, limiter: Limiter, rows: int, nbytes: int, longest: float) -> tuple[bool, float]:
        """Whether it was paid, and for how many seconds it waited, `longest` at most."""
        waited = 0.0
        try:
            payment = limiter.pay(rows, nbytes, self._wake)
            try:
                with self._changed:
                    while True:
                        if self._error is not None:
                            raise self._error
                        wait = payment.remaining().seconds
                        if wait == 0.0 or waited >= longest:
                            return wait == 0.0, waited
                        left, since = longest - waited, self._clock.now()
                        self._clock.wait(self._changed, left if wait is None else min(wait, left))
                        waited += self._clock.now() - since
            finally:
                payment.cancel()
        except ChannelError as error:
            if error is self._error:
                raise
            _log.debug("rows are added without waiting for the limit: %s", error)
            return False, longest

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Admission:
    """The payments of one task. Used by one thread."""

    def __init__(
        self,
        pay: Callable[[int, int, float], tuple[bool, float]],
        limiter: Limiter,
        rows: int,
        nbytes: int,
    ) -> None:
        self._pay, self._limiter = pay, limiter
        self._amounts = rows, nbytes
        self._part = 0.0
        self._left = _LONGEST_SECONDS

    def __call__(self, part: float) -> bool:
        before, self._part = self._part, min(1.0, self._part + part)
        rows, nbytes = (
            round(amount * self._part) - round(amount * before) for amount in self._amounts
        )
        seconds = 0.0
        while (rows or nbytes) and self._left > 0:
            sizes = zip((rows, nbytes), self._limiter.slice_size(), strict=True)
            slices = max([1.0, *(amount / most for amount, most in sizes if most is not None)])
            paid_rows, paid_bytes = math.ceil(rows / slices), math.ceil(nbytes / slices)
            is_paid, waited = self._pay(paid_rows, paid_bytes, self._left)
            seconds += waited
            self._left = self._left - waited if is_paid else 0.0
            rows, nbytes = rows - paid_rows, nbytes - paid_bytes
        return seconds > 0
