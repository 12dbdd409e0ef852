"""`Tunnel.consume`: a source copied by clients that share it, without Spark."""

import itertools
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.errors import LimitError, ServiceUnavailableError, TunnelError
from spark_channel.limits import LeaseLimiter
from spark_channel.limits.messages import LimitStatus, RetryLater
from spark_channel.service import SharedLimit
from spark_channel.service.leases import leased
from spark_channel.service.shared_limit import find_shared_limit
from spark_channel.testing.comparison import held_resources
from spark_channel.tunnel import Delivery, Tunnel, worker
from spark_channel.tunnel.records import ChannelState

ROOT = Path(__file__).resolve().parents[2]


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def fill(path: Path, start: int, end: int) -> None:
    run(
        path,
        f"WITH RECURSIVE n(v) AS (SELECT {start} UNION ALL SELECT v + 1 FROM n WHERE v < {end}) "
        "INSERT INTO orders SELECT v, 'item ' || v FROM n",
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 1000)
    return path


def tunnel_of(path: Path, name: str = "orders", **options: str) -> Tunnel:
    given = {"path": str(path), "dbtable": "orders", "cursorColumn": "id", **options}
    return Tunnel(name, given, store=str(path.parent / "tunnels.db"))


class Keeper:
    """Keeps all rows; remembers ranges as a target's ledger would."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.ranges: Counter[tuple[str, int]] = Counter()
        self.bases: list[bool] = []
        self.shut: list[str] = []
        self.lock = threading.Lock()

    def process(self, delivery: Delivery) -> None:
        ids = [n for batch in delivery.batches for n in batch.column("id").to_pylist()]
        with self.lock:
            self.rows.update(ids)
            self.ranges[delivery.channel, delivery.sequence] += 1
            self.bases.append(delivery.is_base)

    def shutdown(self, channel: str) -> None:
        self.shut.append(channel)


def test_what_is_there_comes_first_and_then_what_came(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create(channels=4)
    fill(shop, 1001, 1100)
    keeper, held = Keeper(), held_resources()
    tunnel.consume(keeper, drained=True)
    held.expect_no_more("after consume")
    assert keeper.rows == Counter(range(1, 1101))
    assert keeper.bases == sorted(keeper.bases, reverse=True)
    assert sorted(keeper.shut) == ["base-0000", "base-0001", "base-0002", "base-0003", "stream-0"]
    fill(shop, 1101, 1110)
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1111))


def test_a_speed_limit_holds_for_all_channels_of_a_client(shop: Path) -> None:
    fill(shop, 1001, 3000)
    rate, rows = 4_000, 0
    limited = tunnel_of(shop, rowsPerSecond=str(rate))
    limited.create(channels=4)
    began = time.monotonic()

    def process(delivery: Delivery) -> None:
        nonlocal rows
        for batch in delivery.batches:
            rows += batch.num_rows

    limited.consume(process, threads=1, drained=True)
    assert rows == 3000
    assert time.monotonic() - began >= rows / rate - 0.05


def test_a_shared_limit_holds_for_a_client_and_knows_it(shop: Path) -> None:
    with SharedLimit("orders-db", 1) as limit:
        tunnel = tunnel_of(shop, sharedLimit="orders-db")
        seen: list[LimitStatus] = []
        tunnel.create()

        def process(delivery: Delivery) -> None:
            for batch in delivery.batches:
                if (
                    batch.num_rows and not seen
                ):  # 1000 rows last 1000 s at the speed that it began with
                    seen.append(limit.status())
                    limit.set(rows_per_second=1_000_000)

        tunnel.consume(process, drained=True)
        assert [(each.jobs, each.client_count) for each in seen] == [(1, 1)]
        assert limit.status().client_count == 0


class _Heard(logging.Handler):
    """Sets `event` when a message has `words`."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.event = words, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.event.set()


