"""`LeaseLimiter`: the limiter of a client that lives on a coordinator's grants. No I/O, no threads.

It pays channels from its grant and says which request is due; whoever owns it carries requests to the
coordinator and replies back.
"""

import threading
import zlib
from collections.abc import Callable

from spark_channel.channel.capacity import Payment, Wait
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import (
    LimitError,
    OptionError,
    ServiceDeniedError,
    ServiceUnavailableError,
)
from spark_channel.limits.grant_budget import GrantBudget, PaymentShare, is_part, parts
from spark_channel.limits.messages import (
    OLD_GRANT_SECONDS,
    Acknowledged,
    Grant,
    GrantRequest,
    GrantReturn,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LimitChanged,
    Rejected,
    Reply,
    Request,
    RetryLater,
    Subscribe,
)
from spark_channel.limits.token_bucket import NANOS, SLICE_SECONDS, StaticShare, nanoseconds

__all__ = ["LeaseLimiter"]

ANSWER_SECONDS = 10.0
"""Seconds without an answer after which the work fails."""

IDLE = 0.1
"""Seconds without a payment after which the client gives back its grant, so that others can use it."""

NEWS_FROM = 0.5
"""A client that asks less often than each so many seconds listens for changes beside it, as does one that could use
more of the limit than it has."""

NEWS_SPREAD = 0.4
"""Seconds over which those ask who cannot go on with a change before they did: they have no grant, or it was
unlimited or is to be."""

FIRST_ANSWER_SECONDS = 4.0
"""The same for a client that never had an answer and has a static share: it costs a job at most 5 s."""

STATIC_RETRY = 5.0
"""Seconds between two attempts to reach the coordinator while the client spends its static share."""

FIRST_RETRY = 0.05
SLOWEST_RETRY = 2.0
_NEVER = 1 << 62
_PAID = Wait(0.0)


