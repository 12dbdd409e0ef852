"""The coordinator of one limit: a state machine that hands out grants. No I/O, no threads, a clock.

One rule keeps the limit: **at every instant, what all live grants may spend per second is at most the
limit.** A grant is an amount with a pace; it counts from the moment that it is issued until its client
is heard to have dropped it, or until it is void. So no order of joins, crashes, partitions, lost
answers and returns can exceed the limit; they can only leave a part of it unused for a while, and the
sizes below keep that short.
"""

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits.ledger import DIMENSIONS, Client, Job, Lease, Ledger
from spark_channel.limits.level import MICROS, NANOS, nanoseconds, rate_in_micros
from spark_channel.limits.messages import (
    OLD_GRANT_SECONDS,
    Ask,
    ClientStatus,
    Denied,
    Done,
    Grant,
    Heartbeat,
    Hold,
    Join,
    Joined,
    Leave,
    LimitStatus,
    Pause,
    Reply,
    Request,
    Resume,
    Return,
    Set,
    Status,
)
from spark_channel.limits.shares import max_min
from spark_channel.limits.wire import decode_request, encode

__all__ = ["Coordinator"]

HORIZON = 0.5
"""Seconds that a grant lasts. A client asks again at half of it, so a change reaches it in 0.25 s; a
crashed client's share is free again after it, so 95 % of the rate is back within a second."""

ASKS_PER_SECOND = 600
"""What a coordinator is asked at most, about: above 150 clients the horizon grows with their number."""

SLOWEST_PACE = 20
"""Rows per second (bytes: mean rows) below which a grant is not worth its unevenness: a client's rows
are whole, so at p rows/s its worst second holds p + 1. When there are more clients than `rate / 20`,
they take turns."""

MEASURABLE = 0.05
HUNGRY_FROM = 0.95
HEADROOM = 1.1
LINE_COUNTED = 256
CLIENTS_LISTED = 200
LONGEST_TEXT = 256


