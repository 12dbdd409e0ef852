"""A tunnel that starts at a time, and channels that end for good: at a given position, or at a split."""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import OptionError, TunnelError, UnsupportedError
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.positions import CheckpointPositions, Offset
from spark_channel.tunnel.records import ChannelState
from spark_channel.tunnel.shared_positions import SharedPositions
from spark_channel.tunnel.source import StreamSource
from tests.tunnel.test_worker_consume import Keeper, fill, run, tunnel_of

__all__ = ["shop"]

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 1000)
    return path


def states(tunnel: Tunnel) -> dict[str, ChannelState]:
    return {view.channel.id: view.channel.state for view in tunnel.describe().channels}


@pytest.mark.parametrize("rows", ["100000", "7"])
def test_a_channel_ends_for_good_where_it_is_told(shop: Path, rows: str) -> None:
    tunnel = tunnel_of(
        shop,
        tunnelType="stream",
        startingOffsets='{"cursor": 900}',
        endingOffsets='{"cursor": 1010}',
        maxRowsPerTrigger=rows,
    )
    tunnel.create()
    keeper, held = Keeper(), held_resources()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(901, 1001))
    assert states(tunnel) == {"stream-0": ChannelState.OPEN} or states(tunnel) == {
        "stream-0": ChannelState.CLOSED
    }
    fill(shop, 1001, 1100)
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(901, 1011)), "and no row after its end"
    assert states(tunnel) == {"stream-0": ChannelState.TERMINATED}
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(901, 1011))
    held.expect_no_more("after consume")


def test_an_end_between_two_rows_is_an_end(shop: Path) -> None:
    run(shop, "DELETE FROM orders WHERE id BETWEEN 40 AND 60")
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", endingOffsets='{"cursor": 50}'
    )
    tunnel.create()
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 40))
    assert states(tunnel) == {"stream-0": ChannelState.TERMINATED}


def test_an_end_that_is_now_leaves_out_what_comes_later(shop: Path) -> None:
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", endingOffsets="latest"
    )
    tunnel.create()
    fill(shop, 1001, 1010)
    keeper = Keeper()
    tunnel.consume(keeper)  # not until it is drained: it ends by itself, as nothing will ever come
    assert keeper.rows == Counter(range(1, 1001))


def events(path: Path, declared: str, values: Sequence[Any]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, at {declared} NOT NULL)")
        connection.executemany("INSERT INTO orders (at) VALUES (?)", [(value,) for value in values])
    return path


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("TIMESTAMP", lambda at: at.strftime("%Y-%m-%d %H:%M:%S.%f")),
        ("DATE", lambda at: at.strftime("%Y-%m-%d")),
    ],
)
def test_a_table_is_read_from_a_time_to_a_time(
    tmp_path: Path, declared: str, text: Callable[[datetime], str]
) -> None:
    times = [datetime(2026, 5, 1, tzinfo=UTC) + timedelta(days=day) for day in range(10)]
    path = events(tmp_path / "shop.db", declared, [text(at) for at in times])
    tunnel = tunnel_of(
        path,
        tunnelType="stream",
        cursorColumn="at",
        startingTimestamp="2026-05-03",
        endingTimestamp="2026-05-07T00:00:00Z",
    )
    tunnel.create()
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter([3, 4, 5, 6])
    assert states(tunnel) == {"stream-0": ChannelState.TERMINATED}


def files(folder: Path, hours: Sequence[int]) -> Path:
    folder.mkdir(exist_ok=True)
    for hour in hours:
        path = folder / f"{hour}.parquet"
        pq.write_table(pa.table({"id": pa.array([hour], pa.int64())}), path)
        stamp = (NOON + timedelta(hours=hour)).timestamp()
        os.utime(path, (stamp, stamp))
    return folder


def arrivals(folder: Path, **options: str) -> Tunnel:
    given = {"reader": "parquet", "path": str(folder), "tunnelType": "stream", **options}
    return Tunnel("files", given, store=str(folder.parent / "tunnels.db"))


