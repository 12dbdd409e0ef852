"""Merges the snapshots of attempts so that each task counts once, and finds stalled tasks."""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_channel.progress.counters import Phase, Snapshot, TaskTrace, trace_of

__all__ = [
    "AttemptTable",
    "LastProgress",
    "stalled_text",
]


_MOST_PUSHES = 100
_NAMED = 3
_MOST_TRACES = 1000
STALE_SECONDS = 60.0
"""An attempt that is silent for so long, while another of its task is heard, is taken for dead."""


@dataclass(frozen=True, slots=True)
class _Push:
    """Rows went into the channel, from `begin` to `end`: after `before` of them there were `after`."""

    begin: float
    end: float
    before: int
    after: int

    def when(self, rows: int) -> float:
        """The time at which that many rows had entered the channel."""
        share = (rows - self.before) / (self.after - self.before)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


@dataclass(slots=True)
class WriteTimes:
    """The times at which the rows of one attempt were written, on its own clock.

    A row is written after it was pushed, and before it is counted. Between the two, rows are taken to be as far behind
    their push as the ones before them: so neither the ends of transactions nor the times of reports make speeds that
    there were not.
    """

    landed: float = 0.0
    """When the last of the rows was written that are counted."""
    lag: float = 0.0
    seen: float = 0.0
    pushed: int = 0
    pushes: deque[_Push] = field(default_factory=lambda: deque(maxlen=_MOST_PUSHES))

    def times(self, snapshot: Snapshot, before: int) -> tuple[float, float]:
        """From when to when the rows were written that `snapshot` counts after the `before` ones of the last one."""
        since, self.seen = self.seen, snapshot.seconds
        if snapshot.rows_pushed > self.pushed:
            self.pushes.append(_Push(since, snapshot.seconds, self.pushed, snapshot.rows_pushed))
            self.pushed = snapshot.rows_pushed
        if snapshot.rows_written <= before:
            return snapshot.seconds, snapshot.seconds
        while len(self.pushes) > 1 and self.pushes[0].after <= before:
            self.pushes.popleft()
        first = self.pushes[0].when(before) if self.pushes else 0.0
        last = self._pushed_at(snapshot.rows_written, snapshot.seconds)
        end = min(max(last + self.lag, since), snapshot.seconds)
        begin = min(max(self.landed, first), end)
        self.landed, self.lag = end, end - last
        return begin, end

    def _pushed_at(self, rows: int, otherwise: float) -> float:
        return next((push.when(rows) for push in self.pushes if rows <= push.after), otherwise)


@dataclass(slots=True)
class LastProgress:
    """The counters of an attempt when it last moved something, and the time of that."""

    figures: tuple[int, ...] = ()
    since: float = 0.0
    limited: float = 0.0

    def see(self, snapshot: Snapshot, now: float) -> None:
        """Note what it has now."""
        figures = (
            snapshot.rows_read,
            snapshot.rows_pushed,
            snapshot.rows_written,
            snapshot.bytes_written,
            snapshot.dirty_rows,
            len(snapshot.phases),
        )
        if figures != self.figures:
            self.figures, self.since, self.limited = figures, now, _limited(snapshot)

    def idle(self, snapshot: Snapshot, now: float) -> float:
        """Seconds without progress that the limit does not explain; 0 when the attempt has ended."""
        if snapshot.phase.final:
            return 0.0
        return max(0.0, now - self.since - (_limited(snapshot) - self.limited))


def stalled_text(stalled: list[tuple[int, float]]) -> str:
    """For the progress line: `task 3 has stalled for 40 s`; empty when none has. (task, seconds) of each."""
    if not stalled:
        return ""
    worst = sorted(stalled, key=lambda entry: -entry[1])
    named = ", ".join(str(task) for task, _ in worst[:_NAMED])
    unnamed = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    which = f"task {named} has" if len(worst) == 1 else f"tasks {named}{unnamed} have"
    return f"{which} stalled for {worst[0][1]:.0f} s"


