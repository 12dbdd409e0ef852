"""The time of a task by phase, and rows that transformers dropped: of one attempt, and in the report."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import ConfigDict, Field

from spark_channel.plain_data import Count, Seconds, Strict, Waits
from spark_channel.timing import seconds_connecting

if TYPE_CHECKING:
    import pandas as pd

    from spark_channel.progress.counters import Snapshot

__all__ = ["PHASES", "Dropped", "TaskTrace", "Trace", "added", "as_frame", "trace_of"]

PHASES = ("connect", "first_row", "read", "wait", "transform", "write", "publish")
"""`connect`: to the source, and opening the attempt in the target. `first_row`: from asking the source to its first
batch, without what connecting took; `read`: for the others. `wait`: the reading side, for the limit and for room.
`publish`: closing the attempt, which makes its rows durable. Reading and writing overlap.
"""
_LONGEST_NAME = 64

Dropped = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)], Count], Field(max_length=64)
]
"""Rows by transformer."""


class Trace:
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
    waits = sum(spent for reason, spent in snapshot.waits.items() if reason.partition(":")[0] != "source")
    phases = {**snapshot.phases, "wait": waits}
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
    found: dict[str, int] = {}
    for each in rows:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return dict(sorted(found.items()))


def as_frame(traces: Iterable[TaskTrace]) -> "pd.DataFrame":
    """A row for each task: its figures, a column of seconds for each phase, and the rows that were dropped."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for each in traces:
        plain = asdict(each)
        phases, dropped = plain.pop("phases"), plain.pop("rows_dropped")
        rows.append(
            {**plain, **{phase: phases.get(phase, 0.0) for phase in PHASES}, "dropped": sum(dropped.values())}
        )
    names = [name for name in TaskTrace.__dataclass_fields__ if name not in ("phases", "rows_dropped")]
    return pd.DataFrame(rows, columns=[*names, *PHASES, "dropped"])
