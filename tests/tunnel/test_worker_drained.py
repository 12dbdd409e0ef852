"""`drained=True` on a source that never rests: it ends, with all that was there when it began."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit
from spark_channel.connectors.sql.feed.cursor_feed import CursorFeed
from spark_channel.errors import TunnelError
from spark_channel.planning import Split
from spark_channel.testing import VirtualClock
from spark_channel.tunnel import Delivery, Tunnel, worker
from spark_channel.tunnel.channel import StopPosition
from spark_channel.tunnel.records import Client
from spark_channel.tunnel.source import StreamSource
from tests.connectors.mysql.shop import Shop
from tests.tunnel.test_state_machine_pause_base import Followed, followed
from tests.tunnel.test_worker_consume import Keeper, fill, run, tunnel_of

__all__ = ["followed", "shop"]

pytestmark = pytest.mark.timeout(120)

_MANY = 200
"""Ranges after which a reader that does not end fails."""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 1000)
    return path


class Restless(Keeper):
    """The source gets rows with each range that is processed."""

    def __init__(self, add: Callable[[int], object]) -> None:
        super().__init__()
        self._add = add
        self._count = 0

    def process(self, delivery: Delivery) -> None:
        super().process(delivery)
        with self.lock:
            self._count += 1
            assert self._count < _MANY, "it does not end"
            self._add(self._count)


def growing(path: Path) -> Callable[[int], None]:
    """Adds 20 rows, from 10 001 on."""
    return lambda count: fill(path, 10_001 + 20 * (count - 1), 10_000 + 20 * count)


# --- where a channel ends, without a source


class Log(ChangeFeed):
    """A log that ends at `ended`; rows wait `late` seconds."""

    def __init__(self, at: int, late: float = 0.0) -> None:
        self.ended, self.late = at, late

    @property
    def waits_seconds(self) -> float:
        return self.late

    def schema(self) -> pa.Schema:
        return pa.schema([])

    def earliest(self) -> list[Token]:
        return [{"at": 0}]

    def now(self) -> list[Token]:
        return [{"at": self.ended}]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        return after

    def changes(self, after: Token, upto: Token) -> list[Split]:
        return []

    def lag(self, token: Token) -> FeedLag:
        return FeedLag(self.ended - token["at"])

    def reaches(self, token: Token, end: Token) -> bool:
        return bool(token["at"] >= end["at"])

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return iter(())


def test_a_channel_ends_where_its_source_ended_when_it_was_opened() -> None:
    log = Log(5)
    goal = StopPosition(log, VirtualClock())
    assert goal.fix({"at": 1}) == 0
    log.ended = 9
    assert goal.fix({"at": 3}) == 0
    assert goal.upto({"at": 3}, is_paused=False) == {"at": 5}
    assert not goal.is_reached({"at": 4})
    assert goal.is_reached({"at": 5})


def test_existing_rows_have_no_end_but_their_last_chunk_and_the_changes_are_read_up_to_that() -> (
    None
):
    log, base = Log(5), {"after": [1]}
    goal = StopPosition(log, VirtualClock())
    for at in (1, 6, 8):
        goal.fix({"at": at, "base": base})
        assert goal.upto({"at": at, "base": base}, is_paused=False) is None
        assert goal.upto({"at": at, "base": base}, is_paused=True) == {"at": 5}
    log.ended = 9
    goal.fix({"at": 8})
    log.ended = 20
    goal.fix({"at": 8})
    assert goal.upto({"at": 8}, is_paused=False) == {"at": 9}


def test_new_rows_wait_once_for_late_ones_and_no_rows_for_none() -> None:
    clock, log = VirtualClock(), Log(5, late=10.0)
    goal = StopPosition(log, clock)
    assert goal.fix({"at": 1}) == 10
    clock.advance(4)
    log.ended = 7
    assert goal.fix({"at": 1}) == 6
    clock.advance(6)
    assert goal.fix({"at": 1}) == 0
    assert StopPosition(log, clock).fix({"at": 7}) == 0


# --- a cursor


@pytest.mark.parametrize("kind", ["base_and_stream", "stream"])
def test_a_table_that_never_rests_is_read_to_where_it_ended(shop: Path, kind: str) -> None:
    more = {"startingOffsets": "earliest"} if kind == "stream" else {}
    tunnel = tunnel_of(shop, maxRowsPerTrigger="100", tunnelType=kind, **more)
    tunnel.create(channels=2)
    fill(shop, 1001, 1500)
    keeper = Restless(growing(shop))
    tunnel.consume(keeper, drained=True)
    assert {*range(1, 1501)} <= keeper.rows.keys()
    assert set(keeper.rows.values()) == {1}
    tunnel.consume(keeper, drained=True)
    later = max(keeper.rows)
    assert later > 10_020
    assert keeper.rows == Counter([*range(1, 1501), *range(10_001, later + 1)]), (
        "no gap between two runs"
    )


def test_a_loop_ends_on_a_table_that_never_rests(shop: Path) -> None:
    tunnel = tunnel_of(
        shop, maxRowsPerTrigger="100", tunnelType="stream", startingOffsets="earliest"
    )
    tunnel.create()
    keeper = Restless(growing(shop))
    with tunnel.open(drained=True) as reader:
        while (delivery := reader.read()) is not None:
            keeper.process(delivery)
            reader.checkpoint(delivery)
    assert keeper.rows == Counter(range(1, 1001))


def test_two_clients_of_a_table_that_never_rests_end(shop: Path) -> None:
    """The second gets channels of the first, which has ended."""
    tunnel = tunnel_of(
        shop,
        maxRowsPerTrigger="50",
        tunnelType="stream",
        startingOffsets="earliest",
        heartbeatInterval="5",
    )
    tunnel.create()
    tunnel.split("stream-0")
    keeper = Restless(growing(shop))
    errors: list[BaseException] = []

    def client() -> None:
        try:
            tunnel.consume(keeper, drained=True, threads=1)
        except BaseException as error:
            errors.append(error)

    clients = [threading.Thread(target=client) for _ in range(2)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert not errors
    assert {*range(1, 1001)} <= keeper.rows.keys()
    assert set(keeper.rows.values()) == {1}


def other_client(tunnel: Tunnel, timeout: float) -> Client:
    """A client of another machine, which has all channels."""
    client = Client("other-1", timeout=timeout, host="elsewhere", process="1@1")
    tunnel.store.connect("orders", client)
    assert tunnel.store.heartbeat("orders", client.id, ())
    return client


def test_a_client_that_died_before_leaves_no_rows_unread(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream", startingOffsets="earliest", heartbeatInterval="5")
    tunnel.create()
    other_client(tunnel, timeout=8)
    keeper, began = Keeper(), time.monotonic()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))
    assert 7 < time.monotonic() - began < 60
    told = [each for each in caplog.messages if "waiting for channels of client other-1" in each]
    assert len(told) == 1
    assert "(its heartbeatTimeout)" in told[0]


def test_a_client_that_lives_keeps_its_channels_and_is_not_waited_for(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream", startingOffsets="earliest")
    tunnel.create()
    other = other_client(tunnel, timeout=300)
    keeper, ended = Keeper(), threading.Event()

    def consume() -> None:
        tunnel.consume(keeper, drained=True)
        ended.set()

    thread = threading.Thread(target=consume)
    thread.start()
    assert not ended.wait(5), "it may be dead"
    (channel,) = tunnel.store.heartbeat("orders", other.id, ())
    thread.join(60)
    assert ended.is_set()
    assert channel.client == other.id
    assert not keeper.rows
    tunnel.store.disconnect("orders", other.id)
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))


def test_rows_that_are_younger_than_late_seconds_are_read_and_waited_for_once(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream", lateSeconds="1.2", maxRowsPerTrigger="100")
    tunnel.create()
    began = time.monotonic()
    tunnel.consume(Keeper(), drained=True)
    assert time.monotonic() - began < 1.2, "nothing is new"
    fill(shop, 1001, 1500)
    keeper, began = Restless(growing(shop)), time.monotonic()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1001, 1501))
    assert 1.2 <= time.monotonic() - began < 2 * 1.2


def test_a_reader_that_waits_for_late_rows_stops_when_it_is_told(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="stream", lateSeconds="60")
    tunnel.create()
    fill(shop, 1001, 1500)
    timer = threading.Timer(0.5, tunnel.stop)
    timer.start()
    began = time.monotonic()
    tunnel.consume(Keeper(), drained=True)
    assert time.monotonic() - began < 5
    timer.join()


def test_a_range_that_fails_while_its_source_is_asked_for_more_is_delivered_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = tunnel_of(
        shop, tunnelType="stream", startingOffsets="earliest", maxRetryInterval="0.02"
    )
    tunnel.create()
    keeper, calls, asked = Keeper(), list[int](), list[int]()

    def process(delivery: Delivery) -> None:
        calls.append(delivery.sequence)
        if len(calls) == 1:
            raise OSError("a moment")
        keeper.process(delivery)

    consumer = worker.TunnelWorker(
        tunnel.store, tunnel.store.get("orders"), tunnel._options, process, threads=1, drained=True
    )
    latest = CursorFeed.latest

    def slow(self: CursorFeed, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        found = latest(self, after, limit, upto)
        if after == {"cursor": 1000} and not asked:
            asked.append(1)
            while consumer._runs["stream-0"].ranges:
                time.sleep(0.001)
        return found

    monkeypatch.setattr(CursorFeed, "latest", slow)
    consumer.run()
    assert len(calls) == 2
    assert keeper.rows == Counter(range(1, 1001))


# --- files


def files(folder: Path, number: int, rows: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    whole = folder.parent / f"{number}.whole"
    pq.write_table(pa.table({"id": pa.array(rows, pa.int64())}), whole)
    whole.rename(folder / f"{number}.parquet")


def test_a_folder_that_never_rests_is_read_to_where_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    files(folder, 0, [0])
    options = {
        "path": str(folder),
        "reader": "parquet",
        "maxRowsPerTrigger": "2",
        "tunnelChannels": "3",
    }
    tunnel = Tunnel("in", options, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    for number in range(1, 20):
        files(folder, number, [number])
    keeper = Restless(lambda count: files(folder, 1000 + count, [1000 + count]))
    tunnel.consume(keeper, drained=True)
    assert {*range(20)} <= keeper.rows.keys()
    tunnel.consume(keeper, drained=True)
    assert set(keeper.rows.values()) == {1}


# --- logs


@contextmanager
def writing(write: Callable[[int], object]) -> Iterator[None]:
    """Something is written all the time."""
    ended, errors = threading.Event(), list[BaseException]()

    def loop() -> None:
        number = 0
        try:
            while not ended.wait(0.002):
                number += 1
                write(number)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=loop)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
    assert not errors


class Copy:
    """The rows of a target by key, and the changes that arrived."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.changed: set[int] = set()
        self.ranges = 0

    def process(self, delivery: Delivery) -> None:
        self.ranges += 1
        assert self.ranges < 5 * _MANY, "it does not end"
        for batch in delivery.batches:
            for row in batch.to_pylist():
                if row["_op"] == "delete":
                    self.rows.pop(row["id"], None)
                else:
                    self.rows[row["id"]] = row["item"]
                if row["_op"] != "read":
                    self.changed.add(row["id"])


