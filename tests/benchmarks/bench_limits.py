"""The limit against DataX's rule, on the same virtual load, and what a coordinator costs.

Everything but the figures of CPU, of the network and of databases (`limit_used`) runs on virtual time, so it says the
same on every machine.
"""

import bisect
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_channel.limits import (
    Coordinator,
    Grant,
    GrantRequest,
    Join,
    Joined,
    RateLimiter,
    Reply,
    RetryLater,
    SetRates,
    decode_reply,
    encode,
)
from tests.benchmarks import limit_used
from tests.benchmarks.datax import DataxChannel
from tests.benchmarks.harness import Row, print_table
from tests.benchmarks.service_load import measure
from tests.benchmarks.simulate import run_grants
from tests.connectors.sql.limited_copy import LimitedCopy, jitter, never, pauses
from tests.limits.conftest import HandClock
from tests.limits.world import LIMIT, World, short_tasks, used_until_done

Paid = list[tuple[float, int]]
"""(when, how much) of every payment that went through, by virtual time."""

BATCH = 32
PRODUCER_ROWS_PER_SECOND = 1_000_000


def worst(paid: Paid, window: float) -> int:
    """The fullest window."""
    times = [at for at, _ in paid]
    sums = [0, *itertools.accumulate(amount for _, amount in paid)]
    return max(
        sums[bisect.bisect_left(times, begin + window - 1e-9)] - sums[index]
        for index, begin in enumerate(times)
    )


def with_meter(
    amounts: Callable[[RateLimiter], int], gap: float, seconds: float, **rates: float
) -> Paid:
    """A producer that needs `gap` seconds from batch to batch, under our `RateLimiter`."""
    clock = HandClock()
    meter = RateLimiter(**rates, clock=clock)
    paid: Paid = []
    while clock.now() < seconds:
        amount = amounts(meter)
        clock.sleep(gap)
        payment = meter.pay(amount, amount, lambda: None)
        while wait := payment.remaining().seconds:
            clock.sleep(wait)
        paid.append((clock.now(), amount))
    return paid


def with_datax(amount: int, gap: float, seconds: float, channel: DataxChannel) -> Paid:
    """The same under DataX's rule: it pushes first, and then sleeps."""
    now, paid = 0.0, []
    while now < seconds:
        now += gap
        paid.append((now, amount))
        now += channel.push(amount, amount, now)
    return paid


def fast_producer() -> list[Row]:
    """1 000 rows/s, and a source that gives a million."""
    datax = with_datax(
        BATCH, BATCH / PRODUCER_ROWS_PER_SECOND, 60, DataxChannel(rows_per_second=1000)
    )

    def slice_rows(meter: RateLimiter) -> int:
        return min(BATCH, meter.slice_size()[0] or BATCH)

    ours = with_meter(slice_rows, BATCH / PRODUCER_ROWS_PER_SECOND, 60, rows_per_second=1000)
    gaps = [max(b - a for (a, _), (b, _) in itertools.pairwise(paid)) for paid in (ours, datax)]
    note = f"DataX {worst(datax, 1) / 1000:.1f} x, then {gaps[1]:.1f} s of silence"
    return [
        Row(
            "fast producer at 1 000 rows/s: worst second",
            worst(ours, 1) / 1000,
            "<= 1.05",
            "x",
            note,
        ),
        Row(
            "fast producer at 1 000 rows/s: longest gap",
            gaps[0],
            "<= 0.3",
            "s",
            f"DataX {gaps[1]:.1f} s",
        ),
    ]


def small_batches() -> list[Row]:
    """One row of 40 bytes each 25 ms, under 40 bytes/s."""
    seconds = 3600.0
    datax = with_datax(40, 0.025, seconds, DataxChannel(bytes_per_second=40))
    ours = with_meter(lambda _: 40, 0.025, seconds, bytes_per_second=40)
    rate = [(sum(amount for _, amount in paid) - 40) / paid[-1][0] / 40 for paid in (ours, datax)]
    return [
        Row(
            "one-row batches, 40 B/s: long-run rate",
            rate[0],
            "0.995 to 1.005",
            "x",
            f"DataX {rate[1]:.2f} x",
        )
    ]


