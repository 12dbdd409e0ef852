"""The next range is read while one is processed: what it saves, what it may hold, and what never changes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.carrier import DataCarrier
from spark_channel.connectors.base.contract import Token
from spark_channel.errors import SourceError
from spark_channel.planning import Split
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery
from spark_channel.tunnel.ranges import ReadAheadBudget
from spark_channel.tunnel.source import StreamSource
from tests.carrier.helpers import batch, start
from tests.tunnel.test_worker_consume import Keeper, fill, run, tunnel_of

__all__ = ["shop"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 2000)
    return path


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has something called before each read of a feed, and behind it."""

    def before(planned: Callable[[Split], None], ended: Callable[[], None] = lambda: None) -> None:
        real = StreamSource.__init__

        def begin(self: Any, *args: Any, **named: Any) -> None:
            real(self, *args, **named)
            feed = self.feed
            read = feed.read

            def slow(split: Split) -> Iterator[pa.RecordBatch]:
                planned(split)
                yield from read(split)
                ended()

            @contextmanager
            def shared() -> Iterator[Any]:
                yield slow

            monkeypatch.setattr(feed, "reading", shared, raising=False)

        monkeypatch.setattr(StreamSource, "__init__", begin)

    return before


class Steps:
    """The steps that ranges have made, by number. A step that is waited for too long fails at the end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: set[tuple[str, int]] = set()
        self.missed: list[tuple[str, int]] = []

    def did(self, what: str, number: int) -> None:
        with self._changed:
            self._seen.add((what, number))
            self._changed.notify_all()

    def wait(self, what: str, number: int) -> None:
        """Until a step was taken; no longer when one was missed, so that the test ends."""
        with self._changed:
            if not self.missed and not self._changed.wait_for(
                lambda: (what, number) in self._seen, 30
            ):
                self.missed.append((what, number))


def test_a_range_takes_as_long_as_the_slower_of_its_reading_and_its_processing(
    shop: Path, reading: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they take: each step ends only when those have begun, or ended, that must not wait for it. So a range
    waits for its own reading and for the processing of the one before, and for nothing else. `make bench` measures it.
    """
    steps, last = Steps(), 19
    numbers = iter(range(last + 1))

    def began(_split: Split) -> None:
        number = next(numbers)
        steps.did("read begins", number)
        if number:  # processing does not wait for the next range
            steps.wait("processing begins", number - 1)

    ended = iter(range(last + 1))
    reading(began, lambda: steps.did("read", next(ended)))
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", maxRowsPerTrigger="100"
    )
    tunnel.create()
    hand_out, checkpoint = tunnel.store.hand_out, tunnel.store.checkpoint

    def fixed(name: str, client: str, channel: str, sequence: int, end: Token) -> Token:
        found = hand_out(name, client, channel, sequence, end)
        steps.did("its end is kept", sequence)
        return found

    def checked(name: str, client: str, channel: str, sequence: int, *done: Any) -> None:
        if sequence < last:  # nor for the checkpoint of the one before
            steps.wait("processing begins", sequence + 1)
        checkpoint(name, client, channel, sequence, *done)

    monkeypatch.setattr(tunnel.store, "hand_out", fixed)
    monkeypatch.setattr(tunnel.store, "checkpoint", checked)
    keeper = Keeper()

    def process(delivery: Delivery) -> None:
        number = delivery.sequence
        steps.did("processing begins", number)
        keeper.process(delivery)
        if number < last:  # the next range is ready when this one ends
            steps.wait("read", number + 1)
            steps.wait("its end is kept", number + 1)
        if number + 1 < last:  # and the one behind it is being read
            steps.wait("read begins", number + 2)

    held = held_resources()
    tunnel.consume(process, drained=True)
    held.expect_no_more("after reading ahead")
    assert not steps.missed
    assert keeper.rows == Counter(range(1, 2001))
    assert sorted(keeper.ranges) == [("stream-0", number) for number in range(last + 1)]


def test_nothing_is_checkpointed_ahead_of_what_is_processed_nor_processed_before_its_end_is_kept(
    shop: Path, reading: Callable[[Callable[[Split], None]], None]
) -> None:
    reads: list[Split] = []
    second = threading.Event()

    def read(split: Split) -> None:
        reads.append(split)
        if len(reads) == 2:
            second.set()

    reading(read)
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", maxRowsPerTrigger="100"
    )
    tunnel.create()
    seen: list[tuple[int, Any, Any]] = []

    def process(delivery: Delivery) -> None:
        list(delivery.batches)
        assert second.wait(60), "the next range is read meanwhile"
        (view,) = tunnel.describe().channels
        channel = view.channel
        seen.append((channel.sequence, channel.token, channel.pending))
        if channel.sequence == delivery.sequence:
            assert (channel.token, channel.pending) == (delivery.start, delivery.end)
        else:  # the checkpoint of the range before, which is processed, is being taken
            assert channel.sequence == delivery.sequence - 1
            assert (channel.pending, channel.after) == (delivery.start, delivery.end)

    tunnel.consume(process, drained=True, threads=1)
    assert len(seen) == 20


def test_what_is_read_ahead_is_read_again_after_a_range_failed(shop: Path) -> None:
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", maxRowsPerTrigger="100"
    )
    tunnel.create()
    keeper, failed = Keeper(), Counter[int]()
    ranges: dict[int, tuple[Any, Any]] = {}

    def process(delivery: Delivery) -> None:
        assert ranges.setdefault(delivery.sequence, (delivery.start, delivery.end)) == (
            delivery.start,
            delivery.end,
        )
        if delivery.sequence % 7 == 3 and not failed[delivery.sequence]:
            failed[delivery.sequence] += 1
            raise OSError("a moment")
        keeper.process(delivery)

    tunnel.consume(process, drained=True)
    assert keeper.rows == Counter(range(1, 2001))
    assert sum(failed.values()) == 3
    assert set(keeper.ranges.values()) == {1}


