"""A running job: merges snapshots, and returns status and report."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now, utc_text
from spark_channel.progress.counters import Phase, Snapshot, added
from spark_channel.progress.report import WORTH_WAITING, TransferReport
from spark_channel.progress.spec import JobSpec, tighter
from spark_channel.progress.speed import SIDES, LimitChange, Sample, SlidingRates, SpeedSamples
from spark_channel.progress.tasks import AttemptTable, stalled_text

__all__ = [
    "JobProgress",
    "JobStatus",
]

_SPEED_WINDOW = 5.0
_STEADY_WINDOW = 30.0
_LATEST_FIRST_REPORT = 10.0
_MOST_CHANGES = 1000


def side_of(reason: str) -> str:
    """The side of a wait reason: "limit" of "limit:rows"."""
    return reason.partition(":")[0]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one instant.

    `rows` and `bytes` count each task once and are what arrived (written, or handed to Spark on a
    read); `rows_moved` and `bytes_moved` hold every attempt. `percent` is 0 to 100, None when the total
    is unknown. Speeds are per second over the last 5 s and hold every attempt, as the limit does.
    `wait_shares`: side ->
    share from 0 to 1 of the last 30 s of waiting; empty when the waits slowed nothing. `eta_seconds` is None
    when unknown. `note` is why the limit holds the job, if it says so ("paused").
    `rows_written` and `bytes_written` are what the target took, of all attempts; `waits` are seconds by reason,
    `held` those for which a signal of `protect` held the speed. `execution` is Spark's SQL execution, if its tasks
    reported one: a read and a write of one execution are one job of Spark.
    """

    job: str
    spec: JobSpec
    phase: Phase
    seconds: float
    percent: float | None
    rows: int
    bytes: int
    rows_moved: int
    bytes_moved: int
    rows_per_second: float
    bytes_per_second: float
    wait_shares: Mapping[str, float]
    dirty_rows: int
    eta_seconds: float | None
    tasks_done: int
    tasks: int
    attempts: int
    note: str = ""
    rows_written: int = 0
    bytes_written: int = 0
    rows_written_per_second: float = 0.0
    bytes_written_per_second: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    publish_seconds: float = 0.0
    error: str = ""
    where: str = ""
    started_at: datetime | None = None
    execution: str = ""
    moves_rows: bool = True
    """False while an index is built, or `verify` pauses: then `note` says what is done."""


@dataclass(slots=True)
class _Totals:
    rows: int = 0
    bytes: int = 0
    dirty_rows: int = 0
    done: int = 0
    rows_done: int = 0
    rows_expected: int | None = 0
    bytes_expected: int | None = 0
    rows_towards: int = 0
    bytes_towards: int = 0


