"""`Meter`: rows and bytes per second together, for one process, without coordination."""

import threading
from collections.abc import Callable

from spark_channel.channel.limiter import Payment, Wait
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError
from spark_channel.limits.level import (
    NANOS,
    SLICE_SECONDS,
    Level,
    RateReservation,
    nanoseconds,
    rate_in_micros,
)

__all__ = ["Meter"]


class Meter:
    """At most `rows_per_second` and `bytes_per_second` (None = unlimited) through this object.

    A `Limiter`: any number of channels and threads may pay it; first come, first served. The longer of
    the two waits counts, and names its dimension, "rows" or "bytes". In any window of W seconds at most
    `rate * (W + 0.02) + one payment` go through, in each dimension.
    """

    def __init__(
        self,
        rows_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._levels: dict[str, Level] = {}
        self._waiting: dict[_MeterPayment, None] = {}
        self.set_rates(rows_per_second, bytes_per_second)

    @property
    def rows_per_second(self) -> float | None:
        """None = unlimited."""
        return self._rate("rows")

    @property
    def bytes_per_second(self) -> float | None:
        """None = unlimited."""
        return self._rate("bytes")

    def set_rates(self, rows_per_second: float | None, bytes_per_second: float | None) -> None:
        """Change both rates for waiting and later payments: debt stays, surplus is clamped."""
        rates = {}
        for name, rate in (("rows", rows_per_second), ("bytes", bytes_per_second)):
            if rate is not None:
                rate_in_micros(rate, f"{name}_per_second")
                rates[name] = rate
        with self._lock:
            now = nanoseconds(self._clock.now())
            levels: dict[str, Level] = {}
            for name, rate in rates.items():
                level = self._levels.get(name) or Level(rate, SLICE_SECONDS, now)
                level.set_rate(rate, now)
                levels[name] = level
            self._levels = levels
            wakes = [payment.wake for payment in self._waiting]
        for wake in wakes:
            wake()

    def slice_size(self) -> tuple[int | None, int | None]:
        """About 20 ms of the limit, in rows and bytes."""
        with self._lock:
            return self._slice("rows"), self._slice("bytes")

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Queue for `rows` and `nbytes`; see `channel.Limiter`."""
        amounts = {"rows": rows, "bytes": nbytes}
        for name, amount in amounts.items():
            if amount < 0:
                raise OptionError(
                    f"a payment of {amount} {name} makes no sense",
                    option=name,
                    got=str(amount),
                    takes="0 or more",
                )
        with self._lock:
            now = nanoseconds(self._clock.now())
            reservations = {
                name: (level, level.reserve(amounts[name], now)) for name, level in self._levels.items()
            }
            payment = _MeterPayment(self, reservations, wake)
            self._waiting[payment] = None
            return payment

    def _remaining(self, payment: "_MeterPayment") -> Wait:
        with self._lock:
            if payment not in self._waiting:
                return _PAID
            now = nanoseconds(self._clock.now())
            longest, reason = 0, ""
            for name, (level, reservation) in payment.reservations.items():
                if self._levels.get(name) is level and (wait := level.wait(reservation, now)) > longest:
                    longest, reason = wait, name
            if longest:
                return Wait(longest / NANOS, reason)
            for level, reservation in payment.reservations.values():
                level.settle(reservation)
            del self._waiting[payment]
            return _PAID

    def _cancel(self, payment: "_MeterPayment") -> None:
        with self._lock:
            if payment not in self._waiting:
                return
            now = nanoseconds(self._clock.now())
            for level, reservation in payment.reservations.values():
                level.cancel(reservation, now)
            del self._waiting[payment]

    def _rate(self, name: str) -> float | None:
        with self._lock:
            level = self._levels.get(name)
            return None if level is None else level.rate

    def _slice(self, name: str) -> int | None:
        level = self._levels.get(name)
        return None if level is None else max(1, int(level.rate * SLICE_SECONDS))


_PAID = Wait(0.0)


class _MeterPayment:
    """Reservations on both levels, in the same place of both lines."""

    __slots__ = ("_meter", "reservations", "wake")

    def __init__(
        self, meter: Meter, reservations: dict[str, tuple[Level, RateReservation]], wake: Callable[[], None]
    ) -> None:
        self._meter = meter
        self.reservations = reservations
        self.wake = wake

    def remaining(self) -> Wait:
        return self._meter._remaining(self)  # noqa: SLF001 - one unit with its meter

    def cancel(self) -> None:
        self._meter._cancel(self)  # noqa: SLF001 - one unit with its meter