class Coordinator:
    """One limit: `rows_per_second` and `bytes_per_second` (None = unlimited) for all clients together.

    `handle` takes a request and returns its reply; it is safe to call from any thread and never waits.
    It raises `RejoinError` to a client that it does not know, `ServiceDeniedError` for what makes no
    sense; a refused request changes nothing.

    `predecessor_seconds`: a coordinator of this limit ended just now (it crashed, its process was
    started again), and its last grants may live for that long; nothing is granted until then. `new_id`
    makes the secret names of clients and the epoch.
    """

    def __init__(
        self,
        limit: str,
        rows_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        clock: Clock | None = None,
        predecessor_seconds: float = 0.0,
        max_clients: int = 100_000,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.limit = limit
        self.epoch = new_id()
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._new_id = new_id
        self._max_clients = max_clients
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._jobs: dict[str, Job] = {}
        self._ledger = Ledger(self._idle)
        self._blocked_until = self._now() + nanoseconds(predecessor_seconds)
        self._in_line = 0
        self._wanting = 0
        self._paused = False
        self._pressure = ""
        self._factor = 1.0
        self._row_bytes = 0.0
        self._set_rates(rows_per_second, bytes_per_second)

    def handle(self, request: Request) -> Reply:
        """Carry out one request."""
        with self._lock:
            now = self._now()
            self._advance(now)
            match request:
                case Ask():
                    return self._ask(request, now)
                case Return():
                    return self._return(request, now)
                case Heartbeat():
                    client = self._known(request, now)
                    client.waiting = _text(request.waiting, "waiting")
                    return Done(self._heartbeat())
                case Join():
                    return self._join(request, now)
                case Leave():
                    return self._leave(request, now)
                case Set():
                    self._set_rates(request.rows_per_second, request.bytes_per_second)
                case Pause():
                    self._paused = True
                case Resume():
                    self._paused = False
                case Status():
                    pass
                case _:
                    raise ServiceDeniedError(f"{type(request).__name__} is not a request")
            return self._status(now)

    def answer(self, data: bytes) -> bytes:
        """`handle` for bytes from outside, `encode`d; a refusal is a `Denied`. Never raises."""
        try:
            reply = self.handle(decode_request(data))
        except RejoinError as error:
            reply = Denied(str(error), rejoin=True)
        except (ServiceDeniedError, OptionError) as error:
            reply = Denied(str(error))
        return encode(reply)

    def press(self, factor: float, state: str) -> None:
        """Scale the limit to `factor` (0 to 1; 0 holds everybody) for the reason `state`; see `Pressure`."""
        if not 0 <= factor <= 1:
            raise OptionError(
                f"a pressure factor is from 0 to 1, not {factor!r}",
                option="factor",
                got=repr(factor),
                takes="0 to 1",
            )
        with self._lock:
            self._advance(self._now())
            self._factor = factor
            self._pressure = state
            self._effective()

    def for_mark(self, limit: str) -> "Coordinator":
        """A coordinator of its own, called `limit`, as this one is set now."""
        with self._lock:
            rates = [None if each is None else each / MICROS for each in self._limits]
            twin = Coordinator(
                limit, *rates, clock=self._clock, max_clients=self._max_clients, new_id=self._new_id
            )
            twin._paused, twin._pressure, twin._factor = self._paused, self._pressure, self._factor
            twin._blocked_until = self._blocked_until
            twin._effective()
            return twin

    # --- clients come and go

    def _join(self, request: Join, now: int) -> Joined:
        if len(self._clients) >= self._max_clients:
            raise ServiceDeniedError(
                f"limit {self.limit!r} has {self._max_clients} clients and takes no more"
            )
        name, job_name = _text(request.name, "name"), _text(request.job, "job")
        job = self._jobs.setdefault(job_name, Job(job_name))
        job.members += 1
        client = Client(self._new_id(), name, job, now)
        self._clients[client.id] = client
        self._heard(client, now)
        answer = self._answer(client, now)
        return Joined(client.id, self.epoch, self._heartbeat(), answer)

    def _known(self, request: Ask | Return | Heartbeat | Leave, now: int) -> Client:
        if request.epoch != self.epoch:
            raise RejoinError(f"limit {self.limit!r} was restarted; join again")
        client = self._clients.get(request.client)
        if client is None:
            raise RejoinError(f"limit {self.limit!r} does not know this client; join again")
        self._heard(client, now)
        return client

    def _heard(self, client: Client, now: int) -> None:
        client.seen = now
        client.keep_until = now + nanoseconds(3 * self._heartbeat())
        self._clients.move_to_end(client.id)

    def _leave(self, request: Leave, now: int) -> Done:
        client = self._known(request, now)
        named = self._named(client, request.grant)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        if named is not None:
            self._ledger.report(named, spent)
        self._forget(client)
        return Done(self._heartbeat())

    def _forget(self, client: Client) -> None:
        for lease in client.leases():
            self._ledger.end(lease)
        self._leave_line(client)
        self._want(client, False)
        del self._clients[client.id]
        client.job.members -= 1
        if client.job.members == 0:
            del self._jobs[client.job.name]

    def _idle(self, client: Client) -> None:
        """The last lease of `client` ended: it counts no more, unless it is in line."""
        if client not in client.job.line:
            self._want(client, False)

    def _advance(self, now: int) -> None:
        self._ledger.advance(now)
        while self._clients:
            oldest = next(iter(self._clients.values()))
            if oldest.keep_until > now:
                return
            if leases := oldest.leases():
                oldest.keep_until = max(lease.ends for lease in leases)
                self._clients.move_to_end(oldest.id)
            else:
                self._forget(oldest)

    # --- asks

    def _ask(self, request: Ask, now: int) -> Grant | Hold:
        client = self._known(request, now)
        if request.number == client.number and client.answer is not None:
            return client.answer
        named = self._checked(client, request)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        missed = _amounts(named, request.missed_rows, request.missed_bytes)
        client.waiting = _text(request.waiting, "waiting")
        client.number = request.number
        self._settle(client, named, spent)
        if named is not None:
            self._measure(client, named, spent, missed)
            self._ledger.shorten(named, now + nanoseconds(OLD_GRANT_SECONDS))
        client.answer = self._answer(client, now)
        return client.answer

    def _return(self, request: Return, now: int) -> Done:
        client = self._known(request, now)
        if request.number == client.number:
            return Done(self._heartbeat())
        named = self._checked(client, request)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        client.waiting = _text(request.waiting, "waiting")
        client.number = request.number
        client.answer = None
        self._settle(client, named, spent)
        if named is not None:
            missed = _amounts(named, request.missed_rows, request.missed_bytes)
            self._measure(client, named, spent, missed)
        self._leave_line(client)
        for lease in client.leases():
            self._ledger.end(lease)
        self._want(client, False)
        return Done(self._heartbeat())

    def _checked(self, client: Client, request: Ask | Return) -> Lease | None:
        if request.number <= client.number:
            raise ServiceDeniedError(f"request {request.number} came after {client.number} was answered")
        return self._named(client, request.grant)

    def _named(self, client: Client, grant: int) -> Lease | None:
        """The client's own lease of that number; None for 0."""
        for lease in (client.held, client.offered):
            if lease is not None and lease.id == grant:
                return lease
        if grant != 0:
            raise ServiceDeniedError(f"grant {grant} is not this client's")
        return None

    def _settle(self, client: Client, named: Lease | None, spent: tuple[int, int]) -> None:
        """From here on the client holds `named` and nothing else: it said so, and has no answer due."""
        for lease in (client.held, client.offered):
            if lease is not None and lease is not named:
                self._ledger.end(lease)
        client.held, client.offered = named, None
        if named is not None:
            self._ledger.report(named, spent)

    def _measure(self, client: Client, lease: Lease, spent: tuple[int, int], missed: tuple[int, int]) -> None:
        """How much of its pace the client used: all of it (it is hungry), or less (that is its demand)."""
        if spent[0] and spent[1]:
            row_bytes = spent[1] / spent[0]
            self._row_bytes += (row_bytes - self._row_bytes) * (0.1 if self._row_bytes else 1.0)
        was_wanting = client.wanting
        self._want(client, False)
        for dimension in DIMENSIONS:
            due = spent[dimension] + missed[dimension]
            pace = lease.pace[dimension]
            if due <= pace * (lease.ends - lease.starts) / NANOS * MEASURABLE:
                continue
            used = spent[dimension] / due
            before = pace if client.hungry[dimension] else client.demand[dimension]
            client.hungry[dimension] = used >= HUNGRY_FROM
            client.demand[dimension] = max(math.ceil(HEADROOM * used * pace), before // 2)
            client.measured = True
        self._want(client, was_wanting)

    def _answer(self, client: Client, now: int) -> Grant | Hold:
        answer = self._decide(client, now)
        client.due = now + nanoseconds(answer.retry_in if isinstance(answer, Hold) else answer.ask_in)
        return answer

    def _decide(self, client: Client, now: int) -> Grant | Hold:
        if self._paused or self._factor == 0:
            self._leave_line(client)
            self._want(client, bool(client.leases()))
            reason = "paused" if self._paused else "pressure"
            return Hold(reason, max(HORIZON / 2, self._spread(len(self._clients))), drop=True)
        if now < self._blocked_until:
            return Hold("restart", (self._blocked_until - now) / NANOS)
        self._want(client, True)
        if client.heir is not None:
            return self._in_turn(client, now)
        if self._wanting <= self._slots() or self._has_own_share(client.job):
            return self._take_share(client, now)
        return self._take_turn(client, now)

    def _has_own_share(self, job: Job) -> bool:
        """The job's part of the limit is enough for all of its clients at once."""
        slots = self._slots()
        jobs = [each for each in self._jobs.values() if each.wanting]
        for dimension in DIMENSIONS:
            demands = [
                None if each is job or each.hungry[dimension] else each.demand[dimension] for each in jobs
            ]
            allowed = max_min(self._rates[dimension], demands)[jobs.index(job)]
            if allowed // job.wanting < self._rates[dimension] // slots:
                return False
        return True

    # --- everybody at once, each at its share

    def _take_share(self, client: Client, now: int) -> Grant | Hold:
        shares = [self._share(client, dimension) for dimension in DIMENSIONS]
        alone = self._in_line == (client in client.job.line)
        may_take = alone or self._is_next(client, [share // 8 for share in shares], now)
        paces = []
        short = lowered = starved = False
        for dimension in DIMENSIONS:
            own, share = client.charge[dimension], shares[dimension]
            free = max(0, self._rates[dimension] - self._ledger.charge[dimension])
            most = own + free if may_take else own
            pace = min(self._wish(client, dimension, share, free, alone), most)
            paces.append(pace)
            short = short or pace < 0.9 * share
            lowered = lowered or pace < 0.9 * own
            starved = starved or (self._limits[dimension] is not None and pace < max(1, share // 8))
        if short:
            self._enter_line(client)
        else:
            self._leave_line(client)
        if starved:
            return Hold("turn", self._retry())
        lasts = horizon = self._horizon()
        brief = horizon < 2 * HORIZON
        if not client.measured:
            lasts = horizon / 4 if brief else horizon / 2
        ends = now + nanoseconds(lasts)
        return self._grant(client, (paces[0], paces[1]), now, ends, soon=short or (lowered and brief))

    def _wish(self, client: Client, dimension: int, share: int, free: int, alone: bool) -> int:
        """The share; with a long horizon, also what others left, which they would take only much later."""
        if not alone or not client.hungry[dimension] or self._horizon() < 2 * HORIZON:
            return share
        if 10 * free > self._rates[dimension]:
            return share
        return max(share, min(share + free, 3 * share // 2), min(client.charge[dimension], 3 * share // 2))

    def _share(self, client: Client, dimension: int) -> int:
        """What `client` should have in `dimension`: max-min between jobs, and between the job's clients."""
        rate, job = self._rates[dimension], client.job
        if self._limits[dimension] is None:
            return 0
        jobs = [each for each in self._jobs.values() if each.wanting]
        demands = [None if each.hungry[dimension] else each.demand[dimension] for each in jobs]
        allowed = max_min(rate, demands)[jobs.index(job)]
        even = allowed // job.wanting
        if job.hungry[dimension]:
            share = max(even, (allowed - job.demand[dimension]) // job.hungry[dimension])
        else:
            share = max(even, client.demand[dimension] * allowed // max(1, job.demand[dimension]))
        if client.hungry[dimension]:
            return share
        if None in demands:
            return min(share, max(1, client.demand[dimension]))
        spare = rate - sum(demand or 0 for demand in demands)
        return min(share, client.demand[dimension]) + max(0, spare) // (self._wanting + 1)

    # --- too many for that: turns

    def _take_turn(self, client: Client, now: int) -> Grant | Hold:
        slots = self._slots()
        pace = (self._rates[0] // slots, self._rates[1] // slots)
        turn = self._turn(pace)
        if client.leases():
            return self._go_on(client, pace, turn, now) or self._in_turn(client, now)
        if self._is_next(client, pace, now):
            self._leave_line(client)
            client.turn_ends = now + turn
            return self._grant(client, pace, now, client.turn_ends)
        self._enter_line(client)
        return self._inherit(client, pace, turn, now) or self._in_turn(client, now)

    def _go_on(self, client: Client, pace: tuple[int, int], turn: int, now: int) -> Grant | None:
        """The rest of the client's turn; or another one, when nobody is in line and the limit allows it."""
        free = [self._rates[each] - self._ledger.charge[each] for each in DIMENSIONS]
        alone = self._in_line == (client in client.job.line)
        again = alone and client.turn_ends - now <= turn // 2 and min(free) >= 0
        if again:
            client.turn_ends = now + turn
        if client.turn_ends - now <= turn // 8:
            return None
        rows, nbytes = (min(pace[each], client.charge[each] + max(0, free[each])) for each in DIMENSIONS)
        if rows < pace[0] // 8 or nbytes < pace[1] // 8:
            return None
        self._leave_line(client)
        return self._grant(client, (rows, nbytes), now, client.turn_ends)

    def _inherit(self, client: Client, pace: tuple[int, int], turn: int, now: int) -> Grant | None:
        """The next place to come free, kept for the head of the line, so that it is never empty."""
        lease = self._ledger.next_end()
        if lease is None or lease.ends > now + turn // 2 or not self._is_near(client):
            return None
        for each, mine in enumerate(pace):
            place = lease.client.charge[each]
            if mine > place or self._ledger.charge[each] - place + mine > self._rates[each]:
                return None
        self._leave_line(client)
        client.turn_ends = lease.ends + turn
        return self._grant(client, pace, now, client.turn_ends, starts=lease.ends, after=lease.client)

    def _in_turn(self, client: Client, now: int) -> Hold:
        """Stand in line, and come back when the turn is near."""
        self._enter_line(client)
        ahead = self._ahead(client)
        slots = self._slots()
        turn = self._turn((self._rates[0] // slots, self._rates[1] // slots)) / NANOS
        first = self._ledger.next_end()
        free_in = turn if first is None else (first.ends - now) / NANOS
        return Hold("turn", min(20.0, max(self._retry(), free_in + (ahead / slots - 0.4) * turn)))

    def _slots(self) -> int:
        """How many clients may be granted something at the same time."""
        slots = self._max_clients
        if self._limits[0] is not None:
            slots = min(slots, self._rates[0] // (SLOWEST_PACE * MICROS))
        if self._limits[1] is not None and self._row_bytes:
            slots = min(slots, int(self._rates[1] / (SLOWEST_PACE * MICROS * self._row_bytes)))
        return max(1, slots)

    def _turn(self, pace: tuple[int, int]) -> int:
        """Nanoseconds of a turn: a horizon, and time enough for two rows."""
        rows = 2 * MICROS / pace[0] if pace[0] else 0.0
        nbytes = 2 * MICROS * self._row_bytes / pace[1] if pace[1] else 0.0
        return nanoseconds(max(self._horizon(), rows, nbytes))

    def _is_next(self, client: Client, least: tuple[int, int] | list[int], now: int) -> bool:
        """There is room for `least` for this client and all who are before it in line."""
        room = self._max_clients
        for dimension in DIMENSIONS:
            if self._limits[dimension] is not None:
                free = self._rates[dimension] - self._ledger.charge[dimension]
                room = min(room, free // max(1, least[dimension]))
        if room <= 0:
            return False
        self._drop_absent(now)
        lined = [job for job in self._jobs.values() if job.line or job is client.job]
        picks = room if len(lined) == 1 else self._picks(client.job, lined, room, least)
        return self._is_among(client, picks)

    def _picks(self, mine: Job, lined: list[Job], room: int, least: tuple[int, int] | list[int]) -> int:
        """How many of `mine` are among the next `room`, when the job with the least goes first."""
        picks = dict.fromkeys(lined, 0)
        step = 1 + room // 64
        for _ in range(0, room, step):
            job = min(picks, key=lambda each: self._weight(each, picks[each], least))
            picks[job] += step
            if job is not mine and picks[job] >= len(job.line):
                del picks[job]
        return picks[mine]

    def _is_among(self, client: Client, first: int) -> bool:
        """`client` is one of the `first` in the line of its job, or would be."""
        line = client.job.line
        if client in line and first < min(len(line), LINE_COUNTED):
            return client in islice(line, first)
        return self._ahead(client) < first

    def _ahead(self, client: Client) -> int:
        """How many of its job are before `client` in line; at most, since some may have left it."""
        line = client.job.line
        if client not in line:
            return len(line)
        return line[client] - next(iter(line.values()))

    def _drop_absent(self, now: int) -> None:
        """Heads of lines that did not come when it was their turn lose their place."""
        late = now - nanoseconds(HORIZON)
        for job in list(self._jobs.values()):
            while job.line and (head := next(iter(job.line))).due < late:
                self._leave_line(head)
                self._want(head, bool(head.leases()))

    def _weight(self, job: Job, picks: int, least: tuple[int, int] | list[int]) -> float:
        """The part of the limit that `job` has, with `picks` more grants."""
        return max(
            (job.charge[dimension] + picks * least[dimension]) / self._rates[dimension]
            if self._rates[dimension]
            else 0.0
            for dimension in DIMENSIONS
        )

    def _is_near(self, client: Client) -> bool:
        """The client's turn comes within half a turn."""
        lined = [job for job in self._jobs.values() if job.line]
        if lined and client.job is not min(lined, key=lambda job: self._weight(job, 0, (0, 0))):
            return False
        return self._is_among(client, max(1, self._slots() // 2))

    # --- small parts

    def _grant(
        self,
        client: Client,
        pace: tuple[int, int],
        now: int,
        ends: int,
        *,
        starts: int | None = None,
        after: Client | None = None,
        soon: bool = False,
    ) -> Grant:
        starts = now if starts is None else starts
        lease = self._ledger.issue(client, pace, starts, ends, after=after)
        limited = [limit is not None for limit in self._limits]
        lasts = (ends - starts) / NANOS
        ask_in = min(lasts, self._horizon()) / 2
        if ends == client.turn_ends and lasts < 0.6 * HORIZON:
            ask_in = lasts
        if soon:
            ask_in = min(ask_in, self._retry())
        return Grant(
            grant=lease.id,
            rows=lease.amount[0] // MICROS if limited[0] else None,
            nbytes=lease.amount[1] // MICROS if limited[1] else None,
            rows_per_second=pace[0] / MICROS if limited[0] else None,
            bytes_per_second=pace[1] / MICROS if limited[1] else None,
            starts_in=(starts - now) / NANOS,
            lasts=lasts,
            ask_in=(starts - now) / NANOS + ask_in,
            use_by=ends / NANOS,
            epoch=self.epoch,
        )

    def _want(self, client: Client, wanting: bool) -> None:
        """Count `client` among those that want to spend, or not."""
        if client.wanting == wanting:
            return
        client.wanting = wanting
        sign = 1 if wanting else -1
        self._wanting += sign
        client.job.wanting += sign
        for dimension in DIMENSIONS:
            if client.hungry[dimension]:
                client.job.hungry[dimension] += sign
            else:
                client.job.demand[dimension] += sign * client.demand[dimension]

    def _enter_line(self, client: Client) -> None:
        if client not in client.job.line:
            self._in_line += 1
            client.job.tickets += 1
            client.job.line[client] = client.job.tickets

    def _leave_line(self, client: Client) -> None:
        if client.job.line.pop(client, None) is not None:
            self._in_line -= 1

    def _horizon(self) -> float:
        """Seconds that a grant lasts, with as many clients as want one now."""
        return max(HORIZON, 2 * self._spread(min(self._wanting, self._slots())))

    def _retry(self) -> float:
        """Seconds after which one in line asks again."""
        return max(HORIZON / 8, 2 * self._spread(self._in_line))

    def _spread(self, count: int) -> float:
        """Seconds over which `count` asks are spread at the most that the coordinator should be asked."""
        return count / ASKS_PER_SECOND

    def _heartbeat(self) -> float:
        return max(10.0, 4 * self._spread(len(self._clients)))

    def _set_rates(self, rows_per_second: float | None, bytes_per_second: float | None) -> None:
        self._limits = (
            None if rows_per_second is None else rate_in_micros(rows_per_second, "rows_per_second"),
            None if bytes_per_second is None else rate_in_micros(bytes_per_second, "bytes_per_second"),
        )
        self._effective()

    def _effective(self) -> None:
        rows, nbytes = (0 if limit is None else max(1, int(limit * self._factor)) for limit in self._limits)
        self._rates = (rows, nbytes)

    def _now(self) -> int:
        return nanoseconds(self._clock.now())

    def _status(self, now: int) -> LimitStatus:
        rows, nbytes = self._ledger.totals
        live = [lease for client in self._clients.values() for lease in client.leases()]
        outstanding = [sum(lease.amount[each] for lease in live) for each in DIMENSIONS]
        off = self._paused or self._factor == 0
        rates = [None if limit is None else limit / MICROS for limit in self._limits]
        effective = [
            None if limit is None else 0.0 if off else rate / MICROS
            for limit, rate in zip(self._limits, self._rates, strict=True)
        ]
        return LimitStatus(
            limit=self.limit,
            epoch=self.epoch,
            rows_per_second=rates[0],
            bytes_per_second=rates[1],
            effective_rows_per_second=effective[0],
            effective_bytes_per_second=effective[1],
            granted_rows_per_second=self._ledger.charge[0] / MICROS,
            granted_bytes_per_second=self._ledger.charge[1] / MICROS,
            paused=self._paused,
            pressure=self._pressure,
            horizon=self._horizon(),
            jobs=len(self._jobs),
            client_count=len(self._clients),
            waiting_count=self._in_line,
            issued_rows=rows.issued / MICROS,
            spent_rows=rows.spent / MICROS,
            returned_rows=rows.returned / MICROS,
            void_rows=rows.void / MICROS,
            outstanding_rows=outstanding[0] / MICROS,
            issued_bytes=nbytes.issued / MICROS,
            spent_bytes=nbytes.spent / MICROS,
            returned_bytes=nbytes.returned / MICROS,
            void_bytes=nbytes.void / MICROS,
            outstanding_bytes=outstanding[1] / MICROS,
            clients=tuple(
                ClientStatus(
                    name=client.name,
                    job=client.job.name,
                    rows_per_second=client.charge[0] / MICROS,
                    bytes_per_second=client.charge[1] / MICROS,
                    waiting=client.waiting,
                    silent_seconds=(now - client.seen) / NANOS,
                )
                for client in islice(self._clients.values(), CLIENTS_LISTED)
            ),
        )


def _text(value: str, field: str) -> str:
    if len(value) > LONGEST_TEXT:
        raise ServiceDeniedError(f"{field} is longer than {LONGEST_TEXT} characters")
    return value


def _amounts(lease: Lease | None, rows: float, nbytes: float) -> tuple[int, int]:
    """Reported amounts in millionths, refused when they cannot be true of `lease`."""
    checked = []
    for dimension, (name, value) in enumerate((("rows", rows), ("bytes", nbytes))):
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            raise ServiceDeniedError(f"{value!r} {name} make no sense")
        micros = round(value * MICROS)
        most = lease.amount[dimension] if lease is not None else 0
        if micros > most:
            raise ServiceDeniedError(f"{value!r} {name} are more than the {most / MICROS:g} of this grant")
        checked.append(micros)
    return checked[0], checked[1]
