"""What `protect=auto` does when something happens to a server: a replica stops, the application has a burst, a pause of
half a minute, a second job. By the local engine, into PostgreSQL, on a machine with two cores.

    make bench BENCH=protect      (about 6 minutes)
    python -m tests.benchmarks.bench_protect burst pause      (some parts: replica, burst, pause, second)

Each event begins ten seconds after the job. A figure is the job's speed then, in terms of its speed before. The job has
its own role, so that it sees the application's statements.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import spark_channel
from spark_channel.progress import TransferReport
from spark_channel.service import LimitControl
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer, programs

COLUMNS = "id bigint, text_1 text"
BEGIN, REPLAY_SECONDS, BURST_SECONDS, PAUSE_SECONDS = 10.0, 8.0, 8.0, 30.0
SCALE = float(os.environ.get("SPARK_CHANNEL_BENCH_SCALE", "1"))
LIMIT = int(30_000 * SCALE)
"""Below what the machine can do, so that a speed is the controller's doing."""


class Bench:
    def __init__(self, server: PostgresServer, standby: PostgresServer) -> None:
        self._server = server
        self._standby = standby
        self._login = {"url": server.url, "user": "loader", "password": "of-loader"}

    def job(self, table: str, seconds: float) -> TransferReport:
        """Rows from a generator into `table`, for so many seconds at the limit."""
        self._server.psql(f"SET client_min_messages = error; DROP TABLE IF EXISTS {table}")
        return spark_channel.transfer(
            None,
            reader={"name": "generator", "rows": int(LIMIT * seconds), "rowBytes": 60},
            writer={"name": "postgresql", "dbtable": table, **self._login},
            channels=2,
            commit="task",
            rows_per_second=LIMIT,
            protect="auto",
        )

    def during(self, seconds: float, event: Callable[[], None]) -> TransferReport:
        """A job, in which the event begins after ten seconds."""
        timer = threading.Timer(BEGIN, event)
        timer.start()
        try:
            return self.job("copy", seconds)
        finally:
            timer.cancel()
            timer.join()

    def replica_stops(self) -> None:
        self._standby.psql("SELECT pg_wal_replay_pause()")
        time.sleep(REPLAY_SECONDS)
        self._standby.psql("SELECT pg_wal_replay_resume()")

    def burst(self) -> None:
        """pgbench as fast as it can."""
        self._pgbench("-n", "-T", f"{BURST_SECONDS:.0f}", "-c", "8")

    def pause(self) -> None:
        name = next(each.name for each in LimitControl().all() if each.name.startswith("job:"))
        LimitControl().pause(name)
        time.sleep(PAUSE_SECONDS)
        LimitControl().resume(name)

    def fill(self) -> None:
        self._server.psql(
            "CREATE EXTENSION pg_stat_statements; "
            "CREATE ROLE loader LOGIN PASSWORD 'of-loader' IN ROLE pg_monitor; "
            "GRANT CREATE ON SCHEMA public TO loader"
        )
        self._pgbench("-i", "-q", "-s", "5")

    def _pgbench(self, *arguments: str) -> None:
        server = self._server
        login = ["-h", str(server.directory), "-p", str(server.port), "-U", server.user]
        subprocess.run(
            [str(programs() / "pgbench"), *login, *arguments, "postgres"],
            check=True,
            capture_output=True,
            timeout=120,
        )


def _speed(report: TransferReport, begin: float, end: float) -> float:
    """Rows per second between two seconds of a job."""
    found = [each.rows_per_second for each in report.samples if begin <= each.seconds <= end]
    return sum(found) / len(found) if found else 0.0


def _rows(name: str, report: TransferReport, begin: float, end: float) -> list[Row]:
    before = _speed(report, 6.0, BEGIN)
    last = report.last_row_seconds
    held = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.held.items())
    return [
        Row(f"{name}: speed before", before, unit="rows/s"),
        Row(f"{name}: speed then", _speed(report, begin, end) / before, unit="x before"),
        Row(
            f"{name}: the last seconds",
            _speed(report, last - 5.0, last - 1.0) / before,
            unit="x before",
            note=f"held by: {held or 'nothing'}",
        ),
    ]


def _replica(bench: Bench) -> list[Row]:
    return _rows("a replica stops for 8 s", bench.during(40.0, bench.replica_stops), 13.0, 17.0)


def _burst(bench: Bench) -> list[Row]:
    return _rows("a burst of 8 s", bench.during(30.0, bench.burst), 12.0, 17.0)


def _pause(bench: Bench) -> list[Row]:
    return _rows("a pause of 30 s", bench.during(25.0, bench.pause), 13.0, 38.0)


def _second(bench: Bench) -> list[Row]:
    with ThreadPoolExecutor() as pool:
        second: list[Future[TransferReport]] = []
        first = bench.during(30.0, lambda: second.append(pool.submit(bench.job, "copy_2", 10.0)))
    return [
        *_rows("a second job", first, 16.0, 20.0),
        Row("a second job: its own speed", second[0].result().rows_per_second, unit="rows/s"),
    ]


PARTS = {"replica": _replica, "burst": _burst, "pause": _pause, "second": _second}


def main(parts: Sequence[str] = tuple(PARTS)) -> list[Row]:
    with contextlib.ExitStack() as stack:
        server = PostgresServer.create(
            autovacuum="off", shared_preload_libraries="pg_stat_statements"
        )
        stack.callback(server.close)
        standby = server.standby()
        stack.callback(standby.close)
        bench = Bench(server, standby)
        bench.fill()
        return [row for part in parts for row in PARTS[part](bench)]


if __name__ == "__main__":
    print_table(main(sys.argv[1:] or tuple(PARTS)))
