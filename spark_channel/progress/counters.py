"""The counters of one attempt of a task, and the frozen copy that is sent to the driver."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, PlainSerializer

from spark_channel.channel.statistics import ChannelStatistics
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_data import Count, Seconds, Strict, Text, Waits, from_plain, to_plain
from spark_channel.progress.phase import Phase
from spark_channel.progress.trace import Dropped, Trace

__all__ = ["Counters", "Snapshot"]


def _rounded(waits: dict[str, float]) -> dict[str, float]:
    return {reason: round(spent, 6) for reason, spent in waits.items()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters of one attempt at one instant; every figure counts from the attempt's start.

    (`scan`, `task`) names the work and `attempt` the try: several attempts of one task count once.
    `scan` tells apart passes over one plan (Spark's stage id, since a self-join reads its plan
    twice). `sequence` grows with every snapshot, so that a late one is known. `seconds` is the attempt's age,
    `error` why it failed.

    `waits`: seconds by reason, "side" or "side:reason", where side is "source" (waiting for the next
    batch), "limit" (for the limiter) or "target" (for room in the channel). Measured on the thread that
    pushes, they do not overlap. `phases` and `dropped`: see `Trace`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict

    task: Count
    attempt: Count
    scan: Count = 0
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
    phases: Waits = field(default_factory=dict)
    dropped: Dropped = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that hold their default are left out."""
        return to_plain(self, always=_ALWAYS)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: an unknown or missing field, or a value that no counter can have.
        """
        return from_plain(cls, data, "a snapshot")


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


class Counters:
    """Counts one attempt of one task. Any thread may count; a batch costs about a microsecond a call."""

    __slots__ = (
        "_changed",
        "_clock",
        "_counts",
        "_error",
        "_follows",
        "_lock",
        "_phase",
        "_sequence",
        "_start",
        "_waits",
        "attempt",
        "bytes_expected",
        "rows_expected",
        "scan",
        "task",
        "trace",
    )

    def __init__(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.task = task
        self.attempt = attempt
        self.scan = scan
        self.rows_expected = rows_expected
        self.bytes_expected = bytes_expected
        self.trace = Trace()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._waits: dict[str, float] = {}
        self._phase = Phase.RUNNING
        self._error = ""
        self._sequence = 0
        self._changed = True
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._start = self._clock.now()
        self._follows: tuple[Callable[[], ChannelStatistics], int, float, bool] | None = None

    def follow(
        self, statistics: Callable[[], ChannelStatistics], *, producers: int = 1, writes: bool = False
    ) -> None:
        """Take rows and bytes read and pushed, and all waits, from a channel's `statistics`, whenever asked.

        With `writes`, what left the channel was written, but for dirty rows: its consumer takes in
        transactions that end when the target has the rows.

        `producers` threads push into that channel from now on; what they neither waited for the limit nor
        for room is put down to the source. Call this when they start, in place of `read`, `pushed` and
        `waited`. The last figures are taken by `enter` with a final phase.
        """
        with self._lock:
            self._follows = (statistics, producers, self._clock.now(), writes)

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

    def set_waits(self, waits: Mapping[str, float]) -> None:
        """Put these totals in place of the same reasons': for what a channel's statistics add up."""
        with self._lock:
            self._waits.update(waits)
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

    def explain(self, error: str) -> None:
        """Record why the attempt failed, for the job's summary. The first reason counts."""
        with self._lock:
            if self._phase is Phase.FAILED and not self._error:
                self._error = error[:_LONGEST_ERROR]
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
        seen = statistics()
        waits = {f"limit:{reason}": spent for reason, spent in seen.throttled_seconds.items() if spent}
        waits["target"] = seen.wait_writer_seconds
        waits["source"] = max(0.0, producers * (self._clock.now() - since) - sum(waits.values()))
        counts = self._counts
        counts["rows_read"] = counts["rows_pushed"] = seen.rows_pushed
        counts["bytes_read"] = counts["bytes_pushed"] = seen.bytes_pushed
        if writes:
            counts["rows_written"] = max(0, seen.rows_pulled - counts["dirty_rows"])
            counts["bytes_written"] = seen.bytes_pulled
        self._waits.update(waits)
        self._changed = True

    def _snapshot(self) -> Snapshot:
        self._sequence += 1
        return Snapshot(
            task=self.task,
            attempt=self.attempt,
            scan=self.scan,
            sequence=self._sequence,
            phase=self._phase,
            rows_expected=self.rows_expected,
            bytes_expected=self.bytes_expected,
            seconds=self._clock.now() - self._start,
            waits=dict(self._waits),
            error=self._error,
            phases=self.trace.phases(),
            dropped=self.trace.rows_dropped(),
            **self._counts,
        )
