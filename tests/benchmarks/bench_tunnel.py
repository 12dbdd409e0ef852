"""Streams and tunnels: decoding pgoutput, reading behind a cursor, batches against Spark's own, take-over, lag."""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.spark.source import ChannelDataSource
from spark_channel.tunnel import Delivery, Tunnel
from tests.benchmarks.harness import Row, alternate, ratio
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
CHANGES = 170_000
CURSOR_ROWS = 1_000_000
BATCHES = 12
BATCH_ROWS = 20_000
ROUNDS = 5
CHANGES_PER_SECOND = 2_000
LAG_SECONDS = 30
JOINING_ROWS = 300_000
JOINING_CHANGES = (500, 2_000)
"""A second, of the other table."""
JOINING_SPEED = 30_000
"""Rows a second that the processor takes."""


def make_orders(path: Path, rows: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price DOUBLE)")
        connection.execute(
            "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < ?) "
            "INSERT INTO orders SELECT v, 'item ' || v, v * 0.5 FROM n",
            (rows,),
        )


def decode() -> list[Row]:
    server = PostgresServer.create()
    try:
        server.psql(
            "CREATE TABLE followed (id int PRIMARY KEY, item text, price numeric(8,2), at timestamptz);"
            "CREATE PUBLICATION followed FOR TABLE followed"
        )
        reader, _ = load_reader({**server.login, "dbtable": "followed"})
        feed = reader.feed(FeedOptions(slot="followed", publication="followed"))
        (start,) = feed.now()
        server.psql(
            "INSERT INTO followed SELECT i, 'item ' || i, i / 100.0, now() FROM generate_series(1, 100000) i;"
            "UPDATE followed SET item = 'other' WHERE id <= 50000; DELETE FROM followed WHERE id > 80000"
        )
        end = feed.latest(start, FeedLimit())
        own, whole = [], []
        for _ in range(3):
            cpu, wall = time.process_time(), time.perf_counter()
            count = sum(
                batch.num_rows for split in feed.changes(start, end) for batch in feed.read(split)
            )
            own.append(count / (time.process_time() - cpu))
            whole.append(count / (time.perf_counter() - wall))
            assert count == CHANGES
    finally:
        server.close()
    return [
        Row(
            "pgoutput decoded",
            statistics.median(own),
            ">= 30000",
            "changes/s",
            "per second of one core",
        ),
        Row(
            "pgoutput read",
            statistics.median(whole),
            "",
            "changes/s",
            "with what the server needs to decode",
        ),
    ]


def behind_a_cursor(home: Path) -> list[Row]:
    path = home / "cursor.db"
    make_orders(path, CURSOR_ROWS)
    options = {"path": str(path), "dbtable": "orders"}
    reader, _ = load_reader(options)
    reader.schema()
    feed = reader.feed(FeedOptions(cursor_column="id"))
    (start,) = feed.earliest()

    def count(splits: Any, read: Any) -> None:
        assert sum(batch.num_rows for split in splits for batch in read(split)) == CURSOR_ROWS

    def batch() -> None:
        count(reader.split(8), reader.read)

    def incremental() -> None:
        count(feed.changes(start, feed.latest(start, FeedLimit())), feed.read)

    times = alternate(batch, incremental, rounds=5)
    return [Row("1 M rows behind a cursor, speed of the batch read", ratio(*times), ">= 0.8")]


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as docs/deploy.md advises
        .getOrCreate()
    )
    spark.dataSource.register(ChannelDataSource)
    return spark


def make_files(folder: Path) -> Path:
    """Parquet files of one batch each, ten seconds apart."""
    folder.mkdir()
    for number in range(BATCHES):
        ids = pa.array(range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS), pa.int64())
        file = folder / f"{number:03d}.parquet"
        pq.write_table(
            pa.table({"id": ids, "item": ids.cast(pa.string()), "price": ids.cast(pa.float64())}),
            file,
        )
        os.utime(file, (1_700_000_000 + 10 * number,) * 2)
    return folder


