"""Clients of one Spark Connect server: their connections break, they interrupt writes, and they share a limit."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.errors import UnsupportedError
from spark_channel.service import SharedLimit
from tests.spark import recorded
from tests.spark.recorded import PROMPT, RATE, ROWS, TIMEOUT, worst_second
from tests.spark.relay import Relay
from tests.spark.remote_driver import RemoteDriver

pytest.importorskip("grpc", reason="Spark Connect asks for grpcio")
pytest.importorskip("grpc_status", reason="Spark Connect asks for grpcio-status")
pytestmark = [pytest.mark.spark, pytest.mark.real_time, pytest.mark.newest]

WRITTEN, TASKS = 20_000, 2


@pytest.fixture(scope="module")
def connect() -> Iterator[RemoteDriver]:
    """A session that `spark.api.mode` makes one of Spark Connect; with SPARK_TESTING its server takes a free port."""
    conf = {**PROMPT, "spark.api.mode": "connect", "spark.connect.progress.reportInterval": "200ms"}
    with RemoteDriver("local[2]", conf, {"SPARK_TESTING": "1"}) as driver:
        yield driver


def port_of(spark: Any) -> int:
    return int(spark.client._builder.endpoint.rpartition(":")[2])


class Client:
    """Another client of the server of `spark`, and the operation whose tasks run."""

    def __init__(self, spark: Any, port: int = 0) -> None:
        self.session = (
            type(spark).builder.remote(f"sc://localhost:{port or port_of(spark)}").create()
        )
        spark_channel.register(self.session)
        self.works = threading.Event()
        self.operation = ""
        self.session.registerProgressHandler(self._progress)

    def _progress(self, stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        tasks = sum(stage.num_tasks for stage in stages)
        if inflight_tasks and tasks == TASKS and not done:  # not that of a planner, which has one
            self.operation = operation_id
            self.works.set()

    def write(self, path: str, **options: str) -> None:
        rows = self.session.range(0, WRITTEN, 1, TASKS)
        given = {"dbtable": "t", "rowsPerSecond": "4k", **options}
        rows.write.format("channel").options(**given).mode("append").save(path)

    def transfer(self, path: str) -> None:
        source = {"name": "generator", "rows": WRITTEN, "columns": "id"}
        target = {"name": "sqlite", "path": path, "dbtable": "t", "rowsPerSecond": "4k"}
        spark_channel.transfer(self.session, source, target, channels=TASKS, channels_per_task=1)


def count(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        rows, ids = connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone()
    return int(rows), int(ids)


def cut_while_writing(spark: Any, path: str) -> list[bool]:
    """A write whose client loses its connection twice; whether the write had ended at each of the cuts."""
    relay = Relay(("127.0.0.1", port_of(spark)))
    had_ended = []
    try:
        client = Client(spark, relay.port)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(client.write, path, txn="cut:1")
            for _ in range(2):
                assert client.works.wait(TIMEOUT)
                had_ended.append(writing.done())
                relay.cut()
                client.works.clear()
                relay.mend()
            writing.result(TIMEOUT)
    finally:
        relay.end()
    return had_ended


def test_a_client_that_lost_its_connection_attaches_again_to_its_write(
    connect: RemoteDriver, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    assert connect.run(cut_while_writing, str(path), timeout=TIMEOUT) == [False, False]
    assert count(path) == (WRITTEN, WRITTEN)


def interrupted(spark: Any, path: str, job: str) -> tuple[bool, str]:
    """Whether Spark knew the operation that was interrupted, and the error that its caller got."""
    client = Client(spark)
    with ThreadPoolExecutor(1) as pool:
        running: Future[None] = pool.submit(getattr(client, job), path)
        assert client.works.wait(TIMEOUT)
        known = client.session.interruptOperation(client.operation) == [client.operation]
        error = running.exception(TIMEOUT)
    return known, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("job", ["write", "transfer"])
def test_an_interrupted_operation_leaves_no_row(
    connect: RemoteDriver, tmp_path: Path, job: str
) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
    known, error = connect.run(interrupted, str(path), job, timeout=TIMEOUT)
    assert known
    expected = (
        "JobCancelledError: the job was cancelled" if job == "transfer" else "OPERATION_CANCELED"
    )
    assert expected in error
    assert count(path) == (0, 0)
    assert [each.name for each in tmp_path.iterdir()] == ["t.db"], "no staging is left"


def both_write(spark: Any, folder: str, limit: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        writing = [
            pool.submit(recorded.write, Client(spark).session, folder, {"sharedLimit": limit})
            for _ in range(2)
        ]
        for each in writing:
            each.result(TIMEOUT)


def test_two_clients_share_a_limit(connect: RemoteDriver, tmp_path: Path) -> None:
    with SharedLimit("two-clients", rows_per_second=RATE):
        connect.run(both_write, str(tmp_path), "two-clients", timeout=TIMEOUT)
    assert worst_second(tmp_path, 2 * ROWS) <= 1.15 * RATE


def both_kinds(remote: Any, path: str) -> list[str]:
    """Jobs of the classic session of a server beside those of a client in the same process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext.getOrCreate()
    spark = SparkSession(context)
    spark_channel.register(spark, progress=False)
    end = {"name": "sqlite", "path": path, "dbtable": "t"}
    spark_channel.transfer(spark, {"name": "generator", "rows": 10, "columns": "id"}, end)
    for session in (spark, remote):
        rows = session.read.format("channel").option("dbtable", "t").load(path)
        options = {"dbtable": "u", "rowsPerSecond": "1k"}
        rows.write.format("channel").options(**options).mode("append").save(path)
    told = [str(remote.read.format("channel").option("dbtable", "u").load(path).count())]
    try:
        spark_channel.throttle(spark.range(3), 1_000)
    except UnsupportedError as error:
        told.append(str(error))
    return told


def test_a_process_has_a_classic_session_and_one_of_connect(
    connect: RemoteDriver, tmp_path: Path
) -> None:
    rows, refused = connect.run(both_kinds, str(tmp_path / "t.db"), timeout=TIMEOUT)
    assert rows == "20"
    assert "throttle cannot limit a DataFrame of a classic session" in refused
