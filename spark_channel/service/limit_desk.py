"""The limits that a service keeps: each job's own, and named ones that several jobs share."""

import hashlib
import re
import threading
from typing import TYPE_CHECKING

from spark_channel.clock import Clock
from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits import (
    Denied,
    LimitBook,
    LimitStatus,
    Pause,
    Reply,
    Request,
    Resume,
    Set,
    decode_request,
    encode,
)
from spark_channel.progress import JobProgress
from spark_channel.service.tokens import SERVICE_SCOPE

if TYPE_CHECKING:
    from spark_channel.service.flight_server import Caller

__all__ = ["LimitDesk", "job_limit", "limit_scope"]

_PLAIN = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
_LONGEST_PART = 100


def job_limit(job: str) -> str:
    """The name of the limit, and of the permits, that are a job's own."""
    if _PLAIN.fullmatch(job):
        return f"job:{job}"
    plain = re.sub(r"[^A-Za-z0-9._:/-]+", "-", job)[:_LONGEST_PART]
    return f"job:{plain}-{hashlib.blake2s(job.encode(), digest_size=6).hexdigest()}"


def limit_scope(name: str) -> str:
    """The scope of a token that may use limit `name`, and nothing else."""
    return f"limit:{name}"


class LimitDesk:
    """A `LimitBook` behind a counter: tokens are checked, jobs' own limits come and go with the jobs.

    A `JobListener`. A token of the service may do everything; one of a limit may spend it and look at it, not
    change it. `book` takes the limits that several jobs share (`add_limit`), and the probes' `press`.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.book = LimitBook(clock=clock)
        self._lock = threading.Lock()
        self._jobs: dict[str, JobProgress] = {}

    def job_opened(self, progress: JobProgress) -> None:
        """Its limit is there before its first client is answered."""
        spec, name = progress.spec, job_limit(progress.job)
        if spec.limited:
            self.book.add_limit(name, spec.rows_per_second, spec.bytes_per_second, per_mark=spec.per_mark)
        if spec.max_connections is not None:
            self.book.add_permits(name, spec.max_connections)
        with self._lock:
            self._jobs[name] = progress

    def job_closed(self, progress: JobProgress) -> None:
        name = job_limit(progress.job)
        self.book.remove(name)
        with self._lock:
            self._jobs.pop(name, None)

    def handle(self, request: Request, scope: str = SERVICE_SCOPE) -> Reply:
        """Carry out a request under a token of `scope`.

        Raises:
            PermissionError: the token is for something else.
            RejoinError: the client is not known (any more).
            ServiceDeniedError, OptionError: the request makes no sense; nothing changed.
        """
        changes = isinstance(request, (Set, Pause, Resume))
        if scope != SERVICE_SCOPE and (changes or scope != limit_scope(request.limit.partition("@")[0])):
            raise PermissionError("this token does not open that limit")
        reply = self.book.handle(request)
        if changes and isinstance(reply, LimitStatus):
            self._show(request.limit, reply)
        return reply

    def endpoint(self, body: bytes, caller: "Caller") -> bytes:
        """`handle` for bytes from outside; what is refused is answered with `Denied`."""
        try:
            reply = self.handle(decode_request(body), caller.scope)
        except RejoinError as error:
            reply = Denied(str(error), rejoin=True)
        except (ServiceDeniedError, OptionError) as error:
            reply = Denied(str(error))
        return encode(reply)

    def _show(self, name: str, status: LimitStatus) -> None:
        """A job's progress line shows the limit that holds now."""
        with self._lock:
            progress = self._jobs.get(name)
        if progress is not None:
            note = "paused" if status.paused else status.pressure
            progress.set_limits(_whole(status.rows_per_second), _whole(status.bytes_per_second), note)


def _whole(rate: float | None) -> int | None:
    return None if rate is None else max(1, round(rate))
