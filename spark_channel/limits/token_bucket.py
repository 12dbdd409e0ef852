"""Token buckets in whole numbers and the payments that wait for them; limiters for one process.

The arithmetic is exact: time in nanoseconds, rates in millionths of a unit per second, the balance in
their product, so that a year of small payments drifts by nothing. A balance below zero is a debt: the
caller that made it went through, and the next one waits until it is paid off.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from spark_channel.channel.capacity import Limiter, Payment, Wait
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError

__all__ = [
    "EARLY_NS",
    "MICROS",
    "NANOS",
    "QUANTA",
    "SLICE_SECONDS",
    "CombinedLimiter",
    "RateLimiter",
    "StaticShare",
    "TokenBucket",
    "nanoseconds",
    "rate_in_micros",
]


NANOS = 1_000_000_000
MICROS = 1_000_000
QUANTA = NANOS * MICROS

SLICE_SECONDS = 0.02
"""The largest payment, in seconds of the limit: smaller ones cost CPU, larger ones make the flow uneven."""

_HIGHEST_RATE = 1 << 62
EARLY_NS = 1_000
"""A wait this short is over: a float of seconds cannot express it, and sleeping it again would spin."""
_PAID = Wait(0.0)


def nanoseconds(seconds: float) -> int:
    """A clock's reading, or a duration, as whole nanoseconds."""
    return round(seconds * NANOS)


def rate_in_micros(rate: float, name: str) -> int:
    """Units per second as whole millionths; `OptionError` naming `name` unless 0.000001 <= rate < 2**62."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < _HIGHEST_RATE:
        raise OptionError(
            f"{name} must be a number of units per second above 0, not {rate!r}",
            option=name,
            got=repr(rate),
            takes="a number from 0.000001 to 2**62",
        )
    return max(1, rate * MICROS if isinstance(rate, int) else round(rate * MICROS))


@dataclass(slots=True, eq=False)
class TokenReservation:
    """One queued amount. `before`: the sum of all reservations ahead of it, in quanta."""

    amount: int
    before: int


class TokenBucket:
    """A GCRA with debt: `rate` units per second, at most `burst_seconds` of surplus.

    Every method takes the time, `now` in nanoseconds of a monotonic clock. It starts empty: neither
    surplus nor debt.
    """

    __slots__ = ("_at", "_balance", "_burst_ns", "_rate", "_reservations", "_reserved")

    def __init__(self, rate: float, burst_seconds: float, now: int) -> None:
        self._rate = rate_in_micros(rate, "rate")
        self._burst_ns = nanoseconds(burst_seconds)
        self._balance = 0
        self._at = now
        self._reserved = 0
        self._reservations: dict[TokenReservation, None] = {}

    @property
    def rate(self) -> float:
        """Units per second."""
        whole, millionths = divmod(self._rate, MICROS)
        return whole if millionths == 0 else self._rate / MICROS

    def set_rate(self, rate: float, now: int) -> None:
        """A new rate from `now` on: a debt stays, a surplus shrinks to what the new rate allows."""
        micros = rate_in_micros(rate, "rate")
        self._refill(now)
        self._rate = micros
        self._clamp()

    def balance(self, now: int) -> float:
        """Units of surplus (above zero) or debt (below) at `now`."""
        self._refill(now)
        return self._balance / QUANTA

    def reserve(self, amount: int, now: int) -> TokenReservation:
        """Reserve `amount` units at the end of the queue; `wait` returns when they may be spent."""
        self._refill(now)
        reservation = TokenReservation(amount * QUANTA, self._reserved)
        self._reserved += reservation.amount
        self._balance -= reservation.amount
        self._reservations[reservation] = None
        return reservation

    def wait(self, reservation: TokenReservation, now: int) -> int:
        """Return the nanoseconds until all debt ahead of `reservation` is paid off; 0 = go."""
        self._refill(now)
        missing = -(self._balance + self._reserved - reservation.before)
        if missing <= 0:
            return 0
        wait = -(-missing // self._rate)
        return wait if wait > EARLY_NS else 0

    def settle(self, reservation: TokenReservation) -> None:
        """Complete `reservation`: its tokens are spent."""
        self._reservations.pop(reservation, None)

    def cancel(self, reservation: TokenReservation, now: int) -> None:
        """Give back what `reservation` took, unless it was settled: those behind it move up."""
        if reservation not in self._reservations:
            return
        self._refill(now)
        del self._reservations[reservation]
        for other in self._reservations:
            if other.before > reservation.before:
                other.before -= reservation.amount
        self._reserved -= reservation.amount
        self._balance += reservation.amount
        self._clamp()

    def _refill(self, now: int) -> None:
        if now > self._at:
            self._balance += (now - self._at) * self._rate
            self._at = now
            self._clamp()

    def _clamp(self) -> None:
        self._balance = min(self._balance, self._burst_ns * self._rate)


class CombinedLimiter:
    """A `Limiter` that charges each of `limiters`; the longest wait counts, and its reason is reported.

    A payment keeps what one limiter has already set aside for it while another makes it wait.
    """

    def __init__(self, limiters: Sequence[Limiter]) -> None:
        if not limiters:
            raise OptionError(
                "CombinedLimiter takes at least one limiter", option="limiters", takes="one or more"
            )
        self._limiters = tuple(limiters)

    def slice_size(self) -> tuple[int | None, int | None]:
        """Return the smallest slice of all limiters."""
        sizes = [limiter.slice_size() for limiter in self._limiters]
        return _smallest(rows for rows, _ in sizes), _smallest(nbytes for _, nbytes in sizes)

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Queue at all limiters; see `channel.Limiter`."""
        payments: list[Payment] = []
        try:
            for limiter in self._limiters:
                payments.append(limiter.pay(rows, nbytes, wake))  # noqa: PERF401 - kept when one raises
        except BaseException:
            for payment in payments:
                payment.cancel()
            raise
        return _AllPaid(payments)


