"""The coordinator of one limit: a state machine that issues grants. No I/O, no threads, a clock.

One rule keeps the limit: **at every instant, what all live grants may spend per second is at most the
limit.** A grant is an amount with a pace; it counts from the moment that it is issued until its client
is heard to have dropped it, or until it is void. So no order of joins, crashes, partitions, lost
answers and returns can exceed the limit; they can only leave a part of it unused for a while, and the
sizes in `pool` keep that short.
"""

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import islice
from typing import TypeVar

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits.allocation import (
    STATIC_HEARTBEAT,
    BurstCredit,
    GrantAllocator,
    UnreachableClients,
)
from spark_channel.limits.grants import (
    DIMENSIONS,
    HORIZON,
    Client,
    IssuedGrant,
    JobShare,
    LimitShares,
)
from spark_channel.limits.messages import (
    OLD_GRANT_SECONDS,
    Acknowledged,
    ClientStatus,
    Grant,
    GrantRequest,
    GrantReturn,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LimitChanged,
    LimitStatus,
    Pause,
    Rejected,
    Reply,
    Request,
    Resume,
    RetryLater,
    SetRates,
    StatusRequest,
    Subscribe,
    decode_request,
    encode,
)
from spark_channel.limits.token_bucket import MICROS, NANOS, nanoseconds

__all__ = [
    "Coordinator",
]


CLIENTS_LISTED = 200
LONGEST_TEXT = 256


def status_of(
    limit: str,
    epoch: str,
    pool: LimitShares,
    was_set: tuple[float | None, float | None],
    clients: Collection[Client],
    now: int,
    paused: bool,
    pressure: str,
) -> LimitStatus:
    """The state of `pool` at `now`, consistent when the caller holds its lock; `was_set`: rows and bytes per second."""
    rows, nbytes = pool.grants.totals
    live = [issued for client in clients for issued in client.issued_grants()]
    outstanding = [sum(issued.amount[dimension] for issued in live) for dimension in DIMENSIONS]
    off = paused or pool.factor == 0
    effective = [
        None if limited is None else 0.0 if off else rate / MICROS
        for limited, rate in zip(pool.limits, pool.rates, strict=True)
    ]
    return LimitStatus(
        limit=limit,
        epoch=epoch,
        rows_per_second=_plain(was_set[0]),
        bytes_per_second=_plain(was_set[1]),
        effective_rows_per_second=effective[0],
        effective_bytes_per_second=effective[1],
        granted_rows_per_second=pool.grants.charge[0] / MICROS,
        granted_bytes_per_second=pool.grants.charge[1] / MICROS,
        paused=paused,
        pressure=pressure,
        horizon=pool.horizon(),
        jobs=len(pool.jobs),
        client_count=len(clients),
        waiting_count=pool.in_line,
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
            for client in islice(clients, CLIENTS_LISTED)
        ),
    )


def _plain(rate: float | None) -> float | None:
    return None if rate is None else float(rate)


_SomeReply = TypeVar("_SomeReply", bound=Reply)


