"""The limits that a service keeps: each job's own, shared ones by name, and `protect`, which sets their speed."""

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from spark_channel import limits
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.progress import JobProgress
from spark_channel.service.protocol import (
    LISTEN_SECONDS,
    SERVICE_SCOPE,
    Subscriptions,
    owns_jobs,
)

if TYPE_CHECKING:
    from spark_channel.limits import (
        HealthSample,
        LimitRegistry,
        LimitStatus,
        Pause,
        Reply,
        Request,
        Resume,
        SetRates,
        Subscribe,
    )
    from spark_channel.service.http_server import Caller
    from spark_channel.service.protection import NewLimit, ProtectionController

__all__ = [
    "LimitService",
    "job_limit",
    "limit_scope",
]


_PLAIN = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
_LONGEST_PART = 100
_JOB = "job:"
_Given = TypeVar("_Given")
_SPARE = 1.25
"""A bound is recorded with this margin, so that not each new client causes a write."""


def job_limit(job: str) -> str:
    """The name of the limit, and of the permits, that are a job's own."""
    if _PLAIN.fullmatch(job):
        return f"{_JOB}{job}"
    plain = re.sub(r"[^A-Za-z0-9._:/-]+", "-", job)[:_LONGEST_PART]
    return f"{_JOB}{plain}-{hashlib.blake2s(job.encode(), digest_size=6).hexdigest()}"


def is_of_job(limit: str) -> bool:
    """Whether a limit is a job's own."""
    return limit.startswith(_JOB)


def limit_scope(name: str) -> str:
    """The scope of a token that may use limit `name`, and nothing else."""
    return f"limit:{name}"


