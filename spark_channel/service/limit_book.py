"""The limits that a service keeps: a job's own, and named ones that several jobs share."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import LimitError, OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits.coordinator import Coordinator
from spark_channel.limits.messages import Denied, LimitStatus, Pause, Reply, Request, Resume, Set, Status
from spark_channel.limits.wire import decode_request, encode
from spark_channel.progress import JobProgress, JobSpec
from spark_channel.service.tokens import SERVICE_SCOPE

if TYPE_CHECKING:
    from spark_channel.service.flight_server import Caller

__all__ = ["LimitBook", "job_limit", "limit_scope"]

_JOB = "job:"


def job_limit(job: str) -> str:
    """The name of the limit that is a job's own."""
    return _JOB + job


def limit_scope(name: str) -> str:
    """The scope of a token that may use limit `name`, and nothing else."""
    return f"limit:{name}"


class LimitBook:
    """Finds the coordinator that a request is for, and lets only those in whose token fits. Thread-safe.

    The limit of a job (`job_limit`) is there while the job is, with the speeds of its spec. A token of
    the service may do everything; one of a limit may spend it and look at it, not change it.
    """

    def __init__(self, find_job: Callable[[str], JobProgress], *, clock: Clock | None = None) -> None:
        self._find_job = find_job
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._limits: dict[str, Coordinator] = {}

    def add(
        self,
        name: str,
        rows_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        predecessor_seconds: float = 0.0,
    ) -> Coordinator:
        """Keep a limit under `name`.

        Raises:
            OptionError: the name is taken, or a speed makes no sense.
        """
        coordinator = Coordinator(
            name,
            rows_per_second,
            bytes_per_second,
            clock=self._clock,
            predecessor_seconds=predecessor_seconds,
        )
        with self._lock:
            if name in self._limits:
                raise OptionError(
                    f"a limit {name!r} is kept here already",
                    option="sharedLimit",
                    got=name,
                    takes="a new name",
                )
            self._limits[name] = coordinator
        return coordinator

    def remove(self, name: str) -> None:
        """Forget a limit; its clients are refused from now on."""
        with self._lock:
            self._limits.pop(name, None)

    def find(self, name: str) -> Coordinator:
        """The coordinator of a limit.

        Raises:
            LimitError: there is none of this name.
        """
        with self._lock:
            found = self._limits.get(name)
        if found is None and name.startswith(_JOB):
            found = self._of_job(name)
        if found is None:
            raise LimitError(f"no limit {name[:200]!r} is kept here")
        return found

    def _of_job(self, name: str) -> Coordinator | None:
        # The book of jobs tells this one of a job's end under its own lock: so it is asked without ours.
        spec = self._spec(name)
        if spec is None or not spec.limited:
            return None
        with self._lock:
            found = self._limits.setdefault(
                name, Coordinator(name, spec.rows_per_second, spec.bytes_per_second, clock=self._clock)
            )
        if self._spec(name) is None:
            self.remove(name)
        return found

    def _spec(self, name: str) -> JobSpec | None:
        try:
            return self._find_job(name.removeprefix(_JOB)).spec
        except KeyError:
            return None

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._limits)

    def status(self) -> list[LimitStatus]:
        """All limits, as they are now."""
        with self._lock:
            coordinators = list(self._limits.values())
        found = [each.handle(Status(each.limit)) for each in coordinators]
        return [each for each in found if isinstance(each, LimitStatus)]

    def handle(self, request: Request, scope: str = SERVICE_SCOPE) -> Reply:
        """Carry out a request under a token of `scope`.

        Raises:
            PermissionError: the token is for something else.
            RejoinError: the client is not known (any more).
            ServiceDeniedError, OptionError, LimitError: the request makes no sense; nothing changed.
        """
        changes = isinstance(request, (Set, Pause, Resume))
        if scope != SERVICE_SCOPE and (changes or scope != limit_scope(request.limit)):
            raise PermissionError("this token does not open that limit")
        reply = self.find(request.limit).handle(request)
        if changes and isinstance(reply, LimitStatus):
            self._show(request.limit, reply)
        return reply

    def endpoint(self, body: bytes, caller: "Caller") -> bytes:
        """`handle` for bytes from outside; what is refused is answered with `Denied`."""
        try:
            reply = self.handle(decode_request(body), caller.scope)
        except RejoinError as error:
            reply = Denied(str(error), rejoin=True)
        except (ServiceDeniedError, OptionError, LimitError) as error:
            reply = Denied(str(error))
        return encode(reply)

    def _show(self, name: str, status: LimitStatus) -> None:
        """A job's progress line shows the limit that holds now."""
        if not name.startswith(_JOB):
            return
        try:
            progress = self._find_job(name.removeprefix(_JOB))
        except KeyError:
            return
        rows, nbytes = status.rows_per_second, status.bytes_per_second
        note = "paused" if status.paused else status.pressure
        progress.set_limits(_whole(rows), _whole(nbytes), note)


def _whole(rate: float | None) -> int | None:
    return None if rate is None else max(1, round(rate))
