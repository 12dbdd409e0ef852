"""Through real Spark tasks: rows counted by key after kills, and connections counted while it runs."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import JobCancelledError, SourceError
from tests.connectors.postgresql.pg import Pg
from tests.servers.sockets import process_at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROWS = 40_000


def _source(pg: Pg) -> None:
    pg.psql(
        f"CREATE TABLE s AS SELECT g::bigint AS id, 'row ' || g AS v FROM generate_series(0, {ROWS - 1}) g;"
        "ALTER TABLE s ADD PRIMARY KEY (id)"
    )


def _expect(pg: Pg, rows: int = ROWS) -> None:
    assert (
        pg.psql("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM t")
        == f"{rows}|{rows}|0|{rows - 1}"
    )
    assert pg.staged() == []
    assert pg.server.connections() == 0


@contextmanager
def _most_connections(pg: Pg) -> Iterator[dict[str, int]]:
    """The most sessions of readers and of writers at one moment, looked at 50 times a second: quick ones are missed."""
    most = {"read": 0, "write": 0}
    over = threading.Event()

    def watch() -> None:
        server = pg.server
        with psycopg.connect(
            host=str(server.directory),
            port=server.port,
            user=server.user,
            dbname="postgres",
            autocommit=True,
        ) as connection:
            while not over.wait(0.02):
                for kind in list(most):
                    named = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
                    ((found,),) = connection.execute(named, [f"spark-channel {kind}%"]).fetchall()
                    most[kind] = max(most[kind], found)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


@pytest.mark.real_time
@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_copy_through_spark(spark: SparkSession, pg: Pg, commit: str) -> None:
    _source(pg)
    pg.psql("CREATE TABLE t (id bigint, v text)")
    with _most_connections(pg) as most:
        frame = spark.read.format("channel").options(**pg.options(dbtable="s", channels="2")).load()
        writer = frame.write.format("channel").options(**pg.options(dbtable="t", commit=commit))
        writer.mode("append").save()
    _expect(pg)
    assert 1 <= most["read"] <= 3
    assert 1 <= most["write"] <= 3


@pytest.mark.real_time
@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_transfer(spark: SparkSession, pg: Pg, commit: str) -> None:
    _source(pg)
    if commit == "task":
        pg.psql("CREATE TABLE t (id bigint, v text)")
    with _most_connections(pg) as most:
        spark_channel.transfer(
            spark,
            reader={"name": "postgresql", **pg.options(dbtable="s")},
            writer={"name": "postgresql", **pg.options(dbtable="t")},
            channels=2,
            commit=commit,
        )
    _expect(pg)
    assert max(most.values()) <= 3


@pytest.mark.newest
@pytest.mark.real_time
@pytest.mark.parametrize("limited_read", [True, False], ids=["read", "transfer"])
def test_a_limited_job_outlives_the_end_of_its_sessions(
    spark: SparkSession, pg: Pg, limited_read: bool
) -> None:
    """No Spark task fails: a read continues inside its split, with no row twice and none missing."""
    _source(pg)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())  # other tests' tasks may have failed
    over = threading.Event()
    ended = 0

    def end_sessions() -> None:
        nonlocal ended
        while not over.wait(0.3):
            ended += pg.kill_sessions("spark-channel read%")

    ending = threading.Thread(target=end_sessions)
    ending.start()
    try:
        reads = pg.options(dbtable="s")
        if limited_read:
            options = {**reads, "channels": "2", "rowsPerSecond": "10k"}
            frame = spark.read.format("channel").options(**options).load()
            found = sorted(row.id for row in frame.select("id").collect())
            assert found == list(range(ROWS))
        else:
            report = spark_channel.transfer(
                spark,
                reader={"name": "postgresql", **reads},
                writer={"name": "postgresql", **pg.options(dbtable="t")},
                channels=2,
                rows_per_second=10_000,
                commit="job",
            )
            assert report.rows == ROWS
    finally:
        over.set()
        ending.join()
    assert ended >= 4
    for job in set(tracker.getJobIdsForGroup()) - before:
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            about = tracker.getStageInfo(stage)
            assert about is None or about.numFailedTasks == 0
    if not limited_read:
        _expect(pg)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.newest
@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({}, None),
        ({"bytes_per_second": 2_000_000_000}, None),
        ({"transformers": [_same]}, "fit date32"),
        ({"max_dirty_rows": 5, "commit": "task"}, "fit date32"),
        ({"rows_per_second": 500}, "fit date32"),
    ],
)
def test_rows_pass_as_they_are_when_nobody_has_to_read_them(
    spark: SparkSession, pg: Pg, more: dict[str, Any], refusal: str | None
) -> None:
    """Spark has no infinite date. Steps, dirty rows and cursors need values."""
    pg.psql(
        "CREATE TABLE s (id int PRIMARY KEY, d date); CREATE TABLE t (LIKE s);"
        "INSERT INTO s SELECT g, CASE g WHEN 77 THEN 'infinity' ELSE date '2024-01-01' END "
        "FROM generate_series(1, 200) g"
    )
    ends = (
        {"name": "postgresql", **pg.options(dbtable="s")},
        {"name": "postgresql", **pg.options(dbtable="t")},
    )
    if refusal is None:
        assert spark_channel.transfer(spark, *ends, **more).rows == 200
        assert pg.psql("TABLE t ORDER BY id") == pg.psql("TABLE s ORDER BY id")
    else:
        with pytest.raises(SourceError, match=refusal):
            spark_channel.transfer(spark, *ends, **more)
    assert pg.server.connections() == 0


@pytest.mark.newest
def test_a_transfer_under_a_snapshot_sees_one_moment_while_rows_move(
    spark: SparkSession, pg: Pg
) -> None:
    """Pages are cut by position, and every update moves its row to another position."""
    pg.psql(
        f"CREATE TABLE s AS SELECT g::bigint AS id, 'row ' || g AS v FROM generate_series(0, {ROWS - 1}) g"
    )
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(0.1):
            pg.psql(
                "UPDATE s SET v = v || '.' WHERE id % 7 = 0; DELETE FROM s WHERE id % 1000 = 999"
            )

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        report = spark_channel.transfer(
            spark,
            reader={"name": "postgresql", **pg.options(dbtable="s"), "snapshot": "true"},
            writer={"name": "postgresql", **pg.options(dbtable="t")},
            channels=2,
            rows_per_second=20_000,
        )
    finally:
        over.set()
        thread.join()
    at_once = {
        int(pg.psql("SELECT count(*) FROM t")),
        int(pg.psql("SELECT count(DISTINCT id) FROM t")),
    }
    assert at_once == {report.rows}
    assert report.rows in (ROWS, ROWS - ROWS // 1000), (
        "the rows of one moment: all, or all but the deleted"
    )
    assert (
        int(
            pg.psql(
                "SELECT count(DISTINCT length(v) - length('row ' || id)) FROM t WHERE id % 7 = 0"
            )
        )
        == 1
    )
    assert pg.server.connections() == 0


@pytest.mark.newest
def test_sessions_end_with_a_limit_that_is_satisfied(spark: SparkSession, pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE big AS SELECT g AS id, repeat('x', 500) AS v FROM generate_series(1, 100000) g"
    )
    frame = spark.read.format("channel").options(**pg.options(dbtable="big", channels="2")).load()
    assert len(frame.limit(5).collect()) == 5
    assert pg.server.connections() == 0


@pytest.mark.newest
@pytest.mark.real_time
@pytest.mark.parametrize("commit", ["job", "task"])
def test_sessions_end_with_a_copy_that_is_cancelled(
    spark: SparkSession, pg: Pg, commit: str
) -> None:
    """At its limit it would take an hour. Both sides are connected when it is cancelled, and never too often."""
    _source(pg)
    pg.psql("CREATE TABLE t (id bigint, v text)")
    context = spark.sparkContext
    cancelled: list[bool] = []

    def cancel() -> None:
        busy = "SELECT count(DISTINCT left(application_name, 19)) FROM pg_stat_activity WHERE "
        clients = "application_name LIKE 'spark-channel read%' OR application_name LIKE 'spark-channel write%'"
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not cancelled:
            if pg.psql(busy + clients) == "2":
                context.cancelAllJobs()
                cancelled.append(True)
            time.sleep(0.05)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with _most_connections(pg) as most:
        try:
            with pytest.raises(JobCancelledError, match="was cancelled in Spark"):
                spark_channel.transfer(
                    spark,
                    reader={"name": "postgresql", **pg.options(dbtable="s", fetchsize=10)},
                    writer={"name": "postgresql", **pg.options(dbtable="t")},
                    channels=2,
                    rows_per_second=10,
                    commit=commit,
                )
        finally:
            canceller.join()
    assert pg.server.connections() == 0
    assert cancelled
    assert 1 <= most["read"] <= 3
    assert 1 <= most["write"] <= 3
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert pg.staged() == []


@pytest.mark.newest
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_worker_that_is_killed_mid_write(spark: SparkSession, pg: Pg, commit: str) -> None:
    """The first process that has rows under way is killed as the system kills one when memory is short."""
    pg.psql("CREATE TABLE t (id bigint, v text)")
    killed: list[int] = []
    killer = threading.Thread(target=_kill_one_writer, args=(pg, killed))
    killer.start()
    frame = spark.range(0, ROWS, numPartitions=2).selectExpr("id", "concat('row ', id) AS v")
    options = pg.options(dbtable="t", commit=commit, batchSize="500", rowsPerSecond="10000")
    frame.write.format("channel").options(**options).mode("append").save()
    killer.join()
    assert killed
    _expect(pg)


def _kill_one_writer(pg: Pg, killed: list[int]) -> None:
    """End the process at the other end of a session that writes, once that has sent something."""
    ports = (
        "SELECT client_port FROM pg_stat_activity WHERE application_name LIKE 'spark-channel write%' "
        "AND (query LIKE 'COPY%' OR query LIKE '%pg_current_xact_id%' OR query = 'COMMIT') LIMIT 1"
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not killed:
        port = pg.psql(ports)
        process = process_at(int(port), pg.server.port) if port else None
        if process is not None:
            os.kill(process, signal.SIGKILL)
            killed.append(process)
        time.sleep(0.05)