@contextmanager
def restless(followed: Followed) -> Iterator[None]:
    """Existing rows change at random places, and new ones come."""
    server = followed.server
    with psycopg.connect(
        host=str(server.directory),
        port=server.port,
        user=server.user,
        dbname="postgres",
        autocommit=True,
    ) as session:

        def write(number: int) -> None:
            session.execute(
                f"UPDATE {followed.name} SET item = 'u{number}' WHERE id = {number * 37 % 400 + 1}"
            )
            session.execute(f"INSERT INTO {followed.name} VALUES ({10_000 + number}, 'new')")

        with writing(write):
            yield


def test_a_log_that_never_rests_is_read_with_all_existing_rows(followed: Followed) -> None:
    """A row that changes while its chunk is read arrives by its change: also that one is read."""
    followed.insert(1001)
    copy = Copy()
    with restless(followed):
        followed.tunnel.consume(copy.process, drained=True)
    assert {*range(1, 401), 1001} <= copy.rows.keys()
    followed.insert(1002)
    with restless_again(followed):
        followed.tunnel.consume(copy.process, drained=True)
    assert 1002 in copy.changed
    followed.tunnel.consume(copy.process, drained=True)
    held = followed.server.psql(f"SELECT id, item FROM {followed.name}").split()
    assert copy.rows == {int(key): item for key, _, item in (each.partition("|") for each in held)}