class JobProgress:
    """Merges the snapshots of a job's tasks. Thread-safe; does no I/O.

    A task counts once, however many attempts report it. The clock starts when this is made, or when the
    first attempt that reports began, if that was earlier.
    """

    def __init__(self, job: str, spec: JobSpec, *, clock: Clock | None = None) -> None:
        self.job = job
        self.spec = spec
        self.started_at = utc_now()
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._start = self._clock.now()
        self._end: float | None = None
        self._last = self._start
        self._phase = Phase.PLANNING
        self._publishing: float | None = None
        self._publish_seconds = 0.0
        self._error = ""
        self._note = self._building = ""
        self._stop_reason = ""
        self._failure = ""
        self._execution = ""
        self._where = spec.where
        self._scope = spec.limit_scope
        self._published_rows: int | None = None
        self._own: tuple[int | None, int | None, str] = (
            spec.rows_per_second,
            spec.bytes_per_second,
            "",
        )
        self._shared = (spec.shared_rows_per_second, spec.shared_bytes_per_second, "")
        self._shared_heard = False
        self._limits = spec.speeds
        self._changes: list[tuple[float, int | None, int | None, str]] = []
        self._held: dict[str, float] = {}
        self._aim = ""
        self._lock = threading.Lock()
        self._table = AttemptTable()
        self._begin_at(self._start)

    def _begin_at(self, start: float) -> None:
        self._start = start
        self._speed = SlidingRates(start, _SPEED_WINDOW, 4)
        self._steady = SlidingRates(start, _STEADY_WINDOW, 2)
        self._waiting = SlidingRates(start, _STEADY_WINDOW, len(SIDES))
        self._samples = SpeedSamples(start)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def stop_reason(self) -> str:
        """Why all tasks should stop: more rows were refused than the job allows; else empty.

        Once given it stays, whatever becomes of the attempts that counted.
        """
        return self._stop_reason

    @property
    def failure(self) -> str:
        """The error of a task that every other one would meet, too; else empty."""
        return self._failure

    @property
    def task_error(self) -> str:
        """The reason of the last failed attempt, if it is known."""
        return self._table.error

    @property
    def attempts(self) -> int:
        """The number of attempts that have reported."""
        return self._table.attempts

    @property
    def is_building(self) -> bool:
        """Whether an index is built, of which no task reports."""
        return bool(self._building)

    @property
    def began(self) -> float:
        """The start, on this job's clock."""
        return self._start

    @property
    def last_heard(self) -> float:
        """The time of the last counter update, on this job's clock."""
        return self._last

    def is_news(self, snapshots: Iterable[Snapshot]) -> bool:
        """Whether one of them is of an attempt that is not known."""
        with self._lock:
            return any(not self._table.knows(snapshot) for snapshot in snapshots)

    def update(self, snapshot: Snapshot) -> bool:
        """Merge the counters of one attempt. False if a later snapshot of it was merged before."""
        with self._lock:
            now = self._clock.now()
            first = self._table.attempts == 0
            elapsed = self._table.since_last(snapshot, now, self._start)
            began, ended = self._table.landing(snapshot) if snapshot.seconds else (elapsed, 0.0)
            table = self._table
            moved = (table.rows_moved, table.bytes_moved, table.rows_written, table.bytes_written)
            if not self._table.update(snapshot, now):
                return False
            if first and now - snapshot.seconds < self._start:
                self._begin_at(min(self._start, now - min(snapshot.seconds, _LATEST_FIRST_REPORT)))
            if snapshot.seconds:
                self._samples.launched(now - snapshot.seconds)
            self._last = now
            if self._phase is Phase.PLANNING:
                self._phase = Phase.RUNNING
            after = (table.rows_moved, table.bytes_moved, table.rows_written, table.bytes_written)
            self._speed.add(now, *after)
            self._steady.add(now, table.rows_moved, table.bytes_moved)
            rows, nbytes, *written = (b - a for a, b in zip(moved, after, strict=True))
            self._samples.add(now, elapsed, rows, nbytes, 0, 0)
            self._samples.add(now - ended, began - ended, 0, 0, *written)
            sides = dict.fromkeys(SIDES, 0.0)
            for reason, spent in table.waits.items():
                if (side := side_of(reason)) in sides:
                    sides[side] += spent
            self._waiting.add(now, *sides.values())
            self._execution = self._execution or snapshot.execution
            if snapshot.ends_job and not self._failure:
                self._failure = snapshot.error
            if table.dirty_rows and not self._stop_reason:
                self._stop_reason = self.spec.dirty_limit.exceeded(
                    table.dirty_rows, table.rows_seen, self.spec.rows_expected
                )
            return True

    def enter(
        self,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        at: float | None = None,
        building: str = "",
    ) -> None:
        """Go to `phase`, now or `at` an earlier time; a final one stops the job's clock, and stays.

        `where` says where the rows are, `rows` how many were published when the caller knows it
        better than the counters (from receipts), `error` why it failed, `building` which index is built, or why no
        row moves.
        """
        with self._lock:
            if self._phase.final:
                return
            now = self._clock.now() if at is None else at
            if phase is Phase.PUBLISHING and self._publishing is None:
                self._publishing = now
            if phase.final:
                self._end = now
                if self._publishing is not None:
                    self._publish_seconds = now - self._publishing
            self._phase = phase
            self._building = building
            self._last = now
            self._error = error or self._error
            self._where = where or self._where
            self._published_rows = rows if rows is not None else self._published_rows

    def reopen(self) -> None:
        """Continue a finished job, because its tasks have reported again."""
        with self._lock:
            if self._phase.final:
                self._phase, self._end = Phase.RUNNING, None

    def set_limits(
        self, rows_per_second: int | None, bytes_per_second: int | None, note: str = ""
    ) -> None:
        """The job's own limit was changed while it runs; `note` says why it holds ("paused")."""
        with self._lock:
            self._own = (rows_per_second, bytes_per_second, note)
            self._limit_again()

    def set_lag(self, behind: str, lag: Mapping[str, int | float]) -> None:
        """Note how far a stream is behind its source, as text and as numbers; see `JobSpec`."""
        with self._lock:
            self.spec = replace(self.spec, behind=behind, lag=lag)

    def set_held(self, seconds: Mapping[str, float], aim: str = "") -> None:
        """For how long which signal of the source or the target held the speed; what was aimed at, and seen."""
        with self._lock:
            self._held, self._aim = dict(seconds), aim

    def set_shared_limits(
        self, rows_per_second: int | None, bytes_per_second: int | None, note: str = ""
    ) -> None:
        """The limit that the job shares with others is this now. What is heard first held from the start."""
        with self._lock:
            first, self._shared_heard = not self._shared_heard, True
            self._shared = (rows_per_second, bytes_per_second, note)
            self._limit_again(from_the_start=first and not self._changes)

    def keep_limit(self, how: str, *, certain: bool = True) -> None:
        """Note how tasks that do not reach the service keep their share of the limit; empty = all reach it.

        The report mentions it only when it is `certain`.
        """
        with self._lock:
            if how and certain:
                self.spec = replace(self.spec, limit_scope=f"{self._scope}; {how}")
            self._own = (*self._own[:2], how)
            self._limit_again()

    def _limit_again(self, *, from_the_start: bool = False) -> None:
        """Note the tighter one of both limits, in rows and in bytes."""
        job_limit, shared = self._own, self._shared
        rows, nbytes = tighter(job_limit[0], shared[0]), tighter(job_limit[1], shared[1])
        note = job_limit[2] or shared[2]
        if (rows, nbytes, note) == (*self._limits, self._note):
            return
        if not from_the_start:
            if not self._changes:
                self._changes.append((self._start, *self._limits, self._note))
            self._changes.append((self._clock.now(), rows, nbytes, note))
            del self._changes[1:-_MOST_CHANGES]
        self._limits = (rows, nbytes)
        self._note = note

    def all_done(self) -> bool:
        """Whether every task that has reported has an attempt that is done."""
        with self._lock:
            return self._all_done()

    def ended_early(self, *, stopped: bool = False) -> bool:
        """No task failed or is under way, and Spark wanted no more rows of at least one.

        `stopped`: no task still runs, and those that are under way did not say how they ended.
        """
        early = {Phase.ENDED, Phase.RUNNING} if stopped else {Phase.ENDED}
        with self._lock:
            phases = {snapshot.phase for snapshot in self._table.counted()}
            every = len(list(self._table.counted())) == self._table.tasks
            return every and bool(phases & early) and phases <= {Phase.DONE} | early

    def complete(self) -> bool:
        """Whether every task of the plan is done; False if their number is unknown."""
        with self._lock:
            tasks = self.spec.tasks
            return (
                tasks is not None
                and self._table.tasks >= tasks * self._table.scans()
                and self._all_done()
            )

    def _all_done(self) -> bool:
        counted = list(self._table.counted())
        return len(counted) == self._table.tasks and all(
            snapshot.phase is Phase.DONE for snapshot in counted
        )

    def status(self) -> JobStatus:
        """The job at this instant, consistent in itself."""
        with self._lock:
            now = self._end if self._end is not None else self._clock.now()
            totals = self._totals()
            rows_speed, bytes_speed, rows_written, bytes_written = self._speed.rates(now)
            percent, eta = self._estimate(totals, now)
            shares = dict(zip(SIDES, self._waiting.rates(now), strict=True))
            waiting = sum(shares.values())
            return JobStatus(
                job=self.job,
                spec=self._spec_now(),
                phase=self._phase,
                seconds=now - self._start,
                percent=percent,
                rows=totals.rows,
                bytes=totals.bytes,
                rows_moved=self._table.rows_moved,
                bytes_moved=self._table.bytes_moved,
                rows_per_second=rows_speed,
                bytes_per_second=bytes_speed,
                wait_shares={side: share / waiting for side, share in shares.items()}
                if waiting > WORTH_WAITING
                else {},
                dirty_rows=totals.dirty_rows,
                eta_seconds=eta,
                tasks_done=totals.done,
                tasks=max(self.spec.tasks or 0, self._table.tasks),
                attempts=self._table.attempts,
                note="; ".join(filter(None, (self._building, self._note, self._stalled(now)))),
                rows_written=self._table.rows_written,
                bytes_written=self._table.bytes_written,
                rows_written_per_second=rows_written,
                bytes_written_per_second=bytes_written,
                waits=dict(self._table.waits),
                held=dict(self._held),
                publish_seconds=self._publish_seconds,
                error=self._error or (self._table.error if self._phase is Phase.FAILED else ""),
                where=self._where,
                started_at=self.started_at,
                moves_rows=not self._building,
                execution=self._execution,
            )

    def speeds_since(self, seconds: float) -> tuple[float, tuple[Sample, ...]]:
        """Seconds of one sample, which grow with the job, and the samples that end after `seconds`."""
        with self._lock:
            return self._samples.every, self._samples.samples(seconds)

    def limits_in_force(self) -> tuple[LimitChange, ...]:
        """The limits from the start on, each from its `seconds`; empty if the limit never changed."""
        with self._lock:
            return self._limit_changes()

    def tasks(self) -> list[tuple[str, int, Snapshot]]:
        """(key of the task in this pass over the plan, attempts, counters of the attempt that counts) of each task."""
        with self._lock:
            return self._table.standing()

    def report(self) -> TransferReport:
        """The job as a whole, up to now or to its end."""
        with self._lock:
            now = self._end if self._end is not None else self._clock.now()
            totals = self._totals()
            spec = self._spec_now()
            tasks = self._table.tasks
            # Spark's own tasks report nothing.
            uncounted = self._published_rows or 0 if tasks == 0 else 0
            return TransferReport(
                job=self.job,
                kind=spec.kind,
                phase=str(self._phase),
                source=spec.source,
                target=spec.target,
                where=self._where,
                commit=spec.commit,
                started_at=utc_text(self.started_at),
                seconds=round(now - self._start, 3),
                publish_seconds=round(self._publish_seconds, 3),
                rows=self._arrived(totals)
                if self._published_rows is None
                else self._published_rows,
                bytes=totals.bytes,
                rows_moved=self._table.rows_moved or uncounted,
                bytes_moved=self._table.bytes_moved,
                rows_dirty=totals.dirty_rows,
                tasks=tasks,
                attempts=self._table.attempts,
                retries=max(0, self._table.attempts - tasks),
                rows_per_second_limit=spec.rows_per_second,
                bytes_per_second_limit=spec.bytes_per_second,
                limit_scope=spec.limit_scope if spec.limited else "",
                waits={
                    reason: round(spent, 3) for reason, spent in sorted(self._table.waits.items())
                },
                samples=self._samples.samples(over=True),
                changes=self._limit_changes(),
                error=self._error or (self._table.error if self._phase is Phase.FAILED else ""),
                rerun=spec.rerun,
                behind=spec.behind,
                path=spec.path,
                lag=spec.lag,
                traces=self._table.traces(),
                held={name: round(seconds, 3) for name, seconds in sorted(self._held.items())},
                aim=self._aim,
                rows_dropped=added(snapshot.dropped for snapshot in self._table.counted()),
            )

    def _limit_changes(self) -> tuple[LimitChange, ...]:
        return tuple(
            LimitChange(round(max(0.0, at - self._start), 3), rows, nbytes, note)
            for at, rows, nbytes, note in self._changes
        )

    def _arrived(self, totals: _Totals) -> int:
        """The rows that arrived; of a write that failed, those that its target shows."""
        if self._phase is not Phase.FAILED or not self.spec.commit:
            return totals.rows
        if self.spec.commit != "task":
            return 0
        return totals.rows if self.spec.at_least_once else totals.rows_done

    def _spec_now(self) -> JobSpec:
        rows, nbytes = self._limits
        if (rows, nbytes) == (self.spec.rows_per_second, self.spec.bytes_per_second):
            return self.spec
        return replace(self.spec, rows_per_second=rows, bytes_per_second=nbytes)

    def _stalled(self, now: float) -> str:
        """Tasks that make no progress, while nothing but they themselves keeps them from it."""
        seconds = self.spec.stall_timeout
        if seconds is None or self._phase is not Phase.RUNNING or self._note:
            return ""
        return stalled_text(self._table.stalled(seconds, now))

    def _totals(self) -> _Totals:
        totals = _Totals()
        written = self.spec.kind in ("write", "transfer", "stream")
        for snapshot in self._table.counted():
            rows = snapshot.rows_written if written else snapshot.rows_pushed
            nbytes = snapshot.bytes_written if written else snapshot.bytes_pushed
            is_done = snapshot.phase is Phase.DONE
            totals.rows += rows
            totals.bytes += nbytes
            totals.dirty_rows += snapshot.dirty_rows
            totals.done += is_done
            totals.rows_done += rows if is_done else 0
            rows_read, bytes_read = rows + snapshot.dirty_rows, nbytes
            if self.spec.kind == "transfer":
                # Its steps may drop rows and change their size on the way.
                rows_read, bytes_read = snapshot.rows_pushed, snapshot.bytes_pushed
            totals.rows_expected, rows_towards = _towards(
                totals.rows_expected, snapshot.rows_expected, rows_read, is_done
            )
            totals.bytes_expected, bytes_towards = _towards(
                totals.bytes_expected, snapshot.bytes_expected, bytes_read, is_done
            )
            totals.rows_towards += rows_towards
            totals.bytes_towards += bytes_towards
        return totals

    def _estimate(self, totals: _Totals, now: float) -> tuple[float | None, float | None]:
        """(percent, seconds left) by rows when their total is known, else by bytes."""
        if self._phase is Phase.DONE:
            return 100.0, 0.0
        scans = self._table.scans()
        rows_rate, bytes_rate = self._steady.rates(now)
        for whole, arrived, towards, rate in (
            (self.spec.rows_expected, totals.rows_expected, totals.rows_towards, rows_rate),
            (self.spec.bytes_expected, totals.bytes_expected, totals.bytes_towards, bytes_rate),
        ):
            if whole is None or arrived is None:
                continue
            total = max(whole * scans, arrived)
            if total == 0:
                continue
            towards = min(towards, total)
            remaining = total - towards
            return 100.0 * towards / total, (
                remaining / rate if rate > 0 else None
            ) if remaining else 0.0
        return None, None


def _towards(
    total: int | None, expected: int | None, arrived: int, is_done: bool
) -> tuple[int | None, int]:
    """(the total with one task more, what that task has of it). A task that is done has all of its part."""
    if total is None or expected is None:
        return None, 0
    return total + expected, expected if is_done else min(arrived, expected)
