"""Stores: what they keep, and what they report."""

from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelLostError, ClientExpiredError, TunnelError, TunnelStoreError
from spark_channel.processes import host_name
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    TunnelRecord,
    TunnelType,
)
from spark_channel.tunnel.store import SqliteStore, SqlStore
from tests.tunnel.world import channels

ORDERS = TunnelRecord(
    "orders", "id-1", TunnelType.BASE_AND_STREAM, "sqlite shop.db#orders", "id: int64", 0.0
)


@pytest.fixture
def orders(store: SqlStore) -> SqlStore:
    store.create(ORDERS, list(channels(base=2, stream=1).values()))
    return store


def test_a_tunnel_is_kept_as_it_was_made(orders: SqlStore) -> None:
    found = orders.get("orders")
    assert (found.name, found.id, found.type, found.source) == (
        "orders",
        "id-1",
        TunnelType.BASE_AND_STREAM,
        "sqlite shop.db#orders",
    )
    assert found.created_at > 1.7e9
    assert orders.all() == [found]
    assert list(orders.state("orders").channels.values()) == list(
        channels(base=2, stream=1).values()
    )


def test_plain_data_of_any_kind_comes_back(store: SqlStore) -> None:
    import datetime
    from decimal import Decimal

    token = {
        "a": b"\0\xff",
        "b": [1, None, 2.5],
        "c": Decimal("1.20"),
        "d": datetime.datetime(2026, 1, 2, 3),
    }
    store.create(
        ORDERS, [Channel("x", 0, {"split": {"lower": [datetime.date(2026, 1, 1)]}}, token=token)]
    )
    channel = store.state("orders").channels["x"]
    assert channel.token == token
    assert channel.params == {"split": {"lower": [datetime.date(2026, 1, 1)]}}


def test_a_name_is_taken_once(orders: SqlStore) -> None:
    with pytest.raises(TunnelError, match="there is a tunnel 'orders'"):
        orders.create(ORDERS, [])


def test_a_missing_tunnel_is_named_with_those_there_are(orders: SqlStore) -> None:
    with pytest.raises(
        TunnelError, match=r"tunnel 'order' does not exist in .*, which has 'orders'"
    ):
        orders.get("order")


def test_a_look_at_a_store_makes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "more" / "tunnels.db"
    assert SqliteStore(place).all() == []
    assert not place.parent.exists()
    place.parent.mkdir()
    place.touch()
    for _ in range(2):
        assert SqliteStore(place).all() == []
        with pytest.raises(TunnelStoreError, match="no such table"):
            SqliteStore(place).get("orders")
    assert SqliteStore(place).all(make=True) == []
    with pytest.raises(TunnelError, match="which has none"):
        SqliteStore(place).get("orders")


def test_a_store_that_is_not_there_is_named(store: SqlStore) -> None:
    with pytest.raises(TunnelError, match="tunnel"):
        store.get("orders")


def test_a_deleted_tunnel_is_gone_for_its_clients(orders: SqlStore) -> None:
    orders.connect("orders", Client("a"))
    orders.delete("orders")
    with pytest.raises(TunnelError, match="tunnel 'orders' does not exist"):
        orders.heartbeat("orders", "a", ())
    assert orders.all() == []


def test_a_reset_begins_anew(orders: SqlStore) -> None:
    orders.connect("orders", Client("a"))
    mine = orders.heartbeat("orders", "a", ())
    orders.checkpoint("orders", "a", mine[0].id, 0, {"at": 7})
    orders.note("orders", "shop.a", "read again")
    fresh = orders.reset("orders", TunnelRecord(**{**_fields(ORDERS), "id": "id-2"}), mine)
    assert orders.get("orders") == fresh
    assert orders.notes("orders") == {"shop.a": "read again"}
    assert fresh.id == "id-2"
    with pytest.raises(ClientExpiredError):
        orders.heartbeat("orders", "a", ())


def _fields(record: TunnelRecord) -> dict[str, Any]:
    return {
        name: getattr(record, name)
        for name in ("name", "id", "type", "source", "schema", "created_at")
    }


def test_channels_are_given_checked_and_handed_on(orders: SqlStore) -> None:
    orders.connect("orders", Client("a"))
    mine = orders.heartbeat("orders", "a", ())
    assert [channel.id for channel in mine] == ["base-0", "base-1"]
    assert orders.hand_out("orders", "a", "base-0", 0, {"at": 5}) == {"at": 5}
    assert orders.hand_out("orders", "a", "base-0", 0, {"at": 9}) == {"at": 5}, (
        "the first range stays"
    )
    orders.checkpoint("orders", "a", "base-0", 0, {"at": 5})
    orders.checkpoint("orders", "a", "base-0", 0, {"at": 5})  # its answer was lost
    with pytest.raises(ChannelLostError, match="number 1, and not 0"):
        orders.checkpoint("orders", "a", "base-0", 0, {"at": 6})
    done = [
        ChannelStatus(channel.id, channel.version + 1, ChannelState.TERMINATED) for channel in mine
    ]
    assert [channel.id for channel in orders.heartbeat("orders", "a", done)] == ["stream-0"]


def test_a_second_client_gets_its_share_and_the_first_ones_checkpoint(orders: SqlStore) -> None:
    orders.connect("orders", Client("a"))
    first = orders.heartbeat("orders", "a", ())
    orders.hand_out("orders", "a", "base-1", 0, {"at": 4})
    orders.checkpoint("orders", "a", "base-1", 0, {"at": 4})
    orders.hand_out("orders", "a", "base-1", 1, {"at": 8})
    orders.connect("orders", Client("b"))
    assert orders.heartbeat("orders", "b", ()) == ()
    second = orders.heartbeat(
        "orders", "a", [ChannelStatus(c.id, c.version, c.state) for c in first]
    )
    leaving = next(channel for channel in second if channel.state is ChannelState.CLOSING)
    assert leaving.id == "base-1"
    kept = orders.heartbeat(
        "orders", "a", [ChannelStatus(leaving.id, leaving.version + 1, ChannelState.CLOSED)]
    )
    assert [channel.id for channel in kept] == ["base-0"]
    (got,) = orders.heartbeat("orders", "b", ())
    assert (got.id, got.sequence, got.token, got.pending) == ("base-1", 1, {"at": 4}, {"at": 8})
    with pytest.raises(ChannelLostError, match="does not belong to client a"):
        orders.checkpoint("orders", "a", "base-1", 1, {"at": 8})


def test_a_client_whose_process_has_ended_is_replaced_at_once(orders: SqlStore) -> None:
    orders.connect("orders", Client("dead", host=host_name(), process="999999999@1"))
    assert len(orders.heartbeat("orders", "dead", ())) == 2
    orders.connect("orders", Client("b"))
    assert len(orders.heartbeat("orders", "b", ())) == 2