@contextmanager
def restless_again(followed: Followed) -> Iterator[None]:
    numbers = iter(range(50_000, 90_000))
    with writing(lambda _: followed.insert(next(numbers))):
        yield


def test_a_log_of_several_tables_that_never_rests_is_read_to_where_it_ended(
    followed: Followed,
) -> None:
    given = {**followed.options, "slot": f"{followed.name}_all", "tables": followed.name}
    del given["dbtable"]
    tunnel = Tunnel(f"{followed.name}_all", given)
    tunnel.create()
    try:
        followed.insert(1001)
        copy = Copy()
        with restless(followed):
            tunnel.consume(copy.process, drained=True)
        assert {*range(1, 401), 1001} <= copy.rows.keys()
    finally:
        tunnel.delete()


def test_a_paused_base_is_told_though_its_log_never_rests(followed: Followed) -> None:
    followed.tunnel.pause_base()
    followed.insert(1001)
    copy = Copy()
    with (
        restless(followed),
        pytest.raises(TunnelError, match="not all existing rows, whose reading is paused"),
    ):
        followed.tunnel.consume(copy.process, drained=True)
    assert 1001 in copy.changed


@pytest.mark.parametrize("several", [False, True], ids=["dbtable", "tables"])
def test_a_slot_that_keeps_too_much_is_told_though_its_log_never_rests(
    followed: Followed, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.TunnelWorker, "held_seconds", 0.3)
    given = {**followed.options, "maxSlotLag": "1"}
    if several:
        given |= {"slot": f"{followed.name}_all", "tables": followed.name}
        del given["dbtable"]
    tunnel = Tunnel(given["slot"], given)
    if several:
        tunnel.create()
    try:
        followed.insert(1001)
        copy = Copy()
        with restless(followed), pytest.raises(TunnelError, match="'maxSlotLag' allows"):
            tunnel.consume(copy.process, drained=True)
        assert 1001 in copy.changed
    finally:
        if several:
            tunnel.delete()


