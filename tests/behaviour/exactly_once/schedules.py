"""Drivers of one write, step by step, and every order in which the steps of several can come.

A driver that stops between two steps hangs there; one whose program ends early was killed; a step that comes after
another driver's later ones is a driver that wakes up.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_channel.connectors import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.errors import ChannelError
from spark_channel.options import CommitMode

__all__ = ["IDS", "PROGRAMS", "Driver", "Outcome", "all_schedules", "play", "random_schedules"]

IDS = (1, 2, 3)
ROWS = [
    pa.record_batch({"id": pa.array([1, 2], pa.int64())}),
    pa.record_batch({"id": pa.array([3], pa.int64())}),
]
PAIR = ("n", 1)
Program = tuple[str, ...]
Schedule = tuple[tuple[Program, ...], tuple[int, ...]]

_WHOLE = ("prepare", "open", "write", "close", "commit")
PROGRAMS: tuple[Program, ...] = (
    _WHOLE,
    *(_WHOLE[:count] for count in range(1, 5)),
    *((*_WHOLE[:count], "abort") for count in range(1, 5)),
)


@dataclass(frozen=True)
class Outcome:
    """`succeeded` are the drivers whose commit returned; `rows` is how often each id is there."""

    succeeded: tuple[bool, ...]
    rows: Counter[int]


@dataclass
class Driver:
    """One driver and its two tasks. An error ends it, after an abort, as Spark and a transfer do."""

    make: Callable[[], Writer]
    name: str
    mode: CommitMode
    continues: bool
    plan: WritePlan | None = None
    tasks: list[TaskWriter | None] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    succeeded: bool = False
    error: ChannelError | None = None

    def step(self, what: str) -> None:
        if self.error is not None:
            return
        try:
            getattr(self, f"_{what}")()
        except ChannelError as error:
            self.error = error
            for task in self.tasks:
                if task is not None:
                    task.rollback()
            self.tasks = []
            if self.plan is not None:
                self.make().abort(self.plan, None)

    def _prepare(self) -> None:
        writer, context = self.make(), WriteContext(self.name, commit=self.mode, txn=PAIR)
        if self.continues and self.mode == "task":
            found = writer.unfinished(context)
            if found is not None:
                context = WriteContext(self.name, commit=self.mode, txn=PAIR, resume=found.epoch)
        self.plan = writer.prepare(context, ROWS[0].schema)

    def _open(self) -> None:
        assert self.plan is not None
        writer = self.make()
        for number in range(len(ROWS)):
            done = None
            if self.continues and self.mode == "task" and self.plan.published_at is None:
                done = writer.committed(self.plan, number)
            if done is None:
                self.tasks.append(writer.open(self.plan, number, next(_attempts)))
            else:
                self.tasks.append(None)
                self.receipts.append(done)

    def _write(self) -> None:
        for task, rows in zip(self.tasks, ROWS, strict=True):
            if task is not None:
                task.write(rows)

    def _close(self) -> None:
        for task in self.tasks:
            if task is not None:
                self.receipts.append(task.close())
        self.tasks = []

    def _commit(self) -> None:
        assert self.plan is not None
        self.make().commit(self.plan, self.receipts)
        self.succeeded = True

    def _abort(self) -> None:
        assert self.plan is not None
        for task in self.tasks:
            if task is not None:
                task.rollback()
        self.tasks = []
        self.make().abort(self.plan, None)

    def end(self) -> None:
        """A driver that was killed: its sessions end with it, and nothing else is said."""
        for task in self.tasks:
            if task is not None:
                task.rollback()
        self.tasks = []


_attempts = itertools.count(1)


def play(
    make: Callable[[], Writer],
    seen: Callable[[], Counter[int]],
    schedule: Schedule,
    mode: CommitMode,
    *,
    continues: bool = True,
) -> Outcome:
    """Run a schedule to its end, then a driver that nothing disturbs; hold the rows to be there once."""
    programs, order = schedule
    drivers = [Driver(make, f"driver-{number}", mode, continues) for number in range(len(programs))]
    at = [0] * len(programs)
    for number in order:
        drivers[number].step(programs[number][at[number]])
        at[number] += 1
    for driver in drivers:
        driver.end()
    rows = Counter(seen())
    succeeded = tuple(driver.succeeded for driver in drivers)
    assert all(count == 1 for count in rows.values()), f"doubled: {rows}"
    if any(succeeded):
        assert sorted(rows) == list(IDS), f"a driver said that it succeeded, and there is {rows}"
    if mode == "job":
        assert sorted(rows) in ([], list(IDS)), f"seen in part: {rows}"
    last = Driver(make, "last", mode, continues)
    for what in _WHOLE:
        last.step(what)
    if last.error is not None:
        assert not continues, last.error
        assert "partially committed" in str(last.error)
    else:
        assert seen() == Counter(IDS), f"after a last run there is {seen()}"
    return Outcome(succeeded, rows)


def all_schedules(drivers: int = 2, programs: Sequence[Program] = PROGRAMS) -> Iterator[Schedule]:
    """Every order of the steps of every combination of programs."""
    for chosen in itertools.product(programs, repeat=drivers):
        yield from ((chosen, order) for order in _orders(tuple(len(each) for each in chosen)))


def random_schedules(count: int, drivers: int, seed: Any) -> Iterator[Schedule]:
    chance = random.Random(seed)
    for _ in range(count):
        chosen = tuple(chance.choice(PROGRAMS) for _ in range(drivers))
        order = [number for number, each in enumerate(chosen) for _ in each]
        chance.shuffle(order)
        yield chosen, tuple(order)


def _orders(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not any(left):
        yield ()
    for number, count in enumerate(left):
        if count:
            rest = (*left[:number], count - 1, *left[number + 1 :])
            for order in _orders(rest):
                yield (number, *order)