class Coordinator:
    """One limit: `rows_per_second` and `bytes_per_second` (None = unlimited) for all clients together.

    `handle` takes a request and returns its reply; it is safe to call from any thread and never waits.
    It raises `RejoinError` to a client that it does not know, `ServiceDeniedError` for what makes no
    sense; a refused request changes nothing.

    `predecessor_seconds`: a coordinator of this limit ended just now (it crashed, its process was
    started again), and its last grants may live for that long; nothing is granted until then. `new_id`
    makes the secret names of clients and the epoch. `max_jobs`: each has a share, so a caller who makes up jobs would
    leave the others next to nothing; None = any number. `static_tasks`: a client that is cut off continues with
    1/static_tasks of the limit, which is set aside for it; see `UnreachableClients` for that and for `at_once`.
    `on_absent` is called with what people are to know of it, empty when all are back. `on_call` is called with
    this limit and a client that should ask now, if it listens. Neither may call this again.

    ```python
    from spark_channel.limits import Coordinator, Join, LeaseLimiter, SetRates, StatusRequest

    coordinator = Coordinator("orders-db", rows_per_second=50_000)
    client = LeaseLimiter("orders-db", job="nightly", name="task 0")

    payment = client.pay(rows=100, nbytes=0, wake=lambda: None)
    request, _ = client.due()                              # a Join, caused by the first payment
    client.receive(request, coordinator.handle(request))   # the service carries this over the network
    assert payment.remaining().reason == "rows"            # the task spends its grant

    second = coordinator.handle(Join("orders-db", "hourly"))
    assert second.answer.reason == "share"                 # all is granted; soon half of it is this job's

    coordinator.handle(SetRates("orders-db", rows_per_second=10_000))
    status = coordinator.handle(StatusRequest("orders-db"))
    assert (status.rows_per_second, status.client_count) == (10_000, 2)
    client.close()
    ```
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
        max_jobs: int | None = None,
        static_tasks: int | None = None,
        at_once: bool = False,
        on_absent: Callable[[str], None] | None = None,
        on_call: Callable[[str, str], None] | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.limit = limit
        self.epoch = new_id()
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._new_id = new_id
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._blocked_until = self._now() + nanoseconds(predecessor_seconds)
        self._paused = False
        self._pressure = ""
        self._pressed = 1.0
        self._on_absent = on_absent
        self._on_call = on_call
        self._max_jobs = max_jobs
        self._absent = None if static_tasks is None else UnreachableClients(static_tasks, at_once)
        self._version = 0
        self._pool = LimitShares(max_clients)
        self._set: tuple[float | None, float | None] = (rows_per_second, bytes_per_second)
        self._cap: float | None = None
        self._pool.set_limits(rows_per_second, bytes_per_second)
        self._savings = BurstCredit(self._blocked_until)
        self._allotment = GrantAllocator(self._pool, self.epoch, self._savings)

    def handle(self, request: Request) -> Reply:
        """Carry out one request."""
        with self._lock:
            now = self._now()
            self._advance(now)
            match request:
                case GrantRequest():
                    return self._and_call(self._ask(request, now))
                case GrantReturn():
                    return self._and_call(self._return(request, now))
                case Heartbeat():
                    client = self._known(request, now)
                    client.waiting = _text(request.waiting, "waiting")
                    return Acknowledged(self._heartbeat())
                case Join():
                    return self._join(request, now)
                case Leave():
                    return self._and_call(self._leave(request, now))
                case Subscribe():
                    return self._news(self._known(request, now))
                case SetRates():
                    self._set_limits((request.rows_per_second, request.bytes_per_second), self._cap)
                    self._changed()
                case Pause():
                    self._paused = True
                    self._changed()
                case Resume():
                    self._paused = False
                    self._changed()
                case StatusRequest():
                    pass
                case _:
                    raise ServiceDeniedError(f"{type(request).__name__} is not a request")
            return self._status(now)

    def answer(self, data: bytes) -> bytes:
        """`handle` for bytes from outside; returns an `encode`d reply, a `Rejected` for a refusal. Never raises."""
        try:
            reply = self.handle(decode_request(data))
        except RejoinError as error:
            reply = Rejected(str(error), rejoin=True)
        except (ServiceDeniedError, OptionError) as error:
            reply = Rejected(str(error))
        return encode(reply)

    def press(self, factor: float, state: str) -> None:
        """Scale the limit to `factor` (0 to 1; 0 stops every client) for the reason `state`; see `AdaptiveLimit`."""
        if not 0 <= factor <= 1:
            raise OptionError(
                f"a pressure factor is from 0 to 1, not {factor!r}",
                option="factor",
                got=repr(factor),
                takes="0 to 1",
            )
        with self._lock:
            self._advance(self._now())
            self._pressed, self._pressure = factor, state
            self._scale()

    def cap(self, rows_per_second: float, state: str) -> None:
        """Lower the limit to this many rows per second for the reason `state`; see `AdaptiveLimit`."""
        with self._lock:
            self._advance(self._now())
            self._pressure = state
            if rows_per_second != self._cap:
                self._set_limits(self._set, rows_per_second)
                self._changed()

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The rows and bytes per second that were set; None = unlimited."""
        with self._lock:
            return self._set

    @property
    def spent(self) -> tuple[float, float]:
        """The rows and the bytes that all clients have reported as spent."""
        with self._lock:
            rows, nbytes = self._pool.grants.totals
            return rows.spent / MICROS, nbytes.spent / MICROS

    def for_mark(self, limit: str) -> "Coordinator":
        """Return a separate coordinator named `limit`, with the present settings of this one."""
        with self._lock:
            copy = Coordinator(
                limit,
                *self._set,
                clock=self._clock,
                max_clients=self._pool.max_clients,
                max_jobs=self._max_jobs,
                on_call=self._on_call,
                new_id=self._new_id,
            )
            copy._paused, copy._pressure, copy._pressed = (
                self._paused,
                self._pressure,
                self._pressed,
            )
            copy._set_limits(self._set, self._cap)
            copy._pool.scale(self._pool.factor)
            copy._blocked_until = self._blocked_until
            copy._savings.advance((0, 0), self._blocked_until)
            return copy

    # --- changes

    def _set_limits(self, limits: tuple[float | None, float | None], cap: float | None) -> None:
        """Set both rates; an `OptionError` changes nothing."""
        rows, nbytes = limits
        self._pool.set_limits(
            rows if cap is None else cap if rows is None else min(rows, cap), nbytes
        )
        self._set, self._cap = limits, cap

    def _changed(self) -> None:
        self._version += 1
        self._allotment.version = self._version
        self._pool.grants.rescale(self._clients.values(), self._pool.rates)

    def _scale(self) -> None:
        """Scale the limit by pressure and by the shares of silent clients."""
        factor = self._pressed * (1.0 if self._absent is None else self._absent.factor)
        if factor != self._pool.factor:
            self._pool.scale(factor)
            self._changed()

    def _state(self) -> str:
        """Return why the limit is lowered, as text for people."""
        return "; ".join(reason for reason in (self._pressure, self._said_of_absent()) if reason)

    def _said_of_absent(self) -> str:
        if self._absent is None or not self._absent.count:
            return ""
        count = self._absent.count
        return f"static limit: {count} task{'' if count == 1 else 's'} out of reach, with a fixed share each"

    def _and_call(self, reply: _SomeReply) -> _SomeReply:
        """Return `reply`, after notifying the clients that could use the part that became free."""
        if self._on_call is not None and not self._paused and self._pool.factor:
            for client in self._allotment.to_call():
                client.calls += 1
                client.called = True
                self._on_call(self.limit, client.id)
        return reply

    def _news(self, client: Client) -> LimitChanged:
        reason = "paused" if self._paused else "pressure" if self._pool.factor == 0 else ""
        rows, nbytes = (0.0 if reason else rate for rate in self._pool.worth())
        rounds = self._pool.rounds(len(self._clients))
        return LimitChanged(self._version, rows, nbytes, reason, rounds, calls=client.calls)

    # --- clients come and go

    def _join(self, request: Join, now: int) -> Joined:
        if len(self._clients) >= self._pool.max_clients:
            raise ServiceDeniedError(
                f"limit {self.limit!r} has {self._pool.max_clients} clients and takes no more"
            )
        name, job_name = _text(request.name, "name"), _text(request.job, "job")
        jobs = self._pool.jobs
        if job_name not in jobs and self._max_jobs is not None and len(jobs) >= self._max_jobs:
            raise ServiceDeniedError(
                f"limit {self.limit!r} is shared by {len(jobs)} jobs, which is its maximum: "
                "run this one when others have ended, "
                "or serve the limit with a higher max_jobs (`limits serve --max-jobs`)"
            )
        job = jobs.setdefault(job_name, JobShare(job_name))
        job.members += 1
        client = Client(self._new_id(), name, job, now)
        self._clients[client.id] = client
        self._heard(client, now)
        if self._absent is not None:
            self._absent.joined(client, _text(request.before, "before"), now)
            self._look(now)
        answer = self._answer(client, now)
        return Joined(client.id, self.epoch, self._heartbeat(), answer, self._version)

    def _known(
        self, request: GrantRequest | GrantReturn | Heartbeat | Subscribe | Leave, now: int
    ) -> Client:
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
        if self._absent is not None:
            self._absent.heard(client)

    def _leave(self, request: Leave, now: int) -> Acknowledged:
        client = self._known(request, now)
        named = self._named(client, request.grant)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        missed = _amounts(named, request.missed_rows, request.missed_bytes)
        if named is not None:
            self._pool.grants.report(named, spent)
            if client.issued_grants() == (named,):
                self._savings.give_back(named, missed, now)
        if self._absent is not None:
            self._absent.left(client)
        self._forget(client)
        return Acknowledged(self._heartbeat())

    def _forget(self, client: Client) -> None:
        for issued in client.issued_grants():
            self._pool.grants.end(issued)
        self._pool.leave_line(client)
        self._pool.want(client, False)
        del self._clients[client.id]
        client.job.members -= 1
        if client.job.members == 0:
            del self._pool.jobs[client.job.name]

    def _advance(self, now: int) -> None:
        self._savings.advance((self._pool.free(0), self._pool.free(1)), now)
        self._pool.grants.advance(now)
        self._look(now)
        while self._clients:
            oldest = next(iter(self._clients.values()))
            if oldest.keep_until > now:
                return
            if grants := oldest.issued_grants():
                oldest.keep_until = max(issued.ends for issued in grants)
                self._clients.move_to_end(oldest.id)
            else:
                self._forget(oldest)

    def _look(self, now: int) -> None:
        if self._absent is not None and self._absent.look(
            self._clients.values(), self._heartbeat(), now
        ):
            self._scale()
            if self._on_absent is not None:
                self._on_absent(self._said_of_absent())

    # --- asks

    def _ask(self, request: GrantRequest, now: int) -> Grant | RetryLater:
        client = self._known(request, now)
        if request.number == client.number and client.answer is not None:
            return client.answer
        named = self._checked(client, request)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        missed = _amounts(named, request.missed_rows, request.missed_bytes)
        client.waiting = _text(request.waiting, "waiting")
        client.number = request.number
        client.called = False
        self._settle(client, named, spent)
        if named is not None:
            self._pool.measure(client, named, spent, missed, now)
            self._pool.grants.shorten(named, now + nanoseconds(OLD_GRANT_SECONDS))
        client.answer = self._answer(client, now)
        return client.answer

    def _return(self, request: GrantReturn, now: int) -> Acknowledged:
        client = self._known(request, now)
        if request.number == client.number:
            return Acknowledged(self._heartbeat())
        named = self._checked(client, request)
        spent = _amounts(named, request.spent_rows, request.spent_bytes)
        client.waiting = _text(request.waiting, "waiting")
        client.number = request.number
        client.answer = None
        self._settle(client, named, spent)
        if named is not None:
            missed = _amounts(named, request.missed_rows, request.missed_bytes)
            self._pool.measure(client, named, spent, missed, now)
        self._pool.leave_line(client)
        for issued in client.issued_grants():
            self._pool.grants.end(issued)
        self._pool.want(client, False)
        return Acknowledged(self._heartbeat())

    def _checked(self, client: Client, request: GrantRequest | GrantReturn) -> IssuedGrant | None:
        if request.number <= client.number:
            raise ServiceDeniedError(
                f"request {request.number} came after {client.number} was answered"
            )
        return self._named(client, request.grant)

    def _named(self, client: Client, grant: int) -> IssuedGrant | None:
        """Return the client's own grant of that number; None for 0."""
        for issued in (client.held, client.offered):
            if issued is not None and issued.id == grant:
                return issued
        if grant != 0:
            raise ServiceDeniedError(f"grant {grant} is not this client's")
        return None

    def _settle(self, client: Client, named: IssuedGrant | None, spent: tuple[int, int]) -> None:
        """Note that the client holds `named` and nothing else, as it reported, and awaits no answer."""
        for issued in (client.held, client.offered):
            if issued is not None and issued is not named:
                self._pool.grants.end(issued)
        client.held, client.offered = named, None
        if named is not None:
            self._pool.grants.report(named, spent)

    def _answer(self, client: Client, now: int) -> Grant | RetryLater:
        answer = self._decide(client, now)
        client.due = now + nanoseconds(
            answer.retry_in if isinstance(answer, RetryLater) else answer.ask_in
        )
        return answer

    def _decide(self, client: Client, now: int) -> Grant | RetryLater:
        pool = self._pool
        if self._paused or pool.factor == 0:
            pool.leave_line(client)
            pool.want(client, bool(client.issued_grants()))
            reason = "paused" if self._paused else "pressure"
            return RetryLater(reason, max(HORIZON / 2, pool.spread(len(self._clients))), drop=True)
        if now < self._blocked_until:
            return RetryLater("restart", (self._blocked_until - now) / NANOS)
        return self._allotment.decide(client, now)

    # --- small parts

    def _heartbeat(self) -> float:
        least = 10.0 if self._absent is None else STATIC_HEARTBEAT
        return max(least, 4 * self._pool.spread(len(self._clients)))

    def _now(self) -> int:
        return nanoseconds(self._clock.now())

    def _status(self, now: int) -> LimitStatus:
        return status_of(
            self.limit,
            self.epoch,
            self._pool,
            self._set,
            self._clients.values(),
            now,
            self._paused,
            self._state(),
        )


def _text(value: str, field: str) -> str:
    if len(value) > LONGEST_TEXT:
        raise ServiceDeniedError(f"{field} is longer than {LONGEST_TEXT} characters")
    return value


def _amounts(issued: IssuedGrant | None, rows: float, nbytes: float) -> tuple[int, int]:
    """Reported amounts in millionths, refused when they cannot be true of `issued`."""
    checked = []
    for dimension, (name, value) in enumerate((("rows", rows), ("bytes", nbytes))):
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            raise ServiceDeniedError(f"{value!r} {name} make no sense")
        micros = round(value * MICROS)
        most = issued.amount[dimension] if issued is not None else 0
        if micros > most:
            raise ServiceDeniedError(
                f"{value!r} {name} are more than the {most / MICROS:g} of this grant"
            )
        checked.append(micros)
    return checked[0], checked[1]
