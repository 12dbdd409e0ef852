"""Decides which grant a client gets: the fair queue, saved-up bursts, and the static shares of silent clients."""

from collections.abc import Iterable
from itertools import islice

from spark_channel.limits.grants import (
    DIMENSIONS,
    HORIZON,
    Client,
    IssuedGrant,
    JobShare,
    LimitShares,
    grant_amount,
)
from spark_channel.limits.messages import Grant, RetryLater
from spark_channel.limits.token_bucket import MICROS, NANOS, SLICE_SECONDS, nanoseconds

__all__ = [
    "STATIC_HEARTBEAT",
    "BurstCredit",
    "GrantAllocator",
    "UnreachableClients",
]


LINE_COUNTED = 256
"""Places up to which a line is counted; further back the tickets are near enough."""
_MOST_NS = nanoseconds(SLICE_SECONDS)
ROOM = 16
"""When 1/16 of a limit becomes free, the clients that could use it are notified."""
MOST_CALLED = 8
"""At most this many clients with a share are notified: among more, a share is not worth their requests."""
STATIC_HEARTBEAT = 3.0
"""Seconds between two signs of life of a client that falls back on its static share when it is cut off."""
SILENT_SECONDS = 8.0
"""A client that is cut off spends its static share 10 s after its first request without an answer: by then what it
may spend has to be set aside."""
LAUNCH_SECONDS = 3.0
"""A task that never reached the coordinator begins with its static share after 4 s."""


