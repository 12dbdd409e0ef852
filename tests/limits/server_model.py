"""A database server beside a job, on a virtual clock: an application's statements queue for its cores, and so do the
job's pieces. It has the signals that a controller of the job's speed sees, the speed, and the application's p99.

As it was seen on real servers, both signals show little of that: a server counts a statement's latency from when it has
a core, so what it waited before is not in it, and a kernel lets a session that slept go first.

It reproduces copies within one PostgreSQL server on one core that an application kept a third busy. At a fixed limit of
20 000 rows/s its p99 is 1.15 times idle (measured: 1.18), and one and a half times at 91 000 (57 000 to 134 000, from
one hour to the next). With `protect=auto` 31 000 rows/s at 1.25 times (ten rounds: 22 400 to 37 300 at 1.03 to 1.87).
The speeds follow from `usual_wait`: a session that waits for a core is seen at work. The measured p99 scatters more
than the model's from one run to the next, at any speed.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from spark_channel.limits import AdaptiveLimit, HealthSample
from tests.limits.conftest import HandClock

STEP = 0.25
"""Seconds between two samples of the server's health."""
ROW_SECONDS, ROW_SECONDS_SEEN = 0.000_001_8, 0.000_000_75
"""How long the server works for a row that is read and written, and what the statements of one side show of it."""
COLD_SECONDS = 0.0001
"""What a piece costs the application beside its rows: caches are cold after it."""
LOOK_SECONDS = 0.0005
"""What a sample costs the server at once. A job at a fixed limit takes none."""
SIDES = 2
"""A job's source and target are this server; looks at the sessions of one see half of the work."""
WAKING_SECONDS = 0.007
"""What the statements of a second last longer than they work, however few rows they bring: each waits for the network
and for a core, and begins cold. So a row seems to cost the more, the slower the job is."""
PIECE_ROWS = 300
PIECE_WORK = PIECE_ROWS * ROW_SECONDS
PARTS = 7
"""So many statements, one after the other, are a transaction of the application, as pgbench has them: each may wait."""
NAPS, LOOKS = 20, 5
NAPS_BEHIND, LATENCY_SEEN = 0.4, 0.2
"""The part of the naps that wait as statements do, and the part of a statement's wait that its server sees."""
DRIFT = 0.1
"""How far the latency of an application drifts by itself within seconds."""
SETTLING = 20.0
"""Seconds at the start of a run that count for the p99, but not for the speed."""


def usual_wait(load: float, cores: int) -> float:
    """The mean wait for one of the cores, in terms of the mean of the work (Erlang's formula)."""
    offered, sums, term = load * cores, 0.0, 1.0
    for busy in range(cores):
        sums += term
        term *= offered / (busy + 1)
    waiting = term / (1 - load)
    return waiting / (sums + waiting) / (cores * (1 - load))


class Controller(Protocol):
    """Sets a job's speed from samples of a server's health."""

    def speed(self, sample: HealthSample, spent_rows: float) -> float: ...