def test_a_range_that_cannot_be_read_is_parked_and_the_others_run_on(
    shop: Path, reading: Callable[[Callable[[Split], None]], None]
) -> None:
    def read(split: Split) -> None:
        if dict(split.params) == poison:
            raise SourceError("the page is damaged")

    tunnel = tunnel_of(shop, tunnelType="base", maxRetryInterval="0.05")
    tunnel.create(channels=6)
    poison = dict(tunnel.describe().channels[2].channel.params["split"]["params"])
    reading(read)
    keeper = Keeper()
    with pytest.raises(SourceError, match="the page is damaged"):
        tunnel.consume(keeper, drained=True)
    assert len(keeper.ranges) == 5
    (parked,) = [each.channel for each in tunnel.describe().channels if each.channel.parked]
    assert (parked.id, parked.parked) == ("base-0002", "SourceError: the page is damaged")


def test_ranges_of_many_channels_hold_no_more_than_the_budget(
    shop: Path, reading: Callable[[Callable[[Split], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 channels, 300 rows of room, ranges of 167: a slow processor, and what waits is bounded."""
    most = [0, 0]
    real = ReadAheadBudget.take

    def take(self: ReadAheadBudget, payment: Any) -> bool:
        taken = real(self, payment)
        used = self.used()
        most[:] = max(most[0], used[0]), max(most[1], used[1])
        return taken

    monkeypatch.setattr(ReadAheadBudget, "take", take)
    tunnel = tunnel_of(shop, tunnelType="base", capacityRows="300", capacityBytes="1MB")
    tunnel.create(channels=12)
    keeper = Keeper()

    def process(delivery: Delivery) -> None:
        time.sleep(0.02)
        keeper.process(delivery)

    tunnel.consume(process, drained=True, threads=2)
    assert keeper.rows == Counter(range(1, 2001))
    assert 0 < most[0] <= 300 + 2 * 167, "two threads may hold a batch more each"


def test_a_range_that_is_larger_than_the_budget_passes(shop: Path) -> None:
    """One that is processed gets its next batch whatever waits ahead: no ranges wait for one another."""
    tunnel = tunnel_of(shop, tunnelType="base", capacityRows="50", capacityBytes="1MB")
    tunnel.create(channels=8)
    keeper = Keeper()
    tunnel.consume(keeper, drained=True, threads=3)
    assert keeper.rows == Counter(range(1, 2001))


def test_a_processor_may_leave_rows_unread(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base", capacityRows="20")
    tunnel.create(channels=4)
    seen: list[str] = []
    tunnel.consume(lambda delivery: seen.append(delivery.channel), drained=True, threads=2)
    assert sorted(seen) == [f"base-000{number}" for number in range(4)]


def test_a_budget_is_held_and_given_back() -> None:
    budget = ReadAheadBudget(100, 1 << 20)
    shares = [budget.share() for _ in range(3)]
    carriers = [DataCarrier(1, 1000, 1 << 20, limiter=share) for share in shares]
    assert carriers[0].produce(batch(*range(60)))
    assert carriers[1].produce(batch(*range(40)))
    assert budget.used() == (100, 800)
    waiting = start(lambda: carriers[2].produce(batch(*range(30))))
    assert budget.used() == (100, 800)
    shares[0].free(10, 80)
    assert waiting.is_alive()
    shares[0].free(20, 160)
    assert waiting.get() is True
    assert budget.used() == (100, 800)
    beyond = start(lambda: carriers[1].produce(batch(1, 2)))
    shares[1].want()
    assert beyond.get() is True, "a range whose processor waits gets its next batch"
    assert budget.used() == (102, 816)
    last = start(lambda: carriers[1].produce(batch(1, 2)))
    shares[0].close()
    shares[0].close()
    assert last.get() is True
    for share in shares:
        share.close()
    assert budget.used() == (0, 0)


def test_one_batch_larger_than_the_budget_passes_alone() -> None:
    budget = ReadAheadBudget(10, 1 << 20)
    carrier = DataCarrier(1, 1000, 1 << 20, limiter=budget.share())
    assert carrier.produce(batch(*range(50)))
    waiting = start(lambda: carrier.produce(batch(1)))
    carrier.fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        waiting.get()


def test_a_processor_per_channel_is_made_when_the_channel_opens(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=3)
    made: dict[str, Keeper] = {}

    class Own(Keeper):
        def opened(self, channel: str) -> None:
            assert made[channel] is self
            self.shut.append(f"opened {channel}")

    def factory(channel: str) -> Own:
        assert channel not in made
        own = Own()
        made[channel] = own
        return own

    tunnel.consume(factory=factory, drained=True)
    assert sorted(made) == ["base-0000", "base-0001", "base-0002", "stream-0"]
    for channel, keeper in made.items():
        assert keeper.shut == [f"opened {channel}", channel]
        assert {key for key, _ in keeper.ranges} <= {channel}
    for wrong in ({}, {"processor": print, "factory": factory}):
        with pytest.raises(TypeError, match="a processor, or factory="):
            tunnel.consume(**wrong)  # type: ignore[arg-type] # mypy does not see what a mapping has