def test_files_are_read_from_a_time_to_a_time_and_late_ones_are_found(tmp_path: Path) -> None:
    folder = files(tmp_path / "in", [-2, -1, 0, 1, 3])
    start, end = NOON.isoformat(), (NOON + timedelta(hours=3)).isoformat()
    tunnel = arrivals(folder, startingTimestamp=start, endingTimestamp=end, lateSeconds="900")
    tunnel.create()
    keeper = Keeper()
    found: list[str] = []

    def process(delivery: Delivery) -> None:
        keeper.process(delivery)
        if not found:
            found.append("late")
            files(folder, [2, -3])

    tunnel.consume(process)
    assert keeper.rows == Counter([0, 1, 2]), "from the start on, without the end"


def test_a_reader_that_is_to_end_reads_files_to_their_end_and_terminates_the_channel(
    tmp_path: Path,
) -> None:
    folder = files(tmp_path / "in", [-2, -1, 0, 1, 3])
    start, end = NOON.isoformat(), (NOON + timedelta(hours=3)).isoformat()
    tunnel = arrivals(folder, startingTimestamp=start, endingTimestamp=end, lateSeconds="900")
    tunnel.create()
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter([0, 1])
    assert {view.channel.state for view in tunnel.describe().channels} == {ChannelState.TERMINATED}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": '{"cursor": 5}'}, "'endingOffsets' goes with tunnelType stream"),
        ({"startingTimestamp": "2026-05-01"}, "'startingTimestamp' goes with tunnelType stream"),
        ({"tunnelType": "stream", "startingTimestamp": "soon"}, "startingTimestamp"),
        (
            {"tunnelType": "stream", "startingTimestamp": "2026-05-01"},
            "'id' is int64, which is not a time",
        ),
        (
            {
                "tunnelType": "stream",
                "startingTimestamp": "2026-05-01",
                "startingOffsets": "latest",
            },
            "'startingOffsets' and 'startingTimestamp' are given",
        ),
        (
            {"tunnelType": "stream", "endingOffsets": "soon"},
            "'endingOffsets' got 'soon'; it takes latest, or a JSON",
        ),
        (
            {"tunnelType": "stream", "endingOffsets": '[{"cursor": 1}, {"cursor": 2}]'},
            "2 positions for 1 channels",
        ),
    ],
)
def test_a_start_or_end_that_makes_no_sense_is_told(
    shop: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        tunnel_of(shop, **options).create()


# --- splits


def dealt(folder: Path, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        hidden = folder / f".{number}.parquet"
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), hidden)
        hidden.rename(folder / f"{number}.parquet")


def test_a_channel_of_files_is_split_while_it_is_read(tmp_path: Path) -> None:
    dealt(tmp_path / "in", range(20))
    tunnel = arrivals(
        tmp_path / "in", startingOffsets="earliest", maxRowsPerTrigger="4", heartbeatInterval="5"
    )
    tunnel.create()
    keeper = Keeper()
    order: list[str] = []
    made: list[str] = []
    enough, held = threading.Event(), held_resources()

    def process(delivery: Delivery) -> None:
        order.append(delivery.channel)
        keeper.process(delivery)
        if not made:
            made.extend(tunnel.split("stream-0"))
            dealt(tmp_path / "in", range(20, 60))
        if sum(keeper.rows.values()) == 60:
            enough.set()

    thread = threading.Thread(target=lambda: tunnel.consume(process))
    thread.start()
    assert enough.wait(60), sum(keeper.rows.values())
    tunnel.stop()
    thread.join(30)
    assert keeper.rows == Counter(range(60)), "each file once"
    assert made == ["stream-1", "stream-2"]
    assert set(order) == {"stream-0", *made}
    last = len(order) - order[::-1].index("stream-0")
    assert not {"stream-1", "stream-2"} & set(order[:last]), "children open after their parent"
    assert states(tunnel)["stream-0"] is ChannelState.TERMINATED
    held.expect_no_more("after consume")


def test_an_idle_channel_that_is_split_lets_its_children_open(tmp_path: Path) -> None:
    """At its client's next heartbeat, though nothing comes."""
    dealt(tmp_path / "in", range(3))
    tunnel = arrivals(tmp_path / "in", startingOffsets="earliest", heartbeatInterval="5")
    tunnel.create()
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    tunnel.split("stream-0")
    tunnel.consume(keeper, drained=True)
    assert states(tunnel)["stream-0"] is ChannelState.TERMINATED
    dealt(tmp_path / "in", range(3, 33))  # each part has some
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(33))
    assert {channel for channel, _ in keeper.ranges} == {"stream-0", "stream-1", "stream-2"}