def test_a_binary_log_that_never_rests_is_read_with_all_existing_rows(
    logged: Shop, tmp_path: Path
) -> None:
    logged.sql("CREATE TABLE t (id INT PRIMARY KEY, item VARCHAR(40))")
    logged.sql("INSERT INTO t SELECT seq, 'old' FROM seq_1_to_400")
    given = {**logged.login, "dbtable": "t", "binlog": "true", "maxRowsPerTrigger": "40"}
    tunnel = Tunnel("t", given, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    logged.sql("INSERT INTO t VALUES (1001, 'new')")
    copy, server = Copy(), logged.server
    with pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        password=server.password,
        autocommit=True,
        database=logged.database,
    ) as session:

        def write(number: int) -> None:
            with session.cursor() as cursor:
                cursor.execute(
                    f"UPDATE t SET item = 'u{number}' WHERE id = {number * 37 % 400 + 1}"
                )
                cursor.execute(f"INSERT INTO t VALUES ({10_000 + number}, 'new')")

        with writing(write):
            tunnel.consume(copy.process, drained=True)
            assert {*range(1, 401), 1001} <= copy.rows.keys()
            logged.sql("INSERT INTO t VALUES (1002, 'new')")
            tunnel.consume(copy.process, drained=True)
            assert 1002 in copy.changed
    tunnel.consume(copy.process, drained=True)
    assert copy.rows == {int(key): item for key, item in logged.rows("SELECT id, item FROM t")}


def test_the_goal_of_a_feed_is_its_end(followed: Followed) -> None:
    feed = StreamSource(followed.options).feed
    (start,) = feed.end()
    followed.insert(1001)
    goal = feed.end_of(start)
    assert feed.reaches(goal, start)
    assert not feed.reaches(start, goal)
