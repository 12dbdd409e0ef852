"""The jobs that a service knows: opened, reported on, closed. No I/O; takes a clock."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_text import log_of
from spark_channel.progress import JobProgress, JobSpec, Phase, Snapshot
from spark_channel.service.protocol import new_job_id

__all__ = ["JobRegistry"]

_log = log_of(__name__)

_REPORT_EVERY = 0.5
_REPORTS_PER_SECOND = 150
_SILENT_REPORTS = 4
_SILENT_SECONDS = 10.0
_OWNED_IDLE_SECONDS = 3600.0
_ENDED_IDLE_SECONDS = 1.0
"""A LIMIT looks at further tasks right after those that ended, or never."""
_UNHEARD_SECONDS = 5.0
_MOST_JOBS = 10_000
_NOT_YOURS = "this token is for the jobs of another client"
_MOST_ATTEMPTS = 250_000


class JobListener(Protocol):
    """Is notified of jobs, on the service's threads: its methods return quickly and never raise."""

    def job_opened(self, progress: JobProgress) -> None:
        """`progress` is a job that was opened, for the first time or again."""

    def job_closed(self, progress: JobProgress) -> None:
        """`progress` is in a final phase. A job that reports again is opened again."""


@dataclass(slots=True)
class _KnownJob:
    progress: JobProgress
    owned: bool
    owner: str = ""
    clients: dict[str, float] = field(default_factory=dict)
    idle_since: float = 0.0
    notified: bool = False

    def outcome(self, *, stopped: bool = False) -> Phase:
        """Return how the job ended if no driver reports it: a driver would have reported success. See `ended_early`."""
        if self.owned:
            return Phase.FAILED
        if self.progress.all_done():
            return Phase.DONE
        return Phase.ENDED if self.progress.ended_early(stopped=stopped) else Phase.FAILED


