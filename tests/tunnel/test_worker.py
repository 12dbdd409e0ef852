"""A range of several tables is one delivery for each, beside each other, with one checkpoint."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelLostError, TunnelError
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery
from spark_channel.tunnel.ranges import ReadAheadBudget
from spark_channel.tunnel.records import ChannelState, Client
from spark_channel.tunnel.tunnel import Tunnel
from spark_channel.tunnel.worker import TunnelWorker
from tests.tunnel.tables_world import Copy, Key, Log, Shop, mixed, of_log, taken

Make = Callable[..., Shop]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(log: Log, **options: str) -> Shop:
        of_log(monkeypatch, log)
        return Shop(tmp_path, log, **options)

    return made


def begin(
    tunnel: Tunnel, process: Any, **named: Any
) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            tunnel.consume(process, **named)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    return thread, errors


def test_each_table_has_a_delivery_of_each_range_in_which_it_has_rows(make: Make) -> None:
    log = Log([*mixed(["shop.a", "shop.b", "shop.c"], 300), *mixed(["shop.a"], 100)])
    shop = make(log, maxRowsPerTrigger="100")
    copy, held = Copy(log), held_resources()
    shop.tunnel.consume(copy.process, drained=True)
    held.expect_no_more("after consume")
    assert copy.is_whole()
    names = [f"stream-0/shop.{each}" for each in "abc"]
    assert copy.done == Counter(
        (name, n) for name in names for n in range(4 if name == names[0] else 3)
    )
    assert shop.at == log.settled == 400


def test_tables_are_processed_beside_each_other_and_each_in_order(make: Make) -> None:
    log = Log(mixed(["a", "b", "c"], 600))
    shop = make(log, maxRowsPerTrigger="100")
    together, copy = threading.Barrier(3), Copy(log)

    def process(delivery: Delivery) -> None:
        together.wait(30)  # three at a time, of one range
        copy.process(delivery)

    shop.tunnel.consume(process, threads=3, drained=True)
    assert copy.is_whole()


def test_one_thread_processes_one_table_after_the_other(make: Make) -> None:
    log = Log(mixed(["a", "b", "c"], 300))
    shop = make(log, maxRowsPerTrigger="100")
    copy, busy = Copy(log), threading.Lock()

    def process(delivery: Delivery) -> None:
        assert busy.acquire(blocking=False)
        copy.process(delivery)
        busy.release()

    shop.tunnel.consume(process, threads=1, drained=True)
    assert copy.is_whole()


def test_a_range_has_its_checkpoint_when_all_its_tables_are_processed(make: Make) -> None:
    log = Log(mixed(["a", "b"], 200))
    shop = make(log, maxRowsPerTrigger="100")
    copy, first = Copy(log), threading.Event()

    def process(delivery: Delivery) -> None:
        if delivery.table == "a":
            copy.process(delivery)
            first.set()
            return
        assert first.wait(30)
        first.clear()
        assert shop.at <= delivery.start["at"], "one of two tables is processed"
        assert log.settled <= delivery.start["at"]
        copy.process(delivery)

    shop.tunnel.consume(process, threads=2, drained=True)
    assert copy.is_whole()
    assert shop.at == 200


def test_a_table_that_fails_is_tried_again_and_the_others_are_processed_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(mixed(["a", "b", "c"], 600))
    shop = make(log, maxRowsPerTrigger="300")
    copy, tries = Copy(log), Counter[Key]()

    def process(delivery: Delivery) -> None:
        key, rows = copy.look(delivery)
        tries[key] += 1
        if delivery.table == "b" and tries[key] < 2:
            assert shop.at <= delivery.start["at"]
            raise OSError("a moment")
        copy.keep(delivery, key, rows)

    shop.tunnel.consume(process, threads=2, drained=True)
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}
    assert tries == {(f"stream-0/{t}", n): 2 if t == "b" else 1 for t in "abc" for n in (0, 1)}
    assert "channel stream-0/b: a moment; trying again" in caplog.text


def test_two_tables_that_fail_are_one_failure_of_the_range(make: Make) -> None:
    """Else the waits would grow by the number of tables."""
    log = Log(mixed(["a", "b", "c"], 30))
    shop = make(log, maxRetryInterval="0.5")  # 0.1, 0.3, 0.5: the fourth failure parks it
    copy, tries = Copy(log), Counter[str]()

    def process(delivery: Delivery) -> None:
        found = copy.look(delivery)
        tries[delivery.table] += 1
        if tries[delivery.table] < 4 and delivery.table != "c":
            raise OSError("a moment")
        copy.keep(delivery, *found)

    shop.tunnel.consume(process, drained=True)
    assert copy.is_whole()
    assert tries == {"a": 4, "b": 4, "c": 1}


def test_a_table_that_fails_for_good_parks_the_channel_of_all(make: Make) -> None:
    log = Log(mixed(["a", "b"], 200))
    shop = make(log, maxRowsPerTrigger="100")
    copy, sick = Copy(log), True

    def process(delivery: Delivery) -> None:
        if sick and delivery.table == "b" and delivery.sequence == 1:
            raise ValueError("poison")
        copy.process(delivery)

    with pytest.raises(ValueError, match="poison"):
        shop.tunnel.consume(process, drained=True)
    (view,) = shop.tunnel.describe().channels
    assert view.channel.state is ChannelState.PARKED
    assert view.channel.parked == "b: ValueError: poison"
    assert shop.at == log.settled == 100
    assert copy.done == {("stream-0/a", 0): 1, ("stream-0/b", 0): 1, ("stream-0/a", 1): 1}
    sick = False
    assert shop.tunnel.resume() == ("stream-0",)
    shop.tunnel.consume(process, drained=True)
    assert copy.is_whole()
    assert copy.done[("stream-0/a", 1)] == 2, "another process has the whole range again"
    assert shop.at == 200


def test_an_error_ends_all_with_on_error_stop(make: Make) -> None:
    log = Log(mixed(["a", "b", "c"], 300))
    shop = make(log, maxRowsPerTrigger="300", onError="stop")
    copy, held = Copy(log), held_resources()

    def process(delivery: Delivery) -> None:
        if delivery.table == "b":
            raise ValueError("poison")
        copy.process(delivery)

    with pytest.raises(ValueError, match="poison"):
        shop.tunnel.consume(process, threads=1)
    held.expect_no_more("after an error of one table")
    assert copy.done == {("stream-0/a", 0): 1}, "c has not begun"
    assert shop.at == log.settled == 0
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.is_whole()
    assert copy.done == {("stream-0/a", 0): 2, ("stream-0/b", 0): 1, ("stream-0/c", 0): 1}


def test_a_processor_that_exits_ends_all_though_another_table_is_processed(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)
    inside, go_on = threading.Event(), threading.Event()

    def process(delivery: Delivery) -> None:
        if delivery.table == "a":
            inside.set()
            go_on.wait(30)
            taken(delivery)
        else:
            assert inside.wait(30)
            raise SystemExit(3)

    thread, errors = begin(shop.tunnel, process, threads=2)
    assert inside.wait(30)
    go_on.set()
    thread.join(30)
    assert [type(error) for error in errors] == [SystemExit]
    assert shop.at == 0


def test_a_stop_ends_after_all_tables_of_the_range_that_has_begun(make: Make) -> None:
    log = Log(mixed(["a", "b", "c"], 900))
    shop = make(log, maxRowsPerTrigger="300")
    copy, tunnel, held = Copy(log), shop.tunnel, held_resources()

    def process(delivery: Delivery) -> None:
        tunnel.stop()
        copy.process(delivery)

    tunnel.consume(process, threads=1)
    held.expect_no_more("after a stop")
    assert sorted(copy.done) == [(f"stream-0/{each}", 0) for each in "abc"]
    assert shop.at == 300
    (view,) = shop.tunnel.describe().channels
    assert view.channel.client == ""


def test_a_stop_while_a_table_waits_for_its_next_try_ends_without_the_checkpoint(
    make: Make,
) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log, maxRetryInterval="10")
    copy, tunnel = Copy(log), shop.tunnel

    def process(delivery: Delivery) -> None:
        if delivery.table == "b":
            raise OSError("a moment")
        copy.process(delivery)
        threading.Timer(0.2, tunnel.stop).start()

    tunnel.consume(process, threads=1)
    assert shop.at == log.settled == 0
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.is_whole()


def test_a_channel_that_is_lost_within_a_range_is_processed_by_another_client(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)
    inside, go_on = threading.Event(), threading.Event()
    copy = Copy(log)

    def process(delivery: Delivery) -> None:
        if delivery.table == "b":
            inside.set()
            assert go_on.wait(60)
        copy.process(delivery)

    thread, errors = begin(shop.tunnel, process, threads=2, drained=True)
    assert inside.wait(30)
    store = shop.tunnel.store
    # As one that was silent.
    store.disconnect("shop", store.state("shop").channels["stream-0"].client)
    store.connect("shop", Client("other"))
    assert [each.id for each in store.heartbeat("shop", "other", (), ["stream-0"])] == ["stream-0"]
    go_on.set()
    thread.join(60)
    assert errors == []
    assert copy.done == {("stream-0/a", 0): 1, ("stream-0/b", 0): 1}
    assert shop.at == log.settled == 0, "it is not this client's to move"
    store.disconnect("shop", "other")
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.is_whole()
    assert copy.done == {("stream-0/a", 0): 2, ("stream-0/b", 0): 2}
    assert shop.at == 100


def test_what_cannot_be_read_is_read_again_and_nothing_of_it_is_processed_before(
    make: Make,
) -> None:
    log = Log(mixed(["a", "b"], 100))
    failures = 1

    def before(place: int) -> None:
        nonlocal failures
        if place == 60 and failures:
            failures -= 1
            raise OSError("the line broke")

    log.before_row = before
    shop = make(log)
    copy = Copy(log)
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}


def test_a_range_that_fails_while_the_end_is_seen_is_not_forgotten(make: Make) -> None:
    """With nothing behind it and nothing read ahead, a client that is to end when all is read is not done."""
    log, failed, seen = Log(mixed(["a"], 100)), threading.Event(), threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "trying again" in record.getMessage():
                failed.set()

    def at_end() -> None:
        seen.set()
        assert failed.wait(30)

    log.at_end = at_end
    shop, copy = make(log), Copy(log)

    def process(delivery: Delivery) -> None:
        assert seen.wait(30)
        if not failed.is_set():
            raise OSError("a moment")
        copy.process(delivery)

    heard, logger = Heard(), logging.getLogger("spark_channel")
    logger.addHandler(heard)
    try:
        shop.tunnel.consume(process, drained=True)
    finally:
        logger.removeHandler(heard)
    assert copy.is_whole()
    assert shop.at == 100


def test_a_range_without_rows_of_any_table_has_its_checkpoint(make: Make) -> None:
    log = Log([("other", n) for n in range(250)] + [("a", 250)], ["a"])
    shop = make(log, maxRowsPerTrigger="100")
    copy = Copy(log)
    shop.tunnel.consume(copy.process, drained=True)
    assert copy.done == {("stream-0/a", 2): 1}
    assert shop.at == 251


def test_the_source_is_not_looked_at_for_each_table_that_was_processed(make: Make) -> None:
    """A look costs what the tunnel has tables: one for each of them would be quadratic."""
    names = [f"t{number}" for number in range(40)]
    log = Log(mixed(names, len(names)))
    shop, copy = make(log), Copy(log)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    def process(delivery: Delivery) -> None:
        copy.process(delivery)
        begun.wait(0.02)  # for a look of the table before

    begun, log.at_end = threading.Event(), look
    shop.tunnel.consume(process, drained=True)
    assert copy.is_whole()
    assert looks < len(names) / 2


def test_a_table_is_added_while_a_range_is_out(make: Make) -> None:
    log = Log([*mixed(["a", "b"], 400)], ["a"])
    shop = make(log, maxRowsPerTrigger="100")
    copy, tunnel = Copy(log), shop.tunnel
    opened, shut = list[str](), list[str]()

    class Each(Copy):
        def opened(self, channel: str) -> None:
            opened.append(channel)

        def shutdown(self, channel: str) -> None:
            shut.append(channel)

        def process(self, delivery: Delivery) -> None:
            if not copy.done:
                shop.tunnel.add_table("b")
            copy.process(delivery)

    tunnel.consume(Each(log), drained=True)
    assert copy.rows["a"] == log.rows("a", 0, 400)
    joined = min(
        number for key, rows in copy.seen.items() if key[0] == "stream-1/b" for number in rows
    )
    assert copy.rows["b"] == log.rows("b", joined - 1, 400)
    assert {channel for channel, _ in copy.done} == {"stream-0/a", "stream-1/a", "stream-1/b"}
    assert opened == shut == ["stream-0/a", "stream-1/a", "stream-1/b"]
    assert set(copy.done.values()) == {1}
    assert shop.at == 400


def test_a_table_that_is_added_while_the_last_range_is_out_is_read_without_a_heartbeat(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TunnelWorker, "heartbeat_done", lambda worker: None)
    log = Log([*mixed(["a", "b"], 100)], ["a"])
    shop = make(log)
    opened = list[str]()

    class Each(Copy):
        def opened(self, channel: str) -> None:
            opened.append(channel)

        def shutdown(self, channel: str) -> None:
            pass

        def process(self, delivery: Delivery) -> None:
            if "stream-1" not in shop.tunnel.store.state("shop").channels:
                shop.tunnel.add_table("b")
            super().process(delivery)

    shop.tunnel.consume(Each(log), drained=True)
    assert opened == ["stream-0/a", "stream-1/a", "stream-1/b"]


def test_a_factory_makes_a_processor_for_each_table(make: Make) -> None:
    log = Log(mixed(["a", "b"], 200))
    shop = make(log, maxRowsPerTrigger="100")

    class Own(Copy):
        def shutdown(self, channel: str) -> None:
            assert made[channel] is self

    made: dict[str, Own] = {}

    def factory(channel: str) -> Own:
        assert channel not in made
        made[channel] = Own(log)
        return made[channel]

    shop.tunnel.consume(factory=factory, drained=True)
    assert sorted(made) == ["stream-0/a", "stream-0/b"]
    assert all(
        list(copy.rows) == [channel.removeprefix("stream-0/")] for channel, copy in made.items()
    )


# --- a range that is larger than the memory


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("big", [False, True])
def test_a_range_that_is_larger_than_the_memory_passes(
    make: Make, monkeypatch: pytest.MonkeyPatch, threads: int, big: bool
) -> None:
    """One table is processed while it is read; rows that do not fit in memory beside it are read again."""
    changes = mixed(["a", "b", "c"], 900)
    if big:  # one table has nearly all rows
        changes = [("a" if number % 20 else table, number) for table, number in changes]
    log = Log(changes, width=10)
    shop = make(log, maxRowsPerTrigger="900", capacityRows="60")
    most, real = 0, ReadAheadBudget.take

    def take(self: ReadAheadBudget, payment: Any) -> bool:
        nonlocal most
        found = real(self, payment)
        most = max(most, self.used()[0])
        return found

    monkeypatch.setattr(ReadAheadBudget, "take", take)
    copy, held = Copy(log), held_resources()
    shop.tunnel.consume(copy.process, threads=threads, drained=True)
    held.expect_no_more("after a large range")
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}
    assert most <= 60 + 10
    assert len(log.reads) <= (2 if big else 3), "small tables fit beside a large one"


def test_one_batch_that_is_larger_than_the_memory_passes(make: Make) -> None:
    log = Log([("a", 0)] + [("b", n) for n in range(1, 300)] + [("a", 300), ("b", 301)])
    shop = make(log, maxRowsPerTrigger="900", capacityRows="50")
    copy = Copy(log)
    shop.tunnel.consume(copy.process, threads=1, drained=True)
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}


def test_rows_that_are_left_unread_count_as_processed(make: Make) -> None:
    log = Log(mixed(["a", "b"], 900), width=10)
    shop = make(log, maxRowsPerTrigger="900", capacityRows="60")
    seen = Counter[Key]()
    shop.tunnel.consume(lambda d: seen.update([(d.channel, d.sequence)]), threads=1, drained=True)
    assert seen == {("stream-0/a", 0): 1, ("stream-0/b", 0): 1}
    assert shop.at == 900


def test_a_table_that_fails_while_its_large_range_is_read(make: Make) -> None:
    log = Log(mixed(["a", "b", "c"], 900), width=10)
    shop = make(log, maxRowsPerTrigger="900", capacityRows="60", maxRetryInterval="1")
    copy, failed = Copy(log), Counter[str]()

    def process(delivery: Delivery) -> None:
        if failed[delivery.table] < 2:
            failed[delivery.table] += 1
            next(delivery.batches)
            raise OSError("a moment")
        copy.process(delivery)

    shop.tunnel.consume(process, threads=2, drained=True)
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}


# --- your own loop


@pytest.mark.parametrize("capacity", ["1000", "60"])
def test_a_loop_of_one_thread_gets_all_tables(make: Make, capacity: str) -> None:
    log = Log(mixed(["a", "b", "c"], 900), width=10)
    shop = make(log, maxRowsPerTrigger="450", capacityRows=capacity)
    copy, held = Copy(log), held_resources()
    with shop.tunnel.open(drained=True) as reader:
        while (delivery := reader.read(timeout=30)) is not None:
            copy.process(delivery)
            reader.checkpoint(delivery)
            if copy.has(delivery.end["at"]):
                assert shop.at == delivery.end["at"], (
                    "kept when checkpoint of the last table returns"
                )
            else:
                assert shop.at == delivery.start["at"]
    held.expect_no_more("after close")
    assert copy.is_whole()
    assert set(copy.done.values()) == {1}
    assert shop.at == 900


def test_a_loop_that_fails_a_table_gets_it_again_and_checkpoints_the_others(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)
    copy, seen = Copy(log), Counter[str]()
    with shop.tunnel.open(drained=True) as reader:
        while (delivery := reader.read(timeout=30)) is not None:
            seen[delivery.table] += 1
            if delivery.table == "a" and seen["a"] == 1:  # whichever comes first
                reader.fail(delivery, ValueError("a moment"))
                continue
            copy.process(delivery)
            reader.checkpoint(delivery)
    assert copy.is_whole()
    assert seen == {"a": 2, "b": 1}


def test_a_loop_that_is_left_within_a_range_gets_all_of_it_again(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)
    with shop.tunnel.open() as reader:
        first = reader.read(timeout=30)
        assert first is not None
        taken(first)
        reader.checkpoint(first)
        assert shop.at == 0
    copy = Copy(log)
    with shop.tunnel.open(drained=True) as reader:
        while (delivery := reader.read(timeout=30)) is not None:
            copy.process(delivery)
            reader.checkpoint(delivery)
    assert copy.is_whole()
    assert copy.done == {("stream-0/a", 0): 1, ("stream-0/b", 0): 1}


def test_a_loop_is_told_that_its_channel_is_lost(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)
    with shop.tunnel.open() as reader:
        out = [reader.read(timeout=30), reader.read(timeout=30)]
        store = shop.tunnel.store
        store.release("shop", store.state("shop").channels["stream-0"].client, ["stream-0"])
        first, second = out
        assert first is not None
        assert second is not None
        reader.checkpoint(first)
        with pytest.raises(ChannelLostError, match="range 0 of channel stream-0/"):
            reader.checkpoint(second)
    assert shop.at == 0


def test_a_tunnel_that_is_parked_tells_a_loop(make: Make) -> None:
    log = Log(mixed(["a", "b"], 100))
    shop = make(log)

    def loop() -> None:
        with shop.tunnel.open(drained=True) as reader:
            while (delivery := reader.read(timeout=30)) is not None:
                if delivery.table == "a":
                    reader.fail(delivery, ValueError("poison"))
                else:
                    taken(delivery)
                    reader.checkpoint(delivery)

    with pytest.raises(ValueError, match="poison"):
        loop()
    with pytest.raises(
        TunnelError, match=r"stream-0 of tunnel 'shop' is parked \(a: ValueError: poison\)"
    ):
        loop()
