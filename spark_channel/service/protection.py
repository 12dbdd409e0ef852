"""`protect` and probes: what sets the speed of a limit by the health of a system."""

import threading
from typing import Protocol

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.limits import AdaptiveLimit, HealthSample, LimitRegistry
from spark_channel.progress import JobProgress
from spark_channel.service.protocol import Subscriptions

__all__ = ["NewLimit", "ProbedLimit", "ProtectionController"]


_REPORTED_AGAIN = 1.5
"""A speed is reported again when it differs from the last reported one by this factor."""
_ROWS, _BYTES = "rows/s", "bytes/s"
_NOTHING = 1e-6
"""Rows per second of a job that is paused: one row in eleven days."""


class ProtectionController:
    """Follows the health of one job's source and target, and sets the speed of its limit.

    Thread-safe: samples of both sides arrive at the same time.
    """

    def __init__(
        self,
        progress: JobProgress,
        name: str,
        book: LimitRegistry,
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
        self._protection = AdaptiveLimit(
            spec.rows_per_second,
            bounds=spec.pressure,
            auto=spec.protect,
            clock=clock or SYSTEM_CLOCK,
        )
        self._beside = ""
        self._reported: tuple[str, float] = ("", 0.0)
        self._signals: dict[str, tuple[float, float]] = {}
        self._apply()

    def observe(self, side: str, sample: HealthSample) -> None:
        """Take a sample of `side`, and change the limit immediately."""
        with self._lock:
            self._follow_limit()
            before = self._protection.rows_per_second
            self._protection.observe(side, sample, self._book.spent(self._name))
            self._signals.update({f"{side}:{name}": value for name, value in sample.values.items()})
            self._apply()
            self._set_held()
            changed = self._protection.rows_per_second != before
        if changed:
            self._subscriptions.notify(self._name)

    def wait_for(self, build: str) -> None:
        """Pause while another job of its run builds an index, which no limit slows down; "" = none does."""
        with self._lock:
            if build == self._beside:
                return
            self._beside = build
            self._apply()
        self._subscriptions.notify(self._name)

    def signals(self) -> dict[str, tuple[float, float]]:
        """The last value of each signal and what is too much, by "side:signal"."""
        with self._lock:
            return dict(self._signals)

    def report_held(self) -> None:
        """Add to the report of an ending job what limited its speed."""
        with self._lock:
            self._set_held()

    def _set_held(self) -> None:
        self._progress.set_held(self._protection.held_seconds, self._protection.summary)

    def _follow_limit(self) -> None:
        """Use the limit that a user may have set meanwhile."""
        rows, nbytes = self._book.limits(self._name)
        self._bytes = None if nbytes is None else max(1, round(nbytes))
        if rows != self._most_rows:
            self._most_rows = rows
            self._protection.limit_to(rows)

    def _apply(self) -> None:
        protection = self._protection
        rows, text, holder = protection.rows_per_second, protection.text, protection.holder
        if self._beside:
            rows, text, holder = _NOTHING, f"paused: {self._beside}", self._beside
        self._book.cap(self._name, rows, text)
        last = self._reported
        if holder != last[0] or not last[1] / _REPORTED_AGAIN < rows < last[1] * _REPORTED_AGAIN:
            self._reported = (holder, rows)
            self._progress.set_limits(max(1, round(rows)), self._bytes, text)


class NewLimit(Protocol):
    """Makes the limit that follows a probe."""

    def __call__(
        self, most: float | None, unit: str, *, clock: Clock | None = None
    ) -> AdaptiveLimit: ...


class ProbedLimit:
    """Lowers rows and bytes of a shared limit to the same part, by the samples of a probe. Used by one thread."""

    def __init__(
        self,
        name: str,
        book: LimitRegistry,
        subscriptions: Subscriptions,
        new_limit: NewLimit,
        clock: Clock | None,
    ) -> None:
        self._name = name
        self._book = book
        self._subscriptions = subscriptions
        self._new_limit = new_limit
        self._clock = clock
        self._limit: AdaptiveLimit | None = None
        self._set: tuple[float, str] | None = None

    def observe(self, sample: HealthSample) -> None:
        """Take a sample, and change the limit immediately."""
        rows, nbytes = self._book.limits(self._name)
        most, unit = (rows, _ROWS) if rows is not None else (nbytes, _BYTES)
        if most is None:  # a user has lifted it
            self._limit = self._set = None
            return
        limit, before = self._limit, self._set
        if limit is None or before is None or unit != before[1]:
            limit = self._limit = self._new_limit(most, unit, clock=self._clock)
        elif most != before[0]:
            limit.limit_to(most)
        self._set = most, unit
        spent = self._book.spent(self._name, nbytes=unit == _BYTES)
        part = limit.observe("probe", sample, spent) / most
        self._book.press(self._name, min(1.0, part), limit.text)
        self._subscriptions.notify(self._name)
