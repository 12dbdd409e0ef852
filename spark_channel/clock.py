"""Clocks. This is the only module that asks the operating system for the time.

State machines take a `Clock`, so that tests run them on `spark_channel.testing.VirtualClock`.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

__all__ = [
    "SYSTEM_CLOCK",
    "Clock",
    "FixedSeconds",
    "SystemClock",
    "connecting",
    "seconds_connecting",
    "utc_now",
    "utc_text",
]

_APART = 5
"""Two sizes of which the larger has a fifth more, at least."""


class Clock(Protocol):
    """A monotonic clock, in seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`; zero or less returns immediately."""
        ...

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        """`condition.wait(timeout)` on this clock: False when `timeout` seconds passed unnotified.

        The caller holds `condition`'s lock, and re-checks its predicate afterwards.
        """
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        return condition.wait(timeout)


SYSTEM_CLOCK = SystemClock()


def utc_now() -> datetime:
    """The wall clock, for what people and targets read; never for measuring."""
    return datetime.now(UTC)


def utc_text(at: datetime | None = None, timespec: str = "seconds") -> str:
    """`at`, or the time now, as targets keep it: 2026-01-31T12:00:00Z. Such texts compare as their times do."""
    return (at or utc_now()).isoformat(timespec=timespec).replace("+00:00", "Z")


class FixedSeconds:
    """The part of a step's time that its size does not change, such as a search, by the last steps of two sizes.

    A loop that sizes its steps by their time leaves it out: where it alone is longer than the aim, smaller steps would
    only be more.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before: tuple[int, float] | None = None

    def took(self, size: int, seconds: float) -> float:
        """Note a step; the part of its time that depends on its size."""
        before, self._before = self._before, (size, seconds)
        if before is not None and abs(size - before[0]) * _APART >= max(size, before[0]) > 0:
            slope = (seconds - before[1]) / (size - before[0])
            fixed = seconds - slope * size
            self.seconds = min(max(0.0, fixed), seconds, before[1])
        return max(0.0, seconds - self.seconds)


class _Thread(threading.local):
    seconds = 0.0
    inside = False


_thread = _Thread()


@contextmanager
def connecting() -> Iterator[None]:
    """Count the time of the block as spent on connecting. Nested blocks count once."""
    if _thread.inside:
        yield
        return
    _thread.inside, began = True, time.perf_counter()
    try:
        yield
    finally:
        _thread.seconds += time.perf_counter() - began
        _thread.inside = False


def seconds_connecting() -> float:
    """Return the seconds that this thread has spent in `connecting` blocks."""
    return _thread.seconds
