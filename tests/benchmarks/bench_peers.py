"""Other programs beside spark-channel, on one server and in one run: `programs`, Debezium, Spark's JDBC source."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as f

from spark_channel import register, throttle
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from tests.benchmarks.harness import Row, alternate, print_table, ratio
from tests.benchmarks.program_copies import beside_programs
from tests.benchmarks.programs import JDBC, MissingError, jars
from tests.servers.mariadb import BINLOG, MariadbServer
from tests.servers.postgres import PostgresServer

DEBEZIUM = "3.6.1.Final"
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "1500000"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
CHANGES = 170_000
CALLED = "5.6.51-MariaDB"
"""What MariaDB calls itself: Debezium's MySQL connector takes 10.11 for a MySQL after 8.4."""


# --- changes ---


def debezium() -> Path:
    """The folder of Debezium's jars."""
    names = ("api", "embedded", "connector-postgres", "connector-mysql")
    wanted = [("io.debezium", f"debezium-{name}", DEBEZIUM) for name in names]
    return jars(f"debezium-{DEBEZIUM}", [*wanted, ("org.slf4j", "slf4j-simple", "1.7.36")])


def postgresql_changes() -> list[Row]:
    """The same changes by slots of one server, each read once."""
    debezium()
    with contextlib.closing(PostgresServer.create()) as server:
        server.psql(
            "CREATE TABLE followed (id int PRIMARY KEY, item text, price numeric(8,2), at timestamptz);"
            "CREATE PUBLICATION followed FOR TABLE followed"
        )
        reader, _ = load_reader({**server.login, "dbtable": "followed"})
        feed = reader.feed(FeedOptions(slot="followed", publication="followed"))
        (start,) = feed.now()
        for number in range(ROUNDS):
            server.psql(f"SELECT pg_create_logical_replication_slot('peer_{number}', 'pgoutput')")
        server.psql(
            "INSERT INTO followed SELECT i, 'item ' || i, i / 100.0, now() FROM generate_series(1, 100000) i;"
            "UPDATE followed SET item = 'other' WHERE id <= 50000; DELETE FROM followed WHERE id > 80000"
        )
        settings = {
            **_login(server),
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "database.dbname": server.url.rpartition("/")[2],
            "plugin.name": "pgoutput",
            "publication.name": "followed",
            "publication.autocreate.mode": "disabled",
            "table.include.list": "public.followed",
            "snapshot.mode": "no_data",
        }
        return _side_by_side(
            "PostgreSQL",
            lambda number: by_debezium({**settings, "slot.name": f"peer_{number}"}),
            feed,
            start,
        )


def mariadb_changes() -> list[Row]:
    """The same changes by one log, read from the same place by both."""
    debezium()
    with contextlib.closing(MariadbServer.create(**BINLOG, version=CALLED)) as server:
        server.sql(
            "CREATE TABLE followed (id INT PRIMARY KEY, item TEXT, price DECIMAL(8,2), at TIMESTAMP(6) NULL)",
            database="shop",
        )
        reader, _ = load_reader({**server.login, "dbtable": "followed", "binlog": "true"})
        feed = reader.feed(FeedOptions())
        (start,) = feed.now()
        file, position = server.sql("SHOW MASTER STATUS").split("\t")[:2]
        server.sql(
            "INSERT INTO followed SELECT seq, CONCAT('item ', seq), seq / 100, NOW(6) FROM seq_1_to_100000; "
            "UPDATE followed SET item = 'other' WHERE id <= 50000; DELETE FROM followed WHERE id > 80000",
            database="shop",
        )
        settings = {
            **_login(server),
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{server.directory}/offsets",
            "start": json.dumps({"file": file, "pos": int(position)}),
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
            "database.server.id": "7",
            "database.include.list": "shop",
            "table.include.list": "shop.followed",
            "snapshot.mode": "recovery",
        }
        return _side_by_side("MariaDB", lambda _: by_debezium(settings), feed, start)


def _login(server: PostgresServer | MariadbServer) -> dict[str, str]:
    return {
        "name": "peer",
        "topic.prefix": "peer",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "tombstones.on.delete": "false",
        "max.batch.size": "20000",
        "max.queue.size": "80000",
    }


