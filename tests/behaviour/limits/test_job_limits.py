"""What limits promise on each of Spark's paths, by the records of source and target."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_channel.service import SharedLimit
from spark_channel.spark.session import service_of
from tests.spark import recorded
from tests.spark.recorded import CHANNELS, PROMPT, RATE, ROWS, TIMEOUT, worst_second
from tests.spark.remote_driver import DriverError, RemoteDriver
from tests.spark.timeline import Timeline, most_open
from tests.tunnel.children import ADMISSION

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.real_time]


@pytest.fixture(scope="module")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def driver(event_logs: Path) -> Iterator[RemoteDriver]:
    """All tasks of a job run at once."""
    events = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_logs.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with RemoteDriver(f"local[{CHANNELS}]", {**PROMPT, **events}) as running:
        yield running


def to_stream(folder: Path) -> None:
    """What the two streams below read: `ROWS` rows as a file and as a table."""
    (folder / "in").mkdir()
    pq.write_table(pa.table({"id": range(ROWS)}), folder / "in" / "0.parquet")
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, padding TEXT)")
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?)",
            ((number, "x" * 6_000) for number in range(1, ROWS + 1)),
        )


def stream(frame: Any, folder: str, options: dict[str, str]) -> None:
    """`frame` into the target, until all that is there has been read."""
    writing = frame.writeStream.format("channel").trigger(availableNow=True)
    given = {"log": f"{folder}/target", "checkpointLocation": f"{folder}/check", **options}
    query = writing.option("writer", "recorder").options(**given).start()
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()


def write_stream(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """One micro-batch of as many tasks as there are channels, limited where it is written."""
    frame = spark.readStream.schema("id BIGINT").parquet(f"{folder}/in").repartition(CHANNELS)
    stream(frame, folder, options)


def read_stream(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """Several micro-batches, limited where they are read."""
    given = {
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
        "channels": str(CHANNELS),
        **({"maxRowsPerTrigger": str(ROWS // 2)} if ADMISSION else {}),
        **options,
    }
    stream(
        spark.readStream.format("channel").options(**given).load(f"{folder}/shop.db"), folder, {}
    )


# ---- connections


@pytest.mark.parametrize("path", [recorded.write, recorded.transfer, write_stream])
def test_no_more_targets_are_open_than_max_connections(
    driver: RemoteDriver, tmp_path: Path, path: Any
) -> None:
    """Each of the four tasks lasts: the limit sees to that."""
    to_stream(tmp_path)
    driver.run(
        path, str(tmp_path), {"rowsPerSecond": str(RATE), "maxConnections": "2"}, timeout=TIMEOUT
    )
    assert Timeline(tmp_path / "target").sums[-1] == ROWS
    assert most_open(tmp_path / "target.connections") == 2


# ---- streams


@pytest.mark.parametrize(("path", "limit"), [(read_stream, "own"), (write_stream, "shared")])
def test_a_stream_obeys_the_limit(
    driver: RemoteDriver, tmp_path: Path, path: Any, limit: str
) -> None:
    to_stream(tmp_path)
    with SharedLimit("stream-test", rows_per_second=RATE):
        options = {"rowsPerSecond": str(RATE)} if limit == "own" else {"sharedLimit": "stream-test"}
        driver.run(path, str(tmp_path), options, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE


# ---- a DataFrame that is read twice


def count_twice(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """One action after the other."""
    frame = recorded.source(spark, folder, options)
    for _ in range(2):
        assert frame.count() == ROWS


def join_itself(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """Two stages of one action that read at once; the filters keep Spark from reading once for both."""
    frame = recorded.source(spark, folder, {**options, "channels": "2"})
    few, many = frame.where("id % 3 = 0").select("id"), frame.where("id % 2 = 0").select("id")
    assert few.hint("merge").join(many, "id").count() == ROWS // 6


@pytest.mark.parametrize("path", [count_twice, join_itself])
def test_a_dataframe_that_is_read_twice_obeys_one_limit(
    driver: RemoteDriver, tmp_path: Path, path: Any
) -> None:
    """At the source, which may be 1.5 s of the limit ahead; two limits would let twice as much pass."""
    driver.run(path, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    source = Timeline(tmp_path / "source")
    assert source.sums[-1] == 2 * ROWS
    for window in (0.5, 1.0, 2.0, 4.0):
        assert source.worst(window) <= RATE * (window + 1.5)


# ---- a limit for each Spark task


@pytest.mark.parametrize("path", [recorded.read, recorded.write])
def test_a_limit_per_task_is_each_tasks_own(
    driver: RemoteDriver, tmp_path: Path, path: Any
) -> None:
    each = RATE // CHANNELS
    driver.run(path, str(tmp_path), {"rowsPerSecondPerTask": str(each)}, timeout=TIMEOUT)
    assert 1.3 * each < worst_second(tmp_path) <= 1.15 * each * CHANNELS


# ---- what a token must not be found in


def fail(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """A job that some way down meets a row it cannot read, while the limit is spent."""
    given = {"reader": "generator", "rows": str(ROWS), "failAtRow": str(ROWS // 2), **options}
    recorded.save(spark.read.format("channel").options(**given).load(), folder, {})


def plans(spark: SparkSession, folder: str, options: dict[str, str]) -> str:
    """Return Spark's plans of a limited read and of a throttle, each of which has run."""
    read = recorded.source(spark, folder, {**options, "rows": "100"})
    throttled = recorded.throttled(spark.range(100), options)
    texts = []
    for frame in (read, throttled):
        frame.collect()
        texts.append(str(frame._jdf.queryExecution().toString()))
        texts.append(repr(frame))
    return "\n".join(texts)


def own_token(spark: SparkSession) -> str:
    return service_of(spark).token


def test_tokens_are_in_no_plan_no_event_log_and_no_message(
    driver: RemoteDriver, tmp_path: Path, event_logs: Path
) -> None:
    with SharedLimit("token-test", rows_per_second=RATE) as shared:
        options = {"sharedLimit": shared.address, "sharedLimitToken": shared.token}
        tokens = (shared.token, driver.run(own_token, timeout=TIMEOUT))
        output = driver.run(plans, str(tmp_path), options, timeout=TIMEOUT)
        with pytest.raises(DriverError, match="failAtRow") as failed:
            driver.run(fail, str(tmp_path), options, timeout=TIMEOUT)
        wrong = {**options, "sharedLimitToken": shared.token[:-1]}
        with pytest.raises(DriverError, match="token") as refused:
            driver.run(plans, str(tmp_path), wrong, timeout=TIMEOUT)
    logged = "\n".join(path.read_text() for path in event_logs.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in logged
    assert "failAtRow" in logged, "the job that failed is in the log"
    for text in (output, logged, str(failed.value), str(refused.value)):
        for token in tokens:
            assert token[:-1] not in text
