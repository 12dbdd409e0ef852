"""How much of a limit real databases use between the first row and the last: a part of `make bench BENCH=limits`.

Each run copies the rows of 10 s at the limit, by the local engine: from a table into nothing, from a generator into a
table, or from one table into another of the same server. Tables have a primary key, and targets two more indexes.
`busy`: two sessions keep a third of two cores of the server busy. Servers that keep statistics of their statements also
say how long their longest one was.

    python -m tests.benchmarks.limit_used --systems sqlite --ways read --speeds 1000,8000 --tasks 1,2,8 --seconds 60

runs one part and prints each row when it is there; a run lasts `--seconds` and a few more.
"""

import argparse
import contextlib
import itertools
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self
from unittest import mock

import spark_channel
from spark_channel.limits.client import LeaseLimiter
from tests.benchmarks.harness import Row, print_table
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


def _list_of(default: Any) -> Callable[[str], Any]:
    """Make a parser of values like `default`: a number, or several values with commas."""
    if not isinstance(default, tuple):
        return float
    kind = type(default[0])
    return lambda text: tuple(kind(part) for part in text.split(","))


@dataclass(frozen=True)
class Chosen:
    """What is run: every combination. A run copies the rows of `seconds` at its limit."""

    systems: tuple[str, ...] = ("postgresql", "mysql", "sqlite", "parquet")
    ways: tuple[str, ...] = ("read", "write", "transfer")
    speeds: tuple[int, ...] = (8_000, 40_000)
    tasks: tuple[int, ...] = (2,)
    loads: tuple[str, ...] = ("idle",)
    commits: tuple[str, ...] = ("task",)
    seconds: float = 10.0

    @classmethod
    def parse(cls) -> Self:
        """From the command line: `--systems postgresql,mysql --speeds 1000 --seconds 60`."""
        parser = argparse.ArgumentParser(description=__doc__)
        for each in fields(cls):
            parser.add_argument(f"--{each.name}", type=_list_of(each.default), default=each.default)
        return cls(**vars(parser.parse_args()))

    @property
    def rows(self) -> int:
        """The rows of the source."""
        return int(max(self.speeds) * self.seconds)


ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint NOT NULL, "
    "total double precision NOT NULL, note varchar(40) NOT NULL)"
)
COPY = (
    f"DROP TABLE IF EXISTS copy; {ORDERS.replace('orders', 'copy')}; "
    "CREATE INDEX copy_customer ON copy (customer); CREATE INDEX copy_note ON copy (note)"
)
GENERATED = {
    "name": "generator",
    "schema": "id BIGINT, customer BIGINT, total DOUBLE, note STRING",
}


