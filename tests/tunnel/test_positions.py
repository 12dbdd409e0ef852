"""Offsets of streaming queries, asked for as Spark asks, without Spark."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.feed import FeedLag, FeedLimit
from spark_channel.errors import ChannelError, UnsupportedError
from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.positions import CheckpointPositions, Offset, StreamPositions, added_up
from spark_channel.tunnel.shared_positions import SharedPositions
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.store import open_store
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()


def fill(path: Path, start: int, end: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
        connection.executemany(
            "INSERT INTO orders VALUES (?, 'x')", [(n,) for n in range(start, end + 1)]
        )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    fill(path, 1, 100)
    return path


def own(shop: Path, **options: str) -> CheckpointPositions:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id", **options}
    return CheckpointPositions(StreamSource(given), 4)


def ids(positions: StreamPositions, start: Offset, end: Offset) -> list[int]:
    feed = positions.source.feed
    return sorted(
        n
        for each in positions.ranges(start, end)
        for split in each.splits
        for batch in feed.read(split)
        for n in batch.column("id").to_pylist()
    )


def test_base_then_changes_and_nothing_twice(shop: Path) -> None:
    positions = own(shop)
    start = positions.initial()
    fill(shop, 101, 110)
    first = positions.latest(start, NO_LIMIT)
    assert ids(positions, start, first) == list(range(1, 101))
    second = positions.latest(first, NO_LIMIT)
    assert ids(positions, first, second) == list(range(101, 111))
    assert positions.latest(second, NO_LIMIT) == second
    assert ids(own(shop), first, second) == list(range(101, 111)), "another process reads the same"


def test_a_limit_takes_splits_one_by_one_and_then_cuts_the_changes(shop: Path) -> None:
    positions = own(shop)
    token, seen = positions.initial(), []
    fill(shop, 101, 160)
    while (end := positions.latest(token, FeedLimit(rows=25))) != token:
        seen.append(len(ids(positions, token, end)))
        token = end
    assert seen == [25, 25, 25, 25, 25, 25, 10]


def test_available_now_ends_where_the_source_ended(shop: Path) -> None:
    positions = own(shop, tunnelType="stream", startingOffsets="earliest")
    start = positions.initial()
    positions.prepare()
    fill(shop, 101, 110)
    end = positions.latest(start, NO_LIMIT)
    assert ids(positions, start, end) == list(range(1, 101))
    assert positions.latest(end, NO_LIMIT) == end


def test_before_spark_4_2_a_query_that_begins_again_finds_its_place(shop: Path) -> None:
    options = {"tunnelType": "stream", "startingOffsets": "earliest"}
    first = own(shop, **options)
    start = first.initial()
    end = first.latest(None, NO_LIMIT)
    assert ids(first, start, end) == list(range(1, 101))
    fill(shop, 101, 105)
    again = own(shop, **options)
    more = again.latest(None, NO_LIMIT)
    assert ids(again, end, more) == list(range(101, 106))
    with pytest.raises(UnsupportedError, match=r"needs Spark 4.2, or option 'tunnel'"):
        own(shop).latest(None, NO_LIMIT)


def with_token(token: Any) -> Any:
    def change(offset: Offset) -> Offset:
        entry = {**offset["channels"]["stream-0"], "to": token}
        return {**offset, "channels": {"stream-0": entry}}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_token({"cursor": 500}), "is at id = 500, and the highest value in the table is 100"),
        (with_token({"curs": 1}), "not a position in cursor column 'id'"),
        (lambda offset: {"version": 1}, "is damaged, or of another version"),
        (lambda offset: {**offset, "version": 9}, "is damaged, or of another version"),
        (
            lambda offset: {**offset, "tunnel": "x"},
            "of a query on tunnel 'x', and this one is on none",
        ),
        (lambda offset: {**offset, "id": "csv /in"}, "is of csv /in, and this query reads sqlite"),
        (
            lambda offset: {**offset, "schema": "id text"},
            r"of columns \(id text\), and the source has",
        ),
    ],
)
def test_an_offset_that_is_wrong_is_told(shop: Path, change: Any, message: str) -> None:
    positions = own(shop, tunnelType="stream", startingOffsets="earliest")
    offset = positions.latest(positions.initial(), NO_LIMIT)
    with pytest.raises(ChannelError, match=message):
        positions.latest(change(offset), NO_LIMIT)


def shared(shop: Path) -> SharedPositions:
    store = str(shop.parent / "tunnels.db")
    given = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnel": "orders",
        "tunnelStore": store,
    }
    return SharedPositions(StreamSource(given), open_store(store))


def test_two_queries_share_a_tunnel_and_name_their_ranges(shop: Path) -> None:
    options = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("orders", options, store=str(shop.parent / "tunnels.db")).create(channels=4)
    fill(shop, 101, 120)
    first = shared(shop)
    start = first.initial()
    one = first.latest(start, NO_LIMIT)
    planned = first.ranges(start, one)
    assert len({each.origin for each in planned}) == 4
    assert ids(first, start, one) == list(range(1, 101))
    first.close()  # it ends before Spark has committed the batch
    second = shared(shop)
    begin = second.initial()
    again = second.latest(begin, NO_LIMIT)
    assert {each.origin for each in second.ranges(begin, again)} == {
        each.origin for each in planned
    }
    after = second.latest(again, NO_LIMIT)
    assert ids(second, again, after) == list(range(101, 121))
    assert second.latest(after, NO_LIMIT) == after
    second.close()


def test_how_far_a_query_is_behind_is_added_up(shop: Path) -> None:
    positions = own(shop)
    offset = positions.initial()
    fill(shop, 101, 110)
    rows = [positions.behind(offset).rows]
    for _ in range(2):
        offset = positions.latest(offset, NO_LIMIT)
        rows.append(positions.behind(offset).rows)
    assert rows == [110, 10, 0]


def test_how_far_a_tunnels_client_is_behind_is_of_its_own_channels(shop: Path) -> None:
    options = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("orders", options, store=str(shop.parent / "tunnels.db")).create(channels=4)
    fill(shop, 101, 120)
    positions, rows = shared(shop), []
    offset = positions.initial()
    for limit in (FeedLimit(rows=60), NO_LIMIT, FeedLimit(rows=5), NO_LIMIT):
        offset = positions.latest(offset, limit)
        rows.append(positions.behind(offset).rows)
    positions.close()
    assert rows == [50, 0, 15, 0], "the changes belong to no client before the base is read"


def test_a_lag_that_is_not_known_of_one_channel_is_not_known() -> None:
    one, other = FeedLag(10, 100, 3.0), FeedLag(None, 50, 9.0)
    assert added_up([one, other]) == FeedLag(None, 150, 9.0)
    assert added_up([one, one]) == FeedLag(20, 200, 3.0)
    assert added_up([FeedLag(5)]) == FeedLag(5)
    assert added_up([]) == FeedLag(0, 0)
    half = FeedLag(5, 7, 1.0, 900, 10, 20, 2)
    assert added_up([half, FeedLag(0, 0, 0.0)]) == FeedLag(5, 7, 1.0, 900, 10, 20, 2)
    assert added_up([half, FeedLag(1, 1, 0.5, 900, 30, None, 1, True)]) == FeedLag(
        6, 8, 1.0, 900, 40, None, 3, True
    ), "of one slot, which keeps once what it keeps"


def test_a_query_of_logical_replication_sees_what_comes_after_each_batch(
    postgres_server: PostgresServer,
) -> None:
    postgres_server.psql(
        "CREATE TABLE streamed (id int PRIMARY KEY); CREATE PUBLICATION streamed FOR TABLE streamed"
    )
    given = {
        **postgres_server.login,
        "dbtable": "streamed",
        "slot": "streamed",
        "publication": "streamed",
        "tunnelType": "stream",
    }
    positions = CheckpointPositions(StreamSource(given), 1)
    try:
        offset = positions.initial()
        for number in range(3):
            postgres_server.psql(f"INSERT INTO streamed VALUES ({number})")
            end = positions.latest(offset, NO_LIMIT)
            assert ids(positions, offset, end) == [number]
            offset = end
        assert positions.latest(offset, NO_LIMIT) == offset
    finally:
        positions.source.feed.close()
        postgres_server.psql("DROP PUBLICATION streamed; DROP TABLE streamed")


@pytest.mark.parametrize("mode", ["evolve", "ignore"])
@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "tunnel"])
def test_a_query_that_is_started_again_continues_with_columns_that_changed(
    postgres_server: PostgresServer, tmp_path: Path, mode: str, is_shared: bool
) -> None:
    name = f"widened_{mode}_{is_shared}".lower()
    postgres_server.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY); CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    given = {
        **postgres_server.login,
        "dbtable": name,
        "slot": name,
        "publication": name,
        "tunnelType": "stream",
        "onSchemaChange": mode,
    }
    store = str(tmp_path / "tunnels.db")
    if is_shared:
        Tunnel("orders", given, store=store).create()

    def begun(**more: str) -> StreamPositions:
        wanted = {**given, **more}
        if is_shared:
            return SharedPositions(StreamSource({**wanted, "tunnel": "orders"}), open_store(store))
        return CheckpointPositions(StreamSource(wanted), 1)

    first = begun()
    try:
        start = first.initial()
        postgres_server.psql(f"INSERT INTO {name} VALUES (1)")
        end = first.latest(start, NO_LIMIT)
        assert ids(first, start, end) == [1]
        postgres_server.psql(
            f"ALTER TABLE {name} ADD note text; INSERT INTO {name} VALUES (2, 'x')"
        )
        first.close()
        again = begun()
        more = again.latest(end, NO_LIMIT)
        assert ids(again, end, more) == [2]
        assert "note" in again.source.feed.schema().names
        again.close()
        with pytest.raises(ChannelError, match=r"made for columns|is of columns"):
            begun(onSchemaChange="fail").latest(more if is_shared else end, NO_LIMIT)
    finally:
        first.close()
        first.source.feed.close()
        postgres_server.psql(f"DROP PUBLICATION {name}; DROP TABLE {name}")
