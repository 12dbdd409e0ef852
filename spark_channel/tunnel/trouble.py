"""What follows when a range cannot be read, processed or checkpointed. Pure."""

import random
from enum import Enum

__all__ = ["Trouble", "Verdict"]

_FIRST = 0.1
_FACTOR = 3.0
_JITTER = 0.25


class Verdict(Enum):
    """The next step for a channel that failed."""

    AGAIN = "again"
    PARK = "park"
    STOP = "stop"


class Trouble:
    """One channel's failures since its last checkpoint.

    A range that fails is tried again after 0.1 s, then after three times as long each time, up to `longest`;
    when it fails after the longest wait too, the channel is parked. An outage (a connection is lost, a lock is
    held) is waited for, with the same waits, and parks nothing.

    Args:
        longest: the longest wait, `maxRetryInterval`.
        parks: whether a channel is parked, `onError`; else the first failure ends all.
        outage: how long an outage may last; None = any time.
    """

    def __init__(
        self, longest: float, *, parks: bool, outage: float | None, chance: random.Random | None = None
    ) -> None:
        self._longest = longest
        self._parks = parks
        self._outage = outage
        self._random = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._next = min(_FIRST, longest)
        self._worst = False
        self._outage_next = min(_FIRST, longest)
        self._since: float | None = None

    def over(self) -> None:
        """A checkpoint was taken."""
        self._next = self._outage_next = min(_FIRST, self._longest)
        self._worst, self._since = False, None

    def failed(self) -> tuple[Verdict, float]:
        """A range failed: what to do, and after how many seconds."""
        self._since = None
        if not self._parks:
            return Verdict.STOP, 0.0
        if self._worst:
            return Verdict.PARK, 0.0
        wait, self._worst = self._next, self._next >= self._longest
        self._next = min(self._longest, wait * _FACTOR)
        return Verdict.AGAIN, self._jittered(wait)

    def no_answer(self, now: float) -> tuple[Verdict, float]:
        """The store or the source does not answer: what to do, and after how many seconds."""
        if self._since is None:
            self._since, self._outage_next = now, min(_FIRST, self._longest)
        if self._outage is not None and now - self._since > self._outage:
            return Verdict.STOP, 0.0
        wait = self._outage_next
        self._outage_next = min(self._longest, wait * _FACTOR)
        return Verdict.AGAIN, self._jittered(wait)

    def _jittered(self, wait: float) -> float:
        return wait * (1 - _JITTER * self._random.random())
