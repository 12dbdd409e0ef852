"""`Protector`: follows what a job's source and target say of their health, and sets the speed of its limit."""

import threading

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.limits import LimitBook, Protection, Sample
from spark_channel.progress import JobProgress
from spark_channel.service.subscriptions import Subscriptions

__all__ = ["Protector"]

_TOLD_AGAIN = 1.5
"""The report tells of a speed that is so many times the one it told of."""


class Protector:
    """Of one job. Thread-safe: two sides are heard of at the same time."""

    def __init__(
        self,
        progress: JobProgress,
        name: str,
        book: LimitBook,
        subscriptions: Subscriptions,
        clock: Clock | None = None,
    ) -> None:
        spec = progress.spec
        self._progress = progress
        self._name = name
        self._book = book
        self._subscriptions = subscriptions
        self._bytes = spec.bytes_per_second
        self._most_rows: float | None = spec.rows_per_second
        self._lock = threading.Lock()
        self._protection = Protection(
            spec.rows_per_second, bounds=spec.pressure, auto=spec.protect, clock=clock or SYSTEM_CLOCK
        )
        self._told: tuple[str, float] = ("", 0.0)
        self._apply()

    def observe(self, side: str, sample: Sample) -> None:
        """What `side` says now; the limit is changed at once."""
        with self._lock:
            self._follow_limit()
            before = self._protection.rows_per_second
            self._protection.observe(side, sample, self._book.spent(self._name))
            self._apply()
            changed = self._protection.rows_per_second != before
        if changed:
            self._subscriptions.notify(self._name)

    def tell_report(self) -> None:
        """The job ends: its report says what held the speed."""
        with self._lock:
            self._progress.set_held(self._protection.held_seconds)

    def _follow_limit(self) -> None:
        """A user may have set another limit meanwhile."""
        rows, nbytes = self._book.limits(self._name)
        self._bytes = None if nbytes is None else max(1, round(nbytes))
        if rows != self._most_rows:
            self._most_rows = rows
            self._protection.limit_to(rows)

    def _apply(self) -> None:
        protection = self._protection
        rows, text = protection.rows_per_second, protection.text
        self._book.cap(self._name, rows, text)
        holder, told = protection.holder, self._told
        if holder != told[0] or not told[1] / _TOLD_AGAIN < rows < told[1] * _TOLD_AGAIN:
            self._told = (holder, rows)
            self._progress.set_limits(max(1, round(rows)), self._bytes, text)
