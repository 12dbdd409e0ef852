"""Threads for real: many at once, with everything that can go wrong, under a watchdog.

The short form runs with the suite; the long form is marked `soak`.
"""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_channel.channel import MemoryChannel, Overflow
from spark_channel.errors import (
    ChannelClosedError,
    ChannelFullError,
    EndOfChannel,
    TransactionFullError,
)
from tests.channel.helpers import Thread, conserved

MILLION = 1_000_000


def numbered(count: int, start: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(np.arange(start, start + count, dtype=np.int64))})


class Sums:
    """Count and checksum of many threads' batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows = 0
        self.total = 0

    def add(self, *batches: pa.RecordBatch) -> None:
        rows = sum(batch.num_rows for batch in batches)
        total = sum(pc.sum(batch.column(0)).as_py() or 0 for batch in batches)
        with self._lock:
            self.rows += rows
            self.total += total


def exactly(sums: Sums, count: int) -> None:
    assert (sums.rows, sums.total) == (count, count * (count - 1) // 2)


def fifty_by_fifty(channel: MemoryChannel, rows: int, batch_rows: int) -> Sums:
    producers, consumers = 50, 50
    share = rows // producers
    got = Sums()

    def produce(first: int) -> None:
        for start in range(first, first + share, batch_rows):
            channel.push(numbered(min(batch_rows, first + share - start), start))

    def consume() -> None:
        for batch in channel:
            got.add(batch)

    takers = [Thread(consume) for _ in range(consumers)]
    givers = [Thread(lambda first=n * share: produce(first)) for n in range(producers)]  # type: ignore[misc] # mypy infers no lambda with a default
    for giver in givers:
        giver.result(100)
    channel.close()
    for taker in takers:
        taker.result(100)
    return got


@pytest.mark.parametrize("capacity_rows", [1_048_576, 30_000, 3_000])
def test_ten_million_rows_between_fifty_and_fifty(capacity_rows: int) -> None:
    channel = MemoryChannel(capacity_rows)
    got = fifty_by_fifty(channel, 10 * MILLION, 8_192)
    exactly(got, 10 * MILLION)
    s = channel.statistics()
    assert (s.rows_pushed, s.rows_pulled, s.rows_stored, s.bytes_stored) == (
        10 * MILLION,
        10 * MILLION,
        0,
        0,
    )
    assert s.bytes_pushed == 80 * MILLION
    conserved(channel)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_million_rows_a_hundred_times() -> None:
    for _ in range(100):
        test_ten_million_rows_between_fifty_and_fifty(30_000)


class Storm:
    """Fifty producers and fifty consumers, with and without transactions, random rollbacks and resizes.

    Numbers are unique: whatever is consumed twice, lost or invented shows. Batches have up to 40 times `grain` rows.
    """

    def __init__(self, seed: int, overflow: str, grain: int) -> None:
        self.random = random.Random(seed)
        self.changing = overflow == CHANGING
        self.grain = grain
        self.share = 12 * 50 * grain
        """Numbers that a producer may use up."""
        self.channel = MemoryChannel(
            capacity_rows=200 * grain,
            capacity_bytes=1_500 * grain,
            transaction_rows=50 * grain,
            overflow=Overflow.BLOCK if self.changing else overflow,
            keep_alive=0.002,
        )
        self.published: list[list[pa.RecordBatch]] = [[] for _ in range(50)]
        self.consumed: list[list[pa.RecordBatch]] = [[] for _ in range(50)]
        self.working = threading.Event()
        self.working.set()

    def run(self) -> None:
        consumers = [self.start(self.consume, n) for n in range(50)]
        producers = [self.start(self.produce, n) for n in range(50)]
        disturber = self.start(self.disturb, 0)
        for producer in producers:
            producer.result(100)
        self.working.clear()
        disturber.result(100)
        self.channel.close()
        for consumer in consumers:
            consumer.result(100)
        self.check()

    def start(self, work: Callable[[random.Random, int], None], n: int) -> Thread[None]:
        chance = random.Random(self.random.random())
        return Thread(lambda: work(chance, n))

    def produce(self, chance: random.Random, producer: int) -> None:
        number = producer * self.share
        for _ in range(12):
            sizes = [chance.choice([1, 3, 10, 40]) for _ in range(chance.choice([1, 1, 3]))]
            sizes = sizes if sum(sizes) <= 50 else sizes[:1]
            made = []
            for size in sizes:
                made.append(numbered(size * self.grain, number))
                number += size * self.grain
            if chance.random() < 0.5:
                arrived = [batch for batch in made if self.channel.push(batch)]
            else:
                arrived = made if self.commit(chance, made) else []
            self.published[producer] += arrived

    def commit(self, chance: random.Random, made: list[pa.RecordBatch]) -> bool:
        while True:
            transaction = self.channel.transaction()
            transaction.begin()
            try:
                for batch in made:
                    transaction.put(batch)
                if chance.random() < 0.2:
                    transaction.rollback()
                    continue
                transaction.commit()
                return True
            except (ChannelFullError, TransactionFullError):
                transaction.rollback()
                if chance.random() < 0.1:
                    return False
            finally:
                transaction.close()

    def consume(self, chance: random.Random, consumer: int) -> None:
        mine = self.consumed[consumer]
        while True:
            try:
                way = chance.random()
                if way < 0.3:
                    mine.append(self.channel.pull())
                elif way < 0.5:
                    mine += self.channel.pull_all(chance.randint(1, 100 * self.grain))
                elif way < 0.6:
                    mine += self.channel.drain()
                else:
                    mine += self.take(chance)
            except EndOfChannel:
                return

    def take(self, chance: random.Random) -> list[pa.RecordBatch]:
        with self.channel.transaction() as transaction:
            got = []
            while (batch := transaction.take()) is not None:
                got.append(batch)
                if chance.random() < 0.6 or transaction.taken_rows == 50 * self.grain:
                    break
            if chance.random() < 0.3:
                transaction.rollback()
                return []
            return got

    def disturb(self, chance: random.Random, _: int) -> None:
        while self.working.is_set():
            if self.changing:
                self.channel.overflow = chance.choice(list(Overflow))
            try:
                self.channel.resize(
                    capacity_rows=chance.randint(50, 300) * self.grain,
                    capacity_bytes=chance.randint(500, 3_000) * self.grain,
                )
            except ChannelFullError:
                pass
            conserved(self.channel)

    def check(self) -> None:
        conserved(self.channel)
        published, consumed = every_number(self.published), every_number(self.consumed)
        s = self.channel.statistics()
        assert (s.rows_stored, s.bytes_stored, s.rows_held, s.rows_reserved) == (0, 0, 0, 0)
        assert s.rows_pulled == len(consumed)
        assert s.bytes_pushed == 8 * s.rows_pushed
        assert s.rows_pushed == len(published)
        assert len(consumed) + s.rows_dropped == len(published)
        waits = np.zeros(50 * self.share, dtype=np.bool_)
        waits[published] = True
        assert waits.sum() == len(published)
        assert waits[consumed].all(), "a row came from nowhere"
        waits[consumed] = False
        assert waits.sum() == s.rows_dropped, "a row was seen twice"
        if not self.changing and self.channel.overflow is not Overflow.OVERWRITE:
            assert s.rows_dropped == 0


CHANGING = "changing"
KINDS = [*Overflow, CHANGING]
GRAINS = {"odd boundaries": 1, "ten million rows": 1_000}


def every_number(kept: list[list[pa.RecordBatch]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.concatenate([batch.column(0).to_numpy() for some in kept for batch in some])


@pytest.mark.parametrize("grain", GRAINS.values(), ids=GRAINS)
@pytest.mark.parametrize("overflow", KINDS)
def test_a_storm(overflow: str, grain: int) -> None:
    Storm(1, overflow, grain).run()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("grain", GRAINS.values(), ids=GRAINS)
@pytest.mark.parametrize("overflow", KINDS)
def test_a_hundred_storms(overflow: str, grain: int) -> None:
    for seed in range(100):
        Storm(seed, overflow, grain).run()


def order_is_kept(seed: int) -> None:
    """Rollbacks or not, a single consumer sees each producer's rows in their order, once."""
    channel = MemoryChannel(capacity_rows=64, keep_alive=0.005)
    producers = 4

    def produce(producer: int) -> None:
        number, chance = producer * MILLION, random.Random(seed + producer)
        for _ in range(100):
            size = chance.choice([1, 5, 30, 100])
            channel.push(numbered(size, number))
            number += size

    def consume() -> list[int]:
        chance, got = random.Random(seed), []
        while True:
            try:
                with channel.transaction() as transaction:
                    batches: list[pa.RecordBatch] = []
                    for _ in range(chance.randint(1, 4)):
                        if (batch := transaction.take()) is None:
                            break
                        batches.append(batch)
                    if chance.random() < 0.3:
                        transaction.rollback()
                        continue
                got += [n for some in batches for n in some.column(0).to_pylist()]
            except TransactionFullError:
                continue
            except EndOfChannel:
                return got

    consumer = Thread(consume)
    givers = [Thread(lambda n=n: produce(n)) for n in range(producers)]  # type: ignore[misc] # mypy infers no lambda with a default
    for giver in givers:
        giver.result(60)
    channel.close()
    got: list[int] = consumer.result(60)
    for producer in range(producers):
        mine = [n for n in got if n // MILLION == producer]
        assert mine == list(range(producer * MILLION, producer * MILLION + len(mine)))
    assert len(got) == channel.statistics().rows_pushed


def test_order_is_kept_under_rollbacks() -> None:
    order_is_kept(7)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_order_is_kept_a_hundred_times() -> None:
    for seed in range(100):
        order_is_kept(seed)


def ends_in_the_middle(seed: int) -> None:
    """close or fail while everybody is busy: all come back, and the sums hold."""
    chance = random.Random(seed)
    channel = MemoryChannel(capacity_rows=50, keep_alive=0.002)
    error = OSError("gone")
    fails = chance.random() < 0.5

    def produce() -> Any:
        n = 0
        while True:
            channel.push(numbered(17, n))
            with channel.transaction() as transaction:
                transaction.put(numbered(9, n))
            n += 26

    def consume() -> Any:
        while True:
            channel.pull()
            with channel.transaction() as transaction:
                transaction.take()

    threads: list[Thread[Any]] = [Thread(produce) for _ in range(4)] + [
        Thread(consume) for _ in range(4)
    ]
    while channel.statistics().rows_pulled < chance.randint(100, 3000) and any(
        t.is_alive() for t in threads
    ):
        channel.pull(timeout=0)
    channel.fail(error) if fails else channel.close()
    allowed = (OSError,) if fails else (ChannelClosedError, EndOfChannel, ChannelFullError)
    for thread in threads:
        with pytest.raises((*allowed, ChannelFullError)):
            thread.result(30)
    conserved(channel)
    s = channel.statistics()
    assert (s.rows_held, s.rows_reserved) == (0, 0)


def test_an_end_in_the_middle() -> None:
    for seed in range(6):
        ends_in_the_middle(seed)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_end_in_the_middle_a_hundred_times() -> None:
    for seed in range(100):
        ends_in_the_middle(seed)


def test_threads_that_die_with_open_transactions_lose_nothing() -> None:
    channel = MemoryChannel(capacity_rows=100)
    total = 5_000
    got = Sums()

    def give_up() -> None:
        transaction = channel.transaction()
        transaction.begin()
        transaction.take()
        transaction.put(numbered(1, 10 * MILLION))

    def consume() -> None:
        for batch in channel:
            got.add(batch)

    producer = Thread(lambda: [channel.push(numbered(10, n)) for n in range(0, total, 10)])
    doomed = [Thread(give_up) for _ in range(50)]
    consumers = [Thread(consume) for _ in range(3)]
    producer.result()
    for thread in doomed:
        thread.result()
    channel.close()
    for thread in consumers:
        thread.result()
    exactly(got, total)
    assert channel.statistics().transactions_abandoned == 50
    conserved(channel)
