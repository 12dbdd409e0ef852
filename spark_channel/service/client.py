"""`ServiceClient`: what a Spark task holds of the service."""

import logging
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any, Self

from spark_channel.channel.limiter import Limiter
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ServiceUnavailableError
from spark_channel.progress import Counters, JobSpec
from spark_channel.service.address import ServiceAddress
from spark_channel.service.limit_book import job_limit

if TYPE_CHECKING:
    from spark_channel.service.lease_messenger import LeaseMessenger
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
    connections. Pickles as its arguments; in a forked child it starts anew.

    Counters that are lost never fail a task: a warning is logged, and the next report carries the whole
    again. Grants that are lost do: see `limiter`. `shared_limit` is kept in place of the job's own limit.
    """

    def __init__(
        self,
        address: ServiceAddress,
        job: str,
        spec: JobSpec,
        *,
        shared_limit: SharedLimitAddress | None = None,
        patience: float = 10.0,
    ) -> None:
        self.address = address
        self.job = job
        self.spec = spec
        self.shared_limit = shared_limit
        self.patience = patience
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._name = uuid.uuid4().hex
        self._reporter: Reporter | None = None
        self._messenger: LeaseMessenger | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (self.address, self.job, self.spec, self.shared_limit, self.patience)

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

    def limiter(self, name: str = "") -> Limiter | None:
        """The limit of the job (or the shared one) for this task's channels; None when there is none.

        One per client, whoever asks; `name` is what `limits show` calls this task. A payment raises
        `ServiceUnavailableError` when the service that keeps the limit does not answer for `patience`
        seconds: a grant is still spent, and then the work stops, rather than run unlimited. It raises
        `ServiceDeniedError` when the token is refused.
        """
        self._check_process()
        if self.shared_limit is None and not self.spec.limited:
            return None
        with self._lock:
            if self._messenger is None:
                from spark_channel.service.lease_messenger import LeaseMessenger

                reporter = self._reporting()
                if self.shared_limit is None:
                    limit, service, before = job_limit(self.job), self.address, reporter.introduce
                else:
                    limit, service, before = self.shared_limit.name, self.shared_limit.service, None
                self._messenger = LeaseMessenger(
                    service, limit, self.job, name, before=before, patience=self.patience
                )
            return self._messenger.limiter

    def close(self) -> None:
        """Send the final counters, give back the grant, within 2 s, and end. Again: harmless."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            parts = [each for each in (self._messenger, self._reporter) if each is not None]
        until = SYSTEM_CLOCK.now() + _FLUSH_SECONDS
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
            for part in (self._messenger, self._reporter):
                if part is not None:
                    part.connection.abandon()
            self._begin()

    def _reporting(self) -> "Reporter":
        if self._closed:
            raise ServiceUnavailableError("the client of the service is closed")
        if self._reporter is None:
            from spark_channel.service.reporter import Reporter

            self._reporter = Reporter(self.address, self.job, self._name, self.spec)
        return self._reporter


def _client(
    address: ServiceAddress,
    job: str,
    spec: JobSpec,
    shared_limit: SharedLimitAddress | None,
    patience: float,
) -> ServiceClient:
    return ServiceClient(address, job, spec, shared_limit=shared_limit, patience=patience)
