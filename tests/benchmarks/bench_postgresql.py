"""TPC-H orders from PostgreSQL to the same server: against Spark's JDBC source, and against COPY itself.

The limit is `psql COPY binary | psql COPY binary`, as many pipes as channels. All go over TCP. Needs the server, and
the JDBC driver of Debian's libpostgresql-jdbc-java; `.ci/servers` installs both.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import spark_channel
from tests.benchmarks.harness import Row, print_table, spark_session
from tests.servers.postgres import PostgresServer, programs

SCALE = float(os.environ.get("SPARK_CHANNEL_BENCH_SCALE", "1"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
CHANNELS = 2
JAR = Path("/usr/share/java/postgresql.jar")
COLUMNS = (
    "o_orderkey bigint NOT NULL, o_custkey bigint NOT NULL, o_orderstatus text NOT NULL, "
    "o_totalprice numeric(15,2) NOT NULL, o_orderdate date NOT NULL, o_orderpriority text NOT NULL, "
    "o_clerk text NOT NULL, o_shippriority int NOT NULL, o_comment text NOT NULL"
)


class Bench:
    def __init__(self, server: PostgresServer, spark: SparkSession) -> None:
        self.server = server
        self.spark = spark
        self.rows = int(server.psql("SELECT count(*) FROM orders"))
        self.jdbc = {
            "url": f"jdbc:{server.url}?reWriteBatchedInserts=true",
            "user": server.user,
            "password": server.password,
            "driver": "org.postgresql.Driver",
        }
        last = server.psql("SELECT max(o_orderkey) FROM orders")
        self.split = {
            "partitionColumn": "o_orderkey",
            "lowerBound": "1",
            "upperBound": last,
            "numPartitions": str(CHANNELS),
            "fetchsize": "10000",
        }

    def target(self, *, there: bool = True) -> None:
        self.server.psql(
            "SET client_min_messages = error; DROP TABLE IF EXISTS copy;"
            + (f"CREATE TABLE copy ({COLUMNS})" if there else "")
            + "; CHECKPOINT"
        )

    def copied(self) -> None:
        found = self.server.psql("SELECT count(*), count(DISTINCT o_orderkey) FROM copy")
        assert found == f"{self.rows}|{self.rows}", found

    def jdbc_read(self) -> None:
        reader = self.spark.read.format("jdbc").options(dbtable="orders", **self.jdbc, **self.split)
        reader.load().write.format("noop").mode("overwrite").save()

    def channel_read(self) -> None:
        reader = self.spark.read.format("channel").options(
            dbtable="orders", channels=str(CHANNELS), **self.login
        )
        reader.load().write.format("noop").mode("overwrite").save()

    @property
    def login(self) -> dict[str, str]:
        return self.server.login

    def jdbc_copy(self) -> None:
        frame = (
            self.spark.read.format("jdbc")
            .options(dbtable="orders", **self.jdbc, **self.split)
            .load()
        )
        frame.write.format("jdbc").options(dbtable="copy", batchsize="10000", **self.jdbc).mode(
            "append"
        ).save()

    def channel_copy(self) -> None:
        frame = (
            self.spark.read.format("channel")
            .options(dbtable="orders", channels=str(CHANNELS), **self.login)
            .load()
        )
        writer = frame.write.format("channel").options(dbtable="copy", commit="task", **self.login)
        writer.mode("append").save()

    def transfer(self, commit: str) -> None:
        spark_channel.transfer(
            self.spark,
            reader={"name": "postgresql", "dbtable": "orders", **self.login},
            writer={"name": "postgresql", "dbtable": "copy", **self.login},
            channels=CHANNELS,
            commit=commit,
        )

    def pipes(self) -> None:
        """The limit: COPY's own bytes, from one psql into another, over TCP like the others."""
        middle = int(
            self.server.psql(
                "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY o_orderkey) FROM orders"
            )
        )
        psql = f"{programs() / 'psql'} -X -q -h 127.0.0.1 -p {self.server.port} -U tester postgres"
        commands = [
            f'{psql} -c "COPY (SELECT * FROM orders WHERE o_orderkey {part} {middle}) TO STDOUT (FORMAT binary)" '
            f'| {psql} -c "COPY copy FROM STDIN (FORMAT binary)"'
            for part in ("<", ">=")
        ]
        login = {**os.environ, "PGPASSWORD": self.server.password}
        running = [
            subprocess.Popen(["bash", "-o", "pipefail", "-c", command], env=login)
            for command in commands
        ]
        assert [process.wait() for process in running] == [0, 0]


