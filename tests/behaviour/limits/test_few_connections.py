"""Reads and writes of DataFrames leave connections of their server to others: real server, real logins of others."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
SLOTS = 5
LOCAL = f"local[{SLOTS}]"
CLUSTER = "local-cluster[2,3,512]"
FREE = 11
"""`max_connections` of 14, less three of superusers."""
BEGIN = f"""
import sys, time
from pyspark.sql import SparkSession
from spark_channel import register
builder = SparkSession.builder.master(sys.argv[3]).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "{SLOTS}").getOrCreate()
register(spark)
login = dict(url=sys.argv[1], user="job", password="pw")

def slowly(batches):
    for batch in batches:
        time.sleep(0.5)
        yield batch

def read(table):
    return spark.read.format("channel").options(**login, dbtable=table, channels="{SLOTS}").load()

def write(df, table):
    df.write.format("channel").options(**login, dbtable=table).mode("append").save()
"""
COPY = """
source = read("source")
print(source.rdd.getNumPartitions(), flush=True)
write(source.mapInArrow(slowly, source.schema), "target")
"""
TWO = """
write(read("source").join(read("other"), "id").mapInArrow(slowly, "id int"), "target")
"""
STREAM = """
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 800).option("numPartitions", 8).load()
changed = rows.selectExpr("cast(value AS int) AS id").mapInArrow(slowly, "id int")
writing = changed.writeStream.format("channel").options(**login, dbtable="target", checkpointLocation=sys.argv[2])
query = writing.trigger(processingTime="0 seconds").start()
while not query.recentProgress or query.lastProgress["batchId"] < 1:
    time.sleep(0.2)
query.stop()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer.create(max_connections="14", shared_buffers="16MB")
    try:
        made.psql(
            "CREATE ROLE job LOGIN PASSWORD 'pw'; CREATE ROLE other LOGIN PASSWORD 'pw';"
            "GRANT ALL ON SCHEMA public TO job;"
            "CREATE TABLE source AS SELECT g AS id FROM generate_series(1, 8000) g;"
            "CREATE TABLE other AS SELECT g AS id FROM generate_series(1, 8000) g;"
            "ALTER TABLE source ADD PRIMARY KEY (id), OWNER TO job;"
            "ALTER TABLE other ADD PRIMARY KEY (id), OWNER TO job"
        )
        yield made
    finally:
        made.close()


class Others:
    """Logs in again and again, without a pause; counts what was refused, and the connections of the job."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._log_in)
        self.logins, self.most = 0, 0
        self.refused: list[str] = []

    def _log_in(self) -> None:
        count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'job'"
        while not self._ended.is_set():
            self.logins += 1
            try:
                with psycopg.connect(
                    host="127.0.0.1",
                    port=self._server.port,
                    user="other",
                    password="pw",
                    dbname="postgres",
                ) as session:
                    (jobs,) = session.execute(count).fetchone() or (0,)
                    self.most = max(self.most, jobs)
            except psycopg.OperationalError as error:
                self.refused.append(str(error))

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("work", "rows", "master", "slots"),
    [
        pytest.param(COPY, 8000, LOCAL, "5", id="copy"),
        pytest.param(COPY, 8000, CLUSTER, "(6|many)", id="copy of two executors"),
        pytest.param(TWO, 8000, LOCAL, "", id="two reads", marks=pytest.mark.soak),
        pytest.param(STREAM, 1600, LOCAL, "", id="stream", marks=pytest.mark.soak),
    ],
)
def test_others_log_in_while_a_job_of_many_tasks_runs(
    server: PostgresServer, work: str, rows: int, master: str, slots: str, tmp_path: Path
) -> None:
    server.psql(
        "DROP TABLE IF EXISTS target; CREATE TABLE target (id int); ALTER TABLE target OWNER TO job"
    )
    with Others(server) as others:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + work, server.url, str(tmp_path), master],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(server.psql("SELECT count(*) FROM target")) >= rows
    assert others.logins > 10
    assert others.refused == []
    assert 1 <= others.most <= FREE - FREE // 4
    if work is STREAM:
        assert done.stderr.count("are connected to the target") == 1, "not once a batch"
    if work is COPY:  # a login of others that has just ended may count as one connection more
        assert int(done.stdout) in (1, 2, 3), "partitions of the read"
        assert re.search(f"{slots} Spark tasks write .* and [1-3] are connected", done.stderr)
