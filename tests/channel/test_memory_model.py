"""Any history at all: the channel against a model, over four threads and their transactions."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_channel.channel import MemoryChannel
from spark_channel.errors import (
    ChannelClosedError,
    ChannelFullError,
    EndOfChannel,
    TransactionFullError,
)
from spark_channel.testing import VirtualClock
from tests.channel.helpers import conserved, numbers
from tests.channel.helpers import rows as batch_of
from tests.channel.model import Model, Row, Txn

ACTORS = 4
weights = st.sampled_from([0, 1, 1, 2, 3, 12])
fed = st.sampled_from([True, True, True, False])
choices = st.integers(0, ACTORS - 1)
WORDS: dict[type[BaseException], str] = {
    ChannelClosedError: "closed",
    ChannelFullError: "no room",
    EndOfChannel: "end",
    TransactionFullError: "full",
    ValueError: "nonsense",
    ZeroDivisionError: "failed",
}


class Actor:
    """A thread that is blocked on the clock whenever it has nothing to do, or waits inside a call."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._work: Callable[[], Any] | None = None
        self._over = False
        self.answers: list[Any] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def begin(self, work: Callable[[], Any]) -> None:
        with self._condition:
            self._work = work
            self._condition.notify()

    def end(self) -> None:
        with self._condition:
            self._over = True
            self._condition.notify()
        self.thread.join(20)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._work is None:
                    if self._over:
                        return
                    self._clock.wait(self._condition)
                work, self._work = self._work, None
            try:
                answer = work()
            except tuple(WORDS) as error:
                answer = WORDS[type(error)]
            self.answers.append(answer)