def test_a_client_waits_for_a_shared_limit_whose_service_has_ended(shop: Path) -> None:
    limit = SharedLimit("orders-db", 20)  # 1000 rows last 50 s
    limit.start()
    tunnel, begun, rows = tunnel_of(shop, sharedLimit="orders-db"), threading.Event(), [0]
    tunnel.create()

    def process(delivery: Delivery) -> None:
        for batch in delivery.batches:
            rows[0] += batch.num_rows
            begun.set()

    log, heard = logging.getLogger("spark_channel"), _Heard("the work waits for it")
    log.addHandler(heard)
    thread = threading.Thread(target=lambda: tunnel.consume(process, drained=True))
    thread.start()
    try:
        assert begun.wait(30)
        limit.stop()
        assert heard.event.wait(30)
        with SharedLimit("orders-db", 1_000_000):
            thread.join(60)
            assert not thread.is_alive()
    finally:
        tunnel.stop()
        thread.join(30)
        log.removeHandler(heard)
    assert rows == [1000]


LIMITED = """
import sys
from spark_channel.tunnel import Tunnel
def process(delivery):
    for batch in delivery.batches:
        print(batch.num_rows, flush=True)
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "sharedLimit": "orders-db"}
options["shutdownGrace"] = "120"
Tunnel("orders", options, store=sys.argv[2]).consume(process, drained=True)
"""


def test_a_client_whose_shared_limit_is_lost_ends_at_once(shop: Path) -> None:
    """No more rows come of the range at hand, whatever the grace; another client gets it."""
    limit = SharedLimit("orders-db", 20)
    limit.start()
    tunnel_of(shop).create()
    command = [sys.executable, "-c", LIMITED, str(shop), str(shop.parent / "tunnels.db")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip().isdigit()
            limit.stop()
            assert any("the work waits for it" in line for line in child.stdout)
            child.terminate()
            assert child.wait(60) == 143
        finally:
            limit.stop()
            child.kill()
    keeper = Keeper()
    tunnel_of(shop).consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))


def test_a_shared_limit_that_misses_one_answer_cuts_no_range_of_a_client_that_ends(
    shop: Path,
) -> None:
    tunnel = tunnel_of(shop, shutdownGrace="60")
    tunnel.create()
    keeper, begun, goes_on = Keeper(), threading.Event(), threading.Event()

    def process(delivery: Delivery) -> None:
        begun.set()
        assert goes_on.wait(60)
        keeper.process(delivery)

    consumer = worker.TunnelWorker(
        tunnel.store, tunnel.store.get("orders"), tunnel._options, process, threads=1, drained=True
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    assert begun.wait(60)
    limiter = consumer._lease = LeaseLimiter("orders-db", "job")
    limiter.pay(1, 1, lambda: None)
    missed = limiter.next_request()
    assert missed is not None
    limiter.failed(missed, ServiceUnavailableError("no answer"))
    consumer._terminate()
    again = limiter.next_request()
    assert again is not None
    assert limiter.is_silent
    thread.join(0.7)  # longer than it takes to look
    limiter.receive(again, RetryLater("turn", 60.0))
    thread.join(2.0)
    goes_on.set()
    thread.join(60)
    assert not thread.is_alive()
    done = keeper.rows.copy()
    assert done, "the range at hand is processed in whole"
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001)), "and not delivered again"


@pytest.mark.parametrize("bound", ["default", "outageTimeout"])
def test_a_client_that_is_to_end_waits_for_a_lost_shared_limit_for_so_long(
    shop: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the limit's address and the time; no channel is parked, and the rows come with the next client."""
    options = {"outageTimeout": "2"} if bound == "outageTimeout" else {}
    if bound == "default":
        monkeypatch.setattr(worker, "_LOST_LIMIT_SECONDS", 2.0)
    with SharedLimit("orders-db", 20) as limit:  # 1000 rows last 50 s
        address = limit.address.removesuffix("/orders-db")
        tunnel = tunnel_of(shop, sharedLimit="orders-db", **options)
        tunnel.create()

        def process(delivery: Delivery) -> None:
            for _ in delivery.batches:
                limit.stop()

        said = rf"'orders-db' has not answered for [2-9] s.*{address}.*limits serve orders-db"
        with pytest.raises(ServiceUnavailableError, match=said):
            tunnel.consume(process, drained=True)
    keeper = Keeper()
    tunnel_of(shop).consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))


