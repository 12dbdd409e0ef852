"""`df.writeStream.format("channel")`: each micro-batch once."""

import shutil
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_channel.errors import OptionError
from spark_channel.spark.stream_write import stream_writer
from spark_channel.spark.worker import SessionFacts
from spark_channel.tunnel import ChannelState, Tunnel
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.spark.test_stream_read import fill, run
from tests.tunnel.children import Query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 400)
    return path


def orders(spark: SparkSession, shop: Path, **options: Any) -> DataFrame:
    given = {"dbtable": "orders", "cursorColumn": "id", "tunnelType": "stream", **options}
    if "tunnel" not in given:
        given["startingOffsets"] = "earliest"
    return spark.readStream.format("channel").options(**given).load(str(shop))


def copy(frame: DataFrame, target: Path, checkpoint: Path, mode: str = "append") -> None:
    sink = {"dbtable": "copy"} if target.suffix == ".db" else {"writer": "parquet"}
    publish(frame, {**sink, "path": str(target)}, checkpoint, mode)


def publish(frame: DataFrame, sink: dict[str, str], checkpoint: Path, mode: str = "append") -> None:
    query = (
        frame.writeStream.format("channel")
        .options(**sink)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()


def rows(path: Path, sql: str = "SELECT id FROM copy ORDER BY id") -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] if len(row) == 1 else row for row in connection.execute(sql)]


def redo_last_batch(checkpoint: Path) -> None:
    """As a driver leaves it that was killed after the sink had published, before Spark noted it."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    last.unlink()


def test_append_to_a_database_once(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    """With more rows than pipes hold: a batch that is there already must be taken from Spark all the same."""
    target, checkpoint, many = tmp_path / "copy.db", tmp_path / "checkpoint", 60_000
    fill(shop, 401, many)
    copy(orders(spark, shop), target, checkpoint)
    assert rows(target) == list(range(1, many + 1))
    redo_last_batch(checkpoint)
    copy(orders(spark, shop), target, checkpoint)
    assert len(rows(target)) == many, "a batch that is run again is not published again"
    shutil.rmtree(checkpoint)
    copy(orders(spark, shop), target, checkpoint)
    assert len(rows(target)) == 2 * many, "a new checkpoint is a new query"


@pytest.mark.newest  # the differences between the targets are not Spark's
@pytest.mark.parametrize(
    "name",
    ["postgresql", *(pytest.param(each, marks=pytest.mark.soak) for each in ("mysql", "duckdb"))],
)
def test_append_to_any_database_once(
    spark: SparkSession, shop: Path, tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with sink_in(name, tmp_path, request) as (sink, counted):
        publish(orders(spark, shop), sink, checkpoint)
        assert counted() == [400, 400, 400 * 401 // 2]
        redo_last_batch(checkpoint)
        publish(orders(spark, shop), sink, checkpoint)  # before Spark 4.2 a run is this batch alone
        fill(shop, 401, 410)
        publish(orders(spark, shop), sink, checkpoint)
        assert counted() == [410, 410, 410 * 411 // 2]


@contextmanager
def sink_in(
    name: str, folder: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[dict[str, str], Callable[[], list[int]]]]:
    """The options of a table `copy` in a database, and what the database's own client counts in it."""
    sql = "SELECT count(*), count(DISTINCT id), sum(id) FROM copy"
    if name == "duckdb":
        import duckdb

        path = str(folder / "copy.duckdb")

        def of_file() -> list[int]:
            with duckdb.connect(path, read_only=True) as connection:
                return [int(number) for number in connection.execute(sql).fetchall()[0]]

        yield {"dbtable": "copy", "path": path}, of_file
    elif name == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        schema = f"stream_{uuid.uuid4().hex[:10]}"
        postgres.psql(f"CREATE SCHEMA {schema}")
        yield (
            {**postgres.login, "currentSchema": schema, "dbtable": "copy"},
            lambda: [
                int(each) for each in postgres.psql(f"SET search_path = {schema}; {sql}").split("|")
            ],
        )
        postgres.psql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")
    else:
        mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
        database = f"stream_{uuid.uuid4().hex[:10]}"
        mariadb.sql(f"CREATE DATABASE {database}")
        yield (
            {
                "url": f"mysql://127.0.0.1:{mariadb.port}/{database}",
                "user": mariadb.user,
                "password": mariadb.password,
                "dbtable": "copy",
            },
            lambda: [int(each) for each in mariadb.sql(sql, database=database).split()],
        )
        mariadb.sql(f"DROP DATABASE {database}")


