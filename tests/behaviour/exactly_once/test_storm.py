"""Writes by real processes on each real target, while they are killed, stopped, woken and overlapped at random.

A run that fails is run again with its pair, as a scheduler does: at once, whoever of the one before still lives. When
a write has ended, each of its rows is there once, and nothing is staged.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_channel.options import CommitMode
from tests.behaviour.exactly_once.runs import Order, Run, start
from tests.behaviour.exactly_once.targets import (
    KINDS,
    LAKES,
    OTHER_DRIVERS,
    Target,
    open_target,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

MOST_RUNS = 12
SLEEP = 2.0
"""A process that sleeps may hold what its successor waits for, so it is woken after this many seconds at the latest."""
WITHOUT_TASK = ("duckdb", *LAKES)
"""They have no `commit=task`: one process writes a file, and a table's log takes one commit for all tasks."""


WORKERS_OUTLIVE = frozenset({"driver_killed", "host_lost", "worker_sleeps"})
"""Faults that leave workers of a killed driver at work."""


@dataclass
class Storm:
    target: Target
    chance: random.Random
    expected: Counter[int] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    number: int = 0
    events: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def kinds(self) -> list[Callable[[Order], None]]:
        common: list[Callable[[Order], None]] = [
            self.worker_killed,
            self.driver_killed,
            self.host_lost,
            self.driver_hangs,
            self.worker_sleeps,
            self.two_runs,
            self.overwrites_overlap,
            self.clock_jumps,
        ]
        return common if self.target.end_sessions is None else [*common, self.sessions_ended]

    def order(self, *, overwrite: bool = False) -> Order:
        self.number += 1
        modes: list[CommitMode] = ["job"] if self.target.kind in WITHOUT_TASK else ["job", "task"]
        commit = self.chance.choice(modes)
        return Order(
            self.target.options, self.number, commit, overwrite, seed=self.chance.randrange(1 << 30)
        )

    def begin(self, order: Order, **changes: Any) -> Run:
        order = replace(
            order,
            run=f"storm-{self.number}-{len(self.events)}-{self.chance.randrange(1 << 30)}",
            **changes,
        )
        self.events.append(
            f"run {order.number} {order.commit}{' overwrite' if order.overwrite else ''}"
        )
        run = start(order)
        self.runs.append(run)
        return run

    def some_time_later(self, run: Run, *, busy: bool = False) -> None:
        """Somewhere on its way: before its target is ready, while its tasks write, or while it publishes."""
        step = self.chance.choice(["prepared", "busy", "busy", "staged"])
        if busy or step == "busy":
            run.listen(lambda it: bool(it.busy))
        elif step == "staged":
            run.listen(lambda it: "staged" in it.reported)
        time.sleep(self.chance.uniform(0, 0.06))

    def until_published(self, order: Order, seconds: float | None = None) -> Run | None:
        """Run it again until it succeeds; None = not within `seconds`, and its run continues."""
        for _ in range(MOST_RUNS):
            run = self.begin(order)
            ended = run.end() if seconds is None else run.end(seconds)
            self.events.append(f"  -> {ended} {run.reported[-1:]}")
            if ended is None:
                assert seconds is not None, "a run hangs"
                return run
            if ended == 0:
                return None
        raise AssertionError(f"{order} was not published in {MOST_RUNS} runs: {self.events}")

    def finish(self, order: Order, going: Run | None = None) -> None:
        """`going` has waited for a process that sleeps no more."""
        if going is not None and self._ended(going) == 0:
            return
        self.until_published(order)

    def _ended(self, run: Run) -> int | None:
        ended = run.end()
        self.events.append(f"  => {ended} {run.reported[-1:]}")
        assert ended is not None, f"a run hangs: {self.events}"
        return ended

    def once(self, order: Order, run: Run) -> None:
        if self._ended(run) != 0:
            self.finish(order)

    # What goes wrong, each with its own write.

    def worker_killed(self, order: Order) -> None:
        run = self.begin(order)
        self.some_time_later(run, busy=True)
        run.send_to_worker(signal.SIGKILL)
        self.once(order, run)

    def driver_killed(self, order: Order) -> None:
        """Its workers go on; the write is run again at once."""
        run = self.begin(order)
        self.some_time_later(run)
        run.send(signal.SIGKILL)
        self.finish(order)

    def host_lost(self, order: Order) -> None:
        """As `driver_killed`, and no other process can check whether it is alive."""
        run = self.begin(order, elsewhere=True)
        self.some_time_later(run)
        run.send(signal.SIGKILL)
        self.finish(order)

    def driver_hangs(self, order: Order) -> None:
        run = self.begin(order)
        self.some_time_later(run)
        run.send(signal.SIGSTOP)
        going = self.until_published(order, SLEEP)
        run.send(signal.SIGCONT)
        self._ended(run)
        if going is not None:
            self.finish(order, going)

    def worker_sleeps(self, order: Order) -> None:
        """It wakes up after its driver was killed and another run has published."""
        run = self.begin(order)
        self.some_time_later(run, busy=True)
        run.send_to_worker(signal.SIGSTOP)
        run.send(signal.SIGKILL)
        going = self.until_published(order, SLEEP)
        run.send_to_worker(signal.SIGCONT)
        if going is not None:
            self.finish(order, going)

    def two_runs(self, order: Order) -> None:
        """A scheduler that wrongly believes a job dead starts it again."""
        first = self.begin(order)
        self.some_time_later(first)
        second = self.begin(order)
        ended = [self._ended(first), self._ended(second)]
        if 0 not in ended:
            self.finish(order)

    def clock_jumps(self, order: Order) -> None:
        """Another job comes whose clock is two days ahead: it must not remove what a live run has staged."""
        run = self.begin(order, elsewhere=self.chance.random() < 0.5)
        self.some_time_later(run)
        visitor = self.order()
        other = self.begin(visitor, days=2)
        self.once(visitor, other)
        self.once(order, run)
        self.expect(visitor)

    def overwrites_overlap(self, order: Order) -> None:
        """Each replaces the table: one of them is the last, and its rows are all that is there."""
        orders = [replace(order, overwrite=True), self.order(overwrite=True)]
        runs = [self.begin(orders[0])]
        self.some_time_later(runs[0])
        runs.append(self.begin(orders[1]))
        for one, run in zip(orders, runs, strict=True):
            self.once(one, run)
        seen = self.target.seen()
        assert seen in [Counter(each.ids) for each in orders], (
            f"a mixture of two overwrites: {self.story()}"
        )
        self.expected = seen

    def sessions_ended(self, order: Order) -> None:
        run = self.begin(order)
        self.some_time_later(run)
        assert self.target.end_sessions is not None
        self.target.end_sessions()
        self.once(order, run)

    # After each: the rows, and that nothing is left.

    def expect(self, order: Order) -> None:
        self.expected += Counter(order.ids)

    def strike(self, kind: Callable[[Order], None]) -> None:
        self.events = [f"{kind.__name__}:"]
        order = self.order()
        kind(order)
        if kind.__name__ != "overwrites_overlap":
            self.expect(order)
        self._close()
        if kind.__name__ in WORKERS_OUTLIVE and self.staged():
            # A worker that outlived its driver may stage once more after the rerun: the next job removes that.
            visitor = self.order()
            self.until_published(visitor)
            self.expect(visitor)
            self._close()
        assert self.target.seen() == self.expected, self.story()
        assert self.staged() == [], self.story()
        self.happened[kind.__name__] += 1

    def _close(self) -> None:
        for run in self.runs:
            run.close()
        self.runs = []

    def staged(self) -> list[str]:
        return (self.target.staged_by_killed or self.target.staged)()

    def story(self) -> str:
        seen = self.target.seen()
        lost, more = self.expected - seen, seen - self.expected
        events = "\n".join(self.events)
        return f"{len(lost)} rows lost, {more.total()} doubled or not asked for, staged {self.staged()}:\n{events}"


def rage(target: Target, faults: int, seed: int) -> Counter[str]:
    target.reset(True)
    storm = Storm(target, random.Random(seed))
    left: list[Callable[[Order], None]] = []
    for _ in range(faults):
        left = left or storm.chance.sample(storm.kinds, len(storm.kinds))
        storm.strike(left.pop())
    return storm.happened


ONE_OF_EACH_KIT = {"sqlite", "duckdb", "postgresql", "parquet", "delta"}
"""In `make test`; the others share their protocol, whose orders test_targets.py has for each."""


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[] if kind in ONE_OF_EACH_KIT else pytest.mark.soak)
        for kind in (*KINDS, *OTHER_DRIVERS, "parquet", *LAKES)
    ]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    yield from open_target(request.param, request, tmp_path)


@pytest.mark.timeout(600)
def test_each_fault_once(target: Target) -> None:
    kinds = len(Storm(target, random.Random()).kinds)
    happened = rage(target, kinds, seed=1)
    assert len(happened) == happened.total() == kinds


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_faults(target: Target) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    assert rage(target, 200, seed).total() == 200
