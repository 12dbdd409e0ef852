"""What a client that asks gets: its share when that is enough to be worth it, else a turn."""

from spark_channel.limits.issued_grants import DIMENSIONS, Client, worth
from spark_channel.limits.level import MICROS, NANOS, nanoseconds
from spark_channel.limits.line import Line
from spark_channel.limits.messages import Grant, Hold
from spark_channel.limits.pool import HORIZON, Pool
from spark_channel.limits.savings import Savings

__all__ = ["Allotment"]


ROOM = 16
"""One part of so many of a limit that comes free is told to those who could use it."""

MOST_CALLED = 8
"""So many clients that have a share each are told of it at most: among more, a share is not worth the asks."""


class Allotment:
    """Makes the grants of a pool. No grant takes the sum of all above the limit."""

    def __init__(self, pool: Pool, epoch: str, savings: Savings) -> None:
        self._pool = pool
        self._savings = savings
        self._line = Line(pool)
        self._epoch = epoch
        self.version = 0

    def decide(self, client: Client, now: int) -> Grant | Hold:
        """What `client`, which asks, gets now."""
        self._pool.want(client, True)
        if client.successor is not None:
            return self._in_turn(client, now)
        if self._pool.wanting <= self._pool.slots() or self._pool.has_own_share(client.job):
            return self._take_share(client, now)
        return self._take_turn(client, now)

    def to_call(self) -> list[Client]:
        """Those who should ask now, since enough of the limit is free: the heads of lines, else those with too little.

        Where many share the limit a part is small, asks are spread, and places that come free have a successor.
        """
        pool = self._pool
        if pool.horizon() > HORIZON or not self._has_room():
            return []
        if pool.in_line:
            heads = [next(iter(job.line)) for job in pool.jobs.values() if job.line]
            return [head for head in heads if not head.called]
        if pool.wanting > min(MOST_CALLED, pool.slots()):
            return []
        return [client for client in pool.spending if not client.called and self._is_short(client)]

    def _has_room(self) -> bool:
        """A part of the limit is free that is worth a message."""
        pool = self._pool
        return all(
            limit is None or ROOM * pool.free(each) >= pool.rates[each]
            for each, limit in enumerate(pool.limits)
        )

    def _is_short(self, client: Client) -> bool:
        """`client` would use more than it has, and its share is more."""
        for each in DIMENSIONS:
            if self._pool.limits[each] is not None and client.saturated[each]:
                more = self._pool.share(client, each) - client.charge[each]
                if ROOM * more >= self._pool.rates[each]:
                    return True
        return False

    def _take_share(self, client: Client, now: int) -> Grant | Hold:
        shares = [self._pool.share(client, dimension) for dimension in DIMENSIONS]
        part = worth(client, self._pool.rates)
        alone = self._pool.in_line == (client in client.job.line)
        may_take = alone or self._line.is_next(client, [share // 8 for share in shares], now)
        paces = []
        short = lowered = starved = False
        for dimension in DIMENSIONS:
            own, share = part[dimension], shares[dimension]
            free = max(0, self._pool.free(dimension))
            most = own + free if may_take else own
            pace = min(self._wish(client, dimension, share, own, free, alone), most)
            paces.append(pace)
            short = short or pace < 0.9 * share
            lowered = lowered or pace < 0.9 * client.charge[dimension]
            starved = starved or (self._pool.limits[dimension] is not None and pace < max(1, share // 8))
        if short:
            self._pool.enter_line(client)
        else:
            self._pool.leave_line(client)
        if starved:
            return Hold("turn", self._pool.retry())
        lasts = horizon = self._pool.horizon()
        brief = horizon < 2 * HORIZON
        if not client.measured:
            lasts = horizon / 4 if brief else horizon / 2
        ends = now + nanoseconds(lasts)
        within = self._pool.retry() if short or (lowered and brief) else None
        if lowered and brief and not alone:
            within = 0.0  # a client in line gets what it had before, as soon as it has said that it has this
        return self._grant(client, (paces[0], paces[1]), now, ends, within=within)

    def _wish(self, client: Client, dimension: int, share: int, own: int, free: int, alone: bool) -> int:
        """The share; with a long horizon, also what others left, which they would take only much later."""
        if not alone or not client.saturated[dimension] or self._pool.horizon() < 2 * HORIZON:
            return share
        if 10 * free > self._pool.rates[dimension]:
            return share
        return max(share, min(share + free, 3 * share // 2), min(own, 3 * share // 2))

    def _take_turn(self, client: Client, now: int) -> Grant | Hold:
        slots = self._pool.slots()
        pace = (self._pool.rates[0] // slots, self._pool.rates[1] // slots)
        turn = self._pool.turn(pace)
        if client.issued_grants():
            return self._go_on(client, pace, turn, now) or self._in_turn(client, now)
        if self._line.is_next(client, pace, now):
            self._pool.leave_line(client)
            client.turn_ends = now + turn
            return self._grant(client, pace, now, client.turn_ends)
        self._pool.enter_line(client)
        return self._inherit(client, pace, turn, now) or self._in_turn(client, now)

    def _go_on(self, client: Client, pace: tuple[int, int], turn: int, now: int) -> Grant | None:
        """The rest of the client's turn; or another one, when no client waits and the limit allows it."""
        free = [self._pool.free(each) for each in DIMENSIONS]
        alone = self._pool.in_line == (client in client.job.line)
        again = alone and client.turn_ends - now <= turn // 2 and min(free) >= 0
        if again:
            client.turn_ends = now + turn
        if client.turn_ends - now <= turn // 8:
            return None
        part = worth(client, self._pool.rates)
        rows, nbytes = (min(pace[each], part[each] + max(0, free[each])) for each in DIMENSIONS)
        if rows < pace[0] // 8 or nbytes < pace[1] // 8:
            return None
        self._pool.leave_line(client)
        return self._grant(client, (rows, nbytes), now, client.turn_ends)

    def _inherit(self, client: Client, pace: tuple[int, int], turn: int, now: int) -> Grant | None:
        """The next place to come free, kept for the head of the line, so that it is never empty."""
        issued = self._pool.grants.next_end()
        if issued is None or issued.ends > now + turn // 2 or not self._line.is_near(client):
            return None
        part = worth(issued.client, self._pool.rates)
        for each, mine in enumerate(pace):
            others = self._pool.grants.charge[each] - issued.client.charge[each]
            if mine > part[each] or others + mine > self._pool.rates[each]:
                return None
        self._pool.leave_line(client)
        client.turn_ends = issued.ends + turn
        return self._grant(client, pace, now, client.turn_ends, starts=issued.ends, after=issued.client)

    def _in_turn(self, client: Client, now: int) -> Hold:
        """Wait for a turn, and ask again when the turn is near."""
        self._pool.enter_line(client)
        ahead = self._line.ahead(client)
        slots = self._pool.slots()
        turn = self._pool.turn((self._pool.rates[0] // slots, self._pool.rates[1] // slots)) / NANOS
        first = self._pool.grants.next_end()
        free_in = turn if first is None else (first.ends - now) / NANOS
        return Hold("turn", min(20.0, max(self._pool.retry(), free_in + (ahead / slots - 0.4) * turn)))

    def _grant(
        self,
        client: Client,
        pace: tuple[int, int],
        now: int,
        ends: int,
        *,
        starts: int | None = None,
        after: Client | None = None,
        within: float | None = None,
    ) -> Grant:
        starts = now if starts is None else starts
        before = client.charge
        issued = self._pool.grants.issue(client, pace, self._pool.rates, starts, ends, after=after)
        if after is None:
            # One that does not spend all it has would only seem to, with what was saved.
            rows, nbytes = (
                client.charge[each] - before[each] if client.saturated[each] else 0 for each in DIMENSIONS
            )
            self._pool.grants.add_saved(issued, self._savings.take((rows, nbytes)))
        limited = [limit is not None for limit in self._pool.limits]
        of = self._pool.worth()
        lasts = (ends - starts) / NANOS
        ask_in = min(lasts, self._pool.horizon()) / 2
        if ends == client.turn_ends and lasts < 0.6 * HORIZON:
            ask_in = lasts
        if within is not None:
            ask_in = min(ask_in, within)
        return Grant(
            grant=issued.id,
            rows=issued.amount[0] // MICROS if limited[0] else None,
            nbytes=issued.amount[1] // MICROS if limited[1] else None,
            rows_per_second=pace[0] / MICROS if limited[0] else None,
            bytes_per_second=pace[1] / MICROS if limited[1] else None,
            starts_in=(starts - now) / NANOS,
            lasts=lasts,
            ask_in=(starts - now) / NANOS + ask_in,
            use_by=ends / NANOS,
            epoch=self._epoch,
            version=self.version,
            limit_rows_per_second=of[0],
            limit_bytes_per_second=of[1],
            saved_rows=issued.saved[0] / MICROS,
            saved_bytes=issued.saved[1] / MICROS,
        )