def _side_by_side(
    system: str, peer: Callable[[int], list[float]], feed: ChangeFeed, start: Any
) -> list[Row]:
    end = feed.latest(start, FeedLimit())
    theirs: list[list[float]] = []
    ours: list[list[float]] = []
    for number in range(ROUNDS):
        turns: list[Callable[[], None]] = [
            lambda number=number: theirs.append(peer(number)),  # type: ignore[misc] # mypy infers no lambda with a default
            lambda: ours.append(by_feed(feed, start, end)),
        ]
        for turn in turns if number % 2 else reversed(turns):
            turn()
    whole, cpu, wall, warm = (statistics.median(column) for column in zip(*theirs, strict=True))
    own_wall, own_cpu = (statistics.median(column) for column in zip(*ours, strict=True))
    note = f"{CHANGES:,} changes; Debezium {DEBEZIUM} without its start"
    speed = "changes/s"
    return [
        Row(f"{system}: spark-channel", CHANGES / own_wall, "", speed, f"{own_cpu:.2f} CPU s"),
        Row(f"{system}: Debezium", CHANGES / wall, "", speed, f"{warm:.2f} CPU s"),
        Row(f"{system}: with its start", CHANGES / whole, "", speed, f"{cpu:.2f} CPU s"),
        Row(f"{system}: time, Debezium / spark-channel", wall / own_wall, "", "x", note),
        Row(f"{system}: CPU, Debezium / spark-channel", warm / own_cpu, "", "x", note),
    ]


def by_feed(feed: ChangeFeed, start: Any, end: Any) -> list[float]:
    """(seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = sum(batch.num_rows for split in feed.changes(start, end) for batch in feed.read(split))
    assert count == CHANGES, count
    return [time.perf_counter() - wall, time.process_time() - cpu]


def by_debezium(settings: Mapping[str, str]) -> list[float]:
    """(seconds, CPU seconds) with the start, and without it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings"
        escaped = {name: value.replace("\\", "\\\\") for name, value in settings.items()}
        path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
        source = Path(__file__).with_name("Debezium.java")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", "-Xmx1g", quiet, "-cp", f"{debezium()}/*", str(source)]
        command += [str(path), str(CHANGES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    count, *seconds = map(float, done.stdout.split())
    assert count == CHANGES, count
    return seconds


# --- a limit for Spark's JDBC source ---


def fill(server: PostgresServer) -> None:
    server.psql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, status text, price numeric(15,2), "
        "day date, clerk text, note text); INSERT INTO orders SELECT i, i % 150000, 'O', i % 50000 / 100.0, "
        "date '1992-01-01' + i % 2400, 'Clerk#' || i % 1000, 'carefully final ' || md5(i::text) "
        f"FROM generate_series(1, {ROWS}) i; VACUUM ANALYZE orders"
    )


def throttled_jdbc() -> list[Row]:
    """Spark's JDBC source with a limit that it never reaches, and without: what `throttle` costs."""
    if not JDBC.exists():
        raise MissingError(f"{JDBC} (Debian: libpostgresql-jdbc-java)")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with contextlib.closing(PostgresServer.create()) as server:
        fill(server)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.jars", str(JDBC))
            .config("spark.driver.extraClassPath", str(JDBC))
            .getOrCreate()
        )
        register(spark, progress=False)
        try:
            orders = spark.read.format("jdbc").options(
                url=f"jdbc:{server.url}",
                driver="org.postgresql.Driver",
                user=server.user,
                password=server.password,
                dbtable="orders",
                fetchsize="10000",
                partitionColumn="id",
                lowerBound="1",
                upperBound=str(ROWS),
                numPartitions="2",
            )
            by_python = [
                alternate(
                    partial(_drain, orders, change), partial(_drain, orders, _as_they_are), ROUNDS
                )
                for change in (_throttled, _through_python)
            ]
        finally:
            spark.stop()
    return [
        Row(
            f"Spark's JDBC source: without / with {what}",
            ratio(plain, limited),
            "",
            "x",
            f"{ROWS:,} rows; {statistics.median(plain):.1f} s, {statistics.median(limited):.1f} s",
        )
        for what, (limited, plain) in zip(
            ("throttle", "mapInArrow that does nothing"), by_python, strict=True
        )
    ]


def _throttled(rows: DataFrame) -> DataFrame:
    return throttle(rows, "1G")


def _through_python(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(_unchanged, rows.schema)


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def _drain(orders: DataFrameReader, change: Callable[[DataFrame], DataFrame]) -> None:
    count = Observation()
    observed = change(orders.load()).observe(count, f.count(f.lit(1)).alias("rows"))
    observed.write.format("noop").mode("overwrite").save()
    assert count.get["rows"] == ROWS, count.get


def main() -> list[Row]:
    found = []
    for part in (postgresql_changes, mariadb_changes, beside_programs, throttled_jdbc):
        try:
            found += part()
        except MissingError as error:
            found.append(Row(f"skipped {part.__name__}: {error}", float("nan")))
    return found


if __name__ == "__main__":
    print_table(main())
