"""How full a token bucket is, in whole numbers, and the payments that wait for it. No clock, no lock.

The arithmetic is exact: time in nanoseconds, rates in millionths of a unit per second, the balance in
their product, so that a year of small payments drifts by nothing. A balance below zero is a debt: the
caller that made it went through, and the next one waits until it is paid off.
"""

from dataclasses import dataclass

from spark_channel.errors import OptionError

__all__ = [
    "EARLY_NS",
    "MICROS",
    "NANOS",
    "QUANTA",
    "SLICE_SECONDS",
    "Level",
    "RateReservation",
    "nanoseconds",
    "rate_in_micros",
]

NANOS = 1_000_000_000
MICROS = 1_000_000
QUANTA = NANOS * MICROS

SLICE_SECONDS = 0.02
"""What one payment should carry at most, in seconds of the limit: finer costs CPU, coarser is uneven."""

_HIGHEST_RATE = 1 << 62
EARLY_NS = 1_000
"""A wait this short is over: a float of seconds cannot express it, and sleeping it again would spin."""


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
class RateReservation:
    """One amount in line. `before`: all that was ever reserved ahead of it, in quanta."""

    amount: int
    before: int


class Level:
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
        self._reservations: dict[RateReservation, None] = {}

    @property
    def rate(self) -> float:
        """Units per second."""
        whole, rest = divmod(self._rate, MICROS)
        return whole if rest == 0 else self._rate / MICROS

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

    def reserve(self, amount: int, now: int) -> RateReservation:
        """Take `amount` units at the end of the line; `wait` says when the claimant may go."""
        self._refill(now)
        reservation = RateReservation(amount * QUANTA, self._reserved)
        self._reserved += reservation.amount
        self._balance -= reservation.amount
        self._reservations[reservation] = None
        return reservation

    def wait(self, reservation: RateReservation, now: int) -> int:
        """Nanoseconds until all that is ahead of `reservation` is paid off; 0 = go."""
        self._refill(now)
        missing = -(self._balance + self._reserved - reservation.before)
        if missing <= 0:
            return 0
        wait = -(-missing // self._rate)
        return wait if wait > EARLY_NS else 0

    def settle(self, reservation: RateReservation) -> None:
        """`reservation` went through: what it took is gone."""
        self._reservations.pop(reservation, None)

    def cancel(self, reservation: RateReservation, now: int) -> None:
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
