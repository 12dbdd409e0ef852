"""Whatever happens, in whatever order: the limit holds, grants are conserved, no client starves."""

import bisect
import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_channel.limits import Pause, Resume, SetRates, client, grants
from tests.limits.world import LIMIT, Worker, World

WINDOWS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
DRIFT = 5e-5
"""Clocks of real hosts differ by 50 millionths; the bound grows by as much."""


def smallest_grant(rate: float, horizon: float) -> float:
    """Rows: a turn of a horizon, or of two rows, at the pace of each of as many as can have 20 rows/s."""
    pace = rate / max(1, int(rate / 20))
    return max(horizon * pace, 2.0)


class AnyHistory(RuleBasedStateMachine):
    """One limit in rows, in bytes, or both; jobs of tasks, and all that can happen to them."""

    @initialize(
        rate=st.sampled_from([7, 90, 1_000, 50_000]),
        row_bytes=st.sampled_from([None, 30, 100, 400]),
        asks=st.sampled_from([125, 4]),
        listening=st.booleans(),
        last=st.sampled_from([(0, 0), (1, 0), (2, 5), (8, 6)]),
        seed=st.integers(0, 99),
    )
    def begin(
        self,
        rate: int,
        row_bytes: int | None,
        asks: int,
        listening: bool,
        last: tuple[int, int],
        seed: int,
    ) -> None:
        self.last = last
        self.patch = pytest.MonkeyPatch()
        # 30 tasks at 4 asks a second: grants of 15 s.
        self.patch.setattr(grants, "ASKS_PER_SECOND", asks)
        self.patch.setattr(grants, "SPARED", 0)
        self.patch.setattr(client, "NEWS_FROM", 0.0 if listening else 1e9)
        self.row_bytes = row_bytes  # per second, for each row per second; a row has 100
        self.world = World(rate, rate * row_bytes if row_bytes else None, seed=seed)
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
            self._join(count, job, rows=rows, speed=speed, stalls=stalls, drift=drift)

    def _join(self, count: int, job: str, **kind: object) -> None:
        for index in range(count):
            start = self.world.clock.at + 0.003 * index
            self.world.worker(job=job, offset=1000.0 * index, start=start, timeout=1e6, **kind)

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
        self.world.rates = self._limit(self.rates[-1][1])
        leases = [
            lease
            for client in self.world.coordinator._clients.values()
            for lease in client.issued_grants()
        ]
        last = max(
            [lease.ends / 1e9 for lease in leases] + [self.world.coordinator._blocked_until / 1e9]
        )
        self.world.restart(max(0.0, last - self.world.clock.at) + 0.001)
        self.paused = False

    @rule(rate=st.sampled_from([7, 90, 1_000, 50_000]))
    def limit_is_set(self, rate: int) -> None:
        self._set(rate)

    @rule(
        low=st.sampled_from([0.1, 0.5, 0.8]),
        high=st.sampled_from([1.0, 3.0]),
        seconds=st.sampled_from([0.05, 0.3, 0.6]),
    )
    def limit_is_lowered_and_raised(self, low: float, high: float, seconds: float) -> None:
        """Before all have heard of the one, the other comes."""
        rate = min(self.rates[-1][1], 50_000)
        for part in (low, high):
            self._set(rate * part)
            self._run(seconds)

    def _set(self, rate: float) -> None:
        self.world.coordinator.handle(SetRates(LIMIT, *self._limit(rate)))
        self.rates.append((self.world.clock.at, float(rate)))
        self.world.notify()

    def _limit(self, rate: float) -> tuple[float, float | None]:
        return rate, rate * self.row_bytes if self.row_bytes else None

    @rule()
    def paused_or_resumed(self) -> None:
        self.paused = not self.paused
        self.world.coordinator.handle(Pause(LIMIT) if self.paused else Resume(LIMIT))
        self.world.notify()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self._run(seconds)

    def _run(self, seconds: float) -> None:
        end = self.world.clock.at + seconds
        while self.world.clock.at < end:
            self.world.run(min(end, self.world.clock.at + 0.1))
            clients = self.world.coordinator._clients.values()
            for lease in itertools.chain.from_iterable(each.issued_grants() for each in clients):
                self.longest = max(self.longest, (lease.ends - lease.starts) / 1e9)

    def _some(self, which: int) -> list[Worker]:
        workers = self.world.workers
        return [workers[which % len(workers)]] if workers else []

    # --- what always holds

    @invariant()
    def live_grants_never_exceed_the_limit(self) -> None:
        status, now = self.world.status(), self.world.clock.at
        highest = self._highest(now, now)
        assert status.granted_rows_per_second <= highest + 1e-6
        if self.row_bytes:
            assert status.granted_bytes_per_second <= highest * self.row_bytes + 1e-6

    @invariant()
    def grants_are_conserved(self) -> None:
        status = self.world.status()
        for issued, *parts in (
            (
                status.issued_rows,
                status.spent_rows,
                status.returned_rows,
                status.void_rows,
                status.outstanding_rows,
            ),
            (
                status.issued_bytes,
                status.spent_bytes,
                status.returned_bytes,
                status.void_bytes,
                status.outstanding_bytes,
            ),
        ):
            assert min(parts) >= 0
            assert abs(issued - sum(parts)) < 1e-3

    @invariant()
    def no_window_passes_more_than_the_bound(self) -> None:
        """docs/limits.md: limit * (window + 0.02) + what waited already when the window began."""
        payments = [(at, since, rows, nbytes) for at, rows, nbytes, _, since in self.world.paid]
        self._check_windows("rows", 1, [(at, since, rows) for at, since, rows, _ in payments])
        if self.row_bytes:
            nbytes = [(at, since, amount) for at, since, _, amount in payments]
            self._check_windows("bytes", self.row_bytes, nbytes)

    def _check_windows(self, unit: str, scale: int, paid: list[tuple[float, float, int]]) -> None:
        """`paid`: (when, since when it had waited, amount), by time; the limit is `scale` times that in rows."""
        times = [at for at, *_ in paid]
        sums = [0, *itertools.accumulate(amount for *_, amount in paid)]
        begun = sorted((since, amount) for _, since, amount in paid)
        starts = [since for since, _ in begun]
        started = [0, *itertools.accumulate(amount for _, amount in begun)]
        for first in range(0, len(times), max(1, len(times) // 200)):
            begin = times[first]
            waiting = (
                started[bisect.bisect_left(starts, begin)] - sums[bisect.bisect_left(times, begin)]
            )
            for window in WINDOWS:
                passed = sums[bisect.bisect_right(times, begin + window)] - sums[first]
                rate = scale * self._highest(begin, begin + window)
                bound = rate * (window * (1 + DRIFT) + 0.02) + waiting
                assert passed <= bound + 1e-6, (
                    f"{passed} {unit} in {window} s from {begin} at {rate} a second"
                )

    def _highest(self, begin: float, end: float) -> float:
        """The highest limit that a grant which lives in [begin, end] may have been cut for."""
        since = begin - self.longest - 0.1
        after = [rate for at, rate in self.rates if since <= at <= end]
        before = [rate for at, rate in self.rates if at < since]
        return max([*after, *before[-1:]])

    def teardown(self) -> None:
        """Heal everything: every saturated task gets its fair share within the promised time."""
        if not hasattr(self, "world"):
            return
        try:
            self.nobody_starves()
        finally:
            self.patch.undo()

    def nobody_starves(self) -> None:
        """docs/limits.md: in 2 max(horizon, smallest grant / fair share) what is fair for half of that, less a row.

        Where rows and bytes are limited, four fifths of it.
        """
        world = self.world
        world.up = True
        world.coordinator.handle(Resume(LIMIT))
        for worker in world.workers:
            worker.reachable = True
            if worker.speed < 1e9 or worker.stalls or worker.rows_left is not None:
                worker.crash()
        for job, count in zip("ab", self.last, strict=True):
            self._join(count, job)
        saturated = [worker for worker in world.workers if worker.alive]
        if not saturated:
            return
        rate = self.rates[-1][1] * min(1.0, (self.row_bytes or 100) / 100)  # in rows that flow
        largest_payment = max(worker._amount for worker in saturated)
        self._run(5.0 + 2 * self.longest + 2 * largest_payment * 2 * len(saturated) / rate)
        horizon, begin = world.status().horizon, world.clock.at
        jobs = Counter(worker.limiter._job for worker in saturated)
        fair = {job: rate / len(jobs) / count for job, count in jobs.items()}
        within = {
            job: 2 * max(horizon, smallest_grant(rate, horizon) / share)
            for job, share in fair.items()
        }
        self._run(max(within.values()))
        for worker in saturated:
            job = worker.limiter._job
            got, due = world.rows(begin, begin + within[job], [worker]), fair[job] * within[job] / 2
            due *= 0.8 if self.row_bytes else 1.0
            assert got + 1 >= due * (1 - DRIFT) - 1e-6, f"{got} rows of {due} in {within[job]} s"
        self.no_window_passes_more_than_the_bound()
        self.grants_are_conserved()


AnyHistory.TestCase.settings = settings(
    max_examples=25,
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
