"""Who may spend how fast, now: grants, and the one sum that must never exceed the limit.

Paces are pairs (rows, bytes) of millionths of a unit per second, amounts pairs of millionths of a unit,
times nanoseconds of the coordinator's clock; all whole numbers, so that what is added and taken away
again a million times leaves nothing behind.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_channel.limits.level import MICROS, NANOS
from spark_channel.limits.messages import Grant, Hold

__all__ = ["DIMENSIONS", "Client", "IssuedGrant", "IssuedGrants", "JobShare", "Totals", "worth"]

DIMENSIONS = (0, 1)


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
    """The clients that share one share. Counts of those that want to spend, per dimension."""

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
    """One client: at most two grants, the one it said it spends and the one it was last answered with."""

    id: str
    name: str
    job: JobShare
    seen: int
    number: int = 0
    answer: Grant | Hold | None = None
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
        """Those that are not over."""
        return tuple(issued for issued in (self.held, self.offered) if issued is not None and not issued.over)

    def counted(self) -> tuple[IssuedGrant, ...]:
        """Those that take of the limit in this client's place; it spends one of them at a time."""
        return tuple(
            issued
            for issued in (self.held, self.offered, self.successor)
            if issued is not None and not issued.over and (issued.after is None or issued.after is self)
        )


@dataclass(slots=True)
class Totals:
    """Amounts of one dimension since the start; what is missing to `issued` is still outstanding."""

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
        rows, nbytes = (-(-each * (ends - starts) // (NANOS * MICROS)) * MICROS for each in pace)
        self._newest += 1
        issued = IssuedGrant(self._newest, client, pace, of, pace, (rows, nbytes), starts, ends, after)
        client.offered = issued
        for total, each in zip(self.totals, issued.amount, strict=True):
            total.issued += each
        if after is not None:
            after.successor = issued
            self._recharge(after)
        self._recharge(client)
        self._live += 1
        for heap in (self._ends, self._without_successor):
            if len(heap) > 2 * self._live + 64:
                heap[:] = [entry for entry in heap if not entry[2].over]
                heapq.heapify(heap)
            heapq.heappush(heap, (ends, issued.id, issued))
        return issued

    def add_saved(self, issued: IssuedGrant, saved: tuple[int, int]) -> None:
        """`issued`, which was issued just now, is as much more."""
        amounts = []
        for each, total in enumerate(self.totals):
            more = -(-saved[each] // MICROS) * MICROS
            total.issued += more
            amounts.append(issued.amount[each] + more)
        issued.amount, issued.saved = (amounts[0], amounts[1]), saved

    def shorten(self, issued: IssuedGrant, ends: int) -> None:
        """`issued` ends at `ends`, if that is sooner."""
        if ends < issued.ends and not issued.over:
            issued.ends = ends
            heapq.heappush(self._ends, (ends, issued.id, issued))

    def rescale(self, clients: Iterable[Client], rates: tuple[int, int]) -> None:
        """The limit is `rates` from now on: grants of less are worth more, to all who hear of it."""
        for client in clients:
            changed = False
            for issued in (client.held, client.offered):
                if issued is not None:
                    changed = self._rescale(issued, rates) or changed
            if changed:
                self._recharge(client)
                if client.offered is not None and client.offered.after is not None:
                    self._recharge(client.offered.after)

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
            more = amount - issued.amount[dimension]
            total.issued += more
            if issued.over:
                total.returned += more
            amounts.append(amount)
        issued.amount = amounts[0], amounts[1]
        issued.pace = max(worth[0], issued.pace[0]), max(worth[1], issued.pace[1])
        return True

    def advance(self, now: int) -> None:
        """End what ends until `now`."""
        while self._ends and self._ends[0][0] <= now:
            self.end(heapq.heappop(self._ends)[2], void=True)

    def next_end(self) -> IssuedGrant | None:
        """The grant after which a place comes free first: its client's last, and not promised yet."""
        while self._without_successor:
            issued = self._without_successor[0][2]
            if not issued.over and issued.client.successor is None and issued is _last(issued.client):
                return issued
            heapq.heappop(self._without_successor)
        return None

    def end(self, issued: IssuedGrant, *, void: bool = False) -> None:
        """`issued` cannot be spent any more; what was not reported as spent came back, or is void."""
        if issued.over:
            return
        issued.over = True
        self._live -= 1
        for dimension, total in enumerate(self.totals):
            rest = issued.amount[dimension] - issued.spent[dimension]
            total.spent += issued.spent[dimension]
            if void:
                total.void += rest
            else:
                total.returned += rest
        if issued.after is not None:
            issued.after.successor = None
            self._recharge(issued.after)
        client = issued.client
        if not client.issued_grants() and client.successor is not None:
            successor, client.successor = client.successor, None
            successor.after = None
            self._recharge(client)
            self._recharge(successor.client)
        self._recharge(client)
        if not client.issued_grants():
            self._on_idle(client)

    def report(self, issued: IssuedGrant, spent: tuple[int, int]) -> None:
        """`spent` of `issued` so far; of one that is over, the rest had been counted as void or returned."""
        spent = (max(spent[0], issued.spent[0]), max(spent[1], issued.spent[1]))
        if issued.over:
            for dimension, total in enumerate(self.totals):
                more = spent[dimension] - issued.spent[dimension]
                voided = min(more, total.void)
                total.spent += more
                total.void -= voided
                total.returned -= more - voided
        issued.spent = spent

    def _recharge(self, client: Client) -> None:
        """Count the fastest of the client's live grants, since it spends one or the other, never both."""
        rows = nbytes = 0
        for issued in client.counted():
            rows = max(rows, issued.pace[0])
            nbytes = max(nbytes, issued.pace[1])
        for dimension, pace in enumerate((rows, nbytes)):
            change = pace - client.charge[dimension]
            self.charge[dimension] += change
            client.job.charge[dimension] += change
        client.charge = (rows, nbytes)


def worth(client: Client, rates: tuple[int, int]) -> tuple[int, int]:
    """What the client's part of the limit is at `rates`; the parts of all clients are the limit at most."""
    rows = nbytes = 0
    for issued in client.counted():
        pace = issued.cut if issued.of == rates else _worth(issued, rates)
        rows, nbytes = max(rows, pace[0]), max(nbytes, pace[1])
    return rows, nbytes


def _worth(issued: IssuedGrant, rates: tuple[int, int]) -> tuple[int, int]:
    rows, nbytes = (
        cut * rate // of if of else 0 for cut, of, rate in zip(issued.cut, issued.of, rates, strict=True)
    )
    return rows, nbytes


def _last(client: Client) -> IssuedGrant:
    return max(client.issued_grants(), key=lambda issued: (issued.ends, issued.id))
