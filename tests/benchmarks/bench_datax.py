"""DataX and `spark-channel run` on the same job files: wall and CPU time, and what a limit lets through.

`DATAX` is the folder of a DataX that was built, `JAVA` the Java 8 that runs it. Both run as commands, in turns; CPU is
theirs, without that of the servers.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row, print_table
from tests.datax.renew import datax_command
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
COLUMNS = ["id", "name", "price", "day"]
LINE = 1_000
"""Bytes of each row of the limited jobs, with its line end: files are written in blocks of 64 KiB, some 65 rows."""
SECONDS = 8
Job = dict[str, Any]


def job(reader: Job, writer: Job, channels: int = 1, **more: Any) -> Job:
    """A job file."""
    setting = {"speed": {"channel": channels, **more.pop("speed", {})}}
    return {"job": {"setting": setting, "content": [{"reader": reader, "writer": writer}]}, **more}


def stream(rows: int, value: str = "a text of some length") -> Job:
    """A reader of constants."""
    column = [{"type": "string", "value": value}]
    return {"name": "streamreader", "parameter": {"column": column, "sliceRecordCount": rows}}


def ours(path: Path) -> list[str]:
    command = Path(sys.executable).with_name("spark-channel")
    return [str(command), "run", str(path), "--engine", "local"]


def spent(command: list[str]) -> tuple[float, float]:
    """Seconds of wall and of CPU.

    Raises:
        RuntimeError: the command failed.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)[-200:]} failed: {(done.stdout + done.stderr)[-800:]}"
        )
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def beside(name: str, path: Path, before: Callable[[], object] = lambda: None) -> list[Row]:
    """Wall and CPU of ours as parts of DataX's: the median of the rounds."""
    pairs = []
    for number in range(ROUNDS):
        sides = [ours(path), datax_command(path, memory="1g")]
        measured = {}
        for side in (0, 1) if number % 2 else (1, 0):
            before()
            measured[side] = spent(sides[side])
        pairs.append((measured[0], measured[1]))
    rows = []
    for place, what, asked in ((0, "wall", "<= 0.5"), (1, "CPU", "<= 0.35")):
        value = statistics.median(a[place] / b[place] for a, b in pairs)
        seconds = [statistics.median(pair[side][place] for pair in pairs) for side in (0, 1)]
        note = f"{seconds[0]:.1f} s and {seconds[1]:.1f} s"
        rows.append(Row(f"{name}: {what}, DataX = 1", value, asked, "x", note))
    return rows


@contextmanager
def written(folder: Path, whole: Job) -> Iterator[Path]:
    path = folder / "job.json"
    path.write_text(json.dumps(whole))
    yield path


def streams(folder: Path) -> list[Row]:
    """Nothing but starting, and nothing but rows."""
    rows = []
    for name, count in (("ten rows", 10), (f"stream of {10 * ROWS:,} rows", 10 * ROWS)):
        whole = job(stream(count), {"name": "streamwriter", "parameter": {"print": False}})
        with written(folder, whole) as path:
            rows += beside(name, path)
    return rows