class BareReader(DataSourceStreamReader):
    """Generates the rows of each batch, to measure the cost of Spark's Python data source API alone."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": start["row"] + BATCH_ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ids = pa.array(range(*partition.value), pa.int64())
        yield pa.record_batch(
            [ids, ids.cast(pa.string()), ids.cast(pa.float64())], ["id", "item", "price"]
        )

    def commit(self, end: dict[str, int]) -> None:
        pass


class Bare(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "id long, item string, price double"

    def streamReader(self, schema: StructType) -> BareReader:  # noqa: N802 - Spark's name
        return BareReader()


def micro_batches(home: Path) -> list[Row]:
    """Seconds of a micro-batch of equal rows: of a table in SQLite and of Parquet files, both by this source, of
    Spark's `rate-micro-batch`, and of a bare source in Python.

    They run in turns, after a round that is not counted: the first query of a JVM takes twice as long.
    """
    spark = session()
    spark.dataSource.register(Bare)
    path = home / "stream.db"
    make_orders(path, BATCH_ROWS * BATCHES)
    ours = (
        spark.readStream.format("channel")
        .options(
            dbtable="orders", cursorColumn="id", tunnelType="stream", startingOffsets="earliest"
        )
        .option("maxRowsPerTrigger", BATCH_ROWS)
        .load(str(path))
    )
    rate = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH_ROWS)
        .option("numPartitions", 2)
        .load()
    )
    files = (
        spark.readStream.format("channel")
        .options(reader="parquet", tunnelType="stream", startingOffsets="earliest")
        .option("maxRowsPerTrigger", BATCH_ROWS)
        .load(str(make_files(home / "files")))
    )
    frames = {
        "ours": ours,
        "files": files,
        "rate": rate,
        "bare": spark.readStream.format("bare").load(),
    }
    times: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(1 + ROUNDS):
        for name in sorted(frames, reverse=bool(number % 2)):
            took = _batch_seconds(frames[name], home / f"{name}-{number}")
            if number:
                times[name].append(took)
    mine, bare, own = (statistics.median(times[name]) for name in ("ours", "bare", "rate"))
    return [
        Row("micro-batch of 20 000 rows", mine * 1000, "", "ms"),
        Row("the same of Spark's rate source", own * 1000, "", "ms"),
        Row("the same of a bare source in Python", bare * 1000, "", "ms"),
        Row(
            "micro-batch of a table against the rate source",
            ratio(times["ours"], times["rate"]),
            "<= 1.3",
            "x",
        ),
        Row(
            "micro-batch of a file against the rate source",
            ratio(times["files"], times["rate"]),
            "<= 1.3",
            "x",
        ),
        Row(
            "micro-batch against a bare source in Python",
            ratio(times["ours"], times["bare"]),
            "",
            "x",
        ),
    ]


def _batch_seconds(frame: Any, checkpoint: Path) -> float:
    """The median of one query's batches but the first two."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and query.isActive:
            done = [each for each in query.recentProgress if each["numInputRows"] == BATCH_ROWS]
            if len(done) >= BATCHES - 1:
                took = [float(each["durationMs"]["triggerExecution"]) for each in done[2:]]
                return statistics.median(took) / 1000
            time.sleep(0.2)
        raise RuntimeError(f"{checkpoint.name}: no {BATCHES} batches in 120 s: {query.exception()}")
    finally:
        query.stop()


