"""Any sequence of calls, against a model that is only lists."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_channel.carrier import DataCarrier
from spark_channel.errors import ChannelClosedError
from tests.carrier.helpers import JOIN_SECONDS, Collector, batch, values

CAPACITY = 4


class Choice:
    """A partitioner that returns the partition that the test sets."""

    def __init__(self, channel: int, may_try_others: bool) -> None:
        self.channel = channel
        self.may_try_others = may_try_others

    def __call__(self, _batch: Any, _channels: int) -> int:
        return self.channel


class CarrierMachine(RuleBasedStateMachine):
    """The model: a list of rows per channel, and what is to be counted."""

    CHANNELS = 3

    def __init__(self) -> None:
        super().__init__()
        self.carrier = DataCarrier(self.CHANNELS, CAPACITY, overflow="reject")
        self.lists: list[list[int]] = [[] for _ in range(self.CHANNELS)]
        self.overflow = "reject"
        self.next = 0
        self.pushed = self.rejected = self.dropped = self.attempts = 0
        self.closed = False
        self.error: OSError | None = None
        self.iterator = iter(self.carrier)
        self.behind: int | None = None

    alive = precondition(lambda self: self.error is None)

    def accept(self, channel: int, rows: list[int]) -> None:
        self.lists[channel] += rows
        self.pushed += len(rows)
        self.dropped += max(0, len(self.lists[channel]) - CAPACITY)
        self.lists[channel] = self.lists[channel][-CAPACITY:]

    @alive
    @rule(size=st.integers(0, CAPACITY), channel=st.integers(0, CHANNELS - 1), others=st.booleans())
    def produce(self, size: int, channel: int, others: bool) -> None:
        rows = list(range(self.next, self.next + size))
        self.next += size
        self.attempts += 1
        self.carrier.partitioner = Choice(channel, others)
        if self.closed:
            with pytest.raises(ChannelClosedError):
                self.carrier.produce(batch(*rows))
            return
        accepted = self.carrier.produce(batch(*rows))
        if self.overflow == "overwrite":
            assert accepted
            self.accept(channel, rows)
            return
        order = [(channel + step) % self.CHANNELS for step in range(self.CHANNELS)]
        fitting = [
            c
            for c in (order if others else order[:1])
            if not rows or len(self.lists[c]) + size <= CAPACITY
        ]
        assert accepted == bool(fitting)
        if fitting:
            self.accept(fitting[0], rows)
        else:
            self.rejected += size

    @alive
    @rule(overflow=st.sampled_from(["reject", "overwrite"]))
    def change_overflow(self, overflow: str) -> None:
        self.carrier.overflow = self.overflow = overflow

    @alive
    @rule()
    def drain(self) -> None:
        assert values(self.carrier.drain()) == [n for rows in self.lists for n in rows]
        self.lists = [[] for _ in range(self.CHANNELS)]

    @alive
    @precondition(lambda self: any(self.lists))
    @rule()
    def iterate_once(self) -> None:
        rows = values([next(self.iterator)])
        place = next(c for c, mine in enumerate(self.lists) if mine[: len(rows)] == rows)
        del self.lists[place][: len(rows)]

    @alive
    @rule(threads=st.integers(1, 5))
    def consume(self, threads: int) -> None:
        consumer = Collector()
        driver = self.carrier.consume(consumer, threads=threads)
        assert driver.close(JOIN_SECONDS) is True
        assert sorted(consumer.values()) == sorted(n for rows in self.lists for n in rows)
        assert (consumer.events[0], consumer.events[-1]) == ("init", "on_exit")
        self.lists = [[] for _ in range(self.CHANNELS)]

    @rule()
    def close(self) -> None:
        self.carrier.close()
        self.closed = True

    @precondition(lambda self: self.closed and self.error is None)
    @rule()
    def shutdown(self) -> None:
        assert self.carrier.shutdown() is not any(self.lists)

    @precondition(lambda self: self.closed)
    @rule()
    def fail(self) -> None:
        error = OSError("gone")
        self.carrier.fail(error)
        self.error = self.error or error

    @precondition(lambda self: self.error is not None)
    @rule()
    def everything_raises_the_first_error(self) -> None:
        for use in (
            self.carrier.drain,
            self.carrier.shutdown,
            lambda: self.carrier.consume(Collector()),
        ):
            with pytest.raises(OSError) as raised:
                use()
            assert raised.value is self.error

    @invariant()
    def the_sums_are_exact(self) -> None:
        s = self.carrier.statistics()
        stored = sum(map(len, self.lists))
        assert (s.rows_pushed, s.rows_rejected, s.rows_dropped) == (
            self.pushed,
            self.rejected,
            self.dropped,
        )
        assert s.rows_stored == stored
        assert s.rows_pulled == self.pushed - self.dropped - stored
        assert s.put_attempts == self.attempts
        assert self.carrier.closed == self.closed
        assert self.carrier.ended == (self.error is not None or (self.closed and not stored))
        if self.error is None:
            assert self.carrier.backlog == stored

    def teardown(self) -> None:
        self.iterator.close()  # type: ignore[attr-defined] # a generator


TestCarrier = CarrierMachine.TestCase
TestCarrier.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
