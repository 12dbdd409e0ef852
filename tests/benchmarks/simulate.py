"""10 000 tasks on 400 hosts under one limit: our grants, DataX's channels, and an even static split.

    python -m tests.benchmarks.simulate [--tasks 10000] [--seed 1]

The model
    Work     Task sizes are log-normal (sigma 1.0): the largest of 10 000 has about 25 times the mean. All
             rows together are worth 600 s of the limit, 1 000 000 rows/s.
    Hosts    400, with 25 tasks at once each. The speed of a task without a limit is log-normal
             (sigma 0.5, by host), 20 000 rows/s on average: 50 tasks could use the whole limit.
    Start    Spark launches 500 tasks a second.
    Network  1 to 10 ms each way.
    Tasks    are fluid: they spend at the pace of their grant, or at what their source gives if that is
             less, and finish when their rows are done. One crash: at 200 s, 10 hosts vanish; their tasks
             start again on other hosts 10 s later, with all their rows left.
    Ours     The real `Coordinator`, and its messages as dataclasses. A task asks at the time that its grant names,
             reports what it spent, leaves when done.
    DataX    2 000 channels (5 for each of 400 task groups), each limited to limit / 2 000, tasks dealt to
             groups in turn; a channel takes the next task of its group. Each channel runs at what
             DataX's flow control makes of its limit (measured here with its rule, batches of 32 rows).
    Static   Every task is limited to limit / 10 000, forever.

Columns: share of the limit used until 95 % of the rows are done, and until the end; the fullest window of
1 s and of 10 s against the limit; requests per second at the coordinator, mean and in the fullest 10 s.
"""

import argparse
import heapq
import itertools
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_channel.limits import Coordinator, Grant, GrantRequest, Join, Joined, Leave, RetryLater
from spark_channel.limits.messages import OLD_GRANT_SECONDS
from tests.benchmarks.datax import DataxChannel

LIMIT_ROWS = 1_000_000
SECONDS_OF_WORK = 600
HOSTS = 400
CHANNELS_PER_GROUP = 5
SOURCE_ROWS_PER_SECOND = 20_000
LAUNCHES_PER_SECOND = 500
CRASH_AT = 200.0
CRASHED_HOSTS = 10
RESTART_AFTER = 10.0
BIN = 0.1


class Timeline:
    """Rows over time, in bins of 100 ms."""

    def __init__(self) -> None:
        self.bins: list[float] = []

    def add(self, begin: float, end: float, rate: float) -> None:
        """`rate` rows per second from `begin` to `end`."""
        if rate <= 0 or end <= begin:
            return
        first, last = int(begin / BIN), int(end / BIN)
        while len(self.bins) <= last:
            self.bins.append(0.0)
        if first == last:
            self.bins[first] += rate * (end - begin)
            return
        self.bins[first] += rate * ((first + 1) * BIN - begin)
        for index in range(first + 1, last):
            self.bins[index] += rate * BIN
        self.bins[last] += rate * (end - last * BIN)

    def worst(self, seconds: float) -> float:
        """Rows of the fullest window."""
        width = round(seconds / BIN)
        sums = [0.0, *itertools.accumulate(self.bins)]
        return max(
            sums[i + width] - sums[i]
            for i in range(max(1, len(sums) - width))
            if i + width < len(sums)
        )

    def time_of(self, rows: float) -> float:
        """When that many rows were done."""
        sums = itertools.accumulate(self.bins)
        return next((index + 1) * BIN for index, total in enumerate(sums) if total >= rows - 1e-3)


@dataclass
class Outcome:
    """One line of the table."""

    name: str
    utilisation_95: float
    utilisation: float
    worst_1: float
    worst_10: float
    messages: float = 0.0
    worst_messages: float = 0.0
    after_crash: float | None = None
    cpu_micros: float = 0.0

    def line(self) -> str:
        return (
            f"{self.name:<28}{self.utilisation_95:>9.1%}{self.utilisation:>9.1%}{self.worst_1:>9.3f}"
            f"{self.worst_10:>9.3f}{self.messages:>10.0f}{self.worst_messages:>10.0f}"
        )


def outcome(
    name: str, timeline: Timeline, rows: float, messages: list[float], begin: float
) -> Outcome:
    """What the table says of a run that began in earnest at `begin`."""
    end, most = timeline.time_of(rows), timeline.time_of(0.95 * rows)
    before = sum(timeline.bins[: int(begin / BIN)])
    counts: dict[int, int] = {}
    for at in messages:
        counts[int(at)] = counts.get(int(at), 0) + 1
    fullest = max(
        (sum(counts.get(s + i, 0) for i in range(10)) for s in range(int(end) + 1)), default=0
    )
    return Outcome(
        name=name,
        utilisation_95=(0.95 * rows - before) / (LIMIT_ROWS * (most - begin)),
        utilisation=(rows - before) / (LIMIT_ROWS * (end - begin)),
        worst_1=timeline.worst(1) / LIMIT_ROWS,
        worst_10=timeline.worst(10) / (10 * LIMIT_ROWS),
        messages=len(messages) / end,
        worst_messages=fullest / 10,
    )


