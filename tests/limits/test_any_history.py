"""Whatever happens, in whatever order: the limit holds, grants are conserved, nobody starves."""

import bisect
import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_channel.limits import Pause, Resume, Set
from tests.limits.world import LIMIT, Worker, World

WINDOWS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
DRIFT = 5e-5
"""Clocks of real hosts differ by 50 millionths; the bound grows by as much."""


class AnyHistory(RuleBasedStateMachine):
    """One limit in rows, jobs of tasks, and all that can happen to them."""

    @initialize(rate=st.sampled_from([7, 90, 1_000, 50_000]), seed=st.integers(0, 99))
    def begin(self, rate: int, seed: int) -> None:
        self.world = World(rate, seed=seed)
        self.rates = [(0.0, float(rate))]
        self.longest = 0.0
        self.paused = False
        self.spent_before_restarts = 0.0

    # --- what happens

    @rule(
        count=st.integers(1, 6),
        job=st.sampled_from(["a", "b"]),
        rows=st.sampled_from([None, 3, 500]),
        speed=st.sampled_from([1e9, 1e9, 40.0]),
        stalls=st.sampled_from([None, None, (0.4, 0.7)]),
        drift=st.sampled_from([0.0, DRIFT, -DRIFT]),
    )
    def tasks_join(
        self,
        count: int,
        job: str,
        rows: int | None,
        speed: float,
        stalls: tuple[float, float] | None,
        drift: float,
    ) -> None:
        if len(self.world.workers) < 30:
            for index in range(count):
                self.world.worker(
                    job=job,
                    rows=rows,
                    speed=speed,
                    stalls=stalls,
                    drift=drift,
                    offset=1000.0 * index,
                    start=self.world.clock.at + 0.003 * index,
                    patience=1e6,
                )

    @rule(which=st.integers(0, 29))
    def task_crashes(self, which: int) -> None:
        for worker in self._some(which):
            worker.crash()

    @rule(which=st.integers(0, 29))
    def host_is_cut_off(self, which: int) -> None:
        for worker in self._some(which):
            worker.reachable = not worker.reachable

    @rule()
    def network_fails_or_comes_back(self) -> None:
        self.world.up = not self.world.up

    @rule()
    def coordinator_is_killed_and_restarted(self) -> None:
        self.world.rates = (self.rates[-1][1], None)
        leases = [lease for client in self.world.coordinator._clients.values() for lease in client.leases()]
        last = max([lease.ends / 1e9 for lease in leases] + [self.world.coordinator._blocked_until / 1e9])
        self.world.restart(max(0.0, last - self.world.clock.at) + 0.001)
        self.paused = False

    @rule(rate=st.sampled_from([7, 90, 1_000, 50_000]))
    def limit_is_set(self, rate: int) -> None:
        self.world.coordinator.handle(Set(LIMIT, rate))
        self.rates.append((self.world.clock.at, float(rate)))

    @rule()
    def paused_or_resumed(self) -> None:
        self.paused = not self.paused
        self.world.coordinator.handle(Pause(LIMIT) if self.paused else Resume(LIMIT))

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self._run(seconds)

    def _run(self, seconds: float) -> None:
        end = self.world.clock.at + seconds
        while self.world.clock.at < end:
            self.world.run(min(end, self.world.clock.at + 0.1))
            clients = self.world.coordinator._clients.values()
            for lease in itertools.chain.from_iterable(client.leases() for client in clients):
                self.longest = max(self.longest, (lease.ends - lease.starts) / 1e9)

    def _some(self, which: int) -> list[Worker]:
        workers = self.world.workers
        return [workers[which % len(workers)]] if workers else []

    # --- what always holds

    @invariant()
    def live_grants_never_exceed_the_limit(self) -> None:
        status = self.world.status()
        assert status.granted_rows_per_second <= self._highest(self.world.clock.at, self.world.clock.at)

    @invariant()
    def grants_are_conserved(self) -> None:
        status = self.world.status()
        parts = (status.spent_rows, status.returned_rows, status.void_rows, status.outstanding_rows)
        assert min(parts) >= 0
        assert abs(status.issued_rows - sum(parts)) < 1e-3

    @invariant()
    def no_window_passes_more_than_the_bound(self) -> None:
        """docs/limits.md: limit * (window + 0.02) + what waited already when the window began."""
        paid = self.world.paid
        times = [at for at, *_ in paid]
        sums = [0, *itertools.accumulate(rows for _, rows, *_ in paid)]
        begun = sorted((since, rows) for _, rows, _, _, since in paid)
        starts = [since for since, _ in begun]
        started = [0, *itertools.accumulate(rows for _, rows in begun)]
        for first in range(0, len(times), max(1, len(times) // 200)):
            begin = times[first]
            waiting = started[bisect.bisect_left(starts, begin)] - sums[bisect.bisect_left(times, begin)]
            for window in WINDOWS:
                rows = sums[bisect.bisect_right(times, begin + window)] - sums[first]
                rate = self._highest(begin, begin + window)
                bound = rate * (window * (1 + DRIFT) + 0.02) + waiting
                assert rows <= bound + 1e-6, f"{rows} rows in {window} s from {begin} at {rate} rows/s"

    def _highest(self, begin: float, end: float) -> float:
        """The highest limit that a grant which lives in [begin, end] may have been cut for."""
        since = begin - self.longest - 0.1
        after = [rate for at, rate in self.rates if since <= at <= end]
        before = [rate for at, rate in self.rates if at < since]
        return max([*after, *before[-1:]])

    def teardown(self) -> None:
        """Heal everything: every hungry task gets its fair share within the promised time."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.up = True
        world.coordinator.handle(Resume(LIMIT))
        for worker in world.workers:
            worker.reachable = True
            if worker.speed < 1e9 or worker.stalls or worker.rows_left is not None:
                worker.crash()
        hungry = [worker for worker in world.workers if worker.alive]
        if not hungry:
            return
        rate = self.rates[-1][1]
        largest_payment = max(worker._amount for worker in hungry)
        self._run(3.0 + 2 * self.longest + 2 * largest_payment * 2 * len(hungry) / rate)
        fair = {}
        for job in ("a", "b"):
            mates = [worker for worker in hungry if worker.limiter._job == job]
            jobs = len({worker.limiter._job for worker in hungry})
            fair.update({worker: rate / jobs / len(mates) for worker in mates})
        patience = 2 * max(1.0, len(hungry) * max(rate / 20, 1.0, 0.5 * 20) / rate)
        begin = world.clock.at
        self._run(2 * patience)
        for worker in hungry:
            got = world.rows(begin, world.clock.at, [worker])
            assert got >= 0.8 * fair[worker] * patience - 1, f"{got} rows of {fair[worker] * 2 * patience}"
        self.no_window_passes_more_than_the_bound()
        self.grants_are_conserved()


AnyHistory.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyHistory = AnyHistory.TestCase


class LongHistory(AnyHistory):
    """The same, for longer."""


LongHistory.TestCase.settings = settings(
    AnyHistory.TestCase.settings, max_examples=1_000, stateful_step_count=40
)
TestLongHistory = pytest.mark.soak(pytest.mark.timeout(3600)(LongHistory.TestCase))