class JobRegistry:
    """Opens, feeds and closes jobs. Thread-safe.

    A job that the driver opened (`owned`) is closed by the driver; one that its first client opened
    is closed when all its tasks are done and all clients have left, or after `idle_seconds` without a client.
    A client that is silent for 10 s (or 4 of its report intervals) is gone. The last `keep` closed jobs
    are kept for questions.
    """

    def __init__(
        self, *, clock: Clock | None = None, idle_seconds: float = 5.0, keep: int = 100
    ) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._idle_seconds = idle_seconds
        self._keep = keep
        self._lock = threading.RLock()
        self._left = threading.Condition(self._lock)
        self._live: dict[str, _KnownJob] = {}
        self._closed: OrderedDict[str, _KnownJob] = OrderedDict()
        self._listeners: list[JobListener] = []

    def subscribe(self, listener: JobListener) -> None:
        """Call `listener` for each job that opens or closes from now on."""
        with self._lock:
            self._listeners.append(listener)

    def unsubscribe(self, listener: JobListener) -> None:
        """Call `listener` no more. Calling it again has no effect."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def open(self, spec: JobSpec, job: str | None = None, *, owner: str = "") -> str:
        """Open a job that the caller will `enter` into a final phase; returns its id. `owner`: see `check_owner`.

        Raises:
            ValueError: the id is taken, or there are too many jobs.
        """
        job = job or new_job_id()
        with self._lock:
            if job in self._live or job in self._closed:
                raise ValueError(f"job {job} exists")
            self._add(job, spec, owned=True, owner=owner)
        return job

    def report(
        self,
        job: str,
        client: str,
        snapshots: Sequence[Snapshot],
        *,
        spec: JobSpec | None = None,
        leaving: bool = False,
        owner: str = "",
    ) -> float | None:
        """Take a client's counters.

        Returns seconds until its next report, which grow with the number of clients (150 reports a
        second in all); None when the job is unknown and `spec` is needed to open it.

        Raises:
            ValueError: there are too many jobs, or attempts in this one.
            PermissionError: another owner opened it.
        """
        with self._lock:
            now = self._clock.now()
            entry = self._live.get(job) or self._closed.get(job)
            if entry is None:
                if spec is None:
                    return None
                entry = self._add(job, spec, owned=False, owner=owner)
            elif owner and entry.owner != owner:
                raise PermissionError(_NOT_YOURS)
            elif (
                job in self._closed
                and not entry.owned
                # A task that began after the others had ended may be so short that it reports once.
                and (not leaving or entry.progress.is_news(snapshots))
            ):
                entry = self._reopen(job)
            if entry.progress.attempts + len(snapshots) > _MOST_ATTEMPTS:
                raise ValueError(f"job {job} has {_MOST_ATTEMPTS} attempts already")
            if entry.notified:
                entry.notified = False
                entry.progress.keep_limit("")
            for snapshot in snapshots:
                entry.progress.update(snapshot)
            if leaving:
                entry.clients.pop(client, None)
                self._left.notify_all()
            else:
                entry.clients[client] = now
            if not entry.clients:
                entry.idle_since = now
            if (
                not entry.clients
                and not entry.owned
                and job in self._live
                and entry.progress.complete()
            ):
                self._close(job, Phase.DONE)
            return self._report_after()

    def check_owner(self, job: str, owner: str) -> None:
        """Check that `owner`, the scope of a token, opened the job, unless it is empty or no job has this name.

        Raises:
            PermissionError: another owner did.
        """
        with self._lock:
            entry = self._live.get(job) or self._closed.get(job)
        if owner and entry is not None and entry.owner != owner:
            raise PermissionError(_NOT_YOURS)

    def live(self, owner: str = "") -> list[JobProgress]:
        """Return the jobs that have not ended: all, or those of `owner`."""
        with self._lock:
            return [entry.progress for entry in self._live.values() if owner in ("", entry.owner)]

    def watches(self, job: str, client: str) -> bool:
        """Whether `client` is the one that reports the state of the job's shared limit."""
        with self._lock:
            entry = self._live.get(job)
            return entry is not None and next(iter(entry.clients), None) == client

    def stop_reason(self, job: str) -> str:
        """See `JobProgress.stop_reason`; empty for a job that is not known."""
        with self._lock:
            entry = self._live.get(job) or self._closed.get(job)
            return entry.progress.stop_reason if entry is not None else ""

    def failure(self, job: str) -> str:
        """See `JobProgress.failure`; empty for a job that is not known."""
        with self._lock:
            entry = self._live.get(job) or self._closed.get(job)
            return entry.progress.failure if entry is not None else ""

    def enter(
        self,
        job: str,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        building: str = "",
    ) -> None:
        """Note the phase that the driver reports for its job. A final phase closes the job; repeating it has no effect.

        Raises:
            KeyError: no such job.
        """
        with self._lock:
            entry = self._live.get(job)
            if entry is None:
                if job in self._closed:
                    return
                raise KeyError(job)
            entry.idle_since = self._clock.now()
            entry.progress.enter(phase, error=error, where=where, rows=rows, building=building)
            if phase.final:
                self._close(job, phase)

    def find(self, job: str) -> JobProgress:
        """A live job, or one of the last that were closed.

        Raises:
            KeyError: no such job.
        """
        with self._lock:
            return (self._live.get(job) or self._closed[job]).progress

    def close_idle(self) -> float | None:
        """Close what is idle. Returns seconds until the next call is due; None while no job is live."""
        with self._lock:
            now = self._clock.now()
            silent = max(_SILENT_SECONDS, _SILENT_REPORTS * self._report_after())
            due: float | None = None
            for job, entry in list(self._live.items()):
                for client, heard in list(entry.clients.items()):
                    if heard + silent <= now:
                        del entry.clients[client]
                        entry.idle_since = now
                if entry.owned and entry.progress.is_building:
                    continue
                if entry.clients:
                    wait = min(entry.clients.values()) + silent - now
                else:
                    idle_seconds = _OWNED_IDLE_SECONDS if entry.owned else self._idle_seconds
                    if not entry.owned and entry.progress.ended_early():
                        idle_seconds = min(idle_seconds, _ENDED_IDLE_SECONDS)
                    wait = entry.idle_since + idle_seconds - now
                    unheard = _note_silence(entry, now)
                    wait = wait if unheard is None or wait <= 0 else min(wait, unheard)
                    if wait <= 0:
                        self._close(job, entry.outcome())
                        continue
                due = wait if due is None else min(due, wait)
            return due

    def settle(self) -> None:
        """Close the jobs without an open task, without waiting: one that continues is opened again."""
        with self._lock:
            for job, entry in list(self._live.items()):
                if not entry.owned and not entry.clients:
                    self._close(job, entry.outcome())

    def wait_left(self, seconds: float) -> None:
        """Wait until no client works on a job that its clients opened, for `seconds` at most."""
        with self._left:
            end = self._clock.now() + seconds
            while any(entry.clients and not entry.owned for entry in self._live.values()):
                if (remaining := end - self._clock.now()) <= 0:
                    return
                self._clock.wait(self._left, remaining)

    def close_all(self, *, failed: bool = True) -> None:
        """Close all running jobs in their present state, since the service ends.

        Not `failed`: the program succeeded, so Spark needed no more rows of a read that still runs.
        """
        with self._lock:
            for job, entry in list(self._live.items()):
                self._close(job, entry.outcome(stopped=not failed))

    def _report_after(self) -> float:
        clients = sum(len(entry.clients) for entry in self._live.values())
        return max(_REPORT_EVERY, clients / _REPORTS_PER_SECOND)

    def _add(self, job: str, spec: JobSpec, *, owned: bool, owner: str) -> _KnownJob:
        if len(self._live) >= _MOST_JOBS:
            raise ValueError(f"there are {_MOST_JOBS} jobs already")
        entry = _KnownJob(
            JobProgress(job, spec, clock=self._clock),
            owned,
            owner,
            idle_since=self._clock.now(),
        )
        self._live[job] = entry
        self._notify("job_opened", entry.progress)
        return entry

    def _reopen(self, job: str) -> _KnownJob:
        entry = self._live[job] = self._closed.pop(job)
        entry.progress.reopen()
        self._notify("job_opened", entry.progress)
        return entry

    def _close(self, job: str, phase: Phase) -> None:
        entry = self._live.pop(job)
        error = ""
        if phase is Phase.FAILED:
            error = entry.progress.task_error or "it ended before all its tasks were done"
        entry.progress.enter(phase, error=error, at=entry.progress.last_heard)
        entry.clients.clear()
        self._closed[job] = entry
        while len(self._closed) > self._keep:
            self._closed.popitem(last=False)
        self._notify("job_closed", entry.progress)

    def _notify(self, event: str, progress: JobProgress) -> None:
        for listener in list(self._listeners):
            try:
                getattr(listener, event)(progress)
            except Exception:
                _log.exception("a listener failed on %s of job %s", event, progress.job)


def _note_silence(entry: _KnownJob, now: float) -> float | None:
    """Report how the limit of a job whose tasks never report is kept; returns the seconds until that is due."""
    tasks = entry.progress.spec.static_tasks
    if (
        not entry.owned
        or tasks is None
        or entry.progress.attempts
        or entry.notified
        or entry.clients
    ):
        return None
    wait = entry.idle_since + _UNHEARD_SECONDS - now
    if wait > 0:
        return wait
    entry.notified = True
    entry.progress.keep_limit(
        f"no task has reported: out of reach, each keeps 1/{tasks} of the limit", certain=False
    )
    return None
