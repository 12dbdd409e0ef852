"""`Permits`: how many may do something at the same time, over many processes. No I/O, a clock."""

import threading
from collections import OrderedDict

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, ServiceDeniedError
from spark_channel.limits.messages import AskPermit, Done, Hold, Permit, ReturnPermit

__all__ = ["Permits"]

RENEW_SECONDS = 10.0
KEEP_SECONDS = 30.0
FIRST_RETRY = 0.1
SLOWEST_RETRY = 2.0
MOST_WAITING = 100_000


class Permits:
    """At most `count` holders at once, first come, first served: `maxConnections`.

    A holder is any string that its process generated (random, so that no other process returns it). It asks
    until it is given a `Permit`, asks again every `renew_in` seconds while it needs it, and returns it.
    One that is not heard of for 30 s has lost its permit, or its place in line.
    """

    def __init__(self, name: str, count: int, *, clock: Clock | None = None) -> None:
        self.name = name
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._held: OrderedDict[str, float] = OrderedDict()
        self._line: OrderedDict[str, float] = OrderedDict()
        self._count = _checked(count)

    @property
    def count(self) -> int:
        """How many may hold one."""
        return self._count

    def set_count(self, count: int) -> None:
        """Live: more are given at once; fewer come about as holders return theirs."""
        with self._lock:
            self._count = _checked(count)

    def usage(self) -> tuple[int, int]:
        """(held, waiting) now."""
        with self._lock:
            self._expire()
            return len(self._held), len(self._line)

    def handle(self, request: AskPermit | ReturnPermit) -> Permit | Hold | Done:
        """Carry out one request; `ServiceDeniedError` when it makes no sense."""
        with self._lock:
            self._expire()
            if not 8 <= len(request.holder) <= 256:
                raise ServiceDeniedError("a permit's holder is a text of 8 to 256 characters")
            if isinstance(request, ReturnPermit):
                self._held.pop(request.holder, None)
                self._line.pop(request.holder, None)
                return Done(RENEW_SECONDS)
            return self._ask(request.holder)

    def _ask(self, holder: str) -> Permit | Hold:
        now = self._clock.now()
        if holder not in self._held:
            if holder not in self._line and len(self._line) >= MOST_WAITING:
                raise ServiceDeniedError(f"{MOST_WAITING} wait for {self.name!r} already")
            self._line[holder] = now
            ahead = self._ahead(holder)
            if ahead is None:
                pause = min(SLOWEST_RETRY, FIRST_RETRY * max(1, len(self._line) // 8))
                return Hold("connections", pause)
            del self._line[holder]
        self._held[holder] = now
        self._held.move_to_end(holder)
        return Permit(RENEW_SECONDS)

    def _ahead(self, holder: str) -> int | None:
        """The holder's place in line when there is a free permit for it, else None."""
        free = self._count - len(self._held)
        for place, other in enumerate(self._line):
            if place >= free:
                return None
            if other == holder:
                return place
        return None

    def _expire(self) -> None:
        """Holders are in the order that they renewed; those in line stay in theirs, and leave at the head."""
        gone = self._clock.now() - KEEP_SECONDS
        while self._held and next(iter(self._held.values())) <= gone:
            self._held.popitem(last=False)
        late = self._clock.now() - 2 * SLOWEST_RETRY
        while self._line and next(iter(self._line.values())) <= late:
            self._line.popitem(last=False)


def _checked(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise OptionError(
            f"at least one connection, not {count!r}",
            option="maxConnections",
            got=repr(count),
            takes="a whole number, 1 or more",
        )
    return count