class ChannelMachine(RuleBasedStateMachine):
    @initialize(
        capacity_rows=st.integers(1, 20),
        capacity_bytes=st.integers(1, 50),
        transaction_rows=st.none() | st.integers(1, 20),
        overflow=st.sampled_from(["block", "reject", "overwrite"]),
    )
    def start(
        self, capacity_rows: int, capacity_bytes: int, transaction_rows: int | None, overflow: str
    ) -> None:
        if transaction_rows is not None:
            transaction_rows = min(transaction_rows, capacity_rows)
        self.clock = VirtualClock()
        self.channel = MemoryChannel(
            capacity_rows,
            capacity_bytes,
            transaction_rows=transaction_rows,
            overflow=overflow,
            keep_alive=0,
            clock=self.clock,
        )
        self.model = Model(capacity_rows, capacity_bytes, transaction_rows, overflow)
        self.actors = [Actor(self.clock) for _ in range(ACTORS)]
        self.resizer = Actor(self.clock)
        self.waiting: dict[int, str] = {}
        self.weights: dict[int, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "actors"):
            self.channel.fail(ZeroDivisionError())
            for actor in (*self.actors, self.resizer):
                actor.end()

    # ---- the two sides

    def rows(self, count: int, weight: int) -> list[Row]:
        start = len(self.weights)
        self.weights.update((start + n, weight) for n in range(count))
        return [(start + n, weight) for n in range(count)]

    def weighed(self, batches: pa.RecordBatch | list[pa.RecordBatch]) -> list[Row]:
        return [(n, self.weights[n]) for n in numbers(batches)]

    def call(self, actor: int, work: Callable[[], Any]) -> Any:
        """The answer, or "waits"."""
        self.actors[actor].begin(work)
        self.clock.wait_until_blocked([a.thread for a in self.actors])
        return self.actors[actor].answers.pop() if self.actors[actor].answers else "waits"

    def answer(self, actor: int) -> Any:
        """Check the result of an actor that waited."""
        del self.waiting[actor]
        (answer,) = self.actors[actor].answers
        self.actors[actor].answers.clear()
        return answer

    def feed(self, wanted: bool) -> None:
        """See to it that there is something to take, where that needs no wait."""
        model = self.model
        free = not (model.pushing or model.closed or model.broken)
        if wanted and free and not model.ready:
            rows = self.rows(3, 1)
            if model.fits(rows, model.held()):
                assert self.channel.push(batch_of(3, rows[0][0]), nbytes=3) is model.push(-1, rows)
                self.settle()

    def settle(self) -> None:
        """Let the model go as far as the channel went; then both must have the same waiters."""
        self.clock.wait_until_blocked([a.thread for a in self.actors])
        model = self.model
        model.grant()
        while model.pulling and model.ready and not model.broken:
            actor = model.pulling.pop(0)
            model.consume(self.weighed(self.answer(actor)))
            model.grant()
        for actor in [a for a in model.pulling if model.broken or model.over(a)]:
            model.pulling.remove(actor)
            assert self.answer(actor) == ("failed" if model.broken else "end")
        still = {actor for actor, _ in model.pushing}
        for actor in [a for a, what in self.waiting.items() if what == "push" and a not in still]:
            assert self.answer(actor) == (
                "failed" if model.broken else "closed" if model.closed else True
            )
        assert not any(actor.answers for actor in self.actors)
        assert set(self.waiting) == still | set(model.pulling)

    def choose(self, choice: int, *, in_transaction: bool = False) -> int | None:
        """One of the actors that can do it."""
        able = self.model.transactions if in_transaction else range(ACTORS)
        idle = [actor for actor in able if actor not in self.waiting]
        return idle[choice % len(idle)] if idle else None

    def ensure_transaction(self, actor: int) -> None:
        if actor not in self.model.transactions:
            assert self.call(actor, lambda: self.channel.transaction().begin()) is None
            self.model.transactions[actor] = Txn()

    # ---- rules

    @rule(choice=choices, count=st.integers(1, 15), weight=weights)
    def push(self, choice: int, count: int, weight: int) -> None:
        actor = self.choose(choice)
        if actor is not None:
            rows = self.rows(count, weight)
            answer = self.call(
                actor, lambda: self.channel.push(batch_of(count, rows[0][0]), nbytes=count * weight)
            )
            expected = self.model.push(actor, rows)
            if expected == "waits":
                self.waiting[actor] = "push"
                if answer != "waits":  # a waiting pull made its room: settle will know
                    self.actors[actor].answers.append(answer)
            else:
                assert answer == expected
            self.settle()

    @rule(choice=choices, fed=fed)
    def pull(self, choice: int, fed: bool) -> None:
        self.feed(fed)
        actor = self.choose(choice)
        if actor is not None:
            answer = self.call(actor, self.channel.pull)
            if self.model.broken:
                assert answer == "failed"
            elif self.model.ready:
                self.model.consume(self.weighed(answer))
            elif self.model.over(actor):
                assert answer == "end"
            else:
                assert answer == "waits"
                self.waiting[actor] = "pull"
                self.model.pulling.append(actor)
            self.settle()

    @rule(max_rows=st.none() | st.integers(1, 8))
    def drain(self, max_rows: int | None) -> None:
        try:
            answer = self.weighed(self.channel.drain(max_rows))
        except ZeroDivisionError:
            assert self.model.broken
            return
        assert len(answer) == min(len(self.model.ready), max_rows or len(self.model.ready))
        if answer:
            self.model.consume(answer)
        self.settle()

    @rule(choice=choices, count=st.integers(1, 6), weight=weights)
    def put(self, choice: int, count: int, weight: int) -> None:
        actor = self.choose(choice)
        if actor is not None:
            self.ensure_transaction(actor)
            rows = self.rows(count, weight)
            answer = self.call(
                actor, lambda: self.channel.put(batch_of(count, rows[0][0]), nbytes=count * weight)
            )
            assert answer == self.model.put(actor, rows)

    @rule(choice=choices, fed=fed)
    def take(self, choice: int, fed: bool) -> None:
        self.feed(fed)
        model = self.model
        actor = self.choose(choice)
        if actor is not None:
            self.ensure_transaction(actor)
            answer = self.call(actor, self.channel.take)
            txn = model.transactions[actor]
            if len(txn.takes) >= model.transaction_rows:
                assert answer == "full"
            elif model.broken:
                assert answer == "failed"
            elif not model.ready:
                assert answer == ("end" if model.over(actor) and not txn.takes else None)
            else:
                taken = self.weighed(answer)
                assert 0 < len(taken) <= model.transaction_rows - len(txn.takes)
                assert taken == model.ready[: len(taken)]
                model.ready = model.ready[len(taken) :]
                txn.takes += taken
            self.settle()

    @rule(choice=choices)
    def commit(self, choice: int) -> None:
        actor = self.choose(choice, in_transaction=True)
        if actor is not None:

            def commit() -> None:
                transaction = self.channel.transaction()
                transaction.commit()
                transaction.close()

            assert self.call(actor, commit) == self.model.commit(actor)
            self.settle()

    @rule(choice=choices)
    def roll_back(self, choice: int) -> None:
        actor = self.choose(choice, in_transaction=True)
        if actor is not None:

            def roll_back() -> None:
                transaction = self.channel.transaction()
                transaction.rollback()
                transaction.close()

            assert self.call(actor, roll_back) is None
            self.model.roll_back(actor)
            self.settle()

    @rule(choice=choices)
    def die(self, choice: int) -> None:
        """The thread ends; what its transaction took comes back, and another thread takes its place."""
        actor = self.choose(choice)
        if actor is not None:
            self.actors[actor].end()
            self.actors[actor] = Actor(self.clock)
            if actor in self.model.transactions:
                self.model.roll_back(actor)
            self.settle()

    @rule(
        capacity_rows=st.none() | st.integers(1, 20),
        capacity_bytes=st.none() | st.integers(1, 50),
        transaction_rows=st.none() | st.integers(1, 20),
        keep_alive=st.sampled_from([None, 0, 2.0, -1]),
    )
    def resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> None:
        given = {
            "capacity_rows": capacity_rows,
            "capacity_bytes": capacity_bytes,
            "transaction_rows": transaction_rows,
            "keep_alive": keep_alive,
        }
        wanted = self.model.resize(capacity_rows, capacity_bytes, transaction_rows, keep_alive)
        self.resizer.begin(lambda: self.channel.resize(**given))  # type: ignore[arg-type] # mypy does not see what a mapping has
        self.clock.wait_until_blocked([self.resizer.thread])
        if wanted == "no room" and keep_alive:
            for seconds in (keep_alive - 0.5, 0.5):
                assert not self.resizer.answers, "it waits for so long, and not a moment less"
                self.clock.advance(seconds)
                self.clock.wait_until_blocked([self.resizer.thread])
        assert self.resizer.answers.pop() == wanted
        assert not self.resizer.answers
        assert self.channel.transaction_rows == self.model.transaction_rows
        assert self.channel.keep_alive == (
            keep_alive if wanted is None and keep_alive is not None else 0
        )
        if self.channel.keep_alive:
            self.channel.resize(keep_alive=0)  # the model's takes and commits do not wait
        self.settle()

    @rule(overflow=st.sampled_from(["block", "reject", "overwrite"]))
    def change_overflow(self, overflow: str) -> None:
        self.channel.overflow = overflow
        self.model.overflow = overflow
        self.settle()

    @precondition(lambda self: len(self.weights) > 20)
    @rule(sure=st.integers(0, 5))
    def close(self, sure: int) -> None:
        if sure == 0:
            self.channel.close()
            self.model.closed = True
            self.settle()

    @precondition(lambda self: len(self.weights) > 20)
    @rule(sure=st.integers(0, 9))
    def fail(self, sure: int) -> None:
        if sure == 0:
            self.channel.fail(ZeroDivisionError())
            self.model.broken = True
            self.settle()

    # ---- what must hold after each

    @invariant()
    def the_sums_are_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        model, s = self.model, self.channel.statistics()
        held = model.held()
        for name, rows in {
            "pushed": model.published,
            "pulled": model.consumed,
            "dropped": model.dropped,
            "rejected": model.rejected,
            "failed": model.failed,
            "held": held,
            "stored": model.ready + held,
            "reserved": [],
        }.items():
            assert getattr(s, f"rows_{name}") == len(rows), name
            assert getattr(s, f"bytes_{name}") == sum(w for _, w in rows), name
        assert (s.capacity_rows, s.capacity_bytes) == (model.capacity_rows, model.capacity_bytes)
        assert self.channel.backlog == len(model.ready)
        assert self.channel.ended == (model.broken or model.over())
        conserved(self.channel)


class _Long(ChannelMachine):
    pass


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(
    max_examples=50,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLongChannelMachine = pytest.mark.soak(_Long.TestCase)
TestLongChannelMachine.settings = settings(TestChannelMachine.settings, max_examples=1_000)