def test_a_channel_that_is_split_again_has_each_file_once(tmp_path: Path) -> None:
    dealt(tmp_path / "in", range(10))
    tunnel = arrivals(
        tmp_path / "in", startingOffsets="earliest", heartbeatInterval="5", tunnelChannels="2"
    )
    tunnel.create()
    assert tunnel.split("stream-1") == ("stream-2", "stream-3")
    assert tunnel.split("stream-3") == ("stream-4", "stream-5")
    dealt(tmp_path / "in", range(10, 40))
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(40))


def test_the_parts_of_a_token_are_the_whole(tmp_path: Path) -> None:
    dealt(tmp_path / "in", range(30))
    feed = StreamSource({"reader": "parquet", "path": str(tmp_path / "in")}).feed
    (start,) = feed.earliest()
    half = feed.latest(start, FeedLimit(rows=12))
    parts = feed.divide(half)
    dealt(tmp_path / "in", range(30, 40))

    def ids(after: Any, upto: Any) -> Counter[int]:
        found: Counter[int] = Counter()
        for split in feed.changes(after, upto):
            for batch in feed.read(split):
                found.update(batch.column(0).to_pylist())
        return found

    rest = [ids(part, feed.latest(part, FeedLimit())) for part in parts]
    assert all(rest)
    assert sum(rest, ids(start, half)) == Counter(range(40))


def test_a_channel_of_a_table_is_split_while_it_is_read(shop: Path) -> None:
    """By the key: the parent ends, its children open after it, and each has the rows of its keys, in order."""
    tunnel = tunnel_of(
        shop,
        tunnelType="stream",
        startingOffsets="earliest",
        maxRowsPerTrigger="100",
        heartbeatInterval="5",
    )
    tunnel.create()
    keeper = Keeper()
    order: list[str] = []
    parts: dict[str, list[int]] = {}
    made: list[str] = []
    enough, held = threading.Event(), held_resources()

    def process(delivery: Delivery) -> None:
        order.append(delivery.channel)
        batches = list(delivery.batches)
        parts.setdefault(delivery.channel, []).extend(
            n for batch in batches for n in batch.column("id").to_pylist()
        )
        keeper.process(replace(delivery, batches=iter(batches)))
        if not made:
            made.extend(tunnel.split("stream-0"))
            fill(shop, 1001, 2000)
        if sum(keeper.rows.values()) == 2000:
            enough.set()

    thread = threading.Thread(target=lambda: tunnel.consume(process, threads=3))
    thread.start()
    assert enough.wait(60), sum(keeper.rows.values())
    tunnel.stop()
    thread.join(30)
    assert keeper.rows == Counter(range(1, 2001)), "each row once"
    assert made == ["stream-1", "stream-2"]
    last = len(order) - order[::-1].index("stream-0")
    assert not {"stream-1", "stream-2"} & set(order[:last]), "children open after their parent"
    assert [{n % 2 for n in parts[channel]} for channel in made] == [{0}, {1}]
    assert all(rows == sorted(rows) for rows in parts.values())
    assert states(tunnel)["stream-0"] is ChannelState.TERMINATED
    held.expect_no_more("after consume")


@pytest.mark.parametrize("end", [1000, 1001])
def test_a_split_channel_of_a_table_ends_where_it_was_to_end(shop: Path, end: int) -> None:
    """In both children, though the last row is of one of them."""
    tunnel = tunnel_of(
        shop,
        tunnelType="stream",
        startingOffsets="earliest",
        endingOffsets=f'{{"cursor": {end}}}',
        heartbeatInterval="5",
    )
    tunnel.create()
    assert tunnel.split("stream-0") == ("stream-1", "stream-2")
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    if end > 1000:
        assert ChannelState.TERMINATED not in {
            states(tunnel)["stream-1"],
            states(tunnel)["stream-2"],
        }
        fill(shop, 1001, 1010)
        tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, end + 1))
    assert set(states(tunnel).values()) == {ChannelState.TERMINATED}


