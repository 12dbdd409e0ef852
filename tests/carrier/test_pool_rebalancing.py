"""A pool under any sequence of calls: carriers that wait for a busy thread go to an idle one, and nothing is lost.

The model is a list of rows for each carrier, and which of them are held up. While fewer are held up than there are
threads, every other carrier's rows are consumed, whichever thread it was given to.
"""

import itertools
import threading
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_channel.carrier import BulkConsumePool, Consumer, DataCarrier
from tests.carrier.helpers import JOIN_SECONDS, batch, values

THREADS = 3
CARRIERS = 8


@dataclass
class Seen:
    """The calls to the consumers of one carrier, and the gate that they pass."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    opened: bool = True
    rows: list[int] = field(default_factory=list)
    inside: int = 0
    made: list["Gated"] = field(default_factory=list)

    def hold(self, opened: bool) -> None:
        with self.changed:
            self.opened = opened
            self.changed.notify_all()

    def wait_until_inside(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.inside == 1, JOIN_SECONDS)

    def wait_for(self, rows: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.rows) >= rows, JOIN_SECONDS)


class Gated(Consumer):
    """Passes its carrier's gate with each call; notes in which threads it was called."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.events: list[tuple[str, int]] = []
        seen.made.append(self)

    def _note(self, event: str) -> None:
        self.events.append((event, threading.get_ident()))

    def init(self) -> None:
        self._note("init")

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        seen = self.seen
        with seen.changed:
            seen.inside += 1
            seen.changed.notify_all()
            assert seen.inside == 1, "one call at a time for each carrier"
            assert seen.changed.wait_for(lambda: seen.opened, 4 * JOIN_SECONDS), (
                "longer than what waits for it"
            )
            self._note("consume")
            seen.rows += values(batches)
            seen.inside -= 1
            seen.changed.notify_all()

    def on_exit(self) -> None:
        self._note("on_exit")


@dataclass
class One:
    carrier: DataCarrier
    seen: Seen
    shared: bool
    produced: list[int] = field(default_factory=list)
    held: bool = False


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BulkConsumePool(THREADS, name="model")
        self.all: list[One] = []
        self.live: list[One] = []
        self.numbers = itertools.count()

    def pick(self, number: int) -> One:
        return self.live[number % len(self.live)]

    @precondition(lambda self: len(self.live) < CARRIERS)
    @rule(shared=st.booleans(), priority=st.integers(0, 2))
    def add(self, shared: bool, priority: int) -> None:
        one = One(DataCarrier(1, 1_000), Seen(), shared)
        consumer = Gated(one.seen) if shared else (lambda: Gated(one.seen))
        one.carrier.consume(consumer, pool=self.pool, priority=priority)
        self.all.append(one)
        self.live.append(one)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 99), size=st.integers(1, 5), batches=st.integers(1, 3))
    def produce(self, number: int, size: int, batches: int) -> None:
        one = self.pick(number)
        for _ in range(batches):
            rows = [next(self.numbers) for _ in range(size)]
            one.produced += rows
            assert one.carrier.produce(batch(*rows))

    @precondition(lambda self: any(not one.held for one in self.live))
    @precondition(lambda self: sum(one.held for one in self.live) < THREADS - 1)
    @rule(number=st.integers(0, 99))
    def hold_up(self, number: int) -> None:
        free = [one for one in self.live if not one.held]
        one = free[number % len(free)]
        one.held = True
        one.seen.hold(False)
        one.produced.append(next(self.numbers))
        assert one.carrier.produce(batch(one.produced[-1]))
        if one.shared:  # now a thread is busy with it
            assert one.seen.wait_until_inside()

    @precondition(lambda self: any(one.held for one in self.live))
    @rule(number=st.integers(0, 99))
    def let_go(self, number: int) -> None:
        held = [one for one in self.live if one.held]
        self._let_go(held[number % len(held)])

    @precondition(lambda self: self.live)
    @rule()
    def whatever_is_not_held_up_is_consumed(self) -> None:
        """A consumer that is made per thread stays with its thread: it may wait for one that is held up there."""
        someone_holds = any(one.held for one in self.live)
        for one in self.live:
            if not one.held and (one.shared or not someone_holds):
                assert one.seen.wait_for(len(one.produced)), f"{self.pool.metrics()}"
                assert one.seen.rows == one.produced

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        one = self.pick(number)
        self._let_go(one)
        if one.shared or not any(each.held for each in self.live):
            assert one.carrier.shutdown(JOIN_SECONDS)
            self._check_ended(one)
            self.live.remove(one)

    @invariant()
    def nothing_is_doubled_or_out_of_order(self) -> None:
        for one in self.all:
            with one.seen.changed:
                rows = list(one.seen.rows)
            assert rows == one.produced[: len(rows)]

    @invariant()
    def every_carrier_has_one_thread(self) -> None:
        metrics = self.pool.metrics()
        assert len(metrics) == THREADS
        assert sum(each.carriers for each in metrics) <= len(self.all)

    def teardown(self) -> None:
        for one in self.live:
            self._let_go(one)
        for one in self.live:
            assert one.carrier.shutdown(JOIN_SECONDS)
            self._check_ended(one)
        assert sum(self.pool.carriers()) == 0
        assert self.pool.close(JOIN_SECONDS)

    def _let_go(self, one: One) -> None:
        one.held = False
        one.seen.hold(True)

    def _check_ended(self, one: One) -> None:
        assert one.seen.rows == one.produced
        assert len(one.seen.made) == 1 or not one.shared
        for consumer in one.seen.made:
            names = [name for name, _ in consumer.events]
            if not names:
                continue  # it was made for a thread that had nothing to do
            assert (names[0], names[-1]) == ("init", "on_exit")
            assert names.count("init") == names.count("on_exit") == 1
            if not one.shared:
                assert len({thread for _, thread in consumer.events}) == 1, (
                    "all in the thread that it was made in"
                )


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