class FairQueue:
    """The queues of a pool's jobs, seen as one."""

    def __init__(self, pool: LimitShares) -> None:
        self._pool = pool

    def is_next(self, client: Client, least: tuple[int, int] | list[int], now: int) -> bool:
        """Whether `least` is free for this client and for all clients ahead of it in the queue."""
        room = self._pool.max_clients
        for dimension in DIMENSIONS:
            if self._pool.limits[dimension] is not None:
                free = self._pool.free(dimension)
                room = min(room, free // max(1, least[dimension]))
        if room <= 0:
            return False
        self._drop_absent(now)
        lined = [job for job in self._pool.jobs.values() if job.line or job is client.job]
        picks = room if len(lined) == 1 else self._picks(client.job, lined, room, least)
        return self._is_among(client, picks)

    def _picks(
        self, mine: JobShare, lined: list[JobShare], room: int, least: tuple[int, int] | list[int]
    ) -> int:
        """Return how many of `mine` are among the next `room`, if the job with the least goes first."""
        picks = dict.fromkeys(lined, 0)
        step = 1 + room // 64
        for _ in range(0, room, step):
            job = min(picks, key=lambda job: self._weight(job, picks[job], least))
            picks[job] += step
            if job is not mine and picks[job] >= len(job.line):
                del picks[job]
        return picks[mine]

    def _is_among(self, client: Client, first: int) -> bool:
        """Whether `client` is, or would be, one of the `first` in the queue of its job."""
        line = client.job.line
        if client in line and first < min(len(line), LINE_COUNTED):
            return client in islice(line, first)
        return self.ahead(client) < first

    def ahead(self, client: Client) -> int:
        """Return how many clients of its job are ahead of `client` in the queue, at most: some may have left it."""
        line = client.job.line
        if client not in line:
            return len(line)
        return line[client] - next(iter(line.values()))

    def _drop_absent(self, now: int) -> None:
        """Remove queue heads that did not ask when it was their turn."""
        late = now - nanoseconds(HORIZON)
        for job in list(self._pool.jobs.values()):
            while job.line and (head := next(iter(job.line))).due < late:
                self._pool.leave_line(head)
                self._pool.want(head, bool(head.issued_grants()))

    def _weight(self, job: JobShare, picks: int, least: tuple[int, int] | list[int]) -> float:
        """Return the part of the limit that `job` would have with `picks` more grants."""
        return max(
            (job.charge[dimension] + picks * least[dimension]) / self._pool.rates[dimension]
            if self._pool.rates[dimension]
            else 0.0
            for dimension in DIMENSIONS
        )

    def is_near(self, client: Client) -> bool:
        """Whether the client's turn begins within half a turn."""
        lined = [job for job in self._pool.jobs.values() if job.line]
        if lined and client.job is not min(lined, key=lambda job: self._weight(job, 0, (0, 0))):
            return False
        return self._is_among(client, max(1, self._pool.slots() // 2))


class BurstCredit:
    """The surplus of a limit's free part, which flows as a grant does: evenly, with 20 ms of it kept.

    So a limit is one flow with 20 ms of surplus, however it is shared, and a part that passes from one client to the
    next keeps its surplus: the gap between a task's end and the next one's start loses nothing up to 20 ms. Amounts
    are units times `NANOS` times `MICROS`, whole numbers.
    """

    def __init__(self, begins: int) -> None:
        """Start saving at the instant `begins`: until then clients may spend a predecessor's grants."""
        self._at = begins
        self._saved = [0, 0]

    def advance(self, free: tuple[int, int], now: int) -> None:
        """Add the surplus of the parts that were `free` between the last call and `now`."""
        passed = max(0, now - self._at)
        self._at = max(self._at, now)
        for dimension in DIMENSIONS:
            part = max(0, free[dimension])
            self._saved[dimension] = min(self._saved[dimension] + part * passed, part * _MOST_NS)

    def take(self, amounts: tuple[int, int]) -> tuple[int, int]:
        """Take the surplus that belongs to a grant of `amounts` of the free part, in millionths of a unit."""
        surplus = [
            min(self._saved[dimension], max(0, amounts[dimension]) * _MOST_NS) // NANOS
            for dimension in DIMENSIONS
        ]
        for dimension in DIMENSIONS:
            self._saved[dimension] -= surplus[dimension] * NANOS
        return surplus[0], surplus[1]

    def give_back(self, issued: IssuedGrant, missed: tuple[int, int], now: int) -> None:
        """Save the unspent rest of `issued`, which ends early, with what arrived while it was sent to its client.

        Nothing is saved for a client that had more than it could keep, since it lost what arrived meanwhile.
        """
        if issued.over or issued.pace != issued.cut or issued.after is not None:
            return
        for dimension in DIMENSIONS:
            brought = (
                issued.pace[dimension] * max(0, now - issued.starts)
                + issued.saved[dimension] * NANOS
            )
            unspent = brought - issued.spent[dimension] * NANOS
            if not missed[dimension] and unspent > 0:
                self._saved[dimension] += min(unspent, issued.pace[dimension] * _MOST_NS)


class GrantAllocator:
    """Makes the grants of a pool. The sum of all grants never exceeds the limit."""

    def __init__(self, pool: LimitShares, epoch: str, savings: BurstCredit) -> None:
        self._pool = pool
        self._savings = savings
        self._line = FairQueue(pool)
        self._epoch = epoch
        self.version = 0

    def decide(self, client: Client, now: int) -> Grant | RetryLater:
        """Return the grant for `client`, or when it should ask again."""
        self._pool.want(client, True)
        if client.successor is not None:
            return self._in_turn(client, now)
        if self._pool.wanting <= self._pool.slots() or self._pool.has_own_share(client.job):
            return self._take_share(client, now)
        return self._take_turn(client, now)

    def to_call(self) -> list[Client]:
        """Return the clients that should ask now, since enough of the limit is free.

        These are the queue heads, else the clients with too little. None where many share the limit: shares are
        small, requests are spread over time, and each free share has a successor.
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
        """Whether the free part of the limit is large enough for a message."""
        pool = self._pool
        return all(
            limit is None or ROOM * pool.free(dimension) >= pool.rates[dimension]
            for dimension, limit in enumerate(pool.limits)
        )

    def _is_short(self, client: Client) -> bool:
        """Whether `client` would use more than it has, and its share allows more."""
        for dimension in DIMENSIONS:
            if self._pool.limits[dimension] is not None and client.saturated[dimension]:
                lacking = self._pool.share(client, dimension) - client.charge[dimension]
                if ROOM * lacking >= self._pool.rates[dimension]:
                    return True
        return False

    def _take_share(self, client: Client, now: int) -> Grant | RetryLater:
        shares = [self._pool.share(client, dimension) for dimension in DIMENSIONS]
        part = grant_amount(client, self._pool.rates)
        alone = self._pool.in_line == (client in client.job.line)
        may_take = alone or self._line.is_next(client, [share // 8 for share in shares], now)
        paces = []
        short = lowered = starved = False
        for dimension in DIMENSIONS:
            pace_now, share = part[dimension], shares[dimension]
            free = max(0, self._pool.free(dimension))
            most = pace_now + free if may_take else pace_now
            pace = min(self._wish(client, dimension, share, pace_now, free, alone), most)
            paces.append(pace)
            short = short or pace < 0.9 * share
            lowered = lowered or pace < 0.9 * client.charge[dimension]
            starved = starved or (
                self._pool.limits[dimension] is not None and pace < max(1, share // 8)
            )
        if short:
            self._pool.enter_line(client)
        else:
            self._pool.leave_line(client)
        if starved:
            return RetryLater("share", self._pool.retry())
        lasts = horizon = self._pool.horizon()
        brief = horizon < 2 * HORIZON
        if not client.measured:
            lasts = horizon / 4 if brief else horizon / 2
        ends = now + nanoseconds(lasts)
        within = self._pool.retry() if short or (lowered and brief) else None
        if lowered and brief and not alone:
            within = 0.0  # a client in line gets what it had before, as soon as it has said that it has this
        return self._grant(client, (paces[0], paces[1]), now, ends, within=within)

    def _wish(
        self, client: Client, dimension: int, share: int, pace_now: int, free: int, alone: bool
    ) -> int:
        """The share; with a long horizon, also what others left, which they would take only much later."""
        if not alone or not client.saturated[dimension] or self._pool.horizon() < 2 * HORIZON:
            return share
        if 10 * free > self._pool.rates[dimension]:
            return share
        return max(share, min(share + free, 3 * share // 2), min(pace_now, 3 * share // 2))

    def _take_turn(self, client: Client, now: int) -> Grant | RetryLater:
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
        """Return the rest of the client's turn, or another turn if no client waits and the limit allows it."""
        free = [self._pool.free(dimension) for dimension in DIMENSIONS]
        alone = self._pool.in_line == (client in client.job.line)
        again = alone and client.turn_ends - now <= turn // 2 and min(free) >= 0
        if again:
            client.turn_ends = now + turn
        if client.turn_ends - now <= turn // 8:
            return None
        part = grant_amount(client, self._pool.rates)
        rows, nbytes = (
            min(pace[dimension], part[dimension] + max(0, free[dimension]))
            for dimension in DIMENSIONS
        )
        if rows < pace[0] // 8 or nbytes < pace[1] // 8:
            return None
        self._pool.leave_line(client)
        return self._grant(client, (rows, nbytes), now, client.turn_ends)

    def _inherit(self, client: Client, pace: tuple[int, int], turn: int, now: int) -> Grant | None:
        """Reserve the next grant that ends for the queue's head, so that its part is never idle."""
        issued = self._pool.grants.next_end()
        if issued is None or issued.ends > now + turn // 2 or not self._line.is_near(client):
            return None
        part = grant_amount(issued.client, self._pool.rates)
        for dimension, mine in enumerate(pace):
            others = self._pool.grants.charge[dimension] - issued.client.charge[dimension]
            if mine > part[dimension] or others + mine > self._pool.rates[dimension]:
                return None
        self._pool.leave_line(client)
        client.turn_ends = issued.ends + turn
        return self._grant(
            client, pace, now, client.turn_ends, starts=issued.ends, after=issued.client
        )

    def _in_turn(self, client: Client, now: int) -> RetryLater:
        """Wait for a turn, and ask again when the turn is near."""
        self._pool.enter_line(client)
        ahead = self._line.ahead(client)
        slots = self._pool.slots()
        turn = self._pool.turn((self._pool.rates[0] // slots, self._pool.rates[1] // slots)) / NANOS
        first = self._pool.grants.next_end()
        free_in = turn if first is None else (first.ends - now) / NANOS
        return RetryLater(
            "turn", min(20.0, max(self._pool.retry(), free_in + (ahead / slots - 0.4) * turn))
        )

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
                client.charge[dimension] - before[dimension] if client.saturated[dimension] else 0
                for dimension in DIMENSIONS
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


class UnreachableClients:
    """Counts the silent ones of `tasks` clients, each of which spends 1/tasks of the limit when it is cut off.

    `at_once`: all of them run at a time, so a client that never joined is one that cannot. Otherwise only clients
    count that joined and fell silent. The share set aside for a client becomes free when the client is heard from
    again, leaves, or when another attempt of its task joins.
    """

    def __init__(self, tasks: int, at_once: bool) -> None:
        self._tasks = tasks
        self._at_once = at_once
        self._silent: dict[str, tuple[str, str]] = {}
        self._newest: dict[tuple[str, str], str] = {}
        """The last client of each task to join: an earlier one belongs to an attempt that is over."""
        self._names: set[str] = set()
        self._first: int | None = None
        self.count = 0

    @property
    def factor(self) -> float:
        """The part of the limit that is left for clients that report."""
        return max(0, self._tasks - self.count) / self._tasks

    def joined(self, client: Client, before: str, now: int) -> None:
        self._first = now if self._first is None else self._first
        if len(self._names) < self._tasks:
            self._names.add(client.name)
        self._silent.pop(before, None)
        self._newest[client.job.name, client.name] = client.id
        self._forget((client.job.name, client.name))

    def heard(self, client: Client) -> None:
        self._silent.pop(client.id, None)

    def left(self, client: Client) -> None:
        """Note that the client's task is done, or begins again with another client."""
        task = client.job.name, client.name
        self._forget(task)
        if self._newest.get(task) == client.id:
            del self._newest[task]

    def _forget(self, task: tuple[str, str]) -> None:
        for earlier in [task_id for task_id, one in self._silent.items() if one == task]:
            del self._silent[earlier]

    def look(self, clients: Iterable[Client], heartbeat: float, now: int) -> bool:
        """Look for silent ones among `clients`, the longest silent first; return whether `count` has changed."""
        silence = nanoseconds(max(SILENT_SECONDS, heartbeat + SILENT_SECONDS - STATIC_HEARTBEAT))
        for client in clients:
            if client.seen + silence > now:
                break
            task = client.job.name, client.name
            if self._newest.get(task) == client.id and len(self._silent) < self._tasks:
                self._silent[client.id] = task
        count = len(self._silent)
        if (
            self._at_once
            and self._first is not None
            and now - self._first >= nanoseconds(LAUNCH_SECONDS)
        ):
            count += self._tasks - len(self._names)
        changed, self.count = count != self.count, count
        return changed
