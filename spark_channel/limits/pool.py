"""What is divided, and among whom: the limit, the jobs and clients that ask for a share, and how finely."""

import math

from spark_channel.limits.issued_grants import DIMENSIONS, Client, IssuedGrant, IssuedGrants, JobShare
from spark_channel.limits.level import MICROS, NANOS, nanoseconds, rate_in_micros
from spark_channel.limits.shares import max_min

__all__ = ["HORIZON", "Pool"]

HORIZON = 0.5
"""Seconds that a grant lasts. A client asks again at half of it, so a change reaches it in 0.25 s; a
crashed client's share is free again after it, so 95 % of the rate is back within a second."""

ASKS_PER_SECOND = 125
"""What a coordinator is asked at most, about, by all but the first `SPARED`, so that it takes little of a core, most
of it gRPC's (see docs/benchmarks.md): above 50 clients the horizon grows with their number. They hear of a change
by `Listen`."""

SPARED = 20
"""Clients for whose number a horizon need not grow: so 50 of them have the shortest still."""

LINE_ASKS_PER_SECOND = 300
"""The same for clients that wait for a turn: fewer, and places would come free that no client asks for in time."""

NEWS_ASKS_PER_SECOND = 400
"""The same for those who heard of a change: their grants are worth what they should be already."""

LONGEST_SPREAD = 16.0
"""Seconds over which all asks are spread at most: above 2 000 clients they come more often than that."""

SLOWEST_PACE = 20
"""Rows per second (bytes: mean rows) below which a grant is not worth its unevenness: a client's rows
are whole, so at p rows/s its worst second holds p + 1. When there are more clients than `rate / 20`,
they take turns."""

MEASURABLE = 0.05
"""Part of a grant that must have fallen due before its use says anything."""

SATURATED_FROM = 0.95
"""A client that used this part of its pace, or more, would use more if it had it."""

HEADROOM = 1.1
"""What a client that is not saturated gets above what it uses, so that it can show that it needs more."""


_HALF_HORIZON_NS = nanoseconds(HORIZON / 2)