@pytest.mark.newest
def test_append_to_files_once(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    copy(orders(spark, shop), target, checkpoint)
    redo_last_batch(checkpoint)
    copy(orders(spark, shop), target, checkpoint)
    fill(shop, 401, 410)
    copy(orders(spark, shop), target, checkpoint)
    found = spark.read.format("channel").option("reader", "parquet").load(str(target))
    assert sorted(row.id for row in found.collect()) == list(range(1, 411))
    assert sum(pq.read_metadata(each).num_rows for each in target.glob("part-*")) == 410


@pytest.mark.parametrize(
    "name", ["sqlite", "files", pytest.param("postgresql", marks=pytest.mark.soak)]
)
def test_a_query_with_a_new_checkpoint_replaces_the_rows(
    spark: SparkSession, shop: Path, tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    """As a pipeline does that is refreshed in full: it has a new query id, and reads all rows again."""

    def of_database() -> list[int]:
        sql = "SELECT count(*), count(DISTINCT id), sum(id) FROM copy"
        return list(rows(tmp_path / "copy.db", sql)[0])

    def of_files() -> list[int]:
        found = (
            spark.read.format("channel").option("reader", "parquet").load(str(tmp_path / "copy"))
        )
        ids = [row.id for row in found.collect()]
        return [len(ids), len(set(ids)), sum(ids)]

    def catch_up(checkpoint: str) -> None:
        frame = orders(spark, shop)
        publish(frame, {**sink, "firstBatch": "overwrite"}, tmp_path / checkpoint)

    with ExitStack() as stack:
        if name == "postgresql":
            sink, counted = stack.enter_context(sink_in(name, tmp_path, request))
        elif name == "sqlite":
            sink, counted = {"dbtable": "copy", "path": str(tmp_path / "copy.db")}, of_database
        else:
            sink, counted = {"writer": "parquet", "path": str(tmp_path / "copy")}, of_files
        catch_up("first")
        fill(shop, 401, 410)
        catch_up("first")
        assert counted() == [410, 410, 410 * 411 // 2]
        catch_up("second")
        redo_last_batch(tmp_path / "second")
        catch_up("second")
        assert counted() == [410, 410, 410 * 411 // 2]


def test_a_write_without_batches_has_no_first_one(spark: SparkSession, tmp_path: Path) -> None:
    target = spark.range(1).write.format("channel").options(dbtable="t", firstBatch="overwrite")
    with pytest.raises(
        Exception, match="'firstBatch' got 'overwrite', and this write has no micro"
    ):
        target.mode("append").save(str(tmp_path / "a.db"))


class Task:
    """What a task of batch `batch` knows."""

    def __init__(self, batch: int) -> None:
        self._properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": "q"}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)

    def stageId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    partitionId = attemptNumber = taskAttemptId = stageId  # noqa: N815 - as above


@pytest.mark.newest
def test_an_old_checkpoint_with_another_target_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for batch, target in ((0, "first.db"), (1, "first.db"), (2, "second.db"), (3, "second.db")):
        caplog.clear()
        monkeypatch.setattr(TaskContext, "get", lambda batch=batch: Task(batch))
        options = {"path": str(tmp_path / target), "dbtable": "copy"}
        writer = stream_writer(options, StructType().add("id", "long"), False, SessionFacts())
        message = writer.write(iter([pa.record_batch({"id": [batch]})]))
        writer.commit([message], batch)
        said.append("has no rows of this query before batch" in caplog.text)
    assert said == [False, False, True, False]
    assert rows(tmp_path / "second.db") == [2, 3]


def test_complete_replaces_the_rows(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    target, checkpoint = tmp_path / "copy.db", tmp_path / "checkpoint"

    def counted() -> DataFrame:
        return orders(spark, shop).selectExpr("id % 2 AS id").groupBy("id").count()

    copy(counted(), target, checkpoint, "complete")
    fill(shop, 401, 500)
    copy(counted(), target, checkpoint, "complete")
    assert rows(target, "SELECT id, count FROM copy ORDER BY id") == [(0, 250), (1, 250)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "a", "txnVersion": "1"}, "a stream's batches have their own names"),
        ({"commit": "task"}, "a stream publishes each micro-batch whole"),
        ({"maxDirtyRows": "1"}, "write with foreachBatch to set rows aside"),
    ],
)
def test_options_that_a_stream_does_not_take(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """As Spark makes the writer of every query, before a row is read."""
    given = {
        "path": str(tmp_path / "copy.db"),
        "dbtable": "copy",
        "checkpointLocation": "/c",
        **options,
    }
    with pytest.raises(OptionError, match=message):
        stream_writer(given, StructType().add("id", "long"), overwrite=False, facts=SessionFacts())


class Feeder(threading.Thread):
    """Lets a file of ten rows arrive every 0.2 s, until `stop` is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.over = threading.Event()
        self.rows = 0

    def run(self) -> None:
        while not self.over.wait(0.2):
            made = self.folder / f".{self.rows:06d}.parquet"
            pq.write_table(pa.table({"id": list(range(self.rows, self.rows + 10))}), made)
            made.rename(self.folder / made.name[1:])
            self.rows += 10


@pytest.mark.soak  # without Spark, tests/tunnel kills one of several clients
@pytest.mark.timeout(900)
def test_two_queries_share_a_tunnel_and_one_takes_over(tmp_path: Path) -> None:
    """Two drivers publish into one table; one is killed, and the other one continues with all channels."""
    folder, target, store = tmp_path / "in", tmp_path / "copy.db", str(tmp_path / "tunnels.db")
    folder.mkdir()
    pq.write_table(pa.table({"id": [-1]}), folder / "first.parquet")
    source = {
        "reader": "parquet",
        "path": str(folder),
        "tunnelType": "stream",
        "tunnelChannels": "4",
        "tunnel": "in",
        "tunnelStore": store,
        "heartbeatInterval": "5",
        "heartbeatTimeout": "20",
    }
    tunnel = Tunnel("in", {**source, "startingOffsets": "earliest"}, store=store)
    tunnel.create()

    def shares() -> list[int]:
        """How many channels each client has open."""
        owners = (view.channel for view in tunnel.describe().channels)
        return sorted(
            Counter(each.client for each in owners if each.state is ChannelState.OPEN).values()
        )

    feeder = Feeder(folder)
    sink = {"path": str(target), "dbtable": "copy"}
    queries = [Query(source, sink, tmp_path / f"checkpoint-{number}") for number in range(2)]
    try:
        feeder.start()
        for query in queries:
            query.go()
        for query in queries:
            query.next()
        while shares() != [2, 2]:
            queries[1].next()
        for query in queries:
            query.next()
        queries[0].kill()
        while shares() != [4]:
            queries[1].next()
        feeder.over.set()
        feeder.join()
        while len(rows(target)) < feeder.rows + 1:
            queries[1].next()
    finally:
        feeder.over.set()
        for query in queries:
            query.kill()
    assert rows(target) == list(range(-1, feeder.rows))