def test_a_client_that_a_shared_limit_refuses_parks_nothing(shop: Path) -> None:
    with SharedLimit("orders-db", 20) as limit:
        tunnel = tunnel_of(shop, sharedLimit=limit.address, sharedLimitToken="wrong")
        tunnel.create()
        with pytest.raises(LimitError, match="the token is wrong"):
            tunnel.consume(lambda delivery: [*delivery.batches], drained=True)
    keeper = Keeper()
    tunnel_of(shop).consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))


def test_the_end_does_not_wait_for_a_shared_limit_that_does_not_answer() -> None:
    """Its last message is not answered either: a thread that nobody waits for sends it."""
    command = [sys.executable, "-m", "spark_channel.cli", "limits", "serve", "frozen"]
    log, heard = logging.getLogger("spark_channel"), _Heard("the work waits for it")
    log.addHandler(heard)
    with subprocess.Popen(
        [*command, "--rows-per-second", "20"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as serving:
        try:
            assert serving.stdout is not None
            assert "frozen" in serving.stdout.readline()
            granted = threading.Event()
            with leased(lambda: find_shared_limit("frozen"), "orders", "client", 60) as limiter:
                first, rest = limiter.pay(1, 0, granted.set), limiter.pay(1000, 0, granted.set)
                while first.remaining().seconds:
                    assert granted.wait(30)
                    granted.clear()
                serving.send_signal(signal.SIGSTOP)
                assert heard.event.wait(30)
                rest.cancel()
            sending = [each for each in threading.enumerate() if each.name == "spark-channel-lease"]
            assert len(sending) == 1
        finally:
            serving.kill()
            log.removeHandler(heard)
    sending[0].join(30)
    assert not sending[0].is_alive()


def test_a_tunnel_of_what_is_there_ends_terminated(shop: Path) -> None:
    tunnel = tunnel_of(shop, tunnelType="base")
    tunnel.create(channels=3)
    keeper = Keeper()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))
    states = {view.channel.state for view in tunnel.describe().channels}
    assert states == {ChannelState.TERMINATED}


def test_a_stream_begins_where_it_is_told(shop: Path) -> None:
    for name, start, expected in (
        ("late", "latest", range(1001, 1011)),
        ("early", "earliest", range(1, 1011)),
        ("given", '{"cursor": 990}', range(991, 1011)),
    ):
        tunnel_of(shop, name, tunnelType="stream", startingOffsets=start).create()
        assert tunnel_of(shop, name).exists(), expected
    fill(shop, 1001, 1010)
    for name, expected in (
        ("late", range(1001, 1011)),
        ("early", range(1, 1011)),
        ("given", range(991, 1011)),
    ):
        keeper = Keeper()
        tunnel_of(shop, name).consume(keeper, drained=True)
        assert keeper.rows == Counter(expected), name


def test_a_processor_that_fails_gets_its_range_again(shop: Path) -> None:
    tunnel = tunnel_of(shop, maxRowsPerTrigger="100", onError="stop")
    tunnel.create(channels=2)
    keeper, seen, held = Keeper(), [], held_resources()

    def breaks(delivery: Delivery) -> None:
        seen.append((delivery.channel, delivery.sequence, delivery.end))
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        tunnel.consume(breaks, threads=1)
    held.expect_no_more("after a processor that raised")
    assert tunnel.describe().clients == ()
    tunnel.consume(keeper, drained=True)
    assert keeper.rows == Counter(range(1, 1001))
    assert (seen[0][0], seen[0][1]) in keeper.ranges


