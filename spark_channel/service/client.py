"""`ServiceClient`: a Spark task's connection to the service, with its counters, limits and permits."""

import os
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from spark_channel.channel.capacity import Limiter
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import (
    ChannelError,
    LimitError,
    ServiceDeniedError,
    ServiceUnavailableError,
)
from spark_channel.limits import (
    LeaseLimiter,
    Leave,
    LimitChanged,
    Permit,
    PermitRequest,
    PermitReturn,
    Rejected,
    Reply,
    Request,
    RetryLater,
    StaticShare,
    Subscribe,
    decode_reply,
    encode,
)
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters, JobSpec
from spark_channel.service.connection import (
    Connection,
    failed_recently,
    note_reached,
    note_unreached,
)
from spark_channel.service.protocol import LISTEN_SECONDS, ServiceAddress

if TYPE_CHECKING:
    from spark_channel.connectors.base.health import Health
    from spark_channel.service.reporter import CounterReporter

__all__ = [
    "PermitLease",
    "ServiceClient",
    "SharedLimitAddress",
    "leased",
]


_log = log_of(__name__)

_FLUSH_SECONDS = 2.0
_LEASE_TIMEOUT = 10.0
_GRACE_SECONDS = 0.5


class SharedLimitAddress:
    """Where a shared limit is kept, and its name there. Plain data."""

    __slots__ = ("name", "service")

    def __init__(self, service: ServiceAddress, name: str) -> None:
        self.service = service
        self.name = name

    def __repr__(self) -> str:
        return f"SharedLimitAddress({self.service}, {self.name!r})"