def _limited(snapshot: Snapshot) -> float:
    of_limiter = ("limit", "start")
    return sum(spent for reason, spent in snapshot.waits.items() if reason.startswith(of_limiter))


@dataclass(slots=True)
class TaskAttempts:
    """All attempts of one task: their latest snapshots and when they came."""

    latest: dict[int, Snapshot] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    growth: dict[int, LastProgress] = field(default_factory=dict)

    def counted(self) -> Snapshot | None:
        """The attempt that stands for the task; None while all have failed.

        The first that is done; else of those alive the furthest, since of two that race the furthest
        is likely to win.
        """
        finished = [snapshot for snapshot in self.latest.values() if snapshot.phase is Phase.DONE]
        if finished:
            return finished[0]
        last = max(self.heard.values())
        alive = [
            snapshot
            for attempt, snapshot in self.latest.items()
            if snapshot.phase is not Phase.FAILED and last - self.heard[attempt] < STALE_SECONDS
        ]
        return max(
            alive,
            key=lambda snapshot: (snapshot.rows_written, snapshot.rows_pushed, snapshot.rows_read),
            default=None,
        )


class AttemptTable:
    """The attempts of all tasks of a job, with running totals of what really moved. Not thread-safe.

    `rows_moved`, `bytes_moved`, `rows_written`, `bytes_written` and `waits` (seconds by reason) hold every
    attempt, also those that failed: they are what the two ends felt, and what a limit is held against.
    `dirty_rows` and `rows_seen` (good and dirty) count each task once.
    """

    def __init__(self) -> None:
        self._tasks: dict[_Key, TaskAttempts] = {}
        self._counted: dict[_Key, Snapshot] = {}
        self._landings: dict[tuple[_Key, int], WriteTimes] = {}
        self._openings: dict[tuple[int, int, int], dict[int, int]] = {}
        """The passes of each attempt over its task: their number, in the order in which they were heard."""
        self._passes: dict[int, int] = {}
        self._scans = 1
        self.rows_moved = 0
        self.bytes_moved = 0
        self.rows_written = 0
        self.bytes_written = 0
        self.attempts = 0
        self.dirty_rows = 0
        self.rows_seen = 0
        self.waits: dict[str, float] = {}
        self.error = ""
        """Why the last attempt that said so failed."""

    def update(self, snapshot: Snapshot, now: float) -> bool:
        """False when a later snapshot of this attempt is known."""
        key = self._key(snapshot)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = TaskAttempts()
            passes = self._passes[snapshot.task] = self._passes.get(snapshot.task, 0) + 1
            self._scans = max(self._scans, passes)
        before = task.latest.get(snapshot.attempt)
        if before is not None and before.sequence >= snapshot.sequence:
            return False
        if before is None:
            self.attempts += 1
        self.rows_moved += _rows_moved(snapshot) - (_rows_moved(before) if before else 0)
        self.bytes_moved += _bytes_moved(snapshot) - (_bytes_moved(before) if before else 0)
        self.rows_written += snapshot.rows_written - (before.rows_written if before else 0)
        self.bytes_written += snapshot.bytes_written - (before.bytes_written if before else 0)
        for reason, spent in snapshot.waits.items():
            counted_before = before.waits.get(reason, 0.0) if before else 0.0
            self.waits[reason] = self.waits.get(reason, 0.0) + spent - counted_before
        self.error = snapshot.error or self.error
        task.latest[snapshot.attempt] = snapshot
        task.heard[snapshot.attempt] = now
        task.growth.setdefault(snapshot.attempt, LastProgress()).see(snapshot, now)
        earlier = self._counted.pop(key, None)
        counted = task.counted()
        if counted is not None:
            self._counted[key] = counted
        for counts, sign in ((earlier, -1), (counted, 1)):
            if counts is not None:
                self.dirty_rows += sign * counts.dirty_rows
                self.rows_seen += sign * max(
                    counts.rows_read, counts.rows_written + counts.dirty_rows
                )
        return True

    def knows(self, snapshot: Snapshot) -> bool:
        """Whether its attempt has reported before."""
        attempt = (snapshot.scan, snapshot.task, snapshot.attempt)
        return snapshot.opening in self._openings.get(attempt, ())

    def since_last(self, snapshot: Snapshot, now: float, start: float) -> float:
        """Return the seconds, by the attempt's clock, in which the rows since its last snapshot were moved."""
        task = self._tasks.get(self._key(snapshot))
        before = None if task is None else task.latest.get(snapshot.attempt)
        if snapshot.seconds:
            return snapshot.seconds - (before.seconds if before is not None else 0.0)
        return now - (start if task is None or before is None else task.heard[snapshot.attempt])

    def landing(self, snapshot: Snapshot) -> tuple[float, float]:
        """How long ago the rows of `snapshot` started and stopped being written.

        To be asked once for each snapshot, before `update`.
        """
        task = self._tasks.get(self._key(snapshot))
        before = None if task is None else task.latest.get(snapshot.attempt)
        if before is not None and before.sequence >= snapshot.sequence:
            return 0.0, 0.0
        key = (self._key(snapshot), snapshot.attempt)
        landing = self._landings.setdefault(key, WriteTimes())
        begin, end = landing.times(snapshot, 0 if before is None else before.rows_written)
        if snapshot.phase.final:
            del self._landings[key]
        return snapshot.seconds - begin, snapshot.seconds - end

    def _key(self, snapshot: Snapshot) -> "_Key":
        """What other attempts of the same work share with this one."""
        attempt = (snapshot.scan, snapshot.task, snapshot.attempt)
        openings = self._openings.setdefault(attempt, {})
        return snapshot.scan, snapshot.task, openings.setdefault(snapshot.opening, len(openings))

    @property
    def tasks(self) -> int:
        """Tasks that reported, each as often as it was passed over."""
        return len(self._tasks)

    def counted(self) -> Iterator[Snapshot]:
        """One snapshot for each task that has an attempt that counts."""
        return iter(self._counted.values())

    def stalled(self, seconds: float, now: float) -> list[tuple[int, float]]:
        """The tasks whose attempt that counts has made no progress for so long, and for how long."""
        stalled_tasks = []
        for key, snapshot in self._counted.items():
            idle = self._tasks[key].growth[snapshot.attempt].idle(snapshot, now)
            if idle >= seconds:
                stalled_tasks.append((snapshot.task, idle))
        return stalled_tasks

    def traces(self) -> tuple[TaskTrace, ...]:
        """Return the traces of tasks whose phases were timed; of very many, only the longest."""
        traces = [
            trace_of(snapshot, len(self._tasks[key].latest))
            for key, snapshot in self._counted.items()
            if snapshot.phases
        ]
        slowest = heapq.nlargest(_MOST_TRACES, traces, key=lambda trace: trace.seconds)
        return tuple(sorted(slowest, key=lambda trace: trace.task))

    def standing(self) -> list[tuple[str, int, Snapshot]]:
        """(key, attempts, snapshot) of each task that has an attempt that counts."""
        return [
            ("-".join(map(str, key)), len(self._tasks[key].latest), snapshot)
            for key, snapshot in self._counted.items()
        ]

    def scans(self) -> int:
        """The most passes over one task that reported, at least 1."""
        return self._scans


_Key = tuple[int, int, int]
"""A scan, a task, and the number of the pass over it."""


def _rows_moved(snapshot: Snapshot) -> int:
    return max(snapshot.rows_pushed, snapshot.rows_written)


def _bytes_moved(snapshot: Snapshot) -> int:
    return max(snapshot.bytes_pushed, snapshot.bytes_written)