def test_what_cannot_be_split_is_told(shop: Path, tmp_path: Path) -> None:
    run(shop, "CREATE TABLE named (name TEXT NOT NULL PRIMARY KEY, id INTEGER NOT NULL)")
    keyless = Tunnel(
        "named",
        {"path": str(shop), "dbtable": "named", "cursorColumn": "id"},
        store=str(tmp_path / "tunnels.db"),
    )
    keyless.create()
    with pytest.raises(UnsupportedError, match="whole number in the primary key"):
        keyless.split("stream-0")
    tunnel = tunnel_of(shop)
    tunnel.create(channels=2)
    with pytest.raises(
        TunnelError, match="'base-0000' is a base channel: name a stream channel, one of stream-0"
    ):
        tunnel.split("base-0000")
    with pytest.raises(TunnelError, match="'stream-7' is not there"):
        tunnel.split("stream-7")
    dealt(tmp_path / "in", range(3))
    arriving = arrivals(tmp_path / "in", startingOffsets="earliest")
    arriving.create()
    arriving.split("stream-0")
    with pytest.raises(TunnelError, match="was split into stream-1, stream-2, and cannot be split"):
        arriving.split("stream-0")


# --- as a streaming query asks


def read(positions: SharedPositions, start: Offset, end: Offset) -> list[int]:
    return sorted(
        n
        for each in positions.ranges(start, end)
        for split in each.splits
        for found in positions.source.feed.read(split)
        for n in found.column("id").to_pylist()
    )


def test_a_query_on_a_tunnel_reads_to_the_end_of_its_channels(shop: Path) -> None:
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", endingOffsets='{"cursor": 950}'
    )
    tunnel.create()
    given = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnel": "orders",
        "tunnelStore": str(shop.parent / "tunnels.db"),
    }
    positions = SharedPositions(StreamSource(given), tunnel.store)
    token, rows = positions.initial(), list[int]()
    while (end := positions.latest(token, FeedLimit(rows=300))) != token:
        rows += read(positions, token, end)
        token = end
    assert rows == list(range(1, 951))
    assert positions.latest(token, FeedLimit()) == token
    positions.close()
    assert states(tunnel) == {"stream-0": ChannelState.TERMINATED}


def test_a_query_of_files_goes_on_with_the_channels_of_a_split(tmp_path: Path) -> None:
    dealt(tmp_path / "in", range(10))
    tunnel = arrivals(tmp_path / "in", startingOffsets="earliest")
    tunnel.create()
    given = {
        "reader": "parquet",
        "path": str(tmp_path / "in"),
        "tunnel": "files",
        "tunnelStore": str(tmp_path / "tunnels.db"),
    }
    positions = SharedPositions(StreamSource(given), tunnel.store)
    start = positions.initial()
    first = positions.latest(start, FeedLimit(rows=4))
    rows = read(positions, start, first)
    assert tunnel.split("stream-0") == ("stream-1", "stream-2")
    dealt(tmp_path / "in", range(10, 30))
    token = first
    for _ in range(8):
        end = positions.latest(token, FeedLimit())
        rows += read(positions, token, end) if end != token else []
        token = end
    positions.close()
    assert sorted(rows) == list(range(30)), "each file once"
    assert states(tunnel)["stream-0"] is ChannelState.TERMINATED


def test_a_query_of_a_table_goes_on_with_the_channels_of_a_split(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream", startingOffsets="earliest")
    tunnel.create()
    given = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnel": "orders",
        "tunnelStore": str(shop.parent / "tunnels.db"),
    }
    positions = SharedPositions(StreamSource(given), tunnel.store)
    start = positions.initial()
    token = positions.latest(start, FeedLimit(rows=400))
    rows = read(positions, start, token)
    assert tunnel.split("stream-0") == ("stream-1", "stream-2")
    fill(shop, 1001, 1500)
    for _ in range(12):
        end = positions.latest(token, FeedLimit(rows=300))
        rows += read(positions, token, end) if end != token else []
        token = end
    positions.close()
    assert sorted(rows) == list(range(1, 1501)), "each row once"
    assert states(tunnel)["stream-0"] is ChannelState.TERMINATED


def test_a_query_without_a_tunnel_has_no_end(shop: Path) -> None:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id", "tunnelType": "stream"}
    with pytest.raises(OptionError, match="'endingOffsets' needs option 'tunnel'"):
        CheckpointPositions(StreamSource({**given, "endingOffsets": "latest"}), 4)
