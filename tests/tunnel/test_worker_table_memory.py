"""Ranges of several tables that the memory does not hold, when something goes wrong in the middle."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.ranges import ReadAheadBudget
from spark_channel.tunnel.worker import TunnelWorker
from tests.tunnel.tables_world import Copy, Log, Shop, mixed, of_log
from tests.tunnel.test_worker import begin

Make = Callable[..., Shop]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(log: Log, **options: str) -> Shop:
        of_log(monkeypatch, log)
        return Shop(tmp_path, log, **options)

    return made


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> list[TunnelWorker]:
    """All that are made."""
    made: list[TunnelWorker] = []
    real = TunnelWorker.__init__

    def begin_one(self: TunnelWorker, *args: object, **named: object) -> None:
        real(self, *args, **named)  # type: ignore[arg-type] # mypy does not see what a mapping has
        made.append(self)

    monkeypatch.setattr(TunnelWorker, "__init__", begin_one)
    return made


class Full(threading.Event):
    """Set when the thread that reads waits for memory, in the batch that begins at a row."""

    def __init__(self, log: Log, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        place, real = -1, ReadAheadBudget.take

        def before(row: int) -> None:
            nonlocal place
            place = row

        def take(budget: ReadAheadBudget, payment: object) -> bool:
            found = real(budget, payment)  # type: ignore[arg-type] # as it was called
            if not found and place == at:
                self.set()
            return found

        log.before_row = before
        monkeypatch.setattr(ReadAheadBudget, "take", take)


def ends(thread: threading.Thread, tunnel: Tunnel) -> bool:
    """Whether it ends by itself; stopped then, so that it does not stay behind."""
    thread.join(20)
    hangs = thread.is_alive()
    tunnel.stop()
    thread.join(20)
    return not hangs


@pytest.mark.parametrize("fails", [False, True])
def test_a_processor_that_ends_early_while_its_range_waits_for_memory(
    make: Make, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """What it gives back may be too little for the next batch: another table has its turn then."""
    parts = [("b", 20), ("a", 20), ("c", 1), ("a", 19), ("c", 1), ("b", 50), ("a", 10)]
    changes = [table for table, rows in parts for _ in range(rows)]
    log = Log([(table, number) for number, table in enumerate(changes)])
    full = Full(log, 61, monkeypatch)
    shop = make(log, maxRowsPerTrigger="900", capacityRows="60")
    copy, early, tunnel = Copy(log), [1], shop.tunnel

    def process(delivery: Delivery) -> None:
        if delivery.table == "a" and early:
            early.pop()
            next(delivery.batches)
            next(delivery.batches)
            assert full.wait(30)
            if fails:
                raise OSError("a moment")
            return
        copy.process(delivery)

    thread, errors = begin(tunnel, process, threads=2, drained=True)
    assert ends(thread, tunnel)
    assert errors == []
    assert shop.at == len(changes)
    assert copy.rows["b"] == log.rows("b", 0, len(changes))
    assert not fails or copy.is_whole()


def test_a_stop_while_the_rest_of_a_large_range_is_read_ends(make: Make) -> None:
    """The assigned range ends before the client sees that another table was left out."""
    parts = [("a", 60), ("b", 90), ("a", 10), ("x", 10)]
    log = Log([(table, number) for table, rows in parts for number in range(rows)], ["a", "b"], 10)
    shop = make(log, maxRowsPerTrigger="900", capacityRows="60")
    tunnel, copy, over = shop.tunnel, Copy(log), threading.Event()

    def before(row: int) -> None:
        if row == 160:
            assert over.wait(30)
            threading.Event().wait(0.3)  # until that is known
            tunnel.stop()
            threading.Event().wait(0.3)  # until its end waits for the range

    def process(delivery: Delivery) -> None:
        rows = 0
        while rows < 70:
            rows += next(delivery.batches).num_rows
        over.set()

    log.before_row = before
    thread, errors = begin(tunnel, process, threads=1)
    assert ends(thread, tunnel)
    assert errors == []
    assert shop.at == 0
    log.before_row = lambda row: None
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.is_whole()


@pytest.mark.parametrize("width", [1000, 10])
def test_a_batch_that_a_rate_cuts_into_pieces_passes_a_smaller_memory(
    make: Make, width: int
) -> None:
    log = Log([("a", number) for number in range(500)] + mixed(["a", "b"], 500), width=width)
    shop = make(log, maxRowsPerTrigger="1000", capacityRows="60", rowsPerSecond="1000")
    copy, tunnel, held = Copy(log), shop.tunnel, held_resources()
    thread, errors = begin(tunnel, copy.process, threads=2, drained=True)
    assert ends(thread, tunnel)
    assert errors == []
    held.expect_no_more("after a limit")
    assert copy.is_whole()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_channel_is_given_up_while_its_next_range_waits_for_memory(
    make: Make, monkeypatch: pytest.MonkeyPatch, consumers: list[TunnelWorker], is_lost: bool
) -> None:
    log = Log([*mixed(["a"], 20), *mixed(["x"], 80), *mixed(["a", "b"], 100)], ["a", "b"], 10)
    full = Full(log, 140, monkeypatch)
    shop = make(log, maxRowsPerTrigger="100", capacityRows="60")
    tunnel, held, shut = shop.tunnel, held_resources(), threading.Event()

    class Own(Copy):
        def process(self, delivery: Delivery) -> None:
            assert full.wait(30)
            if is_lost:
                store = shop.tunnel.store
                store.disconnect("shop", store.state("shop").channels["stream-0"].client)
            else:
                consumers[0].stop_channel("stream-0")
            super().process(delivery)

        def shutdown(self, channel: str) -> None:
            shut.set()

    copy = Own(log)
    thread, _ = begin(tunnel, copy, threads=2)
    hangs = not shut.wait(4)
    tunnel.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert not hangs
    held.expect_no_more("after a channel was given up")
    assert copy.done[("stream-0/a", 0)] == 1
