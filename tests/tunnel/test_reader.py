"""`Tunnel.open`: reads and checkpoints as calls of a program's own loop."""

import threading
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from spark_channel.errors import ChannelError, ChannelLostError, FlowError, TunnelError
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import ClientState, Delivery, Processor, TunnelReader
from spark_channel.tunnel.client import ChannelHost, TunnelClient
from tests.tunnel.test_worker_consume import Keeper, fill, run, tunnel_of

__all__ = ["shop"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 1000)
    return path


def ids(delivery: Delivery) -> list[int]:
    return [n for batch in delivery.batches for n in batch.column("id").to_pylist()]


def test_a_loop_reads_everything_once_and_ends(shop: Path) -> None:
    tunnel = tunnel_of(shop, maxRowsPerTrigger="100")
    tunnel.create(channels=3)
    fill(shop, 1001, 1250)
    held, rows, places = held_resources(), Counter[int](), Counter[tuple[str, int]]()
    with tunnel.open(drained=True) as reader:
        assert type(reader) is TunnelReader
        while (delivery := reader.read()) is not None:
            rows.update(ids(delivery))
            places[delivery.channel, delivery.sequence] += 1
            reader.checkpoint(delivery)
            known = tunnel.store.state("orders").channels[delivery.channel]
            assert known.sequence == delivery.sequence + 1, "kept when checkpoint returns"
        assert reader.read() is None
    assert rows == Counter(range(1, 1251))
    assert set(places.values()) == {1}
    held.expect_no_more("after close")


def test_what_has_no_checkpoint_is_delivered_again(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=2)
    held = held_resources()
    with tunnel.open() as reader:
        first, second = reader.read(), reader.read()
        assert first is not None
        assert second is not None
        assert {first.channel, second.channel} == {"base-0000", "base-0001"}
        taken = ids(first)
        reader.checkpoint(first)
        given = ids(second)
    with pytest.raises(FlowError, match="this reader does not hold"):
        reader.checkpoint(second)
    with pytest.raises(FlowError, match="was closed"):
        reader.read()
    with tunnel.open(drained=True) as reader:
        again = reader.read()
        assert again is not None
        assert (again.channel, again.sequence) == (second.channel, second.sequence)
        assert ids(again) == given
        assert sorted(taken + given) == list(range(1, 1001))
        reader.checkpoint(again)
        assert reader.read() is None
    held.expect_no_more("after close")


def test_a_range_that_failed_comes_again_and_then_parks_its_channel(shop: Path) -> None:
    tunnel = tunnel_of(shop, maxRetryInterval="0.05")
    tunnel.create(channels=2)
    seen: Counter[tuple[str, int]] = Counter()

    def loop() -> None:
        with tunnel.open(drained=True) as reader:
            while (delivery := reader.read()) is not None:
                seen[delivery.channel, delivery.sequence] += 1
                if delivery.channel == "base-0000":
                    reader.fail(delivery, ValueError("poison"))
                else:
                    reader.checkpoint(delivery)

    with pytest.raises(ValueError, match="poison"):
        loop()
    assert seen == Counter({("base-0000", 0): 2, ("base-0001", 0): 1})
    assert [view.channel.id for view in tunnel.describe().channels if view.channel.parked] == [
        "base-0000"
    ]


def test_a_read_waits_so_long_and_wakes_for_what_comes(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream")
    tunnel.create()
    with tunnel.open() as reader:
        assert reader.read(timeout=0.2) is None
        found: list[Delivery | None] = []
        thread = threading.Thread(target=lambda: found.append(reader.read()))
        thread.start()
        fill(shop, 1001, 1005)
        thread.join(20)
        assert found[0] is not None
        assert ids(found[0]) == list(range(1001, 1006))
        reader.checkpoint(found[0])


def test_a_close_wakes_whoever_reads(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream")
    tunnel.create()
    reader = tunnel.open()
    met: list[Exception] = []

    def read() -> None:
        try:
            reader.read()
        except ChannelError as error:
            met.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    reader.close()
    thread.join(20)
    assert isinstance(met[0], FlowError)
    reader.close()


def test_a_checkpoint_of_a_channel_that_went_elsewhere_is_told(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=1)
    with tunnel.open() as reader:
        delivery = reader.read()
        assert delivery is not None
        ids(delivery)
        client = tunnel.store.state("orders").channels[delivery.channel].client
        tunnel.store.release("orders", client, [delivery.channel])
        with pytest.raises(
            ChannelLostError, match="range 0 of channel base-0000 is not checkpointed"
        ):
            reader.checkpoint(delivery)


def test_an_error_ends_a_read_though_deliveries_are_out(shop: Path) -> None:
    """A loop that holds a delivery while it reads the next one must not wait for itself."""
    tunnel = tunnel_of(shop, heartbeatInterval="5", heartbeatTimeout="10")
    tunnel.create(channels=1)
    with tunnel.open() as reader:
        delivery = reader.read()
        assert delivery is not None
        tunnel.reset(channels=1)
        with pytest.raises(TunnelError, match="reset or created again"):
            reader.read(timeout=40)


def test_two_loops_share_a_tunnel(shop: Path) -> None:
    tunnel = tunnel_of(shop, maxRowsPerTrigger="50", heartbeatInterval="5", heartbeatTimeout="10")
    tunnel.create(channels=6)
    keeper = Keeper()

    def loop() -> None:
        with tunnel_of(
            shop, maxRowsPerTrigger="50", heartbeatInterval="5", heartbeatTimeout="10"
        ).open(drained=True) as reader:
            while (delivery := reader.read()) is not None:
                keeper.process(delivery)
                try:
                    reader.checkpoint(delivery)
                except ChannelLostError:
                    pass

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(keeper.rows) == set(range(1, 1001))


def test_a_processor_has_both_callbacks() -> None:
    assert isinstance(Keeper(), Processor)
    assert not isinstance(ids, Processor), "a function counts as `process` alone"


def test_a_client_is_ready_then_started_and_ends_for_good(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=1)
    host = mock.Mock(spec=ChannelHost)
    client = TunnelClient(tunnel.store, tunnel.store.get("orders"), host)
    states = [client.state]
    client.start()
    states.append(client.state)
    assert host.dial.called
    client.close()
    states.append(client.state)
    assert states == [ClientState.READY, ClientState.STARTED, ClientState.ENDED]
    with pytest.raises(TunnelError, match="is ended"):
        client.start()