def _timed(bench: Bench, work: Callable[[], None], *, copies: bool, there: bool = True) -> float:
    if copies:
        bench.target(there=there)
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    if copies:
        bench.copied()
    return seconds


def main() -> list[Row]:
    assert JAR.exists(), f"no {JAR}: run .ci/servers"
    server = PostgresServer.create(shared_buffers="512MB")
    spark = None
    try:
        _load(server)
        spark = spark_session(JAR, progress=True)
        return _measure(Bench(server, spark))
    finally:
        if spark is not None:
            spark.stop()
        server.close()


def _load(server: PostgresServer) -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            str(Path(sys.executable).parent / "tpchgen-cli"),
            "csv",
            "-s",
            f"{SCALE:g}",
            "--tables",
            "orders",
            "--output-dir",
            directory,
        ]
        subprocess.run(command, check=True, capture_output=True)
        (path,) = Path(directory).rglob("orders*.csv")
        server.psql(
            f"CREATE TABLE orders ({COLUMNS});\n\\copy orders FROM '{path}' (FORMAT csv, HEADER)"
        )
        server.psql("ALTER TABLE orders ADD PRIMARY KEY (o_orderkey); VACUUM ANALYZE orders")


def _measure(bench: Bench) -> list[Row]:
    jobs: dict[str, tuple[Callable[[], None], bool, bool]] = {
        "jdbc read": (bench.jdbc_read, False, True),
        "channel read": (bench.channel_read, False, True),
        "jdbc copy": (bench.jdbc_copy, True, True),
        "channel copy": (bench.channel_copy, True, True),
        "transfer task": (lambda: bench.transfer("task"), True, True),
        "transfer job": (lambda: bench.transfer("job"), True, True),
        "transfer created": (lambda: bench.transfer("job"), True, False),
        "pipes": (bench.pipes, True, True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(ROUNDS + 1):
        for name, (work, copies, there) in jobs.items():
            took = _timed(bench, work, copies=copies, there=there)
            if number:  # the first round warms the JVM, the workers and the server's cache
                seconds[name].append(took)
    best = {name: statistics.median(times) for name, times in seconds.items()}
    note = f"{bench.rows / 1e6:.2f} M rows, {CHANNELS} channels, medians of {ROUNDS}"

    def faster(name: str, than: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[than], seconds[name], strict=True))

    return [
        *(Row(f"postgresql: {name}", value, unit="s", note=note) for name, value in best.items()),
        Row(
            "postgresql: read -> noop against JDBC",
            faster("channel read", "jdbc read"),
            ">= 1.2",
            "x",
        ),
        Row(
            "postgresql: read -> write, commit=task, against JDBC",
            faster("channel copy", "jdbc copy"),
            ">= 1.3",
            "x",
        ),
        Row(
            "postgresql: transfer, commit=task, against JDBC",
            faster("transfer task", "jdbc copy"),
            ">= 2.5",
            "x",
        ),
        Row(
            "postgresql: transfer, commit=task, of the limit",
            faster("transfer task", "pipes"),
            ">= 0.65",
            "x",
        ),
        Row(
            "postgresql: transfer, commit=job, against JDBC",
            faster("transfer job", "jdbc copy"),
            ">= 1.3",
            "x",
        ),
        Row(
            "postgresql: the same into a new table",
            faster("transfer created", "jdbc copy"),
            ">= 2.2",
            "x",
        ),
    ]


if __name__ == "__main__":
    print_table(main())