@dataclass
class Server:
    """`load` is the part of all cores that the application uses, by time; `noise`: a shared machine, where all cores
    pause for some milliseconds now and then.
    """

    cores: int
    load: Callable[[float], float]
    noise: bool = False
    seed: int = 0
    reports_application: bool = True
    reports_cost: bool = True
    reports_sessions: bool = True
    row_seconds_seen: float = ROW_SECONDS_SEEN
    fastest: float = 300_000.0
    """What the job could do without any limit, in rows per second."""
    pause: tuple[float, float] = (math.inf, math.inf)
    """When the job is paused, and when it continues."""
    replays: Callable[[float], float] | None = None
    """How many of the job's rows its replica replays in a second, by time; None = it has none."""
    looked_at: bool = False
    """Whether samples of its health are taken, which use a core, too."""
    clock: HandClock = field(default_factory=HandClock)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.statement_seconds = 0.0004 * self.cores**0.6
        self.free = [0.0] * self.cores
        self.latencies: list[tuple[float, float]] = []
        self.speeds: list[tuple[float, float]] = []
        self.spent = 0.0
        self.lags: list[tuple[float, float]] = []
        self._replayed = 0.0
        self._recent: deque[list[float]] = deque(maxlen=4)
        self._open: list[tuple[float, int, float, int, float]] = []
        self._piece_at = self._drift = 0.0
        self._usual_wait = usual_wait(self.load(0.0), self.cores) * self.statement_seconds / PARTS

    def run(self, controller: Controller, seconds: float) -> None:
        """Let the job run under `controller`."""
        sample = HealthSample()
        while self.clock.now() < seconds:
            speed = min(self.fastest, controller.speed(sample, self.spent))
            speed = 0.0 if self.pause[0] <= self.clock.now() < self.pause[1] else speed
            self.speeds.append((self.clock.now(), speed))
            sample = self._step(speed)

    def p99(self, begin: float = 0.0, end: float = math.inf) -> float:
        """Seconds."""
        now = self.clock.now()
        waits = [(since, now - since) for _, kind, _, _, since in self._open if kind == 0]
        seen = sorted(each for at, each in (*self.latencies, *waits) if begin <= at < end)
        return seen[int(0.99 * len(seen))]

    def mean_speed(self, begin: float = SETTLING, end: float = math.inf) -> float:
        """Rows per second."""
        seen = [speed for at, speed in self.speeds if begin <= at < end]
        return sum(seen) / len(seen)

    def _row_seconds(self, speed: float) -> float:
        """What a row seems to cost; 0.0 = nothing is known."""
        if not self.reports_cost or speed <= 0:
            return 0.0
        return self.row_seconds_seen + WAKING_SECONDS / speed * self.random.lognormvariate(0.0, 0.3)

    def _step(self, speed: float) -> HealthSample:
        begin, chance = self.clock.now(), self.random
        end = begin + STEP
        events, self._open = self._open, []
        rate = self.load(begin) * self.cores / self.statement_seconds
        at = begin + chance.expovariate(rate)
        while at < end:
            work = chance.gammavariate(PARTS, self.statement_seconds / PARTS)
            events.append((at, 0, work / PARTS, PARTS, at))
            at += chance.expovariate(rate)
        if speed > 0:
            gap = PIECE_ROWS / speed
            self._piece_at = min(max(self._piece_at, begin), begin + gap)
            while self._piece_at < end:
                events.append((self._piece_at, 1, PIECE_WORK, 1, self._piece_at))
                self.spent += PIECE_ROWS
                self._piece_at += gap
        for _ in range(self.looked_at):
            at = begin + STEP * chance.random()
            events.append((at, 3, LOOK_SECONDS, 1, at))
        for each in range(NAPS):
            at = begin + STEP * (each + chance.random()) / NAPS
            events.append((at, 2, 0.0, 1, at))
        if self.noise and chance.random() < 0.05:
            stood = begin + chance.uniform(0.002, 0.02)
            self.free = [max(each, stood) for each in self.free]
        application, naps, looks = [], [], [begin + STEP * chance.random() for _ in range(LOOKS)]
        working = [0.0] * LOOKS
        # A session that waits for a core is at work, as its server says.
        at_work = PIECE_WORK / SIDES * (1 + usual_wait(self.load(begin), self.cores))
        heapq.heapify(self.free)
        heapq.heapify(events)
        while events:
            at, kind, work, parts, since = heapq.heappop(events)
            if at >= end:
                self._open.append((at, kind, work, parts, since))
                continue
            started = max(at, self.free[0])
            if kind == 2:
                waits = started - at if chance.random() < NAPS_BEHIND else 0.0
                naps.append(waits + chance.expovariate(1 / 0.00002))
                continue
            cold = COLD_SECONDS if kind == 1 else 0.0
            heapq.heapreplace(self.free, started + work + cold)
            if kind == 1:
                for number, look in enumerate(looks):
                    working[number] += started <= look < started + at_work
            if kind == 0:
                application.append(work + LATENCY_SEEN * (started - at))
                if parts > 1:
                    heapq.heappush(events, (started + work, 0, work, parts - 1, since))
                else:
                    self.latencies.append((since, started + work - since))
        self.clock.at = end
        self._recent.append(application)
        delays = {"wakeup": naps, "latency": [0.0003] * 4}
        if self.reports_sessions:
            delays["own_sessions"] = working
        values = {"active_sessions": (sum(application) / STEP, 32.0)}
        if self.replays is not None:
            rows = self.replays(begin)
            self._replayed = min(self.spent, self._replayed + rows * STEP)
            behind = self.spent - self._replayed
            self.lags.append((end, behind / rows if rows else self.lags[-1][1] + STEP))
            values["replication_lag"] = (self.lags[-1][1], 1.0)
        if self.reports_application:
            seen = [each for part in self._recent for each in part]
            self._drift += 0.1 * (chance.gauss(0, DRIFT) - self._drift)
            usual = self.statement_seconds / PARTS + LATENCY_SEEN * self._usual_wait
            delays["application"] = [(1 + self._drift) * sum(seen) / max(1, len(seen)) / usual]
        return HealthSample(values, delays, row_seconds=self._row_seconds(speed))


@dataclass
class Fixed:
    """A limit that does not change."""

    rows: float

    def speed(self, sample: HealthSample, spent_rows: float) -> float:
        return self.rows


class Adaptive:
    """The shipped controller."""

    def __init__(self, server: Server, **more: object) -> None:
        server.looked_at = True
        self._limit = AdaptiveLimit(clock=server.clock, **more)  # type: ignore[arg-type] # its own names

    def speed(self, sample: HealthSample, spent_rows: float) -> float:
        if not sample.delays:
            return self._limit.rows_per_second
        return self._limit.observe("source", sample, spent_rows)
