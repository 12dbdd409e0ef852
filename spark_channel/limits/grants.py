"""Grants: how fast each client may spend, and their sum, which must never exceed the limit.

Paces are pairs (rows, bytes) of millionths of a unit per second, amounts pairs of millionths of a unit,
times nanoseconds of the coordinator's clock; all whole numbers, so that what is added and taken away
again a million times leaves nothing behind.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spark_channel.limits.messages import Grant, RetryLater
from spark_channel.limits.token_bucket import MICROS, NANOS, nanoseconds, rate_in_micros

__all__ = [
    "DIMENSIONS",
    "HORIZON",
    "Client",
    "IssuedGrant",
    "JobShare",
    "LimitShares",
    "grant_amount",
    "max_min",
]


DIMENSIONS = (0, 1)
HORIZON = 0.5
"""Seconds that a grant lasts. A client asks again at half of it, so a change reaches it in 0.25 s; a
crashed client's share is free again after it, so 95 % of the rate is back within a second."""
ASKS_PER_SECOND = 125
"""About the most requests per second that a coordinator receives from all but the first `SPARED` clients, so that it
uses little of a core: above 50 clients the horizon grows with their number. They learn of changes by `Listen`."""
SPARED = 20
"""This many clients do not lengthen the horizon: so 50 clients still have the shortest one."""
LINE_ASKS_PER_SECOND = 300
"""The same for clients that wait for a turn: with fewer requests, free parts would stay idle for a while."""
NEWS_ASKS_PER_SECOND = 400
"""The same for clients that were notified of a change: their grants are already adjusted."""
LONGEST_SPREAD = 16.0
"""The longest time over which all requests are spread: above 2 000 clients they arrive more often."""
SLOWEST_PACE = 20
"""Rows per second (bytes: mean rows) below which a grant is not worth its unevenness: a client's rows
are whole, so at p rows/s its worst second holds p + 1. When there are more clients than `rate / 20`,
they take turns."""
MEASURABLE = 0.05
"""Part of a grant that must have arrived before its use is measured."""
SATURATED_FROM = 0.95
"""A client that used this part of its pace, or more, would use more if it had it."""
HEADROOM = 1.1
"""Factor on the use of a client that is not saturated, so that it can show that it needs more."""
_HALF_HORIZON_NS = nanoseconds(HORIZON / 2)


@dataclass(slots=True, eq=False)
class IssuedGrant:
    """A grant as the coordinator remembers it.

    It is a part of the limit: `cut` of `of`, the rates then. `pace` is the most that this part was worth
    since, for a client hears of changes or does not. `saved`, of `amount`, is what the part had saved up before.
    `after`: it begins when all that this client holds has ended, and counts in its place until then.
    """

    id: int
    client: "Client"
    cut: tuple[int, int]
    of: tuple[int, int]
    pace: tuple[int, int]
    amount: tuple[int, int]
    starts: int
    ends: int
    after: "Client | None" = None
    over: bool = False
    spent: tuple[int, int] = (0, 0)
    saved: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class JobShare:
    """The clients that divide one job's share. Counts those that want to spend, per dimension."""

    name: str
    members: int = 0
    wanting: int = 0
    saturated: list[int] = field(default_factory=lambda: [0, 0])
    demand: list[int] = field(default_factory=lambda: [0, 0])
    charge: list[int] = field(default_factory=lambda: [0, 0])
    line: dict["Client", int] = field(default_factory=dict)
    tickets: int = 0


@dataclass(slots=True, eq=False)
class Client:
    """One client. It has at most two grants: the one that it reported to spend, and the one in its last answer."""

    id: str
    name: str
    job: JobShare
    seen: int
    number: int = 0
    answer: Grant | RetryLater | None = None
    held: IssuedGrant | None = None
    offered: IssuedGrant | None = None
    successor: IssuedGrant | None = None
    charge: tuple[int, int] = (0, 0)
    wanting: bool = False
    saturated: list[bool] = field(default_factory=lambda: [True, True])
    demand: list[int] = field(default_factory=lambda: [0, 0])
    measured: bool = False
    row_bytes: float = 0.0
    turn_ends: int = 0
    due: int = 0
    calls: int = 0
    called: bool = False
    keep_until: int = 0
    waiting: str = ""

    def issued_grants(self) -> tuple[IssuedGrant, ...]:
        """The grants of this client that have not ended."""
        return tuple(
            issued for issued in (self.held, self.offered) if issued is not None and not issued.over
        )

    def counted(self) -> tuple[IssuedGrant, ...]:
        """The grants that count against the limit for this client, which spends one of them at a time."""
        return tuple(
            issued
            for issued in (self.held, self.offered, self.successor)
            if issued is not None
            and not issued.over
            and (issued.after is None or issued.after is self)
        )


