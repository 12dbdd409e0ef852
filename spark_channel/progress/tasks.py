"""Merges the snapshots of attempts, so that a task counts once, however often it is retried."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_channel.progress.counters import Snapshot
from spark_channel.progress.landing import Landing
from spark_channel.progress.phase import Phase
from spark_channel.progress.stall import Growth
from spark_channel.progress.trace import TaskTrace, trace_of

__all__ = ["STALE_SECONDS", "AttemptTable", "TaskAttempts"]

_MOST_TRACES = 1000
STALE_SECONDS = 60.0
"""An attempt that is silent for so long, while another of its task is heard, is taken for dead."""


@dataclass(slots=True)
class TaskAttempts:
    """All attempts of one task: their latest snapshots and when they came."""

    latest: dict[int, Snapshot] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    growth: dict[int, Growth] = field(default_factory=dict)

    def counted(self) -> Snapshot | None:
        """The attempt that stands for the task; None while all have failed.

        The first that is done; else of those alive the furthest, since of two that race the furthest
        is likely to win.
        """
        done = [each for each in self.latest.values() if each.phase is Phase.DONE]
        if done:
            return done[0]
        last = max(self.heard.values())
        alive = [
            each
            for attempt, each in self.latest.items()
            if each.phase is not Phase.FAILED and last - self.heard[attempt] < STALE_SECONDS
        ]
        return max(
            alive, key=lambda each: (each.rows_written, each.rows_pushed, each.rows_read), default=None
        )


class AttemptTable:
    """The attempts of all tasks of a job, with running totals of what really moved. Not thread-safe.

    `rows_moved`, `bytes_moved`, `rows_written`, `bytes_written` and `waits` (seconds by reason) hold every
    attempt, also those that failed: they are what the two ends felt, and what a limit is held against.
    `dirty_rows` and `rows_seen` (good and dirty) count each task once.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[int, int], TaskAttempts] = {}
        self._counted: dict[tuple[int, int], Snapshot] = {}
        self._landings: dict[tuple[int, int, int], Landing] = {}
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
        key = (snapshot.scan, snapshot.task)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = TaskAttempts()
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
            known = before.waits.get(reason, 0.0) if before else 0.0
            self.waits[reason] = self.waits.get(reason, 0.0) + spent - known
        self.error = snapshot.error or self.error
        task.latest[snapshot.attempt] = snapshot
        task.heard[snapshot.attempt] = now
        task.growth.setdefault(snapshot.attempt, Growth()).see(snapshot, now)
        earlier = self._counted.pop(key, None)
        counted = task.counted()
        if counted is not None:
            self._counted[key] = counted
        for each, sign in ((earlier, -1), (counted, 1)):
            if each is not None:
                self.dirty_rows += sign * each.dirty_rows
                self.rows_seen += sign * max(each.rows_read, each.rows_written + each.dirty_rows)
        return True

    def since_last(self, snapshot: Snapshot, now: float, start: float) -> float:
        """The seconds in which the growth that `snapshot` tells of was moved, on the attempt's own clock."""
        task = self._tasks.get((snapshot.scan, snapshot.task))
        before = None if task is None else task.latest.get(snapshot.attempt)
        if snapshot.seconds:
            return snapshot.seconds - (before.seconds if before is not None else 0.0)
        return now - (start if task is None or before is None else task.heard[snapshot.attempt])

    def landing(self, snapshot: Snapshot) -> tuple[float, float]:
        """How long ago the rows of `snapshot` started and stopped being written.

        To be asked once for each snapshot, before `update`.
        """
        task = self._tasks.get((snapshot.scan, snapshot.task))
        before = None if task is None else task.latest.get(snapshot.attempt)
        if before is not None and before.sequence >= snapshot.sequence:
            return 0.0, 0.0
        key = (snapshot.scan, snapshot.task, snapshot.attempt)
        landing = self._landings.setdefault(key, Landing())
        begin, end = landing.times(snapshot, 0 if before is None else before.rows_written)
        if snapshot.phase.final:
            del self._landings[key]
        return snapshot.seconds - begin, snapshot.seconds - end

    @property
    def tasks(self) -> int:
        """Tasks that were heard of."""
        return len(self._tasks)

    def counted(self) -> Iterator[Snapshot]:
        """One snapshot for each task that has an attempt that counts."""
        return iter(self._counted.values())

    def stalled(self, seconds: float, now: float) -> list[tuple[int, float]]:
        """The tasks whose attempt that counts has made no progress for so long, and for how long."""
        found = []
        for key, snapshot in self._counted.items():
            idle = self._tasks[key].growth[snapshot.attempt].idle(snapshot, now)
            if idle >= seconds:
                found.append((snapshot.task, idle))
        return found

    def traces(self) -> tuple[TaskTrace, ...]:
        """Of the tasks whose phases were timed; of very many, those that took longest."""
        found = [
            trace_of(snapshot, len(self._tasks[key].latest))
            for key, snapshot in self._counted.items()
            if snapshot.phases
        ]
        slowest = heapq.nlargest(_MOST_TRACES, found, key=lambda each: each.seconds)
        return tuple(sorted(slowest, key=lambda each: each.task))

    def scans(self) -> int:
        """Passes over the plan that were heard of, at least 1."""
        return max(1, len({scan for scan, _ in self._tasks}))


def _rows_moved(snapshot: Snapshot) -> int:
    return max(snapshot.rows_pushed, snapshot.rows_written)


def _bytes_moved(snapshot: Snapshot) -> int:
    return max(snapshot.bytes_pushed, snapshot.bytes_written)