@dataclass(eq=False)
class SimTask:
    """One task, as fluid."""

    host: int
    rows: float
    speed: float
    start: float
    left: float = 0.0
    pace: float = 0.0
    begins: float = 0.0
    ends: float = 0.0
    at: float = 0.0
    grant: int = 0
    spent: float = 0.0
    missed: float = 0.0
    number: int = 0
    client: str = ""
    epoch: str = ""
    life: int = 0
    done: bool = False
    turn: int = field(default=0)


def make_tasks(count: int, seed: int) -> list[SimTask]:
    """The work, the same for all three."""
    rng = random.Random(seed)
    sizes = [rng.lognormvariate(0.0, 1.0) for _ in range(count)]
    scale = LIMIT_ROWS * SECONDS_OF_WORK / sum(sizes)
    hosts = [SOURCE_ROWS_PER_SECOND * rng.lognormvariate(-0.125, 0.5) for _ in range(HOSTS)]
    return [
        SimTask(index % HOSTS, size * scale, hosts[index % HOSTS], index / LAUNCHES_PER_SECOND)
        for index, size in enumerate(sizes)
    ]


class Grants:
    """Our own: the real coordinator, its clock, and the tasks."""

    def __init__(self, tasks: list[SimTask], seed: int, *, crash: bool = True) -> None:
        self.at = 0.0
        self.tasks = tasks
        self.timeline = Timeline()
        self.messages: list[float] = []
        self.cpu = 0.0
        self._rng = random.Random(seed + 1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        ids = itertools.count()
        self.coordinator = Coordinator("db", LIMIT_ROWS, clock=self, new_id=lambda: f"{next(ids)}")
        for task in tasks:
            task.left = task.rows
            self._after(task.start, lambda task=task: self._join(task))  # type: ignore[misc] # mypy infers no lambda with a default
        if crash:
            self._after(CRASH_AT, self._crash)

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the simulation never sleeps")

    def wait(self, condition: object, timeout: float | None = None) -> bool:
        raise AssertionError("the simulation never waits")

    def run(self) -> None:
        while self._events:
            self.at, _, event = heapq.heappop(self._events)
            event()

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.at + seconds, next(self._count), event))

    def _latency(self) -> float:
        return self._rng.uniform(0.001, 0.010)

    def _send(self, task: SimTask, request: Join | GrantRequest | Leave) -> None:
        life, sent = task.life, self.at

        def arrive() -> None:
            self.messages.append(self.at)
            if task.life != life:
                return
            begin = time.process_time()
            reply = self.coordinator.handle(request)
            self.cpu += time.process_time() - begin
            self._after(self._latency(), lambda: land(reply))

        def land(reply: object) -> None:
            if task.life != life or task.done:
                return
            if isinstance(reply, Joined):
                task.client, task.epoch, task.number, task.grant = reply.client, reply.epoch, 0, 0
                task.spent = task.missed = 0.0
                reply = reply.answer
            self._spend(task)
            if isinstance(reply, Grant):
                assert reply.rows_per_second is not None
                task.grant = reply.grant
                task.spent = task.missed = 0.0
                task.pace = reply.rows_per_second
                task.begins = self.at + reply.starts_in
                task.ends = sent + reply.starts_in + reply.lasts
                self._ask_in(task, reply.ask_in)
                self._watch_end(task)
            elif isinstance(reply, RetryLater):
                self._ask_in(task, reply.retry_in)

        self._after(self._latency(), arrive)

    def _join(self, task: SimTask) -> None:
        task.at = self.at
        self._send(task, Join("db", "job"))

    def _ask_in(self, task: SimTask, seconds: float) -> None:
        life = task.life
        self._after(
            seconds, lambda: self._ask(task) if task.life == life and not task.done else None
        )

    def _ask(self, task: SimTask) -> None:
        self._spend(task)
        if task.done:
            return
        task.number += 1
        task.ends = min(task.ends, self.at + OLD_GRANT_SECONDS)
        spent, missed = math.floor(task.spent * 1e6) / 1e6, math.floor(task.missed * 1e6) / 1e6
        ask = GrantRequest(
            "db", task.client, task.epoch, task.number, task.grant, spent, missed_rows=missed
        )
        self._send(task, ask)

    def _spend(self, task: SimTask) -> None:
        """Account for what flowed since the last time."""
        begin, end = max(task.at, task.begins), min(self.at, task.ends)
        task.at = self.at
        if end <= begin or task.done:
            return
        rate = min(task.pace, task.speed)
        end = min(end, begin + task.left / rate)
        self.timeline.add(begin, end, rate)
        task.left -= rate * (end - begin)
        task.spent += rate * (end - begin)
        task.missed += (task.pace - rate) * (end - begin)
        if task.left <= 1e-6 * task.rows:
            task.done = True
            task.life += 1
            task.turn += 1
            leave = Leave(
                "db", task.client, task.epoch, task.grant, math.floor(task.spent * 1e6) / 1e6
            )
            self._send(task, leave)

    def _watch_end(self, task: SimTask) -> None:
        """Look again when the rows will be done, if this grant lasts until then."""
        task.turn += 1
        turn, rate = task.turn, min(task.pace, task.speed)
        done_in = max(0.0, task.begins - self.at) + task.left / rate
        if self.at + done_in <= task.ends:
            self._after(done_in + 1e-9, lambda: self._spend(task) if task.turn == turn else None)

    def _crash(self) -> None:
        for task in self.tasks:
            if task.host < CRASHED_HOSTS and task.client:
                self._spend(task)
                self._kill(task)

    def _kill(self, task: SimTask) -> None:
        if task.done:
            return
        task.life += 1
        task.turn += 1
        task.pace = 0.0
        task.ends = self.at
        task.left = task.rows
        self._after(RESTART_AFTER, lambda: self._join(task))


