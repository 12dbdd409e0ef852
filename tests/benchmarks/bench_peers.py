"""Debezium's embedded engine beside spark-channel's change feed: the same changes of one server, in one run.

Its jars come from Maven, once, into artifacts/peers.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "artifacts" / "peers"
DEBEZIUM = "3.6.1.Final"
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
CHANGES = 170_000
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>peers</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def debezium() -> Path:
    """The folder of Debezium's jars."""
    to = PEERS / "debezium"
    if not to.exists():
        names = ("debezium-api", "debezium-embedded", "debezium-connector-postgres")
        listed = [("io.debezium", name, DEBEZIUM) for name in names]
        listed.append(("org.slf4j", "slf4j-simple", "1.7.36"))
        each = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
        with tempfile.TemporaryDirectory() as folder:
            pom = Path(folder) / "pom.xml"
            pom.write_text(_POM.format("".join(each.format(*one) for one in listed)))
            subprocess.run(
                [
                    "mvn",
                    "-B",
                    "-q",
                    "-f",
                    pom,
                    _COPY,
                    "-DincludeScope=runtime",
                    f"-DoutputDirectory={folder}/jars",
                ],
                check=True,
            )
            PEERS.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{folder}/jars", to)
    return to


def changes(server: PostgresServer) -> list[Row]:
    """The same changes by slots of one server, each read once."""
    server.psql(
        "CREATE TABLE followed (id int PRIMARY KEY, item text, price numeric(8,2), at timestamptz);"
        "CREATE PUBLICATION followed FOR TABLE followed"
    )
    jars = debezium()
    reader, _ = load_reader({**server.login, "dbtable": "followed"})
    feed = reader.feed(FeedOptions(slot="followed", publication="followed"))
    (start,) = feed.now()
    for number in range(ROUNDS):
        server.psql(f"SELECT pg_create_logical_replication_slot('debezium_{number}', 'pgoutput')")
    server.psql(
        "INSERT INTO followed SELECT i, 'item ' || i, i / 100.0, now() FROM generate_series(1, 100000) i;"
        "UPDATE followed SET item = 'other' WHERE id <= 50000; DELETE FROM followed WHERE id > 80000"
    )
    end = feed.latest(start, FeedLimit())
    theirs: list[list[float]] = []
    ours: list[list[float]] = []
    for number in range(ROUNDS):
        turns: list[Callable[[], None]] = [
            lambda slot=number: theirs.append(by_debezium(server, jars, slot)),  # type: ignore[misc]
            lambda: ours.append(by_feed(feed, start, end)),
        ]
        for turn in turns if number % 2 else reversed(turns):
            turn()
    whole, cpu, wall, warm = (statistics.median(column) for column in zip(*theirs, strict=True))
    own_wall, own_cpu = (statistics.median(column) for column in zip(*ours, strict=True))
    note = f"170,000 changes of PostgreSQL's log; Debezium {DEBEZIUM} without its start"
    return [
        Row("spark-channel: changes", CHANGES / own_wall, "", "changes/s", f"{own_cpu:.2f} CPU s"),
        Row("Debezium: changes", CHANGES / wall, "", "changes/s", f"{warm:.2f} CPU s; {note}"),
        Row("Debezium with its start", CHANGES / whole, "", "changes/s", f"{cpu:.2f} CPU s"),
        Row("time: Debezium / spark-channel", wall / own_wall, "", "x", note),
        Row("CPU: Debezium / spark-channel", warm / own_cpu, "", "x", note),
    ]


def by_feed(feed: object, start: object, end: object) -> list[float]:
    """(seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = sum(
        batch.num_rows
        for split in feed.changes(start, end)  # type: ignore[attr-defined]
        for batch in feed.read(split)  # type: ignore[attr-defined]
    )
    assert count == CHANGES, count
    return [time.perf_counter() - wall, time.process_time() - cpu]


def by_debezium(server: PostgresServer, jars: Path, slot: int) -> list[float]:
    """(seconds, CPU seconds) with the start, and without it."""
    settings = {
        "name": "peer",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.dbname": server.url.rpartition("/")[2],
        "topic.prefix": "peer",
        "plugin.name": "pgoutput",
        "slot.name": f"debezium_{slot}",
        "publication.name": "followed",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.followed",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "max.batch.size": "20000",
        "max.queue.size": "80000",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings"
        escaped = {name: value.replace("\\", "\\\\") for name, value in settings.items()}
        path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
        source = Path(__file__).with_name("Debezium.java")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = [
            "java",
            "-Xmx1g",
            quiet,
            "-cp",
            f"{jars}/*",
            str(source),
            str(path),
            str(CHANGES),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    count, *seconds = map(float, done.stdout.split())
    assert count == CHANGES, count
    return seconds


def main() -> list[Row]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        return [
            Row(
                "skipped: Maven and Java fetch and run Debezium; install them (Debian: maven)",
                float("nan"),
            )
        ]
    with contextlib.closing(PostgresServer.create()) as server:
        return changes(server)


if __name__ == "__main__":
    print_table(main())