def skewed_tasks() -> list[Row]:
    """Eight tasks, one with ten times the rows."""
    rate, rows = 8_000, [200_000, *[20_000] * 7]
    world = World(rate)
    for index, count in enumerate(rows):
        world.worker(rows=count, start=0.02 * index)
    world.run(120)
    ends = [worker.done_at for worker in world.workers]
    ours = sum(rows) / (rate * max(end for end in ends if end is not None))

    done = []
    for count in rows:
        channel, now, left = DataxChannel(rows_per_second=rate // 8), 0.0, count
        while left > 0:
            now += BATCH / 20_000
            now += channel.push(min(BATCH, left), 0, now)
            left -= BATCH
        done.append(now)
    datax = sum(rows) / (rate * max(done))
    note = f"DataX {datax:.0%}"
    return [
        Row(
            "8 tasks, one with 10x the rows: budget used until the end",
            100 * ours,
            ">= 98",
            "%",
            note,
        )
    ]


def many_short_tasks() -> list[Row]:
    """336 776 rows at 60 000 rows/s in 2 slots, each of which needs 25 ms between two tasks."""
    rows = []
    for count in (2, 8, 50, 200):
        world = short_tasks(count)
        note = (
            f"{count * 2 * 0.025 / 4:.1f} s of each slot pass between tasks" if count == 200 else ""
        )
        rows.append(
            Row(
                f"{count} tasks, 25 ms between two: budget used",
                100 * used_until_done(world),
                ">= 95",
                "%",
                note,
            )
        )
    slow = used_until_done(short_tasks(200, pause=0.05))
    rows.append(
        Row("200 tasks, 50 ms between two", 100 * slow, "", "%", "94.7 % is all that can be had")
    )
    return rows


def changes() -> list[Row]:
    """A live change, and a crash of a quarter."""
    rows = []
    for factor, name in ((0.5, "halved"), (2.0, "doubled")):
        world = _running(32)
        world.coordinator.handle(SetRates(LIMIT, 10_000 * factor))
        world.run(16)
        good = [abs(_tenth(world, step) / 1000 - factor) <= 0.05 * factor for step in range(50)]
        settled = next(step for step in range(50) if all(good[step : step + 5])) * 0.1
        rows.append(Row(f"limit {name}: until all follow", settled, "<= 1", "s", "DataX never"))
    world = _running(32)
    for worker in world.workers[::4]:
        worker.crash()
    world.run(16)
    back = next(step for step in range(50) if _tenth(world, step) >= 950) * 0.1 + 0.1
    rows.append(
        Row("a quarter of the tasks crashes: to 95 % of the rate", back, "<= 1", "s", "DataX never")
    )
    return rows


def _running(tasks: int) -> World:
    world = World(10_000)
    for index in range(tasks):
        world.worker(start=0.02 * index)
    world.run(10.13)
    return world


def _tenth(world: World, step: int) -> int:
    return world.rows(10.13 + step * 0.1, 10.13 + step * 0.1 + 0.1)


def many_tasks() -> list[Row]:
    """`tests.benchmarks.simulate`, our side."""
    run = run_grants(10_000, 1)
    return [
        Row(
            "10 000 tasks on 400 hosts: requests per second",
            run.messages,
            "<= 2500",
            "",
            "mean of the run",
        ),
        Row("10 000 tasks: requests per second, fullest 10 s", run.worst_messages, "<= 2500"),
        Row("10 000 tasks: worst 10 s window", run.worst_10, "<= 1.05", "x"),
        Row("10 000 tasks: budget used until 95 % is done", 100 * run.utilisation_95, "", "%"),
    ]


@dataclass(slots=True)
class Asker:
    """A client that spends all it is granted."""

    client: str
    epoch: str
    number: int = 0
    grant: int = 0
    pace: float = 0.0
    begins: float = 0.0
    ends: float = 0.0

    def take(self, answer: Reply, now: float) -> float:
        """Seconds until it asks again."""
        if isinstance(answer, RetryLater):
            return answer.retry_in
        assert isinstance(answer, Grant), answer
        self.grant, self.pace = answer.grant, answer.rows_per_second or 0.0
        self.begins, self.ends = now, now + answer.lasts
        return answer.ask_in

    def ask(self, now: float) -> GrantRequest:
        self.number += 1
        spent = max(0.0, self.pace * (min(now, self.ends) - self.begins) - 0.001)
        return GrantRequest(
            LIMIT, self.client, self.epoch, self.number, self.grant, spent_rows=spent
        )


def coordinator_cpu() -> list[Row]:
    """1 000 clients for 60 virtual seconds: CPU of the coordinator, codec included, the network not."""
    clock = HandClock()
    coordinator = Coordinator(LIMIT, 1_000_000, clock=clock)
    turns = itertools.count()
    due: list[tuple[float, int, Asker]] = []
    for _ in range(1000):
        joined = coordinator.handle(Join(LIMIT, "job"))
        assert isinstance(joined, Joined)
        asker = Asker(joined.client, joined.epoch)
        heapq.heappush(due, (clock.at + asker.take(joined.answer, clock.at), next(turns), asker))
        clock.at += 0.002
    start, requests, cpu = clock.at, 0, 0.0
    while clock.at < start + 60:
        at, _, asker = heapq.heappop(due)
        clock.at = max(clock.at, at)
        data = encode(asker.ask(clock.at))
        begin = time.process_time()
        answer = coordinator.answer(data)
        cpu += time.process_time() - begin
        requests += 1
        heapq.heappush(
            due, (clock.at + asker.take(decode_reply(answer), clock.at), next(turns), asker)
        )
    note = f"{requests / 60:.0f} requests/s of {1e6 * cpu / requests:.0f} us; network not included"
    return [Row("coordinator at 1 000 clients: CPU", 100 * cpu / 60, "< 25", "% of a core", note)]


def over_network() -> list[Row]:
    """The same 1 000 clients over the network, see `tests.benchmarks.service_load`: real time, a real process."""
    load = measure()
    note = f"{load.requests:.0f} requests/s; on a busy machine each costs up to twice as much"
    return [
        Row(
            "service process at 1 000 clients, network included: CPU",
            100 * load.cpu,
            "< 25",
            "% of a core",
            note,
        ),
        Row("1 000 clients: a halved limit is followed by all after", load.lowered, "<= 1", "s"),
        Row("1 000 clients: a doubled limit is followed by all after", load.raised, "<= 1", "s"),
    ]


def reads() -> list[Row]:
    """Short statements of a database, by tasks of 2.5 s: from the first row to the last."""
    rows = []
    for name, late, asked in (
        ("quiet", never, 98),
        ("a third busy", jitter(1), 95),
        ("standing still for 0.3 s", pauses, 95),
    ):
        for speed in (1_000, 8_000, 40_000, 200_000):
            copy = LimitedCopy(speed, late)
            copy.run()
            rows.append(
                Row(
                    f"{speed} rows/s from a server, {name}: limit used",
                    100 * copy.used(),
                    f">= {asked}",
                    "%",
                    f"worst second {copy.worst(1.0):.2f}, at most {copy.most_ahead:.1f} s ahead",
                )
            )
    return rows


def main() -> list[Row]:
    """Every figure that is asked of the limits."""
    return [
        *fast_producer(),
        *small_batches(),
        *skewed_tasks(),
        *reads(),
        *many_short_tasks(),
        *changes(),
        *coordinator_cpu(),
        *over_network(),
        *many_tasks(),
        *limit_used.main(),
    ]


if __name__ == "__main__":
    print_table(main())
