"""Real threads, exact counts: nothing is lost, doubled or taken out of order, whatever is changed meanwhile.

Every row is one number, unique over all producers. The tests compare the rows that came out with those that went in.
"""

import faulthandler
import random
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_channel.carrier import BulkConsumePool, Consumer, DataCarrier
from tests.carrier.helpers import JOIN_SECONDS, at_once, start

ROWS = 16
"""Rows in one batch."""

Numbers = npt.NDArray[np.int64]


@pytest.fixture(autouse=True)
def _watchdog() -> Iterator[None]:
    """Threads change places often, and a hang prints every thread's stack and ends the run."""
    faulthandler.dump_traceback_later(240, exit=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)
    faulthandler.cancel_dump_traceback_later()


def numbered(producer: int, turn: int) -> pa.RecordBatch:
    first = (producer << 32) + turn * ROWS
    return pa.record_batch({"n": pa.array(np.arange(first, first + ROWS))})


def numbers(batches: list[pa.RecordBatch]) -> Numbers:
    return np.concatenate([each.column("n").to_numpy() for each in batches])


def expected(producers: int, turns: int) -> Numbers:
    return np.concatenate(
        [np.arange(turns * ROWS) + (producer << 32) for producer in range(producers)]
    )


class Sink(Consumer):
    """One per thread. Keeps what it got, and what `on_error` got instead."""

    def __init__(self, sinks: list["Sink"], error_share: float = 0.0) -> None:
        self.got: list[Numbers] = []
        self.failed: list[Numbers] = []
        self.error_share = error_share
        self.random = random.Random(len(sinks))
        self.exits = 0
        sinks.append(self)

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        assert batches
        if self.random.random() < self.error_share:
            raise ValueError("on purpose")
        self.got.append(numbers(batches))

    def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
        assert str(error) == "on purpose"
        self.failed.append(numbers(batches))

    def on_exit(self) -> None:
        self.exits += 1


def everything(sinks: list[Sink]) -> Numbers:
    parts = [part for sink in sinks for part in sink.got + sink.failed]
    return np.sort(np.concatenate(parts)) if parts else np.array([], np.int64)


def by_value(each: pa.RecordBatch, channels: int) -> int:
    value: int = each.column("n")[0].as_py() // ROWS
    return value % channels


PARTITIONERS: list[Any] = ["rolling", "thread", by_value]


class Meddler:
    """Changes partitioner, and strategy if asked, all the while."""

    def __init__(self, carrier: DataCarrier, strategies: list[str] | None = None) -> None:
        self.stop = threading.Event()
        self.changes = 0
        chance = random.Random(7)

        def meddle() -> None:
            while not self.stop.wait(0.0005):
                carrier.partitioner = chance.choice(PARTITIONERS)
                if strategies:
                    carrier.overflow = chance.choice(strategies)
                self.changes += 1

        self.thread = start(meddle)

    def end(self) -> None:
        self.stop.set()
        self.thread.get()
        assert self.changes > 0


def run(
    *,
    channels: int,
    threads: int,
    producers: int = 6,
    turns: int = 150,
    capacity_rows: int = 64,
    overflow: str = "block",
    error_share: float = 0.1,
    linger: float = 0.0,
    strategies: list[str] | None = None,
) -> tuple[DataCarrier, list[Sink], Numbers]:
    """Produce from many threads under a meddler; what was accepted, sorted."""
    carrier = DataCarrier(channels, capacity_rows, overflow=overflow)
    sinks: list[Sink] = []
    making = threading.Lock()

    def make() -> Sink:
        with making:
            return Sink(sinks, error_share)

    carrier.consume(make, threads=threads, linger=linger)
    accepted: list[list[Numbers]] = [[] for _ in range(producers)]

    def produce(producer: int) -> None:
        for turn in range(turns):
            each = numbered(producer, turn)
            if carrier.produce(each):
                accepted[producer].append(each.column("n").to_numpy())

    meddler = Meddler(carrier, strategies)
    with at_once(*[partial(produce, p) for p in range(producers)]):
        pass
    meddler.end()
    assert carrier.shutdown(JOIN_SECONDS) is True
    assert all(sink.exits == 1 for sink in sinks)
    assert len(sinks) == threads
    return carrier, sinks, np.sort(np.concatenate([part for mine in accepted for part in mine]))


LAYOUTS = [
    pytest.param(4, 4, id="1:1"),
    pytest.param(5, 2, id="shared"),
    pytest.param(2, 5, id="split"),
]


