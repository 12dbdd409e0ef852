"""A range that fails, a store that is away, SIGTERM, and stops at any moment."""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelLostError, TunnelError, TunnelStoreError
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery, Tunnel, worker
from spark_channel.tunnel.channel import FailureAction, FailurePolicy
from spark_channel.tunnel.records import ChannelState, Client
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.store import SqliteStore, SqlStore
from tests.tunnel.test_client import Heard, locked
from tests.tunnel.test_store import ORDERS
from tests.tunnel.test_worker_consume import ROOT, Keeper, fill, run, tunnel_of
from tests.tunnel.world import channels

__all__ = ["shop"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 2400)
    return path


# --- one range that fails


class Poisoned(Keeper):
    """Fails on the range of one id, while it is `sick`."""

    def __init__(self, sick: threading.Event) -> None:
        super().__init__()
        self.sick = sick
        self.failures = 0

    def process(self, delivery: Delivery) -> None:
        batches = list(delivery.batches)
        if self.sick.is_set() and any(1000 in batch.column("id").to_pylist() for batch in batches):
            self.failures += 1
            raise RuntimeError("no row 1000")
        ids = [n for batch in batches for n in batch.column("id").to_pylist()]
        with self.lock:
            self.rows.update(ids)


def test_one_range_that_fails_parks_its_channel_and_all_others_run_on(shop: Path) -> None:
    made = tunnel_of(shop, tunnelType="base")
    made.create(channels=24)
    options = {"tunnelType": "base", "maxRetryInterval": "0.2", "heartbeatInterval": "5"}
    sick = threading.Event()
    sick.set()
    keepers = [Poisoned(sick) for _ in range(4)]
    errors: list[BaseException] = []
    held = held_resources()

    def client(keeper: Poisoned) -> None:
        try:
            tunnel_of(shop, **options).consume(keeper, threads=2, drained=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    held.expect_no_more("after a channel was parked")
    rows = sum((keeper.rows for keeper in keepers), Counter())
    assert len(rows) == 2300, "all of the other 23 channels"
    assert set(rows.values()) == {1}
    # After 0.1 s and 0.2 s, and then no client tries again; one that gets the channel meanwhile counts for itself.
    assert 3 <= sum(keeper.failures for keeper in keepers) <= 3 * len(keepers)
    assert errors
    assert all(isinstance(error, RuntimeError | TunnelError) for error in errors), errors
    assert sum(isinstance(error, RuntimeError) for error in errors) == 1, "the client that met it"
    view = made.describe()
    (parked,) = [
        each.channel for each in view.channels if each.channel.state is ChannelState.PARKED
    ]
    assert (parked.parked, parked.client, parked.sequence) == ("RuntimeError: no row 1000", "", 0)
    states = Counter(each.channel.state for each in view.channels)
    assert states == {ChannelState.TERMINATED: 23, ChannelState.PARKED: 1}
    with pytest.raises(
        TunnelError, match=rf"{parked.id} of tunnel 'orders' is parked \(RuntimeError: no row"
    ):
        made.consume(Keeper(), drained=True)
    sick.clear()
    assert made.resume() == (parked.id,)
    assert made.resume() == ()
    last = Keeper()
    made.consume(last, drained=True)
    assert len(rows + last.rows) == 2400


def test_a_parked_channel_that_is_resumed_goes_on_in_a_client_that_runs(shop: Path) -> None:
    options = {"tunnelType": "base", "maxRetryInterval": "0.05", "heartbeatInterval": "5"}
    tunnel = tunnel_of(shop, **options)
    tunnel.create(channels=4)
    sick, keeper, held_up = threading.Event(), Keeper(), threading.Event()
    sick.set()

    class Slow(Poisoned):
        def process(self, delivery: Delivery) -> None:
            if delivery.channel == "base-0003":
                assert held_up.wait(60)
            super().process(delivery)

    keeper = Slow(sick)
    thread = threading.Thread(target=tunnel.consume, args=(keeper,), kwargs={"drained": True})
    thread.start()
    try:
        while not any(
            each.channel.state is ChannelState.PARKED for each in tunnel.describe().channels
        ):
            assert thread.is_alive()
            time.sleep(0.02)
        sick.clear()
        with pytest.raises(TunnelError, match=r"no channel 'base-9'; .*describe orders"):
            tunnel.resume(["base-9"])
        assert len(tunnel.resume(["base-0001"])) == 1
    finally:
        time.sleep(0.1)
        held_up.set()
        thread.join(60)
    assert not thread.is_alive()
    assert len(keeper.rows) == 2400
    assert "base-0001" in keeper.shut


def test_a_range_that_fails_once_is_processed_again_after_a_wait(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=3)
    failed: Counter[str] = Counter()
    keeper = Keeper()

    def once(delivery: Delivery) -> None:
        failed[delivery.channel] += 1
        if failed[delivery.channel] == 1:
            raise OSError("a moment")
        keeper.process(delivery)

    tunnel.consume(once, drained=True)
    assert set(failed.values()) == {2}
    assert len(keeper.rows) == 2400


@pytest.mark.parametrize("longest", [0.1, 1.0, 10.0])
def test_waits_grow_up_to_the_longest_and_then_the_channel_is_parked(longest: float) -> None:
    trouble = FailurePolicy(longest, parks=True, outage=None, chance=random.Random(3))
    waits = []
    while (found := trouble.failed())[0] is FailureAction.AGAIN:
        waits.append(found[1])
    assert found[0] is FailureAction.PARK
    assert max(waits) <= longest
    assert 0.75 * longest <= waits[-1]
    assert all(wait >= 0.05 for wait in waits)
    assert len(waits) == {0.1: 1, 1.0: 4, 10.0: 6}[longest]
    trouble.over()
    assert trouble.failed()[0] is FailureAction.AGAIN
    assert FailurePolicy(longest, parks=False, outage=None).failed()[0] is FailureAction.STOP


def test_an_outage_is_waited_for_unless_it_is_told_how_long() -> None:
    trouble = FailurePolicy(10.0, parks=True, outage=None)
    assert {trouble.no_answer(now)[0] for now in range(0, 100_000, 10)} == {FailureAction.AGAIN}
    short = FailurePolicy(10.0, parks=True, outage=60.0)
    assert [short.no_answer(now)[0] for now in (1, 30, 61, 62)] == [FailureAction.AGAIN] * 3 + [
        FailureAction.STOP
    ]
    short.over()
    assert short.no_answer(500)[0] is FailureAction.AGAIN


def test_a_store_keeps_what_is_parked(store: SqlStore) -> None:
    store.create(ORDERS, list(channels(base=2, stream=1).values()))
    store.connect("orders", Client("a"))
    store.heartbeat("orders", "a", ())
    with pytest.raises(
        ChannelLostError, match="checkpoint of channel base-0 is number 0, and not 1"
    ):
        store.park("orders", "a", "base-0", 1, "why")
    with pytest.raises(ChannelLostError, match="does not belong to client b"):
        store.park("orders", "b", "base-0", 0, "why")
    version = store.state("orders").channels["base-0"].version
    for _ in range(2):  # the answer to the first may be lost
        store.park("orders", "a", "base-0", 0, "why")
    found = store.state("orders").channels["base-0"]
    assert (found.state, found.parked, found.client, found.version) == (
        ChannelState.PARKED,
        "why",
        "",
        version + 1,
    )
    assert found.params == {"split": {}}
    with pytest.raises(ChannelLostError):
        store.checkpoint("orders", "a", "base-0", 0, {"at": 1})
    assert [each.id for each in store.heartbeat("orders", "a", ())] == ["base-1"]
    assert store.resume("orders", ["base-1"]) == ()
    assert store.resume("orders") == ("base-0",)
    assert {each.id for each in store.heartbeat("orders", "a", ())} == {"base-0", "base-1"}
    store.checkpoint("orders", "a", "base-0", 0, {"at": 1})
    found = store.state("orders").channels["base-0"]
    assert (found.parked, found.params, found.token) == ("", {"split": {}}, {"at": 1})
    assert abs(found.checkpointed_at - store.now()) < 60
    store.release("orders", "a", ["base-0", "stream-0"])
    state = store.state("orders")
    assert (state.channels["base-0"].client, state.channels["base-1"].client) == ("", "a")


# --- stops


def test_a_stop_while_consume_starts_is_not_lost(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create()
    real, begun, go_on = StreamSource, threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return real(*args)

    monkeypatch.setattr("spark_channel.tunnel.worker.StreamSource", slow)
    thread = threading.Thread(target=tunnel.consume, args=(lambda delivery: None,))
    thread.start()
    assert begun.wait(60)
    tunnel.stop()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()
    assert tunnel.describe().clients == ()


def test_a_stop_ends_every_consume_of_a_tunnel(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=4)
    came = [threading.Event(), threading.Event()]
    threads = [
        threading.Thread(target=tunnel.consume, args=(lambda delivery, event=event: event.set(),))
        for event in came
    ]
    for thread in threads:
        thread.start()
    assert came[0].wait(60) or came[1].wait(60)
    tunnel.stop()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_range_at_hand_is_finished_and_checkpointed_after_a_stop(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=2)
    keeper, begun = Keeper(), threading.Event()

    def process(delivery: Delivery) -> None:
        begun.set()
        time.sleep(0.3)
        keeper.process(delivery)

    thread = threading.Thread(target=tunnel.consume, args=(process,))
    thread.start()
    assert begun.wait(60)
    tunnel.stop()
    thread.join(30)
    checkpoints = sum(each.channel.sequence for each in tunnel.describe().channels)
    assert checkpoints == len(keeper.ranges) >= 1


# --- a store that is away


@pytest.mark.parametrize("outage", ["any", "short"])
def test_an_outage_longer_than_the_heartbeat_timeout_is_waited_for(
    tmp_path: Path, shop: Path, outage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tunnels.db"
    options = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnelType": "base",
        "maxRetryInterval": "0.3",
        **({"outageTimeout": "0.5"} if outage == "short" else {}),
    }
    tunnel = Tunnel("orders", options, store=SqliteStore(place, lock_timeout=0.05))
    tunnel.create(channels=6)
    real = worker.TunnelWorker.__init__

    def begin(self: Any, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        self._client._timeout = 1.0  # the option's least is 10 s

    monkeypatch.setattr(worker.TunnelWorker, "__init__", begin)
    heard = Heard("trying again", 1)
    log = logging.getLogger("spark_channel.tunnel")
    log.addHandler(heard)
    keeper, first, held = Keeper(), threading.Event(), threading.Event()

    def lock() -> None:
        assert first.wait(60)
        with locked(place):
            held.set()
            time.sleep(3.0)

    holder = threading.Thread(target=lock)
    holder.start()

    def process(delivery: Delivery) -> None:
        first.set()
        assert held.wait(60)
        keeper.process(delivery)

    try:
        if outage == "short":
            with pytest.raises(TunnelStoreError):
                tunnel.consume(process, drained=True)
        else:
            tunnel.consume(process, drained=True)
            assert len(keeper.rows) == 2400
            assert heard.enough.is_set()
    finally:
        log.removeHandler(heard)
        holder.join()


def test_a_client_that_lost_its_channels_in_an_outage_gets_others_when_it_is_back(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own way to the store was cut; meanwhile another client took its channels over."""
    place = tmp_path / "tunnels.db"
    options = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "maxRetryInterval": "0.2",
    }
    cut, expired = threading.Event(), Heard("is not known to the tunnel", 1)

    class CutOff(SqliteStore):
        def _transaction(self, *, make: bool = False) -> Any:
            if cut.is_set():
                raise TunnelStoreError("no route to the store")
            return super()._transaction(make=make)

    real = worker.TunnelWorker.__init__

    def begin(self: Any, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        # The options' least are 10 s and 5 s.
        self._client._timeout, self._client._interval = (
            1.0,
            0.2,
        )

    monkeypatch.setattr(worker.TunnelWorker, "__init__", begin)
    tunnels = [
        Tunnel("orders", options, store=CutOff(place)),
        Tunnel("orders", options, store=str(place)),
    ]
    tunnels[0].create(channels=4)
    keepers = [Keeper(), Keeper()]
    log = logging.getLogger("spark_channel.tunnel")
    log.addHandler(expired)
    threads = [
        threading.Thread(target=tunnel.consume, args=(keeper,))
        for tunnel, keeper in zip(tunnels, keepers, strict=True)
    ]
    try:
        threads[0].start()
        wait_until(lambda: keepers[0].rows.total() == 2400, "the first client has read all")
        threads[1].start()
        cut.set()
        wait_until(
            lambda: (
                {each.client for each in tunnels[1].store.state("orders").channels.values()} - {""}
                == set(tunnels[1].store.state("orders").clients)
                and len(tunnels[1].store.state("orders").clients) == 1
            ),
            "the second client has taken all over",
        )
        fill(shop, 2401, 2500)
        wait_until(lambda: keepers[1].rows.total() == 100, "the second client continues")
        cut.clear()
        assert expired.enough.wait(30)
        wait_until(
            lambda: len(tunnels[1].store.state("orders").clients) == 2, "the first client is back"
        )
        assert threads[0].is_alive(), "and its `consume` has not ended"
    finally:
        cut.clear()
        log.removeHandler(expired)
        for tunnel, thread in zip(tunnels, threads, strict=True):
            tunnel.stop()
            if thread.ident is not None:
                thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert keepers[0].rows + keepers[1].rows == Counter(range(1, 2501))


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


# --- SIGTERM

PROGRAM = """
import sys, time
from spark_channel.tunnel import Tunnel
class Say:
    def process(self, delivery):
        rows = sum(batch.num_rows for batch in delivery.batches)
        print("begun", delivery.channel, flush=True)
        time.sleep(float(sys.argv[3]))
        print("done", delivery.channel, flush=True)
    def shutdown(self, channel):
        print("shutdown", channel, flush=True)
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "tunnelType": "base", **eval(sys.argv[4])}
try:
    Tunnel("orders", options, store=sys.argv[2]).consume(Say(), threads=2)
finally:
    print("left", flush=True)
print("went on", flush=True)
"""


@contextmanager
def program(shop: Path, seconds: float, **options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(shop),
        str(shop.parent / "tunnels.db"),
        str(seconds),
        repr(options),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        try:
            yield child
        finally:
            child.kill()


def read_until(child: "subprocess.Popen[str]", word: str) -> list[str]:
    """The lines up to the first one that starts with `word`, which is the last of them."""
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if line.startswith(word):
            return said
    raise AssertionError(f"it ended without {word!r}")


def test_sigterm_finishes_the_ranges_at_hand_and_gives_all_channels_back_in_a_second(
    shop: Path,
) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=12)
    with program(shop, 0.3) as child:
        before = read_until(child, "begun") + read_until(child, "begun")
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, _ = child.communicate(timeout=30)
        took = time.monotonic() - began
    said = [line.split() for line in (*before, *out.splitlines())]
    assert child.returncode == 143
    assert said[-1] == ["left"]
    shut = [line[1] for line in said if line[0] == "shutdown"]
    done = [line[1] for line in said if line[0] == "done"]
    assert len(set(done)) >= 2
    assert set(done) <= set(shut)
    assert len(set(shut)) == len(shut)
    view = tunnel.describe()
    assert view.clients == ()
    assert all(each.channel.client == "" for each in view.channels)
    assert sum(each.channel.sequence for each in view.channels) >= 2, (
        "what was at hand is checkpointed"
    )
    assert took < 3.0, f"{took:.1f} s"
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows


def test_sigterm_leaves_behind_what_does_not_end_within_the_grace(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=4)
    with program(shop, 600.0, shutdownGrace="0.5") as child:
        read_until(child, "begun")
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, _ = child.communicate(timeout=30)
        assert time.monotonic() - began < 10
    assert child.returncode == 143
    assert "left" in out
    assert tunnel.describe().clients == ()
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert len(keeper.rows) == 2400


@pytest.mark.parametrize(
    ("seconds", "grace"),
    [
        pytest.param(0.2, "60", id="checkpoints have no grace"),
        pytest.param(600.0, "0.5", id="busy"),
    ],
)
def test_sigterm_leaves_behind_a_store_that_does_not_answer(
    shop: Path, seconds: float, grace: str
) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=4)
    with program(shop, seconds, shutdownGrace=grace) as child:
        read_until(child, "begun")
        with locked(shop.parent / "tunnels.db"):
            if grace == "60":
                read_until(child, "done")
            child.send_signal(signal.SIGTERM)
            began = time.monotonic()
            out, _ = child.communicate(timeout=60)
            took = time.monotonic() - began
    assert child.returncode == 143
    assert "left" in out
    assert took < 20.0, f"{took:.1f} s"
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows


def test_a_program_that_handles_sigterm_itself_keeps_its_handler(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=2)
    heard: list[int] = []
    one_at_a_time, came = threading.Lock(), threading.Event()

    def hear(number: int, _: object) -> None:
        heard.append(number)
        came.set()

    before = signal.signal(signal.SIGTERM, hear)
    try:

        def process(delivery: Delivery) -> None:
            with one_at_a_time:  # two that wait would be one
                came.clear()
                os.kill(os.getpid(), signal.SIGTERM)
                assert came.wait(30)
            list(delivery.batches)

        tunnel.consume(process, drained=True)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def no_handler() -> Iterator[None]:
    """As in a program that has registered no session in this process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("no_handler")
def test_the_default_of_sigterm_is_back_after_consume(shop: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=2)
    inside: list[object] = []
    tunnel.consume(lambda delivery: inside.append(signal.getsignal(signal.SIGTERM)), drained=True)
    assert signal.SIG_DFL not in inside
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