def databases(folder: Path) -> list[Row]:
    """From and to tables, with three channels."""
    with closing(MariadbServer.create()) as mariadb, closing(PostgresServer.create()) as postgres:
        fill = "SELECT n, concat('name ', n), n / 100.0, {} FROM {}"
        made = "(id int primary key, name varchar(40), price decimal(12,2), day date)"
        mariadb.sql(
            f"CREATE TABLE s {made}; CREATE TABLE t {made}; INSERT INTO s "
            + fill.format("'2024-01-31'", f"(SELECT seq AS n FROM seq_1_to_{ROWS}) q"),
            database="shop",
        )
        postgres.psql(
            f"CREATE TABLE s {made}; CREATE TABLE t {made}; INSERT INTO s "
            + fill.format("date '2024-01-31'", f"generate_series(1, {ROWS}) n")
        )
        urls = {
            "mysql": f"jdbc:mysql://127.0.0.1:{mariadb.port}/shop?useSSL=false",
            "postgresql": f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres",
        }
        servers: dict[str, Any] = {"mysql": mariadb, "postgresql": postgres}

        def end(kind: str, half: str) -> Job:
            login = {"username": servers[kind].user, "password": servers[kind].password}
            url: Any = [urls[kind]] if half == "reader" else urls[kind]
            connection = [{"jdbcUrl": url, "table": ["s" if half == "reader" else "t"]}]
            parameter = {**login, "column": COLUMNS, "connection": connection}
            parameter |= {"splitPk": "id"} if half == "reader" else {}
            return {"name": kind + half, "parameter": parameter}

        def emptied() -> None:
            mariadb.sql("TRUNCATE t", database="shop")
            postgres.psql("TRUNCATE t")

        out = {"path": str(folder / "out"), "fileName": "o", "writeMode": "truncate"}
        file = {"name": "txtfilewriter", "parameter": out}
        lines = folder / "in.csv"
        lines.write_text("".join(f"{n},name {n},{n / 100},2024-01-31\n" for n in range(ROWS)))
        kinds = ("long", "string", "double", "date")
        columns = [{"index": number, "type": kind} for number, kind in enumerate(kinds)]
        texts = {"name": "txtfilereader", "parameter": {"path": [str(lines)], "column": columns}}
        rows = []
        for name, reader, writer in (
            ("MariaDB to MariaDB", end("mysql", "reader"), end("mysql", "writer")),
            ("PostgreSQL to PostgreSQL", end("postgresql", "reader"), end("postgresql", "writer")),
            ("PostgreSQL to csv", end("postgresql", "reader"), file),
            ("csv to PostgreSQL", texts, end("postgresql", "writer")),
        ):
            with written(folder, job(reader, writer, 3)) as path:
                rows += beside(f"{name}, {ROWS:,} rows", path, emptied)
        return rows


def arrivals(command: list[str], out: Path) -> list[tuple[float, int]]:
    """(when, rows so far) at the target, looked at 50 times a second."""
    seen: list[tuple[float, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            size = 0
            for path in out.rglob("*"):
                try:
                    size += path.stat().st_size if "o__" in path.name else 0
                except FileNotFoundError:  # published between the two looks
                    continue
            seen.append((time.perf_counter(), size // LINE))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        spent(command)
    finally:
        ended.set()
        watcher.join()
    return seen


def flow(seen: list[tuple[float, int]]) -> tuple[float, float]:
    """Rows per second from the first to the last one, and in the fullest second."""
    moving = [point for before, point in itertools.pairwise(seen) if point[1] > before[1]]
    whole = (moving[-1][1] - moving[0][1]) / (moving[-1][0] - moving[0][0])
    worst, begin = 0, 0
    for at, rows in seen:
        while seen[begin][0] < at - 1:
            begin += 1
        worst = max(worst, rows - seen[begin][1])
    return whole, float(worst)


def limits(folder: Path) -> list[Row]:
    """The rows of a job that reach the target each second."""
    rows = []
    for channels, limit, each in ((1, 5_000, 5_000), (4, 8_000, 2_000), (1, 5_000, 20_000)):
        count = limit * SECONDS // channels
        out = folder / f"limited-{channels}-{each}"
        out.mkdir()
        parameter = {"path": str(out), "fileName": "o", "writeMode": "truncate"}
        whole = job(
            stream(count, "x" * (LINE - 1)),
            {"name": "txtfilewriter", "parameter": parameter},
            channels,
            speed={"record": limit},
            core={"transport": {"channel": {"speed": {"record": each}}}},
        )
        whole["job"]["setting"]["speed"].pop("channel")
        name = f"{limit:,} rows/s, {each:,} per channel"
        with written(folder, whole) as path:
            flows = [flow(arrivals(side, out)) for side in (ours(path), datax_command(path))]
        mean, worst = ([each[place] / limit for each in flows] for place in (0, 1))
        rows.append(Row(f"{name}: mean", mean[0], "<= 1.02", "x", f"DataX {mean[1]:.2f} x"))
        rows.append(
            Row(f"{name}: worst second", worst[0], "<= 1.1", "x", f"DataX {worst[1]:.2f} x")
        )
    return rows


def main() -> list[Row]:
    """Every figure, or one line that says what is missing."""
    if "DATAX" not in os.environ:
        return [Row("not measured: set DATAX to the folder of a built DataX", 0)]
    rows: list[Row] = []
    for part in (streams, databases, limits):
        with tempfile.TemporaryDirectory() as name:
            rows += part(Path(name))
    return rows


if __name__ == "__main__":
    print_table(main())