@dataclass(slots=True)
class Totals:
    """Amounts of one dimension since the start; the rest up to `issued` is still outstanding."""

    issued: int = 0
    spent: int = 0
    returned: int = 0
    void: int = 0


class IssuedGrants:
    """The grants of one limit, their ends in time, and what they may spend together."""

    def __init__(self, on_idle: Callable[[Client], None]) -> None:
        self.charge = [0, 0]
        self.totals = (Totals(), Totals())
        self._on_idle = on_idle
        self._ends: list[tuple[int, int, IssuedGrant]] = []
        self._without_successor: list[tuple[int, int, IssuedGrant]] = []
        self._newest = 0
        self._live = 0

    def issue(
        self,
        client: Client,
        pace: tuple[int, int],
        of: tuple[int, int],
        starts: int,
        ends: int,
        *,
        after: Client | None = None,
    ) -> IssuedGrant:
        """A new grant, `pace` of the limit `of`, offered to `client`: from `starts` to `ends`.

        With `after`, in the place of that client.
        """
        rows, nbytes = (
            -(-amount * (ends - starts) // (NANOS * MICROS)) * MICROS for amount in pace
        )
        self._newest += 1
        issued = IssuedGrant(
            self._newest, client, pace, of, pace, (rows, nbytes), starts, ends, after
        )
        client.offered = issued
        for total, amount in zip(self.totals, issued.amount, strict=True):
            total.issued += amount
        if after is not None:
            after.successor = issued
            self._count_grants(after)
        self._count_grants(client)
        self._live += 1
        for heap in (self._ends, self._without_successor):
            if len(heap) > 2 * self._live + 64:
                heap[:] = [entry for entry in heap if not entry[2].over]
                heapq.heapify(heap)
            heapq.heappush(heap, (ends, issued.id, issued))
        return issued

    def add_saved(self, issued: IssuedGrant, saved: tuple[int, int]) -> None:
        """Add surplus to `issued`, which was issued just now."""
        amounts = []
        for dimension, total in enumerate(self.totals):
            extra = -(-saved[dimension] // MICROS) * MICROS
            total.issued += extra
            amounts.append(issued.amount[dimension] + extra)
        issued.amount, issued.saved = (amounts[0], amounts[1]), saved

    def shorten(self, issued: IssuedGrant, ends: int) -> None:
        """End `issued` at `ends`, if that is sooner."""
        if ends < issued.ends and not issued.over:
            issued.ends = ends
            heapq.heappush(self._ends, (ends, issued.id, issued))

    def rescale(self, clients: Iterable[Client], rates: tuple[int, int]) -> None:
        """Set the limit to `rates`: grants of a lower limit are worth more for clients that are notified."""
        for client in clients:
            changed = False
            for issued in (client.held, client.offered):
                if issued is not None:
                    changed = self._rescale(issued, rates) or changed
            if changed:
                self._count_grants(client)
                if client.offered is not None and client.offered.after is not None:
                    self._count_grants(client.offered.after)

    def _rescale(self, issued: IssuedGrant, rates: tuple[int, int]) -> bool:
        """More pace, and the same of the whole amount, which is more than can be spent in the time that is left."""
        worth = _worth(issued, rates)
        if worth[0] <= issued.pace[0] and worth[1] <= issued.pace[1]:
            return False
        amounts = []
        for dimension, total in enumerate(self.totals):
            amount, pace = issued.amount[dimension], issued.pace[dimension]
            if worth[dimension] > pace:
                amount = -(-amount * worth[dimension] // (pace * MICROS)) * MICROS
            extra = amount - issued.amount[dimension]
            total.issued += extra
            if issued.over:
                total.returned += extra
            amounts.append(amount)
        issued.amount = amounts[0], amounts[1]
        issued.pace = max(worth[0], issued.pace[0]), max(worth[1], issued.pace[1])
        return True

    def advance(self, now: int) -> None:
        """End the grants that end until `now`."""
        while self._ends and self._ends[0][0] <= now:
            self.end(heapq.heappop(self._ends)[2], void=True)

    def next_end(self) -> IssuedGrant | None:
        """Return the grant that ends first, is its client's last, and has no successor yet."""
        while self._without_successor:
            issued = self._without_successor[0][2]
            if (
                not issued.over
                and issued.client.successor is None
                and issued is _last(issued.client)
            ):
                return issued
            heapq.heappop(self._without_successor)
        return None

    def end(self, issued: IssuedGrant, *, void: bool = False) -> None:
        """End `issued`: it cannot be spent, and the part not reported as spent was given back or is void."""
        if issued.over:
            return
        issued.over = True
        self._live -= 1
        for dimension, total in enumerate(self.totals):
            unspent = issued.amount[dimension] - issued.spent[dimension]
            total.spent += issued.spent[dimension]
            if void:
                total.void += unspent
            else:
                total.returned += unspent
        if issued.after is not None:
            issued.after.successor = None
            self._count_grants(issued.after)
        client = issued.client
        if not client.issued_grants() and client.successor is not None:
            successor, client.successor = client.successor, None
            successor.after = None
            self._count_grants(client)
            self._count_grants(successor.client)
        self._count_grants(client)
        if not client.issued_grants():
            self._on_idle(client)

    def report(self, issued: IssuedGrant, spent: tuple[int, int]) -> None:
        """`spent` of `issued` so far; of one that is over, the rest had been counted as void or returned."""
        spent = (max(spent[0], issued.spent[0]), max(spent[1], issued.spent[1]))
        if issued.over:
            for dimension, total in enumerate(self.totals):
                newly_spent = spent[dimension] - issued.spent[dimension]
                voided = min(newly_spent, total.void)
                total.spent += newly_spent
                total.void -= voided
                total.returned -= newly_spent - voided
        issued.spent = spent

    def _count_grants(self, client: Client) -> None:
        """Count only the fastest of the client's live grants, since it spends one at a time."""
        rows = nbytes = 0
        for issued in client.counted():
            rows = max(rows, issued.pace[0])
            nbytes = max(nbytes, issued.pace[1])
        for dimension, pace in enumerate((rows, nbytes)):
            change = pace - client.charge[dimension]
            self.charge[dimension] += change
            client.job.charge[dimension] += change
        client.charge = (rows, nbytes)


def grant_amount(client: Client, rates: tuple[int, int]) -> tuple[int, int]:
    """Return the client's part of the limit at `rates`; the parts of all clients are at most the limit."""
    rows = nbytes = 0
    for issued in client.counted():
        pace = issued.cut if issued.of == rates else _worth(issued, rates)
        rows, nbytes = max(rows, pace[0]), max(nbytes, pace[1])
    return rows, nbytes


def _worth(issued: IssuedGrant, rates: tuple[int, int]) -> tuple[int, int]:
    rows, nbytes = (
        cut * rate // of if of else 0
        for cut, of, rate in zip(issued.cut, issued.of, rates, strict=True)
    )
    return rows, nbytes


def _last(client: Client) -> IssuedGrant:
    return max(client.issued_grants(), key=lambda issued: (issued.ends, issued.id))


def max_min(total: int, demands: Sequence[int | None]) -> list[int]:
    """Divide `total` over `demands` (None = unlimited): small demands are met in full, the rest is shared evenly."""
    shares = [0] * len(demands)
    remaining = total
    open_ends = [index for index, demand in enumerate(demands) if demand is None]
    bounded = [(demand, index) for index, demand in enumerate(demands) if demand is not None]
    count = len(demands)
    for demand, index in sorted(bounded):
        shares[index] = min(demand, remaining // count)
        remaining -= shares[index]
        count -= 1
    for index in open_ends:
        shares[index] = remaining // count
        remaining -= shares[index]
        count -= 1
    return shares


class LimitShares:
    """The limit, and the jobs and clients that divide it: decides the sizes of shares, turns and horizons.

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
        """Set both rates; an `OptionError` changes nothing."""
        self.limits = (
            None if rows_per_second is None else rate_in_micros(rows_per_second, "rows_per_second"),
            None
            if bytes_per_second is None
            else rate_in_micros(bytes_per_second, "bytes_per_second"),
        )
        self.scale(self.factor)

    def scale(self, factor: float) -> None:
        """Use this fraction of the limits."""
        self.factor = factor
        rows, nbytes = (
            0 if limit is None else max(1, int(limit * factor)) for limit in self.limits
        )
        self.rates = (rows, nbytes)

    @property
    def wanting(self) -> int:
        """Return how many clients want to spend."""
        return len(self.spending)

    def free(self, dimension: int) -> int:
        """Return the part of the limit that is not granted, per second; below 0 right after the limit was lowered."""
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
        """Return how many clients may hold a grant at the same time."""
        slots = self.max_clients
        if self.limits[0] is not None:
            slots = min(slots, self.rates[0] // (SLOWEST_PACE * MICROS))
        if self.limits[1] is not None and self.row_bytes:
            slots = min(slots, int(self.rates[1] / (SLOWEST_PACE * MICROS * self.row_bytes)))
        return max(1, slots)

    def turn(self, pace: tuple[int, int]) -> int:
        """Return the nanoseconds of a turn: a horizon, and enough time for two rows."""
        rows = 2 * MICROS / pace[0] if pace[0] else 0.0
        nbytes = 2 * MICROS * self.row_bytes / pace[1] if pace[1] else 0.0
        return nanoseconds(max(self.horizon(), rows, nbytes))

    def horizon(self) -> float:
        """Return the seconds that a grant lasts with the present number of clients."""
        return max(HORIZON, 2 * self.spread(min(self.wanting, self.slots())))

    def retry(self) -> float:
        """Return the seconds after which a queued client asks again."""
        return max(HORIZON / 8, min(LONGEST_SPREAD, self.in_line / LINE_ASKS_PER_SECOND))

    def spread(self, count: int) -> float:
        """Return the seconds over which `count` requests are spread to keep the coordinator's load acceptable."""
        return min(LONGEST_SPREAD, max(0, count - SPARED) / ASKS_PER_SECOND)

    def rounds(self, count: int) -> float:
        """Return the seconds over which `count` clients ask once, after a change."""
        return count / NEWS_ASKS_PER_SECOND

    def worth(self) -> tuple[float | None, float | None]:
        """The limit to divide, in rows and bytes per second; None = unlimited."""
        rows, nbytes = (
            None if limit is None else rate / MICROS
            for limit, rate in zip(self.limits, self.rates, strict=True)
        )
        return rows, nbytes

    def has_own_share(self, job: JobShare) -> bool:
        """Whether the job's part of the limit is enough for all of its clients at the same time."""
        slots = self.slots()
        jobs = [other for other in self.jobs.values() if other.wanting]
        for dimension in DIMENSIONS:
            demands = [
                None if other is job or other.saturated[dimension] else other.demand[dimension]
                for other in jobs
            ]
            allowed = max_min(self.rates[dimension], demands)[jobs.index(job)]
            if allowed // job.wanting < self.rates[dimension] // slots:
                return False
        return True

    def share(self, client: Client, dimension: int) -> int:
        """Return the fair share of `client` in `dimension`: max-min between jobs, and between the job's clients."""
        rate, job = self.rates[dimension], client.job
        if self.limits[dimension] is None:
            return 0
        jobs = [job for job in self.jobs.values() if job.wanting]
        demands = [None if job.saturated[dimension] else job.demand[dimension] for job in jobs]
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
        self,
        client: Client,
        issued: IssuedGrant,
        spent: tuple[int, int],
        missed: tuple[int, int],
        now: int,
    ) -> None:
        """Measure how much of its pace the client used: all of it (it is saturated), or less (that is its demand)."""
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
        """Note that the last grant of `client` ended: the client does not count, unless it is queued."""
        if client not in client.job.line:
            self.want(client, False)