class Changing(threading.Thread):
    """Makes `CHANGES_PER_SECOND` changes a second, in transactions of 100, until `stop` is called."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server
        self.over = threading.Event()
        self.changes = 0

    def run(self) -> None:
        began = time.monotonic()
        while not self.over.is_set():
            first = self.changes + 1
            self.server.psql(
                f"INSERT INTO changing SELECT i, 'item ' || i FROM generate_series({first}, {first + 99}) i"
            )
            self.changes += 100
            self.over.wait(max(0.0, began + self.changes / CHANGES_PER_SECOND - time.monotonic()))


def lag(home: Path) -> list[Row]:
    """From a change's commit to its arrival in the sink of a query with a trigger of one second."""
    spark, server = session(), PostgresServer.create()
    seen: list[tuple[float, list[int]]] = []

    def arrived(frame: Any, _number: int) -> None:
        micros = [row.t for row in frame.selectExpr("unix_micros(_commit_ts) AS t").collect()]
        seen.append((time.time(), micros))

    server.psql(
        "CREATE TABLE changing (id int PRIMARY KEY, item text); CREATE PUBLICATION changing FOR TABLE changing"
    )
    frame = (
        spark.readStream.format("channel")
        .options(
            **server.login,
            dbtable="changing",
            slot="changing",
            publication="changing",
            tunnelType="stream",
        )
        .load()
    )
    changing = Changing(server)
    query = (
        frame.writeStream.foreachBatch(arrived)
        .option("checkpointLocation", str(home / "lag"))
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        while not seen and query.isActive:  # rows from before the query's start are not its own
            server.psql(
                "INSERT INTO changing SELECT coalesce(min(id), 0) - 1, 'before the first' FROM changing"
            )
            time.sleep(0.5)
        query.processAllAvailable()
        seen.clear()
        changing.start()
        began = time.monotonic()
        while time.monotonic() - began < LAG_SECONDS and query.isActive:
            time.sleep(0.5)
        changed = changing.changes / (time.monotonic() - began)
        changing.over.set()
        changing.join()
        query.processAllAvailable()
    finally:
        changing.over.set()
        query.stop()
        server.close()
    assert sum(len(micros) for _, micros in seen) == changing.changes
    warm = seen[3:]  # the first batches wait for Spark to have compiled them
    lags = sorted(at - each / 1e6 for at, micros in warm for each in micros)
    return [
        Row("changes that were made", changed, f"about {CHANGES_PER_SECOND}", "changes/s"),
        Row("lag of a change, median", statistics.median(lags), "", "s"),
        Row(
            "lag of a change, 99th percentile",
            lags[int(len(lags) * 0.99)],
            "< 3",
            "s",
            "trigger of 1 s",
        ),
    ]


CHILD = """
import sys
from spark_channel.tunnel import Tunnel
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "maxRowsPerTrigger": "100"}
def process(delivery):
    sum(batch.num_rows for batch in delivery.batches)
    print(delivery.sequence, flush=True)
Tunnel("orders", options, store=sys.argv[2]).consume(process, threads=1)
"""


def take_over(home: Path) -> list[Row]:
    """From the kill of a client to the first range that another one processes, on one host."""
    path, store = home / "tunnel.db", str(home / "tunnels.db")
    make_orders(path, 100_000)
    options = {
        "path": str(path),
        "dbtable": "orders",
        "cursorColumn": "id",
        "maxRowsPerTrigger": "100",
    }
    tunnel = Tunnel("orders", options, store=store)
    tunnel.create(channels=2)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), store], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    began = time.monotonic()
    child.wait()
    child.stdout.close()
    first: list[float] = []

    def process(_delivery: Delivery) -> None:
        first.append(time.monotonic())
        tunnel.stop()

    tunnel.consume(process, threads=1)
    return [
        Row(
            "take-over of a killed client, same host",
            first[0] - began,
            "<= 330",
            "s",
            "timeout 300 s, heartbeat 30 s",
        )
    ]


SLOW_READ = """
import sys, time
from contextlib import contextmanager
from spark_channel.tunnel.source import StreamSource
real = StreamSource.__init__
def slow(self, *args, **named):
    real(self, *args, **named)
    read = self.feed.read
    def late(split):
        time.sleep(0.14)
        yield from read(split)
    @contextmanager
    def reading():
        yield late
    self.feed.reading = reading
StreamSource.__init__ = slow
"""
AHEAD = (
    SLOW_READ
    + """
from spark_channel.tunnel import Tunnel
done = []
def process(delivery):
    assert sum(batch.num_rows for batch in delivery.batches) == 100
    time.sleep(0.15)
    done.append(time.monotonic())
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "maxRowsPerTrigger": "100"}
Tunnel("ahead", options, store=sys.argv[2]).consume(process, drained=True)
print((done[-1] - done[2]) / (len(done) - 3))
"""
)


def read_ahead(home: Path) -> list[Row]:
    """One channel whose ranges take 140 ms to read and 150 ms to process."""
    path, store = home / "ahead.db", str(home / "ahead-tunnels.db")
    make_orders(path, 4_000)
    options = {
        "path": str(path),
        "dbtable": "orders",
        "cursorColumn": "id",
        "maxRowsPerTrigger": "100",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
    }
    Tunnel("ahead", options, store=store).create()
    said = subprocess.run(
        [sys.executable, "-c", AHEAD, str(path), store],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        Row(
            "range of 140 ms to read and 150 ms to process",
            float(said.stdout) * 1000,
            "<= 170",
            "ms",
        )
    ]


HANDED_OVER = """
import sys, time
from spark_channel.tunnel import Tunnel
options = {"path": sys.argv[1], "dbtable": "orders", "cursorColumn": "id", "maxRowsPerTrigger": "100"}
def process(delivery):
    sum(batch.num_rows for batch in delivery.batches)
    print(delivery.sequence, flush=True)
    time.sleep(0.3)
Tunnel("orders", options, store=sys.argv[2]).consume(process, threads=2)
"""


