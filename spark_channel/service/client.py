"""`ServiceClient`: a Spark task's connection to the service, with its counters, limits and permits."""

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from spark_channel.channel.capacity import Limiter
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ServiceUnavailableError
from spark_channel.progress import Counters, JobSpec
from spark_channel.service.connection import failed_recently
from spark_channel.service.protocol import (
    FLUSH_SECONDS,
    GRACE_SECONDS,
    ServiceAddress,
    SharedLimitAddress,
)

if TYPE_CHECKING:
    from spark_channel.connectors.base.health import Health
    from spark_channel.limits import StaticShare
    from spark_channel.service.leases import LeaseClient, PermitLease
    from spark_channel.service.reporter import CounterReporter

__all__ = ["ServiceClient"]


_LEASE_TIMEOUT = 10.0


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
        self, option: str | None = "maxConnections"
    ) -> "AbstractContextManager[PermitLease | None]":
        """One of the job's `max_connections`, held for a `with` block; nothing without such a limit.

        Entering blocks while others hold them all, and raises as `PermitLease.acquire`, as its `option` has it.
        """
        if self.spec.max_connections is None:
            return nullcontext()
        from spark_channel.service.leases import PermitLease
        from spark_channel.service.limits import job_limit

        self._check_process()
        with self._lock:
            reporter = self._reporting()
        return PermitLease(
            self.address,
            job_limit(self.job),
            before=reporter.introduce,
            timeout=0.0 if option is None and failed_recently(self.address) else self.timeout,
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
        until = SYSTEM_CLOCK.now() + (0.0 if failed_recently(self.address) else FLUSH_SECONDS)
        for part in parts:
            part.begin_close(until)
        for part in parts:
            part.join(max(0.0, until + GRACE_SECONDS - SYSTEM_CLOCK.now()))

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
        from spark_channel.service.leases import LeaseClient

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
