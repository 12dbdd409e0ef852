"""What a target sees of a limited commit=task: eight task groups in two slots, whose rows are added late."""

import heapq
from itertools import pairwise

import pytest

from spark_channel.connectors.sql.pacing import adding_seconds
from tests.limits.world import World, fullest

LIMIT, GROUPS, SLOTS, TASKS, ROWS = 20_000, 8, 2, 5, 5_000


class Target(World):
    """What is added to the target, by `source`'s clock; `pays`: as its coordinator has it, or else unlimited."""

    def __init__(self, source: World, *, pays: bool) -> None:
        super().__init__(None, latency=source.latency)
        self.clock, self._events, self._count = source.clock, source._events, source._count
        if pays:
            self.coordinator = source.coordinator.at_target()


class Group:
    """Its tasks are read one after the other, and added so, each over the time that it took."""

    def __init__(self, source: World, target: Target, start: float, groups: list[float]) -> None:
        self.source, self.target, self.groups = source, target, groups
        self.unread, self.left = TASKS, TASKS
        self.arrived: list[float] = []
        self.is_adding = False
        self._read(start)

    def _read(self, start: float) -> None:
        # The first statement of a session takes longer.
        speed = 6_000.0 if self.unread == TASKS else 1e9
        self.begun = start
        self.source.worker(rows=ROWS, start=start, speed=speed, on_done=self._came)

    def _came(self) -> None:
        self.unread -= 1
        now = self.source.clock.at
        self.arrived.append(now - self.begun)
        if self.unread:
            self._read(now)
        self._add()

    def _add(self) -> None:
        if self.is_adding or not self.arrived:
            return
        self.is_adding = True
        spread = adding_seconds(self.arrived.pop(0), 10.0, overlapped=True)
        self.target.worker(
            rows=ROWS, start=self.target.clock.at, speed=ROWS / spread, on_done=self._closed
        )

    def _closed(self) -> None:
        self.is_adding, self.left = False, self.left - 1
        if self.left:
            self._add()
        elif self.groups:  # the slot's next one
            wait = self.groups.pop() * (0.5 + self.source.random.random())
            Group(self.source, self.target, self.source.clock.at + wait, self.groups)


def _run(seed: int, *, pays: bool) -> tuple[list[tuple[float, int]], float]:
    """When the server had how many rows, a busy core late, and how long all took."""
    source = World(LIMIT, seed=seed)
    target = Target(source, pays=pays)
    waiting = [0.4] * (GROUPS - SLOTS)
    for number in range(SLOTS):
        Group(source, target, 0.2 * number, waiting)
    source.run(60.0)
    late = source.random
    added = [(at + 0.03 * late.random(), rows) for at, rows, *_ in target.paid]
    heapq.heapify(added)
    arrived = [heapq.heappop(added) for _ in range(len(added))]
    assert sum(rows for _, rows in arrived) == GROUPS * TASKS * ROWS
    assert all(before <= after for (before, _), (after, _) in pairwise(arrived))
    return arrived, arrived[-1][0] - arrived[0][0]


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_that_take_over_from_each_other_keep_the_limit_at_the_target(seed: int) -> None:
    arrived, _ = _run(seed, pays=True)
    assert fullest(arrived, 1.0) <= 1.1 * LIMIT


def test_without_a_second_payment_their_rows_would_overlap_and_come_little_sooner() -> None:
    once, twice = ([_run(seed, pays=pays) for seed in SEEDS] for pays in (False, True))
    assert max(fullest(arrived, 1.0) for arrived, _ in once) > 1.2 * LIMIT
    took_once, took_twice = (sum(seconds for _, seconds in runs) for runs in (once, twice))
    assert took_twice <= 1.08 * took_once