def hand_over(home: Path) -> list[Row]:
    """From SIGTERM to the moment when a client has given all its channels back; its ranges take 0.3 s."""
    path, store = home / "given.db", str(home / "given-tunnels.db")
    make_orders(path, 100_000)
    options = {"path": str(path), "dbtable": "orders", "cursorColumn": "id"}
    tunnel = Tunnel("orders", options, store=store)
    tunnel.create(channels=24)
    with subprocess.Popen(
        [sys.executable, "-c", HANDED_OVER, str(path), store],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.terminate()
        began = time.monotonic()
        while tunnel.store.state("orders").clients:
            time.sleep(0.02)
        took = time.monotonic() - began
        child.stdout.read()
    return [
        Row(
            "hand-over of 24 channels after SIGTERM",
            took,
            "about 1",
            "s",
            "ranges of 0.3 s at hand",
        )
    ]


def joining(home: Path, speed: int) -> list[Row]:
    """The lag of one table's `speed` changes a second before a second table is added, and while its existing rows are
    read: one consumer, as `consume` is called without more.
    """
    server = PostgresServer.create()
    seen: list[tuple[float, float]] = []
    read = made = 0
    over = threading.Event()

    def process(delivery: Delivery) -> None:
        nonlocal read
        for batch in delivery.batches:
            if batch["_table"][0].as_py() == "public.changing":
                now = time.time()
                seen.extend(
                    (now, now - each.timestamp())
                    for each in batch["_commit_ts"].to_pylist()
                    if each
                )
            else:
                read += batch.num_rows
                time.sleep(batch.num_rows / JOINING_SPEED)

    def change() -> None:
        nonlocal made
        began, each = time.monotonic(), speed // 20
        while not over.is_set():
            server.psql(
                f"INSERT INTO changing SELECT i, 'item ' || i FROM generate_series({made}, {made + each - 1}) i"
            )
            made += each
            over.wait(max(0.0, began + made / speed - time.monotonic()))

    try:
        server.psql(
            "CREATE TABLE changing (id int PRIMARY KEY, item text);"
            "CREATE TABLE joining (id int PRIMARY KEY, item text);"
            f"INSERT INTO joining SELECT i, repeat('x', 100) FROM generate_series(1, {JOINING_ROWS}) i; ANALYZE;"
            "CREATE PUBLICATION shop FOR TABLE changing, joining"
        )
        options = {**server.login, "tables": "changing", "slot": "shop", "publication": "shop"}
        tunnel = Tunnel("joining", options, store=str(home / f"joining-{speed}.db"))
        tunnel.create()
        threads = [
            threading.Thread(target=change),
            threading.Thread(target=tunnel.consume, args=(process,)),
        ]
        for each in threads:
            each.start()
        began = time.monotonic()
        time.sleep(LAG_SECONDS / 2)
        added = time.time()
        tunnel.add_table("joining")
        while read < JOINING_ROWS and threads[1].is_alive():
            time.sleep(0.1)
        took = time.time() - added
        changed = made / (time.monotonic() - began)
    finally:
        over.set()
        threads[0].join()
        tunnel.stop()
        threads[1].join()
        server.close()
    before = sorted(lag for at, lag in seen if added - LAG_SECONDS / 3 < at < added)
    after = sorted(lag for at, lag in seen if at >= added)
    return [
        Row(
            f"a table of {JOINING_ROWS:,} rows added to a tunnel: until it is read".replace(
                ",", " "
            ),
            took,
            "",
            "s",
        ),
        Row("changes of another table that were made", changed, f"about {speed}", "changes/s"),
        Row("their lag before, longest", before[-1], "", "s"),
        Row("the same meanwhile, 99th percentile", after[int(len(after) * 0.99)], "", "s"),
        Row("the same meanwhile, longest", after[-1], "", "s"),
        Row("the longest lag has grown by", after[-1] - before[-1], "<= 2", "s"),
    ]


def main() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = [
            *decode(),
            *behind_a_cursor(home),
            *take_over(home),
            *read_ahead(home),
            *hand_over(home),
        ]
        rows += [row for speed in JOINING_CHANGES for row in joining(home, speed)]
        rows += [*micro_batches(home), *lag(home)]
        session().stop()
        return rows


if __name__ == "__main__":
    from tests.benchmarks.harness import print_table

    print_table(main())