class LeaseLimiter:
    """A `Limiter` that spends grants of `limit` for `job`, evenly, and asks again at half.

    Any thread may pay. One thread carries messages::

        while (request := limiter.next_request()) is not None:
            try:
                reply = send(request)                  # within a few seconds, or an exception
            except ServiceUnavailableError as error:
                limiter.failed(request, error)         # it tries again, with a growing pause
            else:
                limiter.receive(request, reply)

    After `close()`, `next_request` gives the client's `Leave`, and then None. Instead of the loop,
    `due()` may be asked without blocking. Without an answer for `timeout` seconds, a grant is still
    spent, and then every payment raises `ServiceUnavailableError`; it never runs unlimited. With `static`, payments
    go on at that share of the limit as it was last heard of, until the coordinator answers again; a limit that was
    paused then is not spent. `begins_static`: from the first payment on, where nothing was heard a moment ago.
    `advice`: what its user does about a service that has ended, the end of the error's text.
    """

    def __init__(
        self,
        limit: str,
        job: str,
        name: str = "",
        *,
        clock: Clock | None = None,
        timeout: float = ANSWER_SECONDS,
        static: StaticShare | None = None,
        begins_static: bool = False,
        advice: str = "",
    ) -> None:
        self._limit, self._job, self._name = limit, job, name
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._timeout = nanoseconds(timeout)
        self._advice = advice
        self._changed = threading.Condition()
        now = self._now()
        self._budgets = (GrantBudget(now), GrantBudget(now))
        self._grant: Grant | None = None
        self._ends = now
        self._paces: tuple[float | None, float | None] = (0.0, 0.0)
        self._amounts = (0, 0)
        self._waiting: dict[_LeasePayment, None] = {}
        self._idle_since = now
        self._client = self._epoch = ""
        self._number = 0
        self._version = -1
        self._news: LimitChanged | None = None
        self._hurried: int | None = None
        self._in_flight: Request | None = None
        self._sent = now
        self._next_ask = _NEVER
        self._could_hear = False
        self._calls = 0
        self._next_heartbeat = _NEVER
        self._heartbeat_in = 0
        self._reported = ((0.0, 0.0), (0.0, 0.0))
        self._last_use: tuple[tuple[float, float], tuple[float, float]] | None = None
        self._silent_since: int | None = None
        self._failures = 0
        self._last_error: ServiceUnavailableError | None = None
        self._retry_at = now
        self._reason = "share"
        self._broken: LimitError | None = None
        self._closed = False
        self._static = static
        self._is_static = False
        self._held = False
        self._joined_once = False
        self._before = ""
        if static is not None and begins_static:
            self._go_static(now)

    # --- the channel's side

    def slice_size(self) -> tuple[int | None, int | None]:
        """About 20 ms of the grant's pace; a single row before the first grant."""
        with self._changed:
            if self._grant is None and not self._is_static:
                return 1, None
            return _slice(self._paces[0]), _slice(self._paces[1])

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Queue for `rows` and `nbytes`; see `channel.Limiter`."""
        for name, amount in (("rows", rows), ("bytes", nbytes)):
            if amount < 0:
                raise OptionError(
                    f"a payment of {amount} {name} makes no sense",
                    option=name,
                    got=str(amount),
                    takes="0 or more",
                )
        with self._changed:
            now = self._now()
            shares = self._budgets[0].take(rows, now), self._budgets[1].take(nbytes, now)
            payment = _LeasePayment(self, shares, wake)
            self._waiting[payment] = None
            if self._next_ask == _NEVER and self._in_flight is None:
                self._next_ask = now
                self._changed.notify_all()
            return payment

    # --- the messenger's side

    def next_request(self) -> Request | None:
        """Block until a request is due, and return it; None once the limiter is closed and has sent `Leave`."""
        with self._changed:
            while True:
                now = self._now()
                request, at = self._due(now)
                if request is not None or at is None:
                    return request
                self._clock.wait(self._changed, None if at == _NEVER else max(0, at - now) / NANOS)

    def due(self) -> tuple[Request | None, float | None]:
        """Return (the request to send now or None, the clock's time of the next call or None for "when woken")."""
        with self._changed:
            request, at = self._due(self._now())
            return request, None if at is None or at == _NEVER else at / NANOS

    def receive(self, request: Request, reply: Reply) -> None:
        """Take the coordinator's `reply` to `request`; a reply that is not expected is ignored."""
        with self._changed:
            if request is not self._in_flight:
                return
            now = self._now()
            self._in_flight = None
            self._failures, self._last_error = 0, None
            self._silent_since = None
            self._take_in(request, reply, now)
            self._hurry()
            self._changed.notify_all()
            wakes = [payment.wake for payment in self._waiting]
        for wake in wakes:
            wake()

    def failed(self, request: Request, error: ServiceUnavailableError) -> None:
        """Note that `request` got no answer; it is sent again until its deadline."""
        with self._changed:
            if request is not self._in_flight:
                return
            now = self._now()
            self._in_flight = None
            self._failures += 1
            self._last_error = error
            pause = min(SLOWEST_RETRY, FIRST_RETRY * 2 ** min(self._failures - 1, 10))
            self._retry_at = now + nanoseconds(STATIC_RETRY if self._is_static else pause)
            self._reason = "service"
            self._time_out(now)
            self._changed.notify_all()
            wakes = (
                [payment.wake for payment in self._waiting]
                if self._broken or self._is_static
                else []
            )
        for wake in wakes:
            wake()

    def fail(self, error: LimitError) -> None:
        """Stop carrying messages: every payment raises `error`."""
        with self._changed:
            self._broken = self._broken or error
            self._client, self._in_flight = "", None
            self._changed.notify_all()
            wakes = [payment.wake for payment in self._waiting]
        for wake in wakes:
            wake()

    def listen(self) -> Subscribe | None:
        """Return the subscription to send beside `next_request`, to learn of changes early; None = not needed."""
        with self._changed:
            if not (self._could_hear and self._client) or self._closed or self._broken is not None:
                return None
            return Subscribe(self._limit, self._client, self._epoch, self._version, self._calls)

    def limit_changed(self, request: Subscribe, answer: LimitChanged | Rejected) -> None:
        """Take an answer to `request`, from `listen`: the limit may have changed, or may have been removed.

        A grant is scaled to the new limit immediately, and the client asks soon; without a grant, and after a
        refusal, the next request is due in a moment.
        """
        with self._changed:
            if (request.client, request.epoch) != (self._client, self._epoch):
                return
            now, scaled = self._now(), False
            within: float | None = NEWS_SPREAD
            if isinstance(answer, LimitChanged):
                called, self._calls = answer.calls > self._calls, max(answer.calls, self._calls)
                if answer.version <= self._version:
                    if called:
                        self._hurried = now
                        self._hurry()
                        self._changed.notify_all()
                    return
                self._version, self._news = answer.version, answer
                self._held = bool(answer.reason)
                if self._static is not None and not self._held:
                    self._static = self._static.with_limit(
                        answer.rows_per_second, answer.bytes_per_second
                    )
                if scaled := self._rescale(now):
                    within = None if answer.reason else max(answer.ask_within, NEWS_SPREAD)
            if within is not None:
                # Its own, so that not all ask at the same time.
                part = zlib.crc32(self._client.encode()) / (1 << 32)
                self._hurried = now + nanoseconds(within * part)
                self._hurry()
            self._changed.notify_all()
            wakes = [payment.wake for payment in self._waiting] if scaled else []
        for wake in wakes:
            wake()

    def close(self) -> None:
        """End the payments; the last request gives back the rest of the grant."""
        with self._changed:
            now = self._now()
            if not self._closed:
                self._last_use = self._use(now)  # before what is saved up counts as missed
            self._closed = True
            for budget in self._budgets:
                budget.stop(now)
            self._changed.notify_all()

    @property
    def is_static(self) -> bool:
        """Whether the coordinator is unreachable and the client spends its static share."""
        with self._changed:
            return self._is_static

    @property
    def is_silent(self) -> bool:
        """Whether the coordinator has not answered the last request."""
        with self._changed:
            return self._failures > 0

    @property
    def rows_per_second(self) -> float | None:
        """The rows per second that it may spend now; None = unlimited."""
        with self._changed:
            return self._paces[0] if self._now() < self._ends else 0.0

    @property
    def waiting(self) -> str:
        """Why the oldest payment waits: "rows", "bytes", "turn", "paused", ...; "" when none waits."""
        with self._changed:
            return self._why(self._now())

    # --- inside; the lock is held

    def _due(self, now: int) -> tuple[Request | None, int | None]:
        if self._in_flight is not None:
            return None, _NEVER
        if self._closed or self._broken is not None:
            return self._last_request(now)
        next_wanted = self._next_ask
        if not self._client:
            return self._or_later(
                Join(self._limit, self._job, self._name, self._before), next_wanted, now
            )
        if not self._waiting and now < self._ends:
            next_wanted = min(next_wanted, self._idle_since + nanoseconds(IDLE))
        if next_wanted <= now:
            (rows, lost_rows), (nbytes, lost_bytes) = self._use(now)
            if self._waiting or (now < self._ends and now < self._idle_since + nanoseconds(IDLE)):
                self._reported = ((rows, lost_rows), (nbytes, lost_bytes))
                ask = GrantRequest(
                    limit=self._limit,
                    client=self._client,
                    epoch=self._epoch,
                    number=self._number + 1,
                    grant=0 if self._grant is None else self._grant.grant,
                    spent_rows=rows,
                    spent_bytes=nbytes,
                    missed_rows=lost_rows,
                    missed_bytes=lost_bytes,
                    waiting=self._why(now),
                )
                return self._or_later(ask, next_wanted, now)
            if now < self._ends and self._grant is not None:
                self._stop(now)
                self._reason = "share"
                (rows, lost_rows), (nbytes, lost_bytes) = self._use(now)
                back = GrantReturn(
                    limit=self._limit,
                    client=self._client,
                    epoch=self._epoch,
                    number=self._number + 1,
                    grant=self._grant.grant,
                    spent_rows=rows,
                    spent_bytes=nbytes,
                    missed_rows=lost_rows,
                    missed_bytes=lost_bytes,
                )
                return self._or_later(back, next_wanted, now)
            self._next_ask = next_wanted = _NEVER
        if self._next_heartbeat <= next_wanted:
            beat = Heartbeat(self._limit, self._client, self._epoch, self._why(now))
            return self._or_later(beat, self._next_heartbeat, now)
        return None, max(next_wanted, self._retry_at)

    def _or_later(self, request: Request, at: int, now: int) -> tuple[Request | None, int]:
        at = max(at, self._retry_at)
        if at > now:
            return None, at
        self._in_flight = request
        self._sent = now
        if self._silent_since is None:
            self._silent_since = now
        if isinstance(request, (GrantRequest, GrantReturn)):
            self._number = request.number
            self._ends = min(self._ends, now + nanoseconds(OLD_GRANT_SECONDS))
            for budget in self._budgets:
                budget.shorten(self._ends)
        return request, now

    def _last_request(self, now: int) -> tuple[Request | None, int | None]:
        if not self._client:
            return None, None
        (rows, lost_rows), (nbytes, lost_bytes) = self._last_use or self._use(now)
        grant = 0 if self._grant is None else self._grant.grant
        leave = Leave(
            self._limit, self._client, self._epoch, grant, rows, nbytes, lost_rows, lost_bytes
        )
        self._client = ""
        self._in_flight = leave
        return leave, now

    def _hurry(self) -> None:
        """Ask soon after a change was reported, but not while an answer is on its way, which may predate it."""
        if self._hurried is not None and self._in_flight is None:
            if self._next_ask != _NEVER:
                self._next_ask = min(self._next_ask, self._hurried)
            self._hurried = None

    def _take_in(self, request: Request, reply: Reply, now: int) -> None:
        match reply:
            case Joined():
                self._client, self._epoch, self._number = reply.client, reply.epoch, 0
                self._version, self._news, self._calls = reply.version, None, 0
                self._heartbeat_in = nanoseconds(reply.heartbeat_in)
                self._is_static, self._joined_once, self._before = False, True, ""
                self._drop(now)
                self._take_in(request, reply.answer, now)
            case Grant():
                self._begin(reply, now)
            case RetryLater():
                self._reason = reply.reason
                self._ask_in(reply.retry_in, now)
                self._could_hear = self._could_hear or reply.reason in ("turn", "share")
                if reply.drop:
                    self._held = True
                    self._stop(now)
            case Acknowledged():
                self._heartbeat_in = nanoseconds(reply.heartbeat_in)
                if isinstance(request, GrantReturn):
                    self._drop(now)
                    self._next_ask = now if self._waiting else _NEVER
            case Rejected(rejoin=True):
                self._client = ""
                self._drop(now)
                self._next_ask = now if self._waiting else _NEVER
            case Rejected():
                self._broken = ServiceDeniedError(f"limit {self._limit!r}: {reply.message}")
            case _:
                self._broken = ServiceDeniedError(
                    f"limit {self._limit!r}: an answer that makes no sense"
                )
        self._next_heartbeat = now + self._heartbeat_in if self._client else _NEVER

    def _go_static(self, now: int) -> None:
        """Spend the static share until the coordinator answers; by now it has set aside as much for this client."""
        assert self._static is not None
        self._before, self._client = self._client or self._before, ""
        self._in_flight = None  # an answer that comes late is of a client that is no more
        self._drop(now)
        self._is_static, self._paces, self._ends = True, self._static.paces, _NEVER
        for budget, pace in zip(self._budgets, self._paces, strict=True):
            budget.begin(pace, now, _NEVER, now)
        self._next_ask = now
        self._next_heartbeat = _NEVER
        self._could_hear = False

    def _drop(self, now: int) -> None:
        """Forget the grant, also for reports."""
        self._stop(now)
        self._grant = None
        self._reported = ((0.0, 0.0), (0.0, 0.0))
        for budget in self._budgets:
            budget.forget(*budget.used())

    def _begin(self, grant: Grant, now: int) -> None:
        for budget, (spent, missed) in zip(self._budgets, self._reported, strict=True):
            budget.forget(spent, missed)
        self._reported = ((0.0, 0.0), (0.0, 0.0))
        self._grant, self._last_use = grant, None
        self._held = False
        if self._static is not None:
            self._static = self._static.with_limit(
                grant.limit_rows_per_second, grant.limit_bytes_per_second
            )
        starts_in = nanoseconds(grant.starts_in)
        self._ends = self._sent + starts_in + nanoseconds(grant.lasts)
        self._paces = (grant.rows_per_second, grant.bytes_per_second)
        self._amounts = (grant.rows or 0, grant.nbytes or 0)
        saved = (grant.saved_rows, grant.saved_bytes)
        for budget, pace, saved_units in zip(self._budgets, self._paces, saved, strict=True):
            budget.begin(pace, now + starts_in, self._ends, now, saved_units)
        self._ask_in(grant.ask_in, now)
        self._could_hear = self._could_hear or is_part(grant)
        self._reason = "grant"
        if grant.version >= self._version:
            self._version, self._news = grant.version, None
        elif not self._rescale(now):
            self._hurried = now

    def _rescale(self, now: int) -> bool:
        """Spend the same fraction of the present limit; False when that fraction does not exist."""
        grant, news = self._grant, self._news
        if (
            grant is None
            or news is None
            or now >= self._ends
            or (factors := parts(grant, news)) is None
        ):
            return False
        rows, nbytes = (
            pace if factor == 1 else (pace or 0.0) * factor
            for pace, factor in zip(
                (grant.rows_per_second, grant.bytes_per_second), factors, strict=True
            )
        )
        self._paces = (rows, nbytes)
        self._amounts = (
            max(self._amounts[0], int((grant.rows or 0) * factors[0])),
            max(self._amounts[1], int((grant.nbytes or 0) * factors[1])),
        )
        for budget, pace in zip(self._budgets, self._paces, strict=True):
            budget.change(pace, now)
        self._reason = news.reason or "grant"
        return True

    def _ask_in(self, seconds: float, now: int) -> None:
        self._next_ask = now + nanoseconds(seconds)
        self._could_hear = seconds > NEWS_FROM

    def _stop(self, now: int) -> None:
        self._ends = now
        for budget in self._budgets:
            budget.stop(now)

    def _use(self, now: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return (spent, missed) of rows and of bytes, each at most the grant."""
        used = []
        amounts = (0, 0) if self._grant is None else self._amounts
        for budget, amount in zip(self._budgets, amounts, strict=True):
            budget.advance(now)
            spent, missed = budget.used()
            spent = min(spent, float(amount))
            used.append((spent, min(missed, amount - spent)))
        return used[0], used[1]

    def _why(self, now: int) -> str:
        head = next(iter(self._waiting), None)
        return "" if head is None else self._wait(head, now).reason

    def _wait(self, payment: "_LeasePayment", now: int) -> Wait:
        longest, reason = 0, ""
        for name, budget, share in zip(
            ("rows", "bytes"), self._budgets, payment.shares, strict=True
        ):
            wait = budget.wait(share, now)
            if wait is None:
                return Wait(self._timeout / NANOS, self._reason)
            if wait > longest:
                longest, reason = wait, "static" if self._is_static else name
        return Wait(longest / NANOS, reason)

    def _remaining(self, payment: "_LeasePayment") -> Wait:
        with self._changed:
            if payment not in self._waiting:
                return _PAID
            now = self._now()
            wait = self._wait(payment, now)
            if wait.seconds:
                self._time_out(now)
                if self._is_static and wait.reason != "static":
                    return self._wait(payment, now)
                if self._broken is not None and now >= self._ends:
                    raise self._broken
                return wait
            for budget, share in zip(self._budgets, payment.shares, strict=True):
                budget.settle(share)
            self._leave(payment, now)
            return _PAID

    def _cancel(self, payment: "_LeasePayment") -> None:
        with self._changed:
            if payment in self._waiting:
                now = self._now()
                for budget, share in zip(self._budgets, payment.shares, strict=True):
                    budget.cancel(share, now)
                self._leave(payment, now)

    def _leave(self, payment: "_LeasePayment", now: int) -> None:
        del self._waiting[payment]
        if not self._waiting:
            self._idle_since = now
            self._changed.notify_all()

    def _time_out(self, now: int) -> None:
        since = min(self._next_ask, now) if self._silent_since is None else self._silent_since
        silent = now - since
        timeout = self._timeout
        if self._static is not None and not self._joined_once:
            timeout = min(timeout, nanoseconds(FIRST_ANSWER_SECONDS))
        if self._broken is not None or self._is_static or silent < timeout:
            return
        if self._static is not None and not self._held:
            self._go_static(now)
        else:
            cause = f": {self._last_error}" if self._last_error is not None else ""
            self._broken = ServiceUnavailableError(
                f"the service that keeps limit {self._limit!r} has not answered for {silent / NANOS:.0f} s"
                f"{cause}. The work stops rather than run unlimited{self._advice and f'. {self._advice}'}"
            )

    def _now(self) -> int:
        return nanoseconds(self._clock.now())


class _LeasePayment:
    """A payment's shares of both flows, at the same position in both queues."""

    __slots__ = ("_limiter", "shares", "wake")

    def __init__(
        self,
        limiter: LeaseLimiter,
        shares: tuple[PaymentShare, PaymentShare],
        wake: Callable[[], None],
    ) -> None:
        self._limiter = limiter
        self.shares = shares
        self.wake = wake

    def remaining(self) -> Wait:
        return self._limiter._remaining(self)  # noqa: SLF001 - one unit with its limiter

    def cancel(self) -> None:
        self._limiter._cancel(self)  # noqa: SLF001 - one unit with its limiter


def _slice(pace: float | None) -> int | None:
    return None if pace is None else max(1, int(pace * SLICE_SECONDS))