def test_files_are_shared_by_two_clients(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        table = pa.table({"id": range(number * 10, number * 10 + 10)})
        pq.write_table(table, folder / f"{number}.parquet")
    options = {
        "reader": "parquet",
        "path": str(folder),
        "tunnelChannels": "4",
        "heartbeatInterval": "5",
    }
    store = str(tmp_path / "tunnels.db")
    Tunnel("in", options, store=store).create(channels=6)
    keepers = [Keeper(), Keeper()]
    errors: list[BaseException] = []

    def client(keeper: Keeper) -> None:
        try:
            Tunnel("in", options, store=store).consume(keeper, drained=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert keepers[0].rows + keepers[1].rows == Counter(range(120))


def test_stop_ends_a_consumer_and_frees_its_channels(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create()
    first = threading.Event()

    def process(delivery: Delivery) -> None:
        sum(batch.num_rows for batch in delivery.batches)
        first.set()

    thread = threading.Thread(target=tunnel.consume, args=(process,))
    thread.start()
    assert first.wait(30)
    tunnel.stop()
    thread.join(30)
    assert not thread.is_alive()
    view = tunnel_of(shop).describe()
    assert view.clients == ()
    assert all(each.channel.client == "" for each in view.channels)


CHILD = """
import sys, time
from spark_channel.tunnel import Tunnel
def process(delivery):
    ids = [n for batch in delivery.batches for n in batch.column("id").to_pylist()]
    line = " ".join(map(str, [delivery.channel, delivery.sequence, *ids]))
    sys.stdout.write(line + "\n")  # in one piece: two threads write
    sys.stdout.flush()
    time.sleep(0.02)
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "maxRowsPerTrigger": "20"}
Tunnel("orders", options, store=sys.argv[2]).consume(process, threads=2)
"""


def test_a_client_that_is_killed_is_replaced_and_no_range_differs(shop: Path) -> None:
    """What was handed out keeps its name: a range delivered again has the same rows."""
    tunnel = tunnel_of(shop, maxRowsPerTrigger="20")
    tunnel.create(channels=8)
    fill(shop, 1001, 2000)
    ranges: dict[tuple[str, int], list[int]] = {}
    for _ in range(4):
        command = [sys.executable, "-c", CHILD, str(shop), str(shop.parent / "tunnels.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            for line in itertools.islice(child.stdout, 6):
                channel, sequence, *ids = line.split()
                rows = [int(each) for each in ids]
                assert ranges.setdefault((channel, int(sequence)), rows) == rows
            child.kill()

    def process(delivery: Delivery) -> None:
        ids = [n for batch in delivery.batches for n in batch.column("id").to_pylist()]
        assert ranges.setdefault((delivery.channel, delivery.sequence), ids) == ids

    tunnel.consume(process, drained=True)
    assert Counter(n for ids in ranges.values() for n in ids) == Counter(range(1, 2001))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dbtable": "items"}, "is of sqlite .*#orders; cursor=id, and the options name .*#items"),
        ({"cursorColumn": "n"}, "the options name .*cursor=n"),
    ],
)
def test_a_tunnel_of_another_source_is_refused(
    shop: Path, options: dict[str, str], message: str
) -> None:
    tunnel_of(shop).create()
    run(
        shop,
        "CREATE TABLE items (id INTEGER PRIMARY KEY)",
        "ALTER TABLE orders ADD COLUMN n INTEGER",
    )
    run(shop, "UPDATE orders SET n = id")
    with pytest.raises(TunnelError, match=message):
        tunnel_of(shop, **options).consume(print)


def test_a_tunnel_of_another_schema_is_refused(shop: Path) -> None:
    tunnel_of(shop).create()
    run(shop, "ALTER TABLE orders ADD COLUMN note TEXT")
    with pytest.raises(TunnelError, match=r"with note string. Reset the tunnel"):
        tunnel_of(shop).consume(print)
    tunnel_of(shop).reset()
    keeper = Keeper()
    tunnel_of(shop).consume(keeper, drained=True)
    assert len(keeper.rows) == 1000


def test_a_missing_tunnel_is_named(shop: Path) -> None:
    tunnel_of(shop).create()
    with pytest.raises(
        TunnelError, match=r"tunnel .other. does not exist in .*, which has .orders."
    ):
        tunnel_of(shop, "other").consume(print)


def test_a_reset_while_it_is_read_ends_the_consumer(shop: Path) -> None:
    tunnel = tunnel_of(shop)
    tunnel.create()
    once = threading.Event()

    def process(delivery: Delivery) -> None:
        if not once.is_set():
            once.set()
            tunnel_of(shop).reset()

    with pytest.raises(TunnelError, match="was reset or created again"):
        tunnel.consume(process)
    assert once.is_set()
