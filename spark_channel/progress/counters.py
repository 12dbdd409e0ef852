"""The counters of one attempt of a task, and its time by phase."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import ConfigDict, Field, PlainSerializer

from spark_channel.channel.batches import ChannelStatistics
from spark_channel.clock import SYSTEM_CLOCK, Clock, seconds_connecting
from spark_channel.serialization import Count, Seconds, Strict, Text, Waits, from_plain, to_plain

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PHASES",
    "Counters",
    "Phase",
    "PhaseTimes",
    "Snapshot",
    "TaskTrace",
    "added",
    "as_frame",
    "trace_of",
]

PHASES = ("connect", "first_row", "read", "wait", "transform", "write", "publish")
"""`connect`: to the source, and opening the attempt in the target. `first_row`: from asking the source to its first
batch, without what connecting took; `read`: for the others. `wait`: the reading side, for the limit and for
room; and the writing side under a limit, until rows may reach the target as evenly as they came. `publish`: closing the
attempt, which makes its rows durable. Reading and writing overlap.
"""
_LONGEST_NAME = 64
_ALWAYS = ("task", "attempt", "phase")
_LONGEST_ERROR = 1000
_COUNTS = (
    "rows_read",
    "bytes_read",
    "rows_pushed",
    "bytes_pushed",
    "rows_written",
    "bytes_written",
    "dirty_rows",
)
_PACING = ("rows", "bytes", "grant", "turn", "share")
"""Why a payment waits for a moment, also where the limit is far from used."""
_SHARE = "limit:share"
_OF_USED_LIMIT = tuple(f"limit:{reason}" for reason in _PACING if reason != "share")


class Phase(StrEnum):
    """The phase of a job or of one attempt of a task. `done`, `ended` and `failed` are final.

    An attempt is `running`, then `done` or `failed`; `planning` and `publishing` belong to jobs. One is `ended`
    when Spark wanted no more of its rows, as below a LIMIT, and so is a read of such attempts.
    """

    PLANNING = "planning"
    RUNNING = "running"
    PUBLISHING = "publishing"
    DONE = "done"
    ENDED = "ended"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (Phase.DONE, Phase.ENDED, Phase.FAILED)


Dropped = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)], Count], Field(max_length=64)
]
"""Rows by transformer."""


class PhaseTimes:
    """Adds up the phases of one attempt; any thread may add. A batch costs about a microsecond a call."""

    __slots__ = ("_dropped", "_lock", "_seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """The time that the block takes is of `phase`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._add(phase, time.perf_counter() - began)

    def reading(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`batches`, timed. Whoever closes `batches` need not close this."""
        source, phase = iter(batches), "first_row"
        while True:
            began, connected = time.perf_counter(), seconds_connecting()
            try:
                batch = next(source, None)
            finally:
                connects = seconds_connecting() - connected
                if connects:
                    self._add("connect", connects)
                self._add(phase, max(0.0, time.perf_counter() - began - connects))
            if batch is None:
                return
            phase = "read"
            yield batch
            del batch

    def dropped(self, transformer: str, rows: int) -> None:
        """A transformer let so many rows go."""
        if rows > 0:
            name = transformer[:_LONGEST_NAME]
            with self._lock:
                self._dropped[name] = self._dropped.get(name, 0) + rows

    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        with self._lock:
            return {phase: round(spent, 6) for phase, spent in self._seconds.items()}

    def rows_dropped(self) -> dict[str, int]:
        """Rows by transformer."""
        with self._lock:
            return dict(self._dropped)

    def _add(self, phase: str, seconds: float) -> None:
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """One task, as its attempt that counts went. `phases`: seconds by phase, see `PHASES`."""

    __pydantic_config__: ClassVar[ConfigDict] = Strict

    task: Count
    attempts: Count
    phase: str
    seconds: Seconds
    rows_read: Count
    bytes_read: Count
    rows_written: Count
    bytes_written: Count
    dirty_rows: Count
    phases: Waits = field(default_factory=dict)
    rows_dropped: Dropped = field(default_factory=dict)


def trace_of(snapshot: "Snapshot", attempts: int) -> TaskTrace:
    """The trace of the task of `snapshot`."""
    waits = sum(
        spent for reason, spent in snapshot.waits.items() if reason.partition(":")[0] != "source"
    )
    phases = {**snapshot.phases, "wait": waits + snapshot.phases.get("wait", 0.0)}
    return TaskTrace(
        snapshot.task,
        attempts,
        str(snapshot.phase),
        round(snapshot.seconds, 3),
        snapshot.rows_read,
        snapshot.bytes_read,
        snapshot.rows_written,
        snapshot.bytes_written,
        snapshot.dirty_rows,
        {phase: round(phases[phase], 3) for phase in PHASES if phase in phases},
        dict(snapshot.dropped),
    )


def added(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Rows by transformer, over all tasks."""
    totals: dict[str, int] = {}
    for counts in rows:
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    return dict(sorted(totals.items()))


def as_frame(traces: Iterable[TaskTrace]) -> "pd.DataFrame":
    """A row for each task: its figures, a column of seconds for each phase, and the rows that were dropped."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for trace in traces:
        plain = asdict(trace)
        phases, dropped = plain.pop("phases"), plain.pop("rows_dropped")
        rows.append(
            {
                **plain,
                **{phase: phases.get(phase, 0.0) for phase in PHASES},
                "dropped": sum(dropped.values()),
            }
        )
    names = [
        name for name in TaskTrace.__dataclass_fields__ if name not in ("phases", "rows_dropped")
    ]
    return pd.DataFrame(rows, columns=[*names, *PHASES, "dropped"])


def _rounded(waits: dict[str, float]) -> dict[str, float]:
    return {reason: round(spent, 6) for reason, spent in waits.items()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters of one attempt at one instant; every figure counts from the attempt's start.

    (`scan`, `task`) names the work and `attempt` the try: several attempts of one task count once.
    `scan` tells apart passes over one plan (Spark's task, since a union and a self-join read their plan
    twice); `opening` those that one attempt makes, as a task of a coalesced union does. `sequence`
    grows with every snapshot, so that a late one is known. `seconds` is the attempt's age, `error` why
    it failed; `ends_job`: every other attempt would meet that, too. `execution` is Spark's SQL execution.

    `waits`: seconds by reason, "side" or "side:reason", where side is "source" (waiting for the next
    batch), "limit" (for the limiter), "start" (for a share of a limit that then let the rows pass) or "target" (for
    room in the channel). Measured on the thread that pushes, they do not overlap. "start" shrinks where rows of the
    same attempt wait for the limit later. `phases` and `dropped`: see `PhaseTimes`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict

    task: Count
    attempt: Count
    scan: Count = 0
    opening: Count = 0
    sequence: Count = 0
    phase: Annotated[Phase, Field(strict=False)] = Phase.RUNNING
    rows_read: Count = 0
    bytes_read: Count = 0
    rows_pushed: Count = 0
    bytes_pushed: Count = 0
    rows_written: Count = 0
    bytes_written: Count = 0
    dirty_rows: Count = 0
    rows_expected: Count | None = None
    bytes_expected: Count | None = None
    seconds: Annotated[Seconds, PlainSerializer(lambda value: round(value, 3))] = 0.0
    waits: Annotated[Waits, PlainSerializer(_rounded)] = field(default_factory=dict)
    error: Text = ""
    ends_job: bool = False
    execution: Text = ""
    phases: Waits = field(default_factory=dict)
    dropped: Dropped = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that hold their default are left out."""
        return to_plain(self, always=_ALWAYS)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: an unknown or missing field, or a value that no counter can have.
        """
        return from_plain(cls, data, "a snapshot")


def _with_start(waits: Mapping[str, float]) -> dict[str, float]:
    """Tell apart what waited for a share of a limit that is used, and of one that is not.

    Both let a payment wait until the service has answered, and has heard that other tasks have given up a part. Only
    in a used one the rows wait again once the task has its share: so much of the wait for shares is the limit's.
    """
    for_share = waits.get(_SHARE)
    if for_share is None:
        return dict(waits)
    limited = min(for_share, sum(waits.get(reason, 0.0) for reason in _OF_USED_LIMIT))
    split = {**waits, _SHARE: limited, "start": for_share - limited}
    return {reason: spent for reason, spent in split.items() if spent or reason != _SHARE}


class Counters:
    """Counts one attempt of one task. Any thread may count; a batch costs about a microsecond a call."""

    __slots__ = (
        "_ahead",
        "_ahead_before",
        "_changed",
        "_clock",
        "_counts",
        "_ends_job",
        "_error",
        "_follows",
        "_held_back",
        "_held_before",
        "_limited",
        "_lock",
        "_phase",
        "_pushed_at",
        "_queued",
        "_sequence",
        "_start",
        "_throttled",
        "_waits",
        "attempt",
        "bytes_expected",
        "execution",
        "opening",
        "rows_expected",
        "scan",
        "task",
        "trace",
        "waits_for_target",
    )

    def __init__(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        opening: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
        execution: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.task = task
        self.attempt = attempt
        self.scan = scan
        self.opening = opening
        self.rows_expected = rows_expected
        self.bytes_expected = bytes_expected
        self.execution = execution
        self.trace = PhaseTimes()
        self.waits_for_target = False
        """The target is busy with tasks before it: this one cannot move, and has not stalled."""
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._waits: dict[str, float] = {}
        self._phase = Phase.RUNNING
        self._error = ""
        self._ends_job = False
        self._sequence = 0
        self._changed = True
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._start = self._clock.now()
        self._follows: tuple[Callable[[], ChannelStatistics], int, float, bool] | None = None
        self._ahead: Callable[[], tuple[float, float, float]] | None = None
        self._ahead_before = self._queued = (0.0, 0.0, 0.0)
        self._held_back: Callable[[], float] | None = None
        self._held_before = 0.0
        self._throttled: Mapping[str, float] = {}
        self._limited: dict[str, float] = {}
        self._pushed_at: float | None = None

    def follow(
        self,
        statistics: Callable[[], ChannelStatistics],
        *,
        producers: int = 1,
        writes: bool = False,
        ahead: Callable[[], tuple[float, float, float]] | None = None,
        held_back: Callable[[], float] | None = None,
    ) -> None:
        """Take rows and bytes read and pushed, and all waits, from a channel's `statistics`, whenever asked.

        With `writes`, what left the channel was written, but for dirty rows: its consumer takes in
        transactions that end when the target has the rows.

        `producers` threads push into that channel from now on; what they neither waited for the limit nor
        for room is put down to the source. Call this when they start, in place of `read`, `pushed` and
        `waited`. The last figures are taken by `enter` with a final phase. `ahead`: until `turn_came`, rows of tasks
        before it are paid, and this says for how many seconds those have waited so far, for the limit, for room and for
        a share of the limit.
        `held_back`: for how many seconds the source's side had to wait. A payment that is made while rows are fetched
        may wait for longer, which slows nothing, and does not count.
        """
        waited = ahead() if ahead is not None else (0.0, 0.0, 0.0)
        held = held_back() if held_back is not None else 0.0
        with self._lock:
            self._held_back, self._held_before = held_back, held
            self._follows = (statistics, producers, self._clock.now(), writes)
            self._ahead, self._ahead_before, self._queued = ahead, waited, (0.0, 0.0, 0.0)

    def turn_came(self) -> None:
        """End the wait of `follow` with `ahead`."""
        with self._lock:
            self._queued, self._ahead = self._waited_ahead(), None

    def pushed_all(self) -> None:
        """Note that the source has given all: time from now until the end does not count as a wait for it."""
        with self._lock:
            self._pushed_at = self._clock.now()

    def read(self, rows: int, nbytes: int) -> None:
        """Count a batch from the source."""
        self._count("rows_read", rows, "bytes_read", nbytes)

    def pushed(self, rows: int, nbytes: int) -> None:
        """Count a batch that is paid for and in the channel."""
        self._count("rows_pushed", rows, "bytes_pushed", nbytes)

    def wrote(self, rows: int, nbytes: int) -> None:
        """Count a batch that the target, or its staging, accepted."""
        self._count("rows_written", rows, "bytes_written", nbytes)

    def dirty(self, rows: int) -> None:
        """Count `rows` that the target refused."""
        self._count("dirty_rows", rows, "dirty_rows", 0)

    def waited(self, reason: str, seconds: float) -> None:
        """Add to one reason, see `Snapshot.waits`."""
        with self._lock:
            self._waits[reason] = self._waits.get(reason, 0.0) + max(0.0, seconds)
            self._changed = True

    def enter(self, phase: Phase) -> None:
        """Enter `done` or `failed`. A final phase never changes."""
        with self._lock:
            if not self._phase.final:
                self._look()
                self._phase = phase
                self._changed = True
                if phase.final:
                    self._follows = None

    def explain(self, error: str, *, ends_job: bool = False) -> None:
        """Record why the attempt failed, for the job's summary. The first reason counts.

        `ends_job`: every other attempt would meet it, too, and ends when it hears of it.
        """
        with self._lock:
            if self._phase is Phase.FAILED and not self._error:
                self._error, self._ends_job = error[:_LONGEST_ERROR], ends_job
                self._changed = True

    def snapshot(self) -> Snapshot:
        """All figures at one instant."""
        with self._lock:
            self._look()
            return self._snapshot()

    def changes(self) -> Snapshot | None:
        """A snapshot, or None when nothing was counted since the last call of `changes`."""
        with self._lock:
            self._look()
            if not self._changed:
                return None
            self._changed = False
            return self._snapshot()

    def unsent(self) -> None:
        """Return the last `changes` again: it was not delivered."""
        with self._lock:
            self._changed = True

    def _count(self, first: str, rows: int, second: str, nbytes: int) -> None:
        with self._lock:
            self._counts[first] += rows
            self._counts[second] += nbytes
            self._changed = True

    def _look(self) -> None:
        if self._follows is None:
            return
        statistics, producers, since, writes = self._follows
        channel_state = statistics()
        until = self._clock.now() if self._pushed_at is None else self._pushed_at
        for_limit, for_room, for_share = self._waited_ahead()
        throttled = dict(channel_state.throttled_seconds)
        for reason, spent in (("turn", for_limit), ("share", for_share)):
            if spent:
                throttled[reason] = throttled.get(reason, 0.0) + spent
        room = channel_state.wait_writer_seconds + for_room
        self._limit(throttled, room)
        waits = {f"limit:{reason}": spent for reason, spent in self._limited.items() if spent}
        waits["target"] = room
        waits["source"] = max(0.0, producers * (until - since) - sum(waits.values()))
        counts = self._counts
        counts["rows_read"] = counts["rows_pushed"] = channel_state.rows_pushed
        counts["bytes_read"] = counts["bytes_pushed"] = channel_state.bytes_pushed
        if writes:
            counts["rows_written"] = max(0, channel_state.rows_pulled - counts["dirty_rows"])
            counts["bytes_written"] = channel_state.bytes_pulled
        self._waits.update(waits)
        self._changed = True

    def _limit(self, throttled: Mapping[str, float], room: float) -> None:
        """Count the part of what payments waited since the last look that held the source back; a pause does."""
        before, held_before = self._throttled, self._held_before
        more = {reason: spent - before.get(reason, 0.0) for reason, spent in throttled.items()}
        waited, part = sum(more.get(reason, 0.0) for reason in _PACING), 1.0
        if self._held_back is not None:
            self._held_before = self._held_back() - room
            part = min(1.0, max(0.0, self._held_before - held_before) / (waited or 1.0))
        self._throttled = throttled
        for reason, spent in more.items():
            counted = spent * part if reason in _PACING else spent
            self._limited[reason] = self._limited.get(reason, 0.0) + counted

    def _waited_ahead(self) -> tuple[float, float, float]:
        """How long the rows of tasks before this one made it wait: for the limit, for room and for a share of it."""
        if self._ahead is None:
            return self._queued
        limit, room, share = self._ahead()
        before = self._ahead_before
        return limit - before[0], room - before[1], share - before[2]

    def _snapshot(self) -> Snapshot:
        self._sequence += 1
        return Snapshot(
            task=self.task,
            attempt=self.attempt,
            scan=self.scan,
            opening=self.opening,
            sequence=self._sequence,
            phase=self._phase,
            rows_expected=self.rows_expected,
            bytes_expected=self.bytes_expected,
            seconds=self._clock.now() - self._start,
            waits=_with_start(self._waits),
            error=self._error,
            ends_job=self._ends_job,
            execution=self.execution,
            phases=self.trace.phases(),
            dropped=self.trace.rows_dropped(),
            **self._counts,
        )
