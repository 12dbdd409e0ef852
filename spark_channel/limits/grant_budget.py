"""One dimension of a client's grant, and how queued payments spend it. No clock, no lock."""

from dataclasses import dataclass

from spark_channel.limits.messages import Grant, LimitChanged
from spark_channel.limits.token_bucket import (
    EARLY_NS,
    MICROS,
    NANOS,
    QUANTA,
    SLICE_SECONDS,
    nanoseconds,
)

__all__ = ["GrantBudget", "PaymentShare", "is_part", "parts"]

_SURPLUS_NS = nanoseconds(SLICE_SECONDS)


@dataclass(slots=True, eq=False)
class PaymentShare:
    """The part of a payment in this dimension, in quanta. `before`: the sum of all payments ahead of it."""

    amount: int
    before: int


class GrantBudget:
    """Units that arrive at a steady pace between two instants, and go to queued payments in order.

    What arrives while no payment waits is kept for 20 ms of the pace, and then `missed`. There is no
    catching up: no units arrive without a grant. Instants are nanoseconds.
    """

    __slots__ = (
        "_at",
        "_balance",
        "_begins",
        "_ends",
        "_missed",
        "_pace",
        "_shares",
        "_spent",
        "_taken",
    )

    def __init__(self, now: int) -> None:
        self._at = now
        self._balance = 0
        self._taken = 0
        self._pace: int | None = 0
        self._begins = self._ends = now
        self._spent = self._missed = 0
        self._shares: dict[PaymentShare, None] = {}

    def begin(
        self, pace: float | None, begins: int, ends: int, now: int, saved: float = 0.0
    ) -> None:
        """From `begins` to `ends`, `pace` units per second arrive (None = any number); before, `saved` alone."""
        self.advance(now)
        self._pace = None if pace is None else round(pace * MICROS)
        self._begins, self._ends = begins, ends
        arrived = int(saved * MICROS) * NANOS
        self._balance += arrived
        self._spent += arrived
        self._keep_surplus()
        if ends <= now:
            self._void()

    def change(self, pace: float | None, now: int) -> None:
        """From now on `pace` units arrive per second (None = any number), in the time that was given."""
        self.advance(now)
        self._pace = None if pace is None else int(pace * MICROS)
        self._keep_surplus()

    def shorten(self, ends: int) -> None:
        """Stop the inflow at `ends`, which is in the future."""
        self._ends = min(self._ends, ends)

    def stop(self, now: int) -> None:
        """Stop the inflow and drop the surplus."""
        self.advance(now)
        self._ends = min(self._ends, now)
        self._void()

    def take(self, amount: int, now: int) -> PaymentShare:
        """Queue for `amount` units."""
        self.advance(now)
        share = PaymentShare(amount * QUANTA, self._taken)
        self._taken += share.amount
        self._balance -= share.amount
        self._shares[share] = None
        return share

    def wait(self, share: PaymentShare, now: int) -> int | None:
        """Return the nanoseconds until all of `share` has arrived; None = this grant is too small for it."""
        self.advance(now)
        missing = -(self._balance + self._taken - share.before - share.amount)
        if missing <= 0:
            return 0
        if self._pace is None:
            return max(0, self._begins - now) if now < self._ends else None
        if self._pace == 0:
            return None
        begins = max(self._begins, now)
        wait = begins + -(-missing // self._pace) - now
        if wait <= EARLY_NS:
            return 0
        return wait if now + wait <= self._ends else None

    def settle(self, share: PaymentShare) -> None:
        """Complete `share`: its payment was made."""
        if self._pace is None:
            self._balance = max(
                self._balance, -sum(other.amount for other in self._shares if other is not share)
            )
        self._shares.pop(share, None)

    def cancel(self, share: PaymentShare, now: int) -> None:
        """Give back what `share` took, unless it was settled: those behind it move up."""
        if share not in self._shares:
            return
        self.advance(now)
        del self._shares[share]
        for other in self._shares:
            if other.before > share.before:
                other.before -= share.amount
        self._taken -= share.amount
        self._balance += share.amount
        self._keep_surplus()

    def used(self) -> tuple[float, float]:
        """Return the units that were (spent, missed) since `forget`; surplus counts as neither."""
        return max(0, self._spent - max(0, self._balance)) / QUANTA, self._missed / QUANTA

    def forget(self, spent: float, missed: float) -> None:
        """Drop reported amounts; the rest belongs to the next grant."""
        self._spent = max(0, self._spent - round(spent * QUANTA))
        self._missed = max(0, self._missed - round(missed * QUANTA))

    def advance(self, now: int) -> None:
        """Add the units that have arrived until `now`."""
        if now <= self._at:
            return
        if self._pace is not None:
            arriving = min(now, self._ends) - max(self._at, self._begins)
            if arriving > 0:
                self._balance += arriving * self._pace
                self._spent += arriving * self._pace
                self._keep_surplus()
        expired = self._at < self._ends <= now
        self._at = now
        if expired:
            self._void()

    def _keep_surplus(self) -> None:
        self._cut(_SURPLUS_NS * (self._pace or 0))

    def _void(self) -> None:
        """Drop the surplus, since the grant is over; queued payments keep the units that arrived for them."""
        self._cut(0)

    def _cut(self, most: int) -> None:
        lost = self._balance - most
        if lost > 0:
            self._balance = most
            self._missed += lost
            self._spent = max(0, self._spent - lost)


def parts(grant: Grant, news: LimitChanged) -> tuple[float, float] | None:
    """Return how much of its original pace `grant` keeps after `news`, in rows and in bytes, as fractions.

    None without a ratio, since the limit was or became unlimited.
    """
    if news.reason:
        return 0.0, 0.0
    rows = _part(grant.limit_rows_per_second, news.rows_per_second)
    nbytes = _part(grant.limit_bytes_per_second, news.bytes_per_second)
    return None if rows is None or nbytes is None else (rows, nbytes)


def is_part(grant: Grant) -> bool:
    """Whether other clients have, or may have, a part of the limit of `grant`."""
    pairs = (
        (grant.rows_per_second, grant.limit_rows_per_second),
        (grant.bytes_per_second, grant.limit_bytes_per_second),
    )
    return any(pace is not None and whole is not None and pace < whole for pace, whole in pairs)


def _part(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return 1.0 if before is now else None
    return now / before