@pytest.mark.parametrize(("channels", "threads"), LAYOUTS)
def test_blocking_loses_and_doubles_nothing(channels: int, threads: int) -> None:
    carrier, sinks, accepted = run(channels=channels, threads=threads)
    assert np.array_equal(accepted, expected(6, 150))
    assert np.array_equal(everything(sinks), accepted)
    s = carrier.statistics()
    assert s.rows_pushed == s.rows_pulled == 6 * 150 * ROWS
    assert (s.rows_stored, s.rows_rejected, s.rows_dropped, s.rows_failed) == (0, 0, 0, 0)


@pytest.mark.parametrize(("channels", "threads"), LAYOUTS)
def test_rejecting_accounts_for_every_row(channels: int, threads: int) -> None:
    carrier, sinks, accepted = run(
        channels=channels, threads=threads, overflow="reject", capacity_rows=32
    )
    assert np.array_equal(everything(sinks), accepted)
    s = carrier.statistics()
    assert s.rows_pushed == len(accepted)
    assert s.rows_pushed + s.rows_rejected == 6 * 150 * ROWS
    assert s.put_attempts == 6 * 150


@pytest.mark.parametrize(("channels", "threads"), LAYOUTS)
def test_overwriting_accounts_for_every_row(channels: int, threads: int) -> None:
    carrier, sinks, accepted = run(
        channels=channels, threads=threads, overflow="overwrite", capacity_rows=32
    )
    assert np.array_equal(accepted, expected(6, 150)), "it always accepts"
    out = everything(sinks)
    assert len(np.unique(out)) == len(out), "nothing twice"
    assert np.isin(out, accepted).all()
    s = carrier.statistics()
    assert s.rows_pulled == len(out)
    assert s.rows_pulled + s.rows_dropped == 6 * 150 * ROWS


@pytest.mark.parametrize(("channels", "threads"), LAYOUTS)
def test_any_strategy_at_any_time_accounts_for_every_row(channels: int, threads: int) -> None:
    carrier, sinks, accepted = run(
        channels=channels,
        threads=threads,
        capacity_rows=32,
        strategies=["block", "reject", "overwrite"],
    )
    out = everything(sinks)
    assert len(np.unique(out)) == len(out)
    assert np.isin(out, accepted).all()
    s = carrier.statistics()
    assert s.rows_pulled + s.rows_dropped == len(accepted)
    assert len(accepted) + s.rows_rejected == 6 * 150 * ROWS


def test_lingering_loses_nothing_and_holds_no_producer_up() -> None:
    started = time.monotonic()
    _, sinks, accepted = run(channels=3, threads=2, linger=30.0, capacity_rows=48, error_share=0.0)
    assert np.array_equal(everything(sinks), accepted)
    assert time.monotonic() - started < 25.0, "a full channel does not wait for the linger"


@pytest.mark.parametrize(("channels", "threads"), [(4, 4), (4, 2)])
def test_a_producer_threads_batches_stay_in_order(channels: int, threads: int) -> None:
    carrier = DataCarrier(channels, capacity_rows=64, partitioner="thread")
    sinks: list[Sink] = []
    making = threading.Lock()

    def make() -> Sink:
        with making:
            return Sink(sinks)

    carrier.consume(make, threads=threads)

    def produce(producer: int) -> None:
        for turn in range(200):
            carrier.produce(numbered(producer, turn))

    with at_once(*[partial(produce, p) for p in range(8)]):
        pass
    assert carrier.shutdown(JOIN_SECONDS) is True
    placed: dict[int, int] = {}
    for place, sink in enumerate(sinks):
        got = np.concatenate(sink.got)
        for producer in np.unique(got >> 32):
            mine = got[got >> 32 == producer]
            assert np.array_equal(mine, (producer << 32) + np.arange(200 * ROWS)), (
                "whole and in order"
            )
            assert placed.setdefault(int(producer), place) == place
    assert len(placed) == 8


def test_fan_in_by_iteration_brings_everything() -> None:
    carrier = DataCarrier(3, capacity_rows=64)
    left = [6]
    lock = threading.Lock()

    def produce(producer: int) -> None:
        for turn in range(200):
            carrier.produce(numbered(producer, turn))
        with lock:
            left[0] -= 1
            if not left[0]:
                carrier.close()

    threads = [start(partial(produce, p)) for p in range(6)]
    got = np.sort(numbers(list(carrier)))
    for thread in threads:
        thread.get()
    assert np.array_equal(got, expected(6, 200))