class Paid:
    """When which rows were paid for, in all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: list[tuple[float, int]] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        original = LeaseLimiter.pay

        def pay(limiter: LeaseLimiter, rows: int, *more: Any) -> Any:
            with self._lock:
                self._at.append((time.monotonic(), rows))
            return original(limiter, rows, *more)

        with mock.patch.object(LeaseLimiter, "pay", pay):
            yield

    def used(self, speed: int) -> float:
        """The used part of the limit between the first payment and the last."""
        times = sorted(self._at)
        return sum(rows for _, rows in times[:-1]) / (times[-1][0] - times[0][0]) / speed


class System:
    """A database, or a folder, with the table `orders`; `copy` is made again before each run."""

    statements = ""
    """The query of the longest statement, in milliseconds, and its text."""
    work = ""
    """What keeps a third of a core busy, for `{}` seconds."""

    def sql(self, script: str) -> str:
        raise NotImplementedError

    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {**self.place, "dbtable": "orders"}, {**self.place, "dbtable": "copy"}

    place: dict[str, Any]

    def empty(self) -> None:
        self.sql(COPY)

    def longest(self, run: str) -> list[Row]:
        """The longest statement of the last run."""
        if not self.statements:
            return []
        ms, _, text = self.sql(self.statements).replace("\t", "|").partition("|")
        note = " ".join(text.split())[:60]
        return [Row(f"{run}: longest statement", float(ms or 0), "<= 5", "ms", note)]

    @contextlib.contextmanager
    def loaded(self, load: str, seconds: float) -> Iterator[None]:
        if load == "idle":
            yield
            return
        work = self.work.format(seconds + 3)
        with ThreadPoolExecutor() as pool:
            busy = [pool.submit(self.sql, work) for _ in range(2)]
            yield
            for each in busy:
                each.result()


class Postgres(System):
    statements = (
        "SELECT max_exec_time, query FROM pg_stat_statements WHERE userid = "
        "'loader'::regrole AND query !~* '^copy .*from stdin' ORDER BY 1 DESC LIMIT 1"
    )
    work = (
        "DO $$ DECLARE until timestamptz := clock_timestamp() + interval '{} s'; t timestamptz; BEGIN "
        "WHILE clock_timestamp() < until LOOP t := clock_timestamp() + interval '10 ms'; "
        "WHILE clock_timestamp() < t LOOP END LOOP; PERFORM pg_sleep(0.02); END LOOP; END $$"
    )

    def __init__(self, stack: contextlib.ExitStack, rows: int) -> None:
        server = PostgresServer.create(
            shared_preload_libraries="pg_stat_statements", autovacuum="off"
        )
        stack.callback(server.close)
        self.sql = server.psql  # type: ignore[method-assign, assignment]  # its client
        self.sql(
            "CREATE EXTENSION pg_stat_statements; CREATE ROLE loader LOGIN PASSWORD 'of-loader'; "
            f"GRANT CREATE ON SCHEMA public TO loader; SET ROLE loader; {ORDERS}; "
            "INSERT INTO orders SELECT n, n % 997, n % 9973, lpad(n::text, 30, '.') "
            f"FROM generate_series(1, {rows}) AS n"
        )
        self.sql("VACUUM ANALYZE orders")  # after the session that has counted the rows
        self.place = {
            "name": "postgresql",
            "url": server.url,
            "user": "loader",
            "password": "of-loader",
        }

    def empty(self) -> None:
        self.sql(f"SET ROLE loader; {COPY}; RESET ROLE; SELECT pg_stat_statements_reset()")


class Mysql(System):
    statements = (
        "SELECT MAX_TIMER_WAIT / 1e9, DIGEST_TEXT FROM "
        "performance_schema.events_statements_summary_by_digest "
        "WHERE SCHEMA_NAME = 'shop' AND DIGEST_TEXT NOT LIKE 'BEGIN NOT%' ORDER BY 1 DESC LIMIT 1"
    )
    work = (
        "\nDELIMITER //\nBEGIN NOT ATOMIC DECLARE t, until DATETIME(6); "
        "SET until = SYSDATE(6) + INTERVAL {} SECOND; WHILE SYSDATE(6) < until DO "
        "SET t = SYSDATE(6) + INTERVAL 10000 MICROSECOND; "
        "WHILE SYSDATE(6) < t DO SET @n = 1; END WHILE; DO SLEEP(0.02); END WHILE; END //\n"
    )

    def __init__(self, stack: contextlib.ExitStack, rows: int) -> None:
        server = MariadbServer.create(performance_schema="ON")
        stack.callback(server.close)
        self._server = server
        self.sql(
            f"{ORDERS}; INSERT INTO orders SELECT seq, seq % 997, seq % 9973, "
            f"LPAD(seq, 30, '.') FROM seq_1_to_{rows}; ANALYZE TABLE orders"
        )
        self.place = {"name": "mysql", **server.login}

    def sql(self, script: str) -> str:
        return self._server.sql(script, database="shop")

    def empty(self) -> None:
        self.sql(f"{COPY}; TRUNCATE performance_schema.events_statements_summary_by_digest")


class Sqlite(System):
    def __init__(self, stack: contextlib.ExitStack, rows: int) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self._path = str(Path(folder) / "shop.db")
        self.sql(
            f"PRAGMA journal_mode = WAL; {ORDERS}; WITH RECURSIVE n(n) AS "
            f"(SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) "
            "INSERT INTO orders SELECT n, n % 997, n % 9973, printf('%030d', n) FROM n"
        )
        self.place = {"name": "sqlite", "path": self._path}

    def sql(self, script: str) -> str:
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            database.executescript(script)
        return ""


class Parquet(System):
    def __init__(self, stack: contextlib.ExitStack, rows: int) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark_channel.transfer(None, {**GENERATED, "rows": rows}, self.sides()[0], channels=2)

    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        orders, copy = (
            {"name": "parquet", "path": str(self._folder / each)} for each in ("orders", "copy")
        )
        return orders, copy

    def empty(self) -> None:
        shutil.rmtree(self._folder / "copy", ignore_errors=True)


MADE = {"postgresql": Postgres, "mysql": Mysql, "sqlite": Sqlite, "parquet": Parquet}


def run(
    name: str,
    system: System,
    chosen: Chosen,
    way: str,
    speed: int,
    tasks: int,
    load: str,
    commit: str,
) -> list[Row]:
    """Copy once: how much of the limit was used, and the server's longest statement."""
    rows = int(speed * chosen.seconds)
    reader, writer = system.sides()
    if way == "write":
        reader = {**GENERATED, "rows": rows}
    elif rows < chosen.rows:
        reader["where"] = f"id <= {rows}"
    if way == "read":
        writer = {"name": "discard"}
    system.empty()
    paid = Paid()
    with paid.noted(), system.loaded(load, chosen.seconds):
        report = spark_channel.transfer(
            None, reader, writer, channels=tasks, rows_per_second=speed, commit=commit
        )
    waits = report.waits_by_side
    total = sum(waits.values()) or 1.0
    note = " ".join(f"{side} {100 * each / total:.0f} %" for side, each in waits.items())
    label = f"{name}, {way}, {speed} rows/s, {tasks} tasks, {load}, commit={commit}"
    asked = f">= {98 if load == 'idle' else 95}"
    used = Row(f"{label}: limit used", 100 * paid.used(speed), asked, "%", f"waits: {note}")
    return [used, *system.longest(label)]


def each_run(chosen: Chosen) -> Iterator[list[Row]]:
    """Run every combination that was chosen; only servers are busy."""
    for name in chosen.systems:
        with contextlib.ExitStack() as stack:
            system = MADE[name](stack, chosen.rows)
            for load, way, speed, tasks in itertools.product(
                chosen.loads if system.work else ("idle",),
                chosen.ways,
                chosen.speeds,
                chosen.tasks,
            ):
                for commit in chosen.commits if way != "read" else ("task",):
                    yield run(name, system, chosen, way, speed, tasks, load, commit)


def main() -> list[Row]:
    return [row for rows in each_run(Chosen()) for row in rows]


if __name__ == "__main__":
    for found in each_run(Chosen.parse()):
        print_table(found)
