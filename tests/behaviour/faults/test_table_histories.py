"""Tunnels of several tables whose processors fail and whose clients end at any moment: nothing is lost or doubled."""

import random
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.tunnel import Delivery
from tests.tunnel.tables_world import Copy, Key, Log, Shop, of_log

TABLES = ["a", "b", "c", "d"]


class Client:
    """One process: its processors fail, and it ends, as `chance` has it. It remembers what it processed."""

    def __init__(
        self, shop: Shop, copy: Copy, chance: random.Random, fails: float, ends: float
    ) -> None:
        self.shop, self.copy = shop, copy
        self.fails, self.ends = fails, ends
        self.tunnel = shop.tunnel
        self.lock = threading.Lock()
        self.chance = chance
        self.done = Counter[Key]()
        self.busy = Counter[str]()

    def draw(self) -> tuple[float, float]:
        with self.lock:
            return self.chance.random(), self.chance.random()

    def process(self, delivery: Delivery) -> None:
        with self.lock:
            self.busy[delivery.table] += 1
            assert self.busy[delivery.table] == 1, "one delivery of a table at a time"
        try:
            self._process(delivery)
        finally:
            with self.lock:
                self.busy[delivery.table] -= 1

    def _process(self, delivery: Delivery) -> None:
        after = delivery.start["at"]
        assert self.copy.has(after), "all tables of the ranges before are processed"
        assert self.shop.at <= after, "no checkpoint is past what is being processed"
        assert self.shop.log.settled <= after
        fails, ends = self.draw()
        if ends < self.ends:
            self.tunnel.stop()
        if fails < self.fails:
            if fails < self.fails / 2:
                next(delivery.batches)
            raise OSError("a moment")
        key, rows = self.copy.look(delivery)
        self.copy.keep(delivery, key, rows)
        with self.lock:
            self.done[key] += 1
            assert self.done[key] == 1, "by one process, each delivery once"


def check(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    names = TABLES[: chance.randrange(1, 5)]
    weights = [chance.random() ** 3 + 0.01 for _ in names]
    rows = chance.randrange(400)
    log = Log(
        [(chance.choices(names, weights)[0], n) for n in range(rows)],
        names,
        chance.choice([1, 7, 50]),
    )
    of_log(monkeypatch, log)
    options = {"maxRowsPerTrigger": str(chance.choice([3, 40, 300])), "maxRetryInterval": "0.01"}
    if chance.random() < 0.5:
        options["capacityRows"] = str(chance.choice([1, 10, 60]))
    if chance.random() < 0.2:
        options["rowsPerSecond"] = "2000"  # batches of 50 rows are paid in slices
    shop, copy = Shop(folder, log, **options), Copy(log)
    for number in range(200):
        is_last = number > 8
        client = Client(
            shop, copy, chance, 0.0 if is_last else chance.random() * 0.3, 0.0 if is_last else 0.05
        )
        threads = chance.randrange(1, 5)
        try:
            if chance.random() < 0.3:
                loop(client, threads)
            else:
                client.tunnel.consume(client.process, threads=threads, drained=True)
        except OSError:
            shop.tunnel.resume()
        assert copy.has(shop.at), "no checkpoint is past what is not processed"
        assert log.settled <= shop.at
        if shop.at == rows:
            break
    assert copy.is_whole()
    assert shop.at == rows


def loop(client: Client, ranges: int) -> None:
    with client.tunnel.open(ranges=ranges, drained=True) as reader:
        while (delivery := reader.read()) is not None:
            try:
                client.process(delivery)
            except OSError as error:
                reader.fail(delivery, error)
            else:
                reader.checkpoint(delivery)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_or_doubled_in_any_history(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        check(seed, Path(folder), monkeypatch)


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_in_many_histories() -> None:
    for seed in range(1_000):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
            check(seed, Path(folder), monkeypatch)
