"""`spark-channel run` with both engines, as processes: a ten-row job from start to exit, and 2 M rows.

SPARK_CHANNEL_BENCH_ROWS changes the number of rows; wall clock and CPU are of the command and all its children.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer

ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "2000000"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
CHANNELS = 2


def ran(*arguments: str) -> tuple[float, float]:
    """Seconds of the wall and of the CPU that the command took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "spark_channel.cli", "run", *arguments],
        check=True,
        capture_output=True,
    )
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu


def job(folder: Path, reader: dict[str, Any], writer: dict[str, Any], channels: int) -> str:
    path = folder / "job.json"
    content = [{"reader": reader, "writer": writer}]
    path.write_text(
        json.dumps({"job": {"setting": {"speed": {"channel": channels}}, "content": content}})
    )
    return str(path)


def ten_rows(folder: Path) -> list[Row]:
    column = [{"value": "x", "type": "string"}, {"value": 1, "type": "long"}]
    reader = {"name": "streamreader", "parameter": {"column": column, "sliceRecordCount": 10}}
    file = job(folder, reader, {"name": "streamwriter"}, 1)
    ran(file)
    taken = [ran(file) for _ in range(2 * ROUNDS)]
    wall, cpu = (min(each) for each in zip(*taken, strict=True))
    return [
        Row("ten rows, local, start to exit", wall, "<= 1.0", "s"),
        Row("  of that on the CPU", cpu, "", "s"),
    ]


def two_million(folder: Path, server: PostgresServer) -> list[Row]:
    server.psql(
        "CREATE TABLE s (id bigint PRIMARY KEY, name text, price numeric(12,2), at timestamp, note text); "
        f"INSERT INTO s SELECT n, 'name ' || n, n / 7.0, '2024-01-01'::timestamp + n * interval '1 second', "
        f"repeat(md5(n::text), 2) FROM generate_series(1, {ROWS}) n; ANALYZE s; CHECKPOINT"
    )
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    login = {"username": server.user, "password": server.password, "column": ["*"]}
    reader = {
        "name": "postgresqlreader",
        "parameter": {**login, "splitPk": "id", "connection": [{"jdbcUrl": [url], "table": ["s"]}]},
    }
    writer = {
        "name": "postgresqlwriter",
        "parameter": {**login, "connection": [{"jdbcUrl": url, "table": ["t"]}]},
    }
    file = job(folder, reader, writer, CHANNELS)
    engines: dict[str, list[float]] = {"local": [], "spark": []}
    for number in range(ROUNDS):
        for engine in sorted(engines, reverse=bool(number % 2)):
            server.psql(
                "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (LIKE s); CHECKPOINT"
            )
            engines[engine].append(ran(file, "--engine", engine)[0])
            found = server.psql("SELECT count(*), count(DISTINCT id) FROM t")
            assert found == f"{ROWS}|{ROWS}", found
    local, spark = (statistics.median(engines[engine]) for engine in ("local", "spark"))
    return [
        Row(
            f"{ROWS} rows PostgreSQL to PostgreSQL, local",
            local,
            f"<= {spark:.2f}",
            "s",
            str(engines["local"]),
        ),
        Row(f"{ROWS} rows PostgreSQL to PostgreSQL, Spark", spark, "", "s", str(engines["spark"])),
    ]


def main() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        rows = ten_rows(Path(name))
        server = PostgresServer.create()
        try:
            return [*rows, *two_million(Path(name), server)]
        finally:
            server.close()


if __name__ == "__main__":
    print_table(main())