class ServiceClient:
    """Reports the counters of one Spark task, and fetches its grants, in the background.

    Nothing connects before the first `counters()` or `limiter()`. `close` (or the end of `with`) sends
    the final counters, gives back what is left of a grant, waits at most 2 s for both, and ends threads and
    connections. Pickles as its arguments; in a forked child it starts over.

    Counters that are lost never fail a task: a warning is logged, and the next report carries the whole
    again. Grants that are lost do: see `limiter`. `shared_limit` holds beside the job's own limit. `static` is what
    this task keeps of the job's own limit where the service is out of reach.
    """

    def __init__(
        self,
        address: ServiceAddress,
        job: str,
        spec: JobSpec,
        *,
        shared_limit: SharedLimitAddress | None = None,
        timeout: float = _LEASE_TIMEOUT,
        static: "StaticShare | None" = None,
    ) -> None:
        self.address = address
        self.job = job
        self.spec = spec
        self.shared_limit = shared_limit
        self.timeout = timeout
        self.static = static
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._name = uuid.uuid4().hex
        self._reporter: CounterReporter | None = None
        self._messengers: dict[tuple[ServiceAddress, str], LeaseClient] = {}
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (
            self.address,
            self.job,
            self.spec,
            self.shared_limit,
            self.timeout,
            self.static,
        )

    def __repr__(self) -> str:
        return f"ServiceClient({self.address}, job={self.job!r})"

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        opening: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
        execution: str = "",
    ) -> Counters:
        """New counters, reported every half second from now on. See `progress.Snapshot` for the names."""
        self._check_process()
        with self._lock:
            counters = Counters(
                task,
                attempt,
                scan=scan,
                opening=opening,
                rows_expected=rows_expected,
                bytes_expected=bytes_expected,
                execution=execution,
            )
            self._reporting().add(counters)
        return counters

    def limiter(self, name: str = "", *, mark: str | None = None) -> Limiter | None:
        """Return the limiter of this task's channels: the job's limit, the shared one, or both; None without a limit.

        One per client and mark, whoever asks; `name` is what `limits show` calls this task, `mark` the
        resource that it loads, for a limit that holds `per_mark`. A payment raises
        `ServiceUnavailableError` when the service that keeps the limit does not answer for `timeout`
        seconds: a grant is still spent, and then the work stops, rather than run unlimited. It raises
        `ServiceDeniedError` when the token is refused.
        """
        if not self.spec.limited and self.shared_limit is None:
            return None
        from spark_channel.limits import CombinedLimiter, marked
        from spark_channel.service.limits import job_limit

        self._check_process()
        limits: list[tuple[ServiceAddress, str]] = []
        if self.spec.limited:
            own_limit = job_limit(self.job)
            limits.append(
                (self.address, marked(own_limit, mark) if self.spec.per_mark else own_limit)
            )
        if self.shared_limit is not None:
            shared = self.shared_limit.name
            limits.append(
                (self.shared_limit.service, marked(shared, mark) if self.spec.per_mark else shared)
            )
        with self._lock:
            limiters = [self._leased(service, limit, name).limiter for service, limit in limits]
        if len(limiters) > 1:
            return CombinedLimiter(limiters)
        return limiters[0]

    def watch_health(self, healths: "Mapping[str, Callable[[], Health | None]]") -> None:
        """Sample the health of source and target, by side, while this task is the one that the service chose for it."""
        self._check_process()
        with self._lock:
            self._reporting().healths = healths

    @property
    def is_static(self) -> bool:
        """Whether the task spends its static share of the limit."""
        with self._lock:
            return any(messenger.limiter.is_static for messenger in self._messengers.values())

    def permit(
        self, option: str = "maxConnections"
    ) -> "AbstractContextManager[PermitLease | None]":
        """One of the job's `max_connections`, held for a `with` block; nothing without such a limit.

        Entering blocks while others hold them all, and raises as `PermitLease.acquire`.
        """
        if self.spec.max_connections is None:
            return nullcontext()
        from spark_channel.service.limits import job_limit

        self._check_process()
        with self._lock:
            reporter = self._reporting()
        return PermitLease(
            self.address,
            job_limit(self.job),
            before=reporter.introduce,
            timeout=self.timeout,
            option=option,
        )

    @property
    def stop_reason(self) -> str:
        """Why the whole job should stop (too many rows were refused), as of the last report; or empty."""
        reporter = self._reporter
        return reporter.stop_reason if reporter is not None else ""

    @property
    def failure(self) -> str:
        """The error of another task that this one would meet, too, as of the last report; or empty."""
        reporter = self._reporter
        return reporter.failure if reporter is not None else ""

    def introduce(self, timeout: float = 2.0) -> None:
        """Ask the service now, so that `stop_reason` is not stale.

        Raises:
            ServiceUnavailableError, ServiceDeniedError: it does not answer, or refuses.
        """
        self._check_process()
        with self._lock:
            reporter = self._reporting()
        reporter.introduce(timeout)

    def close(self) -> None:
        """Send the final counters, give back the grant, within 2 s, and end. Calling it again has no effect."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            parts: list[LeaseClient | CounterReporter] = [*self._messengers.values()]
            if self._reporter is not None:
                parts.append(self._reporter)
        # A service that was never reached must not delay the end of each task.
        until = SYSTEM_CLOCK.now() + (0.0 if failed_recently(self.address) else _FLUSH_SECONDS)
        for part in parts:
            part.begin_close(until)
        for part in parts:
            part.join(max(0.0, until + _GRACE_SECONDS - SYSTEM_CLOCK.now()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            for messenger in self._messengers.values():
                messenger.connection.abandon()
            if self._reporter is not None:
                self._reporter.connection.abandon()
                if self._reporter.watch is not None:
                    self._reporter.watch.connection.abandon()
            self._begin()

    def _leased(self, service: ServiceAddress, limit: str, name: str) -> "LeaseClient":
        key = (service, limit)
        if key not in self._messengers:
            before = self._reporting().introduce if service is self.address else None
            self._messengers[key] = LeaseClient(
                service,
                limit,
                self.job,
                name,
                before=before,
                timeout=self.timeout,
                # a shared limit is spent by jobs that know nothing of each other's tasks
                static=self.static if service is self.address else None,
            )
        return self._messengers[key]

    def _reporting(self) -> "CounterReporter":
        if self._closed:
            raise ServiceUnavailableError("the client of the service is closed")
        if self._reporter is None:
            from spark_channel.service.reporter import CounterReporter, LimitSubscription

            shared = self.shared_limit
            watch = None if shared is None else LimitSubscription(shared.service, shared.name)
            self._reporter = CounterReporter(self.address, self.job, self._name, self.spec, watch)
        return self._reporter


def _client(
    address: ServiceAddress,
    job: str,
    spec: JobSpec,
    shared_limit: SharedLimitAddress | None,
    timeout: float,
    static: "StaticShare | None",
) -> ServiceClient:
    return ServiceClient(
        address, job, spec, shared_limit=shared_limit, timeout=timeout, static=static
    )


_TIMEOUT = 2.0
_LISTEN_AGAIN = 2.0


@contextmanager
def leased(
    find: Callable[[], SharedLimitAddress], job: str, name: str, timeout: float
) -> Iterator[LeaseLimiter]:
    """What spends a shared limit in a `with` block, for work that goes on when the limit is served again.

    `find` returns where it is, now and after each failure: a limit that is served again may have another port.
    A payment raises `ServiceUnavailableError` when the limit has not answered for `timeout` seconds, 2 at least.
    """
    limit = find()
    client = LeaseClient(
        limit.service,
        limit.name,
        job,
        name,
        before=None,
        timeout=max(timeout, _TIMEOUT),
        find=find,
    )
    try:
        yield client.limiter
    finally:
        client.begin_close(SYSTEM_CLOCK.now() + _FLUSH_SECONDS)
        client.join(_FLUSH_SECONDS + _GRACE_SECONDS)


def _advice(limit: str, address: ServiceAddress) -> str:
    """What to do about a limit whose service has ended."""
    from spark_channel.service.limits import is_of_job

    if is_of_job(limit):
        return (
            "Option limitFallback is 'fail', or it is not known how many tasks run at once: look at the network from "
            "the executors to the driver's host, or set rowsPerSecondPerTask or bytesPerSecondPerTask, which need no "
            "service"
        )
    return (
        f"If it has ended, start it again (`spark-channel limits serve {limit}` with its speed); else look at the "
        f"network to {address.host}:{address.port}. Then run the job again"
    )


class LeaseClient:
    """Fetches grants for `limiter` until `begin_close`, which gives back the rest of the last one.

    Where so many share the limit that asks are far apart, a second thread listens for changes; it ends when
    the service has received the end, or after a minute when it does not answer.

    `before(timeout)` is called before the first message, and again after a failure, until it succeeds.
    """

    def __init__(
        self,
        address: ServiceAddress,
        limit: str,
        job: str,
        name: str,
        *,
        before: Callable[[float], None] | None,
        timeout: float,
        static: StaticShare | None = None,
        find: Callable[[], SharedLimitAddress] | None = None,
    ) -> None:
        self.connection = Connection(address)
        self.limiter = LeaseLimiter(
            limit,
            job,
            name,
            timeout=timeout,
            static=static,
            begins_static=failed_recently(address),
            advice=_advice(limit, address),
        )
        self._static, self._limit, self._find = static, limit, find
        self._has_warned = False
        self._before = self._introduce = before
        self._request_timeout = min(_TIMEOUT, timeout / 2)
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="spark-channel-lease", daemon=True)
        self._thread.start()

    def begin_close(self, until: float) -> None:
        """End the payments. The thread ends when the service knows, or cannot be reached."""
        del until  # one message, which has its own bound
        self._ended.set()
        self.limiter.close()

    def join(self, timeout: float) -> None:
        """Wait until the service knows of the end; not for one that has not answered the last request."""
        if self.limiter.is_silent:
            return
        end = SYSTEM_CLOCK.now() + timeout
        self._thread.join(timeout)
        if self._listener is not None and not self._thread.is_alive():
            self._listener.join(max(0.0, end - SYSTEM_CLOCK.now()))

    def _run(self) -> None:
        try:
            while (request := self.limiter.next_request()) is not None:
                if not self._carry(request) or isinstance(request, Leave):
                    return
        except Exception as error:
            _log.exception("the messenger of a limit failed")
            self.limiter.fail(LimitError(f"the limit cannot be kept: {error}"))
        finally:
            self.connection.close()

    def _carry(self, request: Request) -> bool:
        """Return False when the service does not expect this client, so that no `Leave` is needed."""
        try:
            reply = self._ask(request)
        except ServiceUnavailableError as error:
            self._before = self._introduce  # the service may have forgotten the job meanwhile
            self.limiter.failed(request, error)
            self._warn_static(error)
            self._look_again(error)
        except ServiceDeniedError as error:
            self.limiter.fail(error)
            return False
        else:
            self.limiter.receive(request, reply)
            note_reached(self.connection.address)
            self._listen_if_seldom()
            self._has_warned &= self._find is None
        return True

    def _look_again(self, error: ServiceUnavailableError) -> None:
        if self._find is None:
            return
        with suppress(ChannelError):  # it is not served now
            service = self._find().service
            if service != self.connection.address:
                self.connection.close()
                self.connection = Connection(service)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the service that keeps limit %r does not answer, and the work waits for it: %s. %s",
                self._limit,
                error,
                _advice(self._limit, self.connection.address),
            )

    def _warn_static(self, error: ServiceUnavailableError) -> None:
        if self._static is None or not self.limiter.is_static:
            return
        note_unreached(self.connection.address)
        if not self._has_warned:
            self._has_warned = True
            rows, nbytes = self._static.paces
            speeds = [f"{rows:,.1f} rows/s"] if rows is not None else []
            speeds += [f"{nbytes:,.0f} bytes/s"] if nbytes is not None else []
            _log.warning(
                "static limit: this task keeps %s, 1/%d of the job's limit, since the service is out of reach: %s",
                " and ".join(speeds),
                self._static.tasks,
                error,
            )

    def _listen_if_seldom(self) -> None:
        listens = self._listener is not None and self._listener.is_alive()
        if not listens and self.limiter.listen() is not None:
            self._listener = threading.Thread(
                target=self._listen, name="spark-channel-listen", daemon=True
            )
            self._listener.start()

    def _listen(self) -> None:
        with Connection(self.connection.address) as connection:
            while not self._ended.is_set() and (request := self.limiter.listen()) is not None:
                if again_in := self._hear(connection, request):
                    self._ended.wait(again_in)

    def _hear(self, connection: Connection, request: Subscribe) -> float:
        """Return the seconds until the next attempt to listen."""
        timeout = LISTEN_SECONDS + self._request_timeout
        try:
            for data in connection.stream("listen", encode(request), timeout=timeout):
                answer = decode_reply(data)
                if isinstance(answer, (LimitChanged, Rejected)):
                    self.limiter.limit_changed(request, answer)
                if isinstance(answer, LimitChanged) and answer.again_in is not None:
                    return answer.again_in
        except (ServiceUnavailableError, ServiceDeniedError):
            pass  # the messenger meets the same trouble, and decides what it means
        return _LISTEN_AGAIN

    def _ask(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(self._request_timeout)
            self._before = None
        return decode_reply(
            self.connection.send("coordinator", encode(request), timeout=self._request_timeout)
        )


_RETRY = 0.5


class PermitLease:
    """Waits in the queue for a permit, renews it in a thread, and gives it back at the end.

    `acquire` blocks for it: first come, first served, for as long as others hold them all; `cancel`, from any
    thread, ends that wait. The service takes back the permit of a process that is silent for 30 s.
    `before(timeout)` is called until it succeeds, before the first message.
    """

    def __init__(
        self,
        address: ServiceAddress,
        permits: str,
        *,
        before: Callable[[float], None] | None = None,
        timeout: float = 10.0,
        option: str = "maxConnections",
    ) -> None:
        self._connection = Connection(address)
        self._permits = permits
        self._before = before
        self._timeout = timeout
        self._option = option
        self._holder = secrets.token_hex(16)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Block until the service grants the permit.

        Raises:
            ServiceUnavailableError: the service did not answer for `timeout` seconds.
            ServiceDeniedError: it refused.
            LimitError: `cancel` was called.
        """
        try:
            self._acquire()
        except BaseException:
            self._connection.close()
            raise

    def _acquire(self) -> None:
        heard = SYSTEM_CLOCK.now()
        while not self._ended.is_set():
            try:
                reply = self._send(PermitRequest(self._permits, self._holder))
            except ServiceUnavailableError as error:
                if SYSTEM_CLOCK.now() - heard >= self._timeout:
                    raise ServiceUnavailableError(
                        f"option {self._option!r}: no answer from the service that counts connections "
                        f"for {self._timeout:g} s: {error}. The task stopped, since it could open one connection too "
                        f"many. Open the service's port from the executors to the driver; or omit {self._option!r}, "
                        "and limit the tasks with df.coalesce(n) or spark.cores.max"
                    ) from None
                self._ended.wait(_RETRY)
                continue
            heard = SYSTEM_CLOCK.now()
            match reply:
                case Permit():
                    self._thread = threading.Thread(
                        target=self._renew,
                        args=(reply.renew_in,),
                        name="spark-channel-permit",
                        daemon=True,
                    )
                    self._thread.start()
                    return
                case RetryLater():
                    self._ended.wait(max(0.01, reply.retry_in))
                case _:
                    raise ServiceDeniedError(
                        f"permits {self._permits!r}: {getattr(reply, 'message', reply)}"
                    )
        raise LimitError("the wait for a connection's permit was cancelled")

    def cancel(self) -> None:
        """End the wait in `acquire`; without one, this has no effect."""
        self._ended.set()

    def release(self) -> None:
        """Give back the permit, or the place in the queue, within 2 s. Calling it again has no effect."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_TIMEOUT + _RETRY)
        try:
            self._send(PermitReturn(self._permits, self._holder))
        except LimitError as error:
            _log.warning("a connection's permit is available to others only after 30 s: %s", error)
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        try:
            self.acquire()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _renew(self, renew_in: float) -> None:
        pause = renew_in / 2
        while not self._ended.wait(pause):
            try:
                self._send(PermitRequest(self._permits, self._holder))
                pause = renew_in / 2
            except LimitError as error:
                _log.warning("a connection's permit could not be renewed: %s", error)
                pause = _RETRY

    def _send(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(_TIMEOUT)
            self._before = None
        return decode_reply(self._connection.send("coordinator", encode(request), timeout=_TIMEOUT))