class _AllPaid:
    __slots__ = ("_payments",)

    def __init__(self, payments: Sequence[Payment]) -> None:
        self._payments = payments

    def remaining(self) -> Wait:
        longest = Wait(0.0)
        for payment in self._payments:
            wait = payment.remaining()
            if wait.seconds is None:
                return wait
            if longest.seconds is not None and wait.seconds > longest.seconds:
                longest = wait
        return longest

    def cancel(self) -> None:
        for payment in self._payments:
            payment.cancel()


def _smallest(sizes: Iterable[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


class RateLimiter:
    """At most `rows_per_second` and `bytes_per_second` (None = unlimited) through this object.

    A `Limiter`: any number of channels and threads may pay it; first come, first served. The longer of
    the two waits counts, and names its dimension, "rows" or "bytes". In any window of W seconds at most
    `rate * (W + 0.02) + one payment` go through, in each dimension.

    ```python
    from spark_channel.limits import RateLimiter

    meter = RateLimiter(rows_per_second=1000, bytes_per_second=64_000)
    payment = meter.pay(rows=10, nbytes=6400, wake=lambda: None)
    assert payment.remaining().seconds == 0.0    # passes immediately
    wait = meter.pay(rows=1, nbytes=640, wake=lambda: None).remaining()
    assert wait.reason == "bytes"                # the longer of the two counts: 0.1 s
    ```
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
        self._levels: dict[str, TokenBucket] = {}
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
            levels: dict[str, TokenBucket] = {}
            for name, rate in rates.items():
                level = self._levels.get(name) or TokenBucket(rate, SLICE_SECONDS, now)
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
                name: (level, level.reserve(amounts[name], now))
                for name, level in self._levels.items()
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
                if (
                    self._levels.get(name) is level
                    and (wait := level.wait(reservation, now)) > longest
                ):
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


class _MeterPayment:
    """A payment's reservations in both buckets, at the same position in both queues."""

    __slots__ = ("_meter", "reservations", "wake")

    def __init__(
        self,
        meter: RateLimiter,
        reservations: dict[str, tuple[TokenBucket, TokenReservation]],
        wake: Callable[[], None],
    ) -> None:
        self._meter = meter
        self.reservations = reservations
        self.wake = wake

    def remaining(self) -> Wait:
        return self._meter._remaining(self)  # noqa: SLF001 - one unit with its meter

    def cancel(self) -> None:
        self._meter._cancel(self)  # noqa: SLF001 - one unit with its meter


@dataclass(frozen=True, slots=True)
class StaticShare:
    """1/`tasks` of a limit in rows and bytes per second (None = unlimited): plain data, made where the job is planned.

    `tasks` is the most that ever run at a time, so that all of them together keep the limit whatever they can reach.
    """

    rows_per_second: float | None
    bytes_per_second: float | None
    tasks: int

    @property
    def paces(self) -> tuple[float | None, float | None]:
        """The share of one task, rounded down."""
        return _part(self.rows_per_second, self.tasks), _part(self.bytes_per_second, self.tasks)

    def with_limit(self, rows_per_second: float | None, bytes_per_second: float | None) -> Self:
        """The same share of another limit."""
        return type(self)(rows_per_second, bytes_per_second, self.tasks)


def _part(limit: float | None, tasks: int) -> float | None:
    return None if limit is None else max(1, int(limit * MICROS) // tasks) / MICROS