def run_grants(count: int, seed: int, *, crash: bool = True) -> Outcome:
    """Our grants."""
    tasks = make_tasks(count, seed)
    grants = Grants(tasks, seed, crash=crash)
    grants.run()
    rows = sum(grants.timeline.bins)
    result = outcome(
        "grants (ours)", grants.timeline, rows, grants.messages, count / LAUNCHES_PER_SECOND
    )
    if crash:
        first = int(CRASH_AT / BIN)
        window = grants.timeline.bins[first : first + 600]
        result.after_crash = next(
            (
                index * BIN
                for index, rows in enumerate(window)
                if rows >= 0.95 * LIMIT_ROWS * BIN and index
            ),
            None,
        )
    result.cpu_micros = 1e6 * grants.cpu / len(grants.messages)
    return result


def datax_factor(rows_per_second: int, batch: int = 32, seconds: float = 400.0) -> float:
    """What DataX's flow control makes of a limit, for a producer that is never the slow one."""
    channel, now = DataxChannel(rows_per_second=rows_per_second), 0.0
    while now < seconds:
        now += batch / 100_000
        now += channel.push(batch, batch * 100, now)
    return channel.rows / (rows_per_second * now)


def run_datax(count: int, seed: int) -> Outcome:
    """DataX's channels: static rates, tasks bound to their group."""
    tasks = make_tasks(count, seed)
    rate = LIMIT_ROWS // (HOSTS * CHANNELS_PER_GROUP)
    pace = rate * datax_factor(rate)
    timeline = Timeline()
    for group in range(HOSTS):
        free = [0.0] * CHANNELS_PER_GROUP
        for task in tasks[group::HOSTS]:
            begin = heapq.heappop(free)
            speed = min(pace, task.speed)
            end = begin + task.rows / speed
            timeline.add(begin, end, speed)
            heapq.heappush(free, end)
    return outcome("DataX, 2 000 channels", timeline, sum(timeline.bins), [], 0.0)


def run_static(count: int, seed: int) -> Outcome:
    """Every task gets the same part of the limit, forever."""
    tasks = make_tasks(count, seed)
    timeline = Timeline()
    for task in tasks:
        speed = min(LIMIT_ROWS / count, task.speed)
        timeline.add(task.start, task.start + task.rows / speed, speed)
    return outcome(
        "even static split", timeline, sum(timeline.bins), [], count / LAUNCHES_PER_SECOND
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{'':<28}{'to 95 %':>9}{'to end':>9}{'1 s':>9}{'10 s':>9}{'msg/s':>10}{'worst':>10}")
    ours = run_grants(options.tasks, options.seed)
    print(ours.line(), flush=True)
    print(run_datax(options.tasks, options.seed).line())
    print(run_static(options.tasks, options.seed).line())
    print(
        f"{CRASHED_HOSTS} of {HOSTS} hosts lost at {CRASH_AT:g} s: back at 95 % after {ours.after_crash} s"
    )
    print(f"coordinator: {ours.cpu_micros:.0f} us of CPU per request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