def test_a_pool_serves_carriers_that_come_and_go() -> None:
    with BulkConsumePool(3) as pool:

        def life(seed: int) -> None:
            for turn in range(4):
                carrier = DataCarrier(1 + (seed + turn) % 3, capacity_rows=64)
                sinks: list[Sink] = []
                carrier.consume(partial(Sink, sinks, 0.2), pool=pool)
                for n in range(30):
                    carrier.produce(numbered(seed, n))
                assert carrier.shutdown(JOIN_SECONDS) is True
                assert np.array_equal(everything(sinks), np.arange(30 * ROWS) + (seed << 32))
                assert sinks[0].exits == 1

        with at_once(*[partial(life, s) for s in range(8)]):
            pass
        assert pool.carriers() == [0, 0, 0]
        assert [each.backlog_rows for each in pool.metrics()] == [0, 0, 0]


def test_consumers_come_and_go_while_producers_run() -> None:
    carrier = DataCarrier(3, capacity_rows=64)
    sinks: list[Sink] = []
    lock = threading.Lock()

    def make() -> Sink:
        with lock:
            return Sink(sinks, 0.1)

    done = threading.Event()

    def swap() -> None:
        chance = random.Random(3)
        while not done.is_set():
            driver = carrier.consume(make, threads=chance.randint(1, 6))
            done.wait(0.002)
            assert driver.close(JOIN_SECONDS) is True

    def produce(producer: int) -> None:
        for turn in range(300):
            carrier.produce(numbered(producer, turn))

    swapper = start(swap)
    with at_once(*[partial(produce, p) for p in range(4)]):
        pass
    done.set()
    swapper.get()
    carrier.consume(make)
    assert carrier.shutdown(JOIN_SECONDS) is True
    assert np.array_equal(everything(sinks), expected(4, 300))
    assert all(sink.exits == 1 for sink in sinks)


@pytest.mark.parametrize("how", ["close", "fail"])
def test_an_end_in_the_middle_leaves_nobody_behind(how: str) -> None:
    """Producers, consumers and iterators, blocked or not, all come to an end; accepted rows add up."""
    for seed in range(20):
        carrier = DataCarrier(2, capacity_rows=32)
        sinks: list[Sink] = []
        carrier.consume(partial(Sink, sinks, 0.2), threads=1 + seed % 3)
        accepted = [0] * 4

        def produce(
            producer: int, carrier: DataCarrier = carrier, accepted: list[int] = accepted
        ) -> BaseException:
            try:
                for turn in range(100_000):
                    carrier.produce(numbered(producer, turn))
                    accepted[producer] += 1
            except BaseException as error:
                return error
            raise AssertionError("the end was not noticed")

        def read(carrier: DataCarrier = carrier) -> int:
            rows = 0
            try:
                for each in carrier:
                    rows += each.num_rows
            except OSError:
                pass
            return rows

        producers = [start(partial(produce, p)) for p in range(4)]
        reader = start(read)
        time.sleep(0.002)
        if how == "close":
            carrier.close()
        else:
            carrier.fail(OSError("enough"))
        kinds = {type(producer.get()).__name__ for producer in producers}
        assert kinds == {"ChannelClosedError" if how == "close" else "OSError"}
        rows = reader.get()
        assert isinstance(rows, int)
        if how == "close":
            carrier.shutdown(JOIN_SECONDS)
            assert rows + len(everything(sinks)) == sum(accepted) * ROWS
        else:
            with pytest.raises(OSError, match="enough"):
                carrier.shutdown(JOIN_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(100))
def test_soak(round_: int) -> None:
    """Each layout with 30 producers, any strategy at any time, a hundred times without a hang."""
    channels, threads = [(4, 4), (5, 2), (2, 5)][round_ % 3]
    carrier, sinks, accepted = run(
        channels=channels,
        threads=threads,
        producers=30,
        turns=200,
        capacity_rows=[16, 64, 1024][round_ // 3 % 3],
        strategies=["block", "reject", "overwrite"] if round_ % 2 else None,
    )
    out = everything(sinks)
    assert len(np.unique(out)) == len(out)
    assert np.isin(out, accepted).all()
    s = carrier.statistics()
    assert s.rows_pulled == len(out)
    assert s.rows_pulled + s.rows_dropped == len(accepted)
    assert len(accepted) + s.rows_rejected == 30 * 200 * ROWS