class LimitService:
    """A `LimitRegistry` with access control: checks tokens, and adds and removes each job's own limit with the job.

    A `JobListener`. A token of the service may do everything; one of a limit may spend it and look at it, not
    change it; one for the jobs of a client may do everything with their own limits, which `check_owner` tells. `book`
    takes the limits that several jobs share (`add_limit`). A `Listen` call waits for changes in the thread that
    carries it; `end` wakes all of them.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        check_owner: Callable[[str, str], None] = lambda _job, _owner: None,
    ) -> None:
        self._check_owner = check_owner
        self._subscriptions = Subscriptions()
        self._book: LimitRegistry | None = None
        self._book_lock = threading.Lock()
        self._on_longer: Callable[[float], None] | None = None
        self._longest = 0.0
        self._lock = threading.Lock()
        self._clock = clock
        self._jobs: dict[str, JobProgress] = {}
        self._protectors: dict[str, ProtectionController] = {}
        self._builds: dict[str, tuple[str, str]] = {}
        """By the limit of a job that builds an index: the run that it is a part of, and which index."""

    @property
    def book(self) -> "LimitRegistry":
        """Made on its first use: most jobs of the command line have no limit."""
        with self._book_lock:
            if self._book is None:
                self._book = limits.LimitRegistry(
                    clock=self._clock, on_call=self._subscriptions.notify
                )
            return self._book

    def names(self) -> tuple[str, ...]:
        """The names of all limits."""
        return () if self._book is None else self._book.names()

    def job_opened(self, progress: JobProgress) -> None:
        """Add the job's limit before its first client gets an answer."""
        spec, name = progress.spec, job_limit(progress.job)
        with self._lock:
            self._jobs[name] = progress
        if spec.limited:
            self.book.add_limit(
                name,
                spec.rows_per_second,
                spec.bytes_per_second,
                per_mark=spec.per_mark,
                static_tasks=None if spec.per_mark else spec.static_tasks,
                at_once=spec.at_once,
                on_absent=progress.keep_limit,
            )
        if spec.max_connections is not None:
            self.book.add_permits(name, spec.max_connections)
        if spec.protected:
            from spark_channel.service.protection import ProtectionController

            protector = ProtectionController(
                progress, name, self.book, self._subscriptions, self._clock
            )
            with self._lock:
                self._protectors[name] = protector
            self._wait_for_builds(spec.part_of)

    def job_closed(self, progress: JobProgress) -> None:
        name = job_limit(progress.job)
        with self._lock:
            protector = self._protectors.pop(name, None)
        if protector is not None:
            protector.report_held()
        self.build(progress.job, "")
        if self._book is not None:
            self._book.remove(name)
        self._subscriptions.notify(name)
        with self._lock:
            self._jobs.pop(name, None)

    def build(self, job: str, index: str) -> None:
        """Note which index a job builds, "" = none. With `protect`, the other jobs of its run pause meanwhile."""
        name = job_limit(job)
        with self._lock:
            progress = self._jobs.get(name)
            before = self._builds.pop(name, None)
            part_of = progress.spec.part_of if progress is not None else ""
            if index and progress is not None and part_of and progress.spec.protect:
                self._builds[name] = part_of, index
            is_changed = before != self._builds.get(name)
        if is_changed:
            self._wait_for_builds(part_of)

    def _wait_for_builds(self, part_of: str) -> None:
        with self._lock:
            builds = {name: index for name, (run, index) in self._builds.items() if run == part_of}
            others = {
                name: protector
                for name, protector in self._protectors.items()
                if self._jobs[name].spec.part_of == part_of
            }
        for name, protector in others.items():
            protector.wait_for(next((index for job, index in builds.items() if job != name), ""))

    def handle(self, request: "Request", scope: str = SERVICE_SCOPE) -> "Reply":
        """Carry out a request under a token of `scope`.

        Raises:
            PermissionError: the token is for something else.
            RejoinError: the client is not known; it was dropped, or it joined another service.
            ServiceDeniedError, OptionError: the request makes no sense; nothing changed.
        """
        self._check_scope(request, scope)
        if isinstance(request, limits.Subscribe):
            raise ServiceDeniedError("who listens takes the action for it")
        changes = _is_change(request)
        reply = self.book.handle(request)
        self._measure(reply)
        if changes:
            self._subscriptions.notify(request.limit)
        elif isinstance(request, limits.Leave):
            self._subscriptions.notify(request.limit, request.client)
        if changes and isinstance(reply, limits.LimitStatus):
            self._show(request.limit, reply)
        return reply

    def remember_grants(self, seconds: float, on_longer: Callable[[float], None]) -> None:
        """Call `on_longer` with a new bound before a reply has a grant that lives for more than `seconds`."""
        with self._lock:
            self._longest, self._on_longer = seconds, on_longer

    def _measure(self, reply: "Reply") -> None:
        grant = reply.answer if isinstance(reply, limits.Joined) else reply
        if self._on_longer is None or not isinstance(grant, limits.Grant):
            return
        seconds = grant.starts_in + grant.lasts
        if seconds <= self._longest:
            return
        with self._lock:
            if seconds > self._longest:
                bound = _SPARE * seconds
                self._on_longer(bound)
                self._longest = bound

    def observe(self, job: str, side: str, sample: "HealthSample") -> None:
        """Take a health sample of a job's source or target. Has no effect for a job that has ended."""
        with self._lock:
            protector = self._protectors.get(job_limit(job))
        if protector is not None:
            protector.observe(side, sample)

    def signals(self, job: str) -> dict[str, tuple[float, float]]:
        """What the source and the target of a running job reported last; see `ProtectionController.signals`."""
        with self._lock:
            protector = self._protectors.get(job_limit(job))
        return {} if protector is None else protector.signals()

    def shared(self) -> "list[LimitStatus]":
        """The limits that several jobs share: those that are no job's own."""
        statuses = []
        for name in self.names():
            if not name.startswith(_JOB):
                with contextlib.suppress(ServiceDeniedError):  # it was removed just now
                    statuses.append(self.book.handle(limits.StatusRequest(name)))
        return [status for status in statuses if isinstance(status, limits.LimitStatus)]

    def probed(self, name: str, new_limit: "NewLimit") -> "Callable[[HealthSample], None]":
        """Return what takes the samples of a probe, and lowers limit `name` by them."""
        from spark_channel.service.protection import ProbedLimit

        return ProbedLimit(name, self.book, self._subscriptions, new_limit, self._clock).observe

    def end(self) -> None:
        """Wake all waiting calls, since the service ends."""
        self._subscriptions.end()

    def listen(self, request: "Subscribe", scope: str = SERVICE_SCOPE) -> "Iterator[Reply]":
        """Yield the changes of a limit for a minute; nothing after a refusal, or once the service ends.

        Raises:
            PermissionError: the token is for something else.
        """
        self._check_scope(request, scope)
        return self._changes(request)

    def _changes(self, request: "Subscribe") -> "Iterator[Reply]":
        limit, client = request.limit, request.client
        event = self._subscriptions.subscribe(limit, client)
        if event is None:
            reply = _or_denied(self.book.handle, request)
            yield (
                replace(reply, again_in=LISTEN_SECONDS)
                if isinstance(reply, limits.LimitChanged)
                else reply
            )
            return
        try:
            until, last = SYSTEM_CLOCK.now() + LISTEN_SECONDS, (request.version, request.calls)
            while True:
                event.clear()
                if not self._subscriptions.is_subscribed(limit, client, event):
                    return
                reply = _or_denied(self.book.handle, request)
                if not isinstance(reply, limits.LimitChanged):
                    yield reply
                    return
                seconds = until - SYSTEM_CLOCK.now()
                if seconds <= 0:
                    yield replace(reply, again_in=0.0)
                    return
                if (reply.version, reply.calls) != last:
                    last = reply.version, reply.calls
                    yield reply
                event.wait(seconds)
        finally:
            self._subscriptions.unsubscribe(limit, client, event)

    def endpoint(self, body: bytes, caller: "Caller") -> bytes:
        """`handle` for bytes from outside; a refused request is answered with `Rejected`."""
        return limits.encode(
            _or_denied(lambda data: self.handle(limits.decode_request(data), caller.scope), body)
        )

    def listen_endpoint(self, body: bytes, caller: "Caller") -> Iterator[bytes]:
        """`listen` for bytes from outside."""
        try:
            request = limits.decode_request(body)
            if not isinstance(request, limits.Subscribe):
                raise ServiceDeniedError("this action takes a Listen")
        except ServiceDeniedError as error:
            return iter((limits.encode(limits.Rejected(str(error))),))
        return (limits.encode(reply) for reply in self.listen(request, caller.scope))

    def _check_scope(self, request: "Request", scope: str) -> None:
        name = request.limit.partition("@")[0]
        if owns_jobs(scope) and name.startswith(_JOB):
            with self._lock:
                progress = self._jobs.get(name)
            if progress is not None:
                self._check_owner(progress.job, scope)
            return
        spends = not _is_change(request) and scope == limit_scope(name)
        if scope != SERVICE_SCOPE and not spends:
            raise PermissionError(
                f"this token is not valid for limit {request.limit!r}: set 'sharedLimitToken' to the token "
                "that was written for it (`limits serve --token-file`)"
            )

    def _show(self, name: str, status: "LimitStatus") -> None:
        """Show the present limit in a job's progress line."""
        with self._lock:
            progress = self._jobs.get(name)
        if progress is not None:
            progress.set_limits(*status.shown)


def _is_change(request: "Request") -> "TypeGuard[SetRates | Pause | Resume]":
    return isinstance(request, limits.SetRates | limits.Pause | limits.Resume)


def _or_denied(handle: "Callable[[_Given], Reply]", request: _Given) -> "Reply":
    try:
        return handle(request)
    except RejoinError as error:
        return limits.Rejected(str(error), rejoin=True)
    except (ServiceDeniedError, OptionError) as error:
        return limits.Rejected(str(error))
