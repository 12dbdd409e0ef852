"""`ServiceClient`: a Spark task's connection to the service."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from spark_channel.channel.limiter import Limiter
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ServiceUnavailableError
from spark_channel.progress import Counters, JobSpec
from spark_channel.service.address import ServiceAddress
from spark_channel.service.unreached import was_unreached

if TYPE_CHECKING:
    from spark_channel.connectors.health import Health
    from spark_channel.limits import StaticShare
    from spark_channel.service.lease_messenger import LeaseMessenger
    from spark_channel.service.permit_holder import PermitHolder
    from spark_channel.service.reporter import Reporter

__all__ = ["ServiceClient", "SharedLimitAddress"]

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 2.0
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
        timeout: float = 10.0,
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
        self._reporter: Reporter | None = None
        self._messengers: dict[tuple[ServiceAddress, str], LeaseMessenger] = {}
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (self.address, self.job, self.spec, self.shared_limit, self.timeout, self.static)

    def __repr__(self) -> str:
        return f"ServiceClient({self.address}, job={self.job!r})"

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
    ) -> Counters:
        """New counters, reported every half second from now on. See `progress.Snapshot` for the names."""
        self._check_process()
        with self._lock:
            counters = Counters(
                task, attempt, scan=scan, rows_expected=rows_expected, bytes_expected=bytes_expected
            )
            self._reporting().add(counters)
        return counters

    def limiter(self, name: str = "", *, mark: str | None = None) -> Limiter | None:
        """What this task's channels pay: the job's limit, the shared one, or both; None when there is none.

        One per client and mark, whoever asks; `name` is what `limits show` calls this task, `mark` the
        resource that it loads, for a limit that holds `per_mark`. A payment raises
        `ServiceUnavailableError` when the service that keeps the limit does not answer for `timeout`
        seconds: a grant is still spent, and then the work stops, rather than run unlimited. It raises
        `ServiceDeniedError` when the token is refused.
        """
        if not self.spec.limited and self.shared_limit is None:
            return None
        from spark_channel.limits import AllOf, marked
        from spark_channel.service.limit_desk import job_limit

        self._check_process()
        limits: list[tuple[ServiceAddress, str]] = []
        if self.spec.limited:
            own = job_limit(self.job)
            limits.append((self.address, marked(own, mark) if self.spec.per_mark else own))
        if self.shared_limit is not None:
            shared = self.shared_limit.name
            limits.append((self.shared_limit.service, marked(shared, mark) if self.spec.per_mark else shared))
        with self._lock:
            found = [self._leased(service, limit, name).limiter for service, limit in limits]
        if len(found) > 1:
            return AllOf(found)
        return found[0]

    def watch_health(self, healths: "Mapping[str, Callable[[], Health | None]]") -> None:
        """Of one task of the job at a time, as the service says: sample source and target, by side, while it runs."""
        self._check_process()
        with self._lock:
            self._reporting().healths = healths

    @property
    def is_static(self) -> bool:
        """Whether the task spends its static share of the limit."""
        with self._lock:
            return any(each.limiter.is_static for each in self._messengers.values())

    def permit(self, option: str = "maxConnections") -> "AbstractContextManager[PermitHolder | None]":
        """One of the job's `max_connections`, held for a `with` block; nothing without such a limit.

        Entering blocks while others hold them all, and raises as `PermitHolder.acquire`.
        """
        if self.spec.max_connections is None:
            return nullcontext()
        from spark_channel.service.limit_desk import job_limit
        from spark_channel.service.permit_holder import PermitHolder

        self._check_process()
        with self._lock:
            reporter = self._reporting()
        return PermitHolder(
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

    def introduce(self, timeout: float = 2.0) -> None:
        """Hear from the service now, so that `stop_reason` is not stale.

        Raises:
            ServiceUnavailableError, ServiceDeniedError: it does not answer, or refuses.
        """
        self._check_process()
        with self._lock:
            reporter = self._reporting()
        reporter.introduce(timeout)

    def close(self) -> None:
        """Send the final counters, give back the grant, within 2 s, and end. Again: harmless."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            parts: list[LeaseMessenger | Reporter] = [*self._messengers.values()]
            if self._reporter is not None:
                parts.append(self._reporter)
        # What was out of reach all the time is not waited for at the end of each task.
        until = SYSTEM_CLOCK.now() + (0.0 if was_unreached(self.address) else _FLUSH_SECONDS)
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

    def _leased(self, service: ServiceAddress, limit: str, name: str) -> "LeaseMessenger":
        key = (service, limit)
        if key not in self._messengers:
            from spark_channel.service.lease_messenger import LeaseMessenger

            before = self._reporting().introduce if service is self.address else None
            self._messengers[key] = LeaseMessenger(
                service, limit, self.job, name, before=before, timeout=self.timeout,
                # a shared limit is spent by jobs that know nothing of each other's tasks
                static=self.static if service is self.address else None,
            )  # fmt: skip
        return self._messengers[key]

    def _reporting(self) -> "Reporter":
        if self._closed:
            raise ServiceUnavailableError("the client of the service is closed")
        if self._reporter is None:
            from spark_channel.service.limit_watch import LimitWatch
            from spark_channel.service.reporter import Reporter

            shared = self.shared_limit
            watch = None if shared is None else LimitWatch(shared.service, shared.name)
            self._reporter = Reporter(self.address, self.job, self._name, self.spec, watch)
        return self._reporter


def _client(
    address: ServiceAddress,
    job: str,
    spec: JobSpec,
    shared_limit: SharedLimitAddress | None,
    timeout: float,
    static: "StaticShare | None",
) -> ServiceClient:
    return ServiceClient(address, job, spec, shared_limit=shared_limit, timeout=timeout, static=static)