class Pool:
    """The state that answers are made from. Its only rule is the size of things.

    `limits`: what was set, (rows, bytes), None = unlimited; `rates`: what is left of it under pressure, 0
    where unlimited. Both in millionths per second. `row_bytes`: the mean size of a row, 0 = not known yet. `spending`:
    the clients that want to spend.
    """

    def __init__(self, max_clients: int) -> None:
        self.max_clients = max_clients
        self.grants = IssuedGrants(self._idle)
        self.jobs: dict[str, JobShare] = {}
        self.spending: dict[Client, None] = {}
        self.in_line = 0
        self.row_bytes = 0.0
        self.limits: tuple[int | None, int | None] = (None, None)
        self.rates = (0, 0)
        self.factor = 1.0

    def set_limits(self, rows_per_second: float | None, bytes_per_second: float | None) -> None:
        """Set both rates; `OptionError` changes nothing."""
        self.limits = (
            None if rows_per_second is None else rate_in_micros(rows_per_second, "rows_per_second"),
            None if bytes_per_second is None else rate_in_micros(bytes_per_second, "bytes_per_second"),
        )
        self.scale(self.factor)

    def scale(self, factor: float) -> None:
        """Use this part of the limits."""
        self.factor = factor
        rows, nbytes = (0 if limit is None else max(1, int(limit * factor)) for limit in self.limits)
        self.rates = (rows, nbytes)

    @property
    def wanting(self) -> int:
        """How many clients want to spend."""
        return len(self.spending)

    def free(self, dimension: int) -> int:
        """What no live grant may spend, per second; below 0 when the limit was lowered just now."""
        return self.rates[dimension] - self.grants.charge[dimension]

    def want(self, client: Client, wanting: bool) -> None:
        """Count `client` among those that want to spend, or not."""
        if client.wanting == wanting:
            return
        client.wanting = wanting
        if wanting:
            self.spending[client] = None
        else:
            del self.spending[client]
        sign = 1 if wanting else -1
        client.job.wanting += sign
        for dimension in DIMENSIONS:
            if client.saturated[dimension]:
                client.job.saturated[dimension] += sign
            else:
                client.job.demand[dimension] += sign * client.demand[dimension]

    def enter_line(self, client: Client) -> None:
        if client not in client.job.line:
            self.in_line += 1
            client.job.tickets += 1
            client.job.line[client] = client.job.tickets

    def leave_line(self, client: Client) -> None:
        if client.job.line.pop(client, None) is not None:
            self.in_line -= 1

    def slots(self) -> int:
        """How many clients may be granted something at the same time."""
        slots = self.max_clients
        if self.limits[0] is not None:
            slots = min(slots, self.rates[0] // (SLOWEST_PACE * MICROS))
        if self.limits[1] is not None and self.row_bytes:
            slots = min(slots, int(self.rates[1] / (SLOWEST_PACE * MICROS * self.row_bytes)))
        return max(1, slots)

    def turn(self, pace: tuple[int, int]) -> int:
        """Nanoseconds of a turn: a horizon, and time enough for two rows."""
        rows = 2 * MICROS / pace[0] if pace[0] else 0.0
        nbytes = 2 * MICROS * self.row_bytes / pace[1] if pace[1] else 0.0
        return nanoseconds(max(self.horizon(), rows, nbytes))

    def horizon(self) -> float:
        """Seconds that a grant lasts, with as many clients as want one now."""
        return max(HORIZON, 2 * self.spread(min(self.wanting, self.slots())))

    def retry(self) -> float:
        """Seconds after which one in line asks again."""
        return max(HORIZON / 8, min(LONGEST_SPREAD, self.in_line / LINE_ASKS_PER_SECOND))

    def spread(self, count: int) -> float:
        """Seconds over which `count` asks are spread at the most that the coordinator should be asked."""
        return min(LONGEST_SPREAD, max(0, count - SPARED) / ASKS_PER_SECOND)

    def rounds(self, count: int) -> float:
        """Seconds over which `count` clients ask once, after a change."""
        return count / NEWS_ASKS_PER_SECOND

    def worth(self) -> tuple[float | None, float | None]:
        """What is divided, in rows and bytes per second, None = unlimited."""
        rows, nbytes = (
            None if limit is None else rate / MICROS
            for limit, rate in zip(self.limits, self.rates, strict=True)
        )
        return rows, nbytes

    def has_own_share(self, job: JobShare) -> bool:
        """The job's part of the limit is enough for all of its clients at once."""
        slots = self.slots()
        jobs = [each for each in self.jobs.values() if each.wanting]
        for dimension in DIMENSIONS:
            demands = [
                None if each is job or each.saturated[dimension] else each.demand[dimension] for each in jobs
            ]
            allowed = max_min(self.rates[dimension], demands)[jobs.index(job)]
            if allowed // job.wanting < self.rates[dimension] // slots:
                return False
        return True

    def share(self, client: Client, dimension: int) -> int:
        """What `client` should have in `dimension`: max-min between jobs, and between the job's clients."""
        rate, job = self.rates[dimension], client.job
        if self.limits[dimension] is None:
            return 0
        jobs = [each for each in self.jobs.values() if each.wanting]
        demands = [None if each.saturated[dimension] else each.demand[dimension] for each in jobs]
        allowed = max_min(rate, demands)[jobs.index(job)]
        even = allowed // job.wanting
        if job.saturated[dimension]:
            share = max(even, (allowed - job.demand[dimension]) // job.saturated[dimension])
        else:
            share = max(even, client.demand[dimension] * allowed // max(1, job.demand[dimension]))
        if client.saturated[dimension]:
            return share
        needed = max(client.demand[dimension], self._needed(client, dimension))
        if None in demands:
            return min(share, max(1, needed))
        spare = rate - sum(demand or 0 for demand in demands)
        return min(share, needed) + max(0, spare) // (self.wanting + 1)

    def _needed(self, client: Client, dimension: int) -> int:
        """What it takes beside all of the client's share of the other dimension, where it is saturated: less, and the
        two would bind in turns.
        """
        other = 1 - dimension
        if not client.saturated[other] or self.limits[other] is None or not client.row_bytes:
            return 0
        ratio = client.row_bytes if dimension else 1 / client.row_bytes
        return math.ceil(HEADROOM * ratio * self.share(client, other))

    def measure(
        self, client: Client, issued: IssuedGrant, spent: tuple[int, int], missed: tuple[int, int], now: int
    ) -> None:
        """How much of its pace the client used: all of it (it is saturated), or less (that is its demand)."""
        passed = max(0, now - issued.starts)
        if spent[0] and spent[1]:
            row_bytes = spent[1] / spent[0]
            self.row_bytes += (row_bytes - self.row_bytes) * (0.1 if self.row_bytes else 1.0)
            client.row_bytes = row_bytes
        was_wanting = client.wanting
        self.want(client, False)
        for dimension in DIMENSIONS:
            due = spent[dimension] + missed[dimension]
            pace = issued.pace[dimension]
            if due <= pace * (issued.ends - issued.starts) / NANOS * MEASURABLE:
                continue
            used = spent[dimension] / due
            before = pace if client.saturated[dimension] else client.demand[dimension]
            client.saturated[dimension] = used >= SATURATED_FROM
            # A moment's look may fall between two payments, so demand falls by half in half a horizon at most.
            least = before - before * min(passed, _HALF_HORIZON_NS) // (2 * _HALF_HORIZON_NS)
            client.demand[dimension] = max(math.ceil(HEADROOM * used * pace), least)
            client.measured = True
        self.want(client, was_wanting)

    def _idle(self, client: Client) -> None:
        """The last issued of `client` ended: it counts no more, unless it is in line."""
        if client not in client.job.line:
            self.want(client, False)
