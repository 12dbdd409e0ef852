"""Whole copies beside other programs: CPU seconds of client and server, time and memory.

A part of `make bench BENCH=peers`; alone by `python -m tests.benchmarks.program_copies`. Each copy is a process of its
own, from its start to its end, in turns; after each one the target has the rows of the source.

SPARK_CHANNEL_BENCH_BEFORE=/path/to/a/checkout measures another version too,
SPARK_CHANNEL_BENCH_PARTS="rows_into_parquet" only the jobs of some functions.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import duckdb

from tests.benchmarks.harness import Row, print_table
from tests.benchmarks.programs import (
    ADBC,
    CONNECTORX,
    DLT,
    DUCKDB,
    SEATUNNEL,
    SLING,
    Command,
    Programs,
)
from tests.servers.mariadb import DATABASE, MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["beside_programs"]

ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "1500000"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "5"))
BEFORE = os.environ.get("SPARK_CHANNEL_BENCH_BEFORE", "")
OURS = "spark-channel"
COLUMNS = (
    "id bigint PRIMARY KEY, customer bigint, status varchar(1), price {}, day date, priority varchar(15), "
    "clerk varchar(15), ship bigint, note varchar(79)"
)
_LINE = (
    "concat_ws('|', id, customer, status, CAST(price AS DECIMAL(15,2)), CAST(day AS DATE), priority, "
    "clerk, ship, note)"
)
_SUM = "SELECT concat(count(*), '|', sum({})) FROM {}"
_SUMS = {
    "postgresql": _SUM.format(f"('x' || substr(md5({_LINE}), 1, 8))::bit(32)::bigint", "{}"),
    "mariadb": _SUM.format(f"CAST(CONV(LEFT(MD5({_LINE}), 8), 16, 10) AS UNSIGNED)", "{}"),
    "duckdb": _SUM.format(f"('0x' || substr(md5({_LINE}), 1, 8))::BIGINT", "read_parquet('{}')"),
}
"""The rows' number and checksum."""
_UNCOMPILED = "PYTHONDONTWRITEBYTECODE"
"""With it each process compiles the modules that it imports."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Job:
    """One copy. `ready` empties the target, `found` is what it has; `commands` by the name and version of a program."""

    name: str
    commands: Mapping[str, Command]
    ready: Callable[[], object]
    found: Callable[[], str]
    expected: str
    pids: Sequence[Path]
    """Files with the pids of the servers."""


@dataclass(frozen=True)
class Spent:
    """What one copy took; seconds, and the MB of the largest process of the client."""

    client: float
    server: float
    wall: float
    memory: float


@dataclass(frozen=True)
class Place:
    """The servers and programs of all jobs, and a folder of their own."""

    postgres: PostgresServer
    mariadb: MariadbServer
    programs: Programs
    folder: Path

    def uri(self, database: str) -> str:
        url = self.postgres.url.replace("//", f"//{self.postgres.user}:{self.postgres.password}@")
        return url.replace("/postgres", f"/{database}")

    def table(self, database: str, name: str) -> str:
        """A table of PostgreSQL, as spark-channel names it."""
        url = self.postgres.url.replace("/postgres", f"/{database}")
        return f"{url}?dbtable={name}&user={self.postgres.user}&password={self.postgres.password}"

    def mariadb_table(self, database: str) -> str:
        url = self.mariadb.url.replace(f"/{DATABASE}", f"/{database}")
        password = quote(self.mariadb.password, safe="")
        return f"{url}?dbtable=orders&user={self.mariadb.user}&password={password}"

    def empty(self, table: str = "orders", price: str = "numeric(15,2)") -> None:
        """A new table in the database `other`."""
        self.postgres.psql(
            f"SET client_min_messages = error; DROP TABLE IF EXISTS {table}; CREATE TABLE {table} "
            f"({COLUMNS.format(price)}); CHECKPOINT",
            database="other",
        )

    def sums(self, table: str = "orders", database: str = "other") -> str:
        return self.postgres.psql(_SUMS["postgresql"].format(table), database=database).strip()

    def empty_mariadb(self, database: str) -> None:
        made = (
            f"DROP TABLE IF EXISTS orders; CREATE TABLE orders ({COLUMNS.format('decimal(15,2)')})"
        )
        self.mariadb.sql(made, database=database)

    def mariadb_sums(self, database: str) -> str:
        return self.mariadb.sql(_SUMS["mariadb"].format("orders"), database=database).strip()


def copy(source: str, target: str) -> dict[str, Command]:
    """The command of spark-channel, and of the version before."""
    command = [Path(sys.executable).with_name("spark-channel"), "copy", source, target]
    before = {"the version before": ["env", f"PYTHONPATH={BEFORE}", *command]} if BEFORE else {}
    return {OURS: command, **before}


def beside_programs() -> list[Row]:
    """The medians of each program, and those of spark-channel divided by them."""
    programs = Programs.installed()
    parts = os.environ.get("SPARK_CHANNEL_BENCH_PARTS", "").split()
    found: list[Row] = []
    with (
        contextlib.closing(PostgresServer.create(autovacuum="off")) as postgres,
        contextlib.closing(MariadbServer.create()) as mariadb,
        tempfile.TemporaryDirectory() as folder,
    ):
        place = Place(postgres, mariadb, programs, Path(folder))
        fill(place)
        for part in (
            rows_into_postgresql,
            rows_into_parquet,
            files_into_postgresql,
            rows_into_mariadb,
        ):
            if not parts or part.__name__ in parts:
                for job in part(place):
                    found += _measured(job, place.folder)
    return found


def _measured(job: Job, folder: Path) -> list[Row]:
    spent: dict[str, list[Spent]] = {name: [] for name in job.commands}
    for number in range(ROUNDS):
        for name in list(spent) if number % 2 else reversed(list(spent)):
            job.ready()
            spent[name].append(_spent(job.commands[name], job.pids, folder))
            assert job.found() == job.expected, (job.name, name, job.found(), job.expected)
    ours = spent[OURS]
    rows = []
    for name, theirs in spent.items():
        client, server, wall, memory = (
            statistics.median(getattr(each, field) for each in theirs)
            for field in Spent.__dataclass_fields__
        )
        note = f"{client:.2f} client + {server:.2f} server, {wall:.2f} s, {memory:.0f} MB"
        rows.append(Row(f"{job.name}: {name}", client + server, "", "CPU s", note))
        if theirs is not ours:
            rows += [
                Row(f"{job.name}: {what}, {OURS} / {name}", _ratio(ours, theirs, of), "", "x")
                for what, of in _RATIOS.items()
            ]
    return rows


_RATIOS: Mapping[str, Callable[[Spent], float]] = {
    "CPU": lambda spent: spent.client + spent.server,
    "client's CPU": lambda spent: spent.client,
    "time": lambda spent: spent.wall,
}


def _ratio(ours: list[Spent], theirs: list[Spent], of: Callable[[Spent], float]) -> float:
    return statistics.median(map(of, ours)) / statistics.median(map(of, theirs))


def _spent(command: Command, pids: Sequence[Path], folder: Path) -> Spent:
    env = {name: text for name, text in os.environ.items() if name != _UNCOMPILED}
    env |= {"HOME": str(folder), "SLING_DISABLE_TELEMETRY": "TRUE"}
    env |= {"RUNTIME__DLTHUB_TELEMETRY": "false"}
    server, begun = _of_servers(pids), time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            list(map(str, command)), stdout=said, stderr=subprocess.STDOUT, cwd=folder, env=env
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        if process.returncode:
            said.seek(0)
            raise RuntimeError(said.read().decode(errors="replace")[-3000:])
    client = usage.ru_utime + usage.ru_stime
    return Spent(client, _of_servers(pids) - server, wall, usage.ru_maxrss / 1024)


def _of_servers(pids: Sequence[Path]) -> float:
    """CPU seconds of the servers so far, with those of their processes, ended ones too."""
    roots = {int(path.read_text().split()[0]) for path in pids}
    while True:
        total = ended = _of_ended(roots)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            values = _times(stat)
            if values and (int(stat.parent.name) in roots or int(values[1]) in roots):
                total += sum(map(int, values[11:13]))
        if _of_ended(roots) == ended:  # else a process that ended meanwhile is in neither
            return total / _TICKS


def _of_ended(roots: Iterable[int]) -> int:
    """The ticks of processes that these have waited for."""
    return sum(sum(map(int, _times(Path(f"/proc/{pid}/stat"))[13:15])) for pid in roots)


def _times(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return []


# --- jobs ---


def fill(place: Place) -> None:
    place.postgres.psql("CREATE DATABASE other")
    place.mariadb.sql("CREATE DATABASE other")
    for table, rows in (("orders", ROWS), ("ten", 10)):
        place.postgres.psql(
            f"CREATE TABLE {table} ({COLUMNS.format('numeric(15,2)')}); INSERT INTO {table} SELECT i, i % 150000, 'O', "
            "i % 50000 / 100.0, date '1992-01-01' + i % 2400, '1-URGENT', 'Clerk#' || i % 1000, 0, 'carefully final ' "
            f"|| md5(i::text) FROM generate_series(1, {rows}) i; VACUUM ANALYZE {table}"
        )


def rows_into_postgresql(place: Place) -> Iterator[Job]:
    """From one database of a server into another one."""
    programs, folder = place.programs, place.folder
    one, other = place.uri("postgres"), place.uri("other")
    for name, table in (
        ("ten rows, PostgreSQL to PostgreSQL", "ten"),
        ("PostgreSQL to PostgreSQL, existing table", "orders"),
    ):
        filters = folder / f"{table}.ini"
        filters.write_text(f"[include-only-table]\npublic.{table}\n")
        out, into = (f"COPY {table} {end} (FORMAT binary)" for end in ("TO STDOUT", "FROM STDIN"))
        pipe = f"psql -q '{one}' -c '{out}' | psql -q '{other}' -c '{into}'"
        by_pgcopydb: Command = [
            *("pgcopydb", "copy", "table-data", "--source", one, "--target", other),
            *("--filters", filters, "--dir", folder / "pgcopydb", "--table-jobs", 1),
        ]
        from_sling = ["--src-conn", f"{one}?sslmode=disable", "--src-stream", f"public.{table}"]
        commands = {
            **copy(place.table("postgres", table), place.table("other", table)),
            "binary COPY piped into COPY": ["bash", "-c", pipe],
            f"sling {SLING}": programs.sling(other, table, *from_sling),
            f"DuckDB {DUCKDB}": programs.duckdb(
                f"INSERT INTO other.{table} SELECT * FROM pg.{table}", one, other
            ),
            "pgcopydb 0.10": by_pgcopydb,
            f"ADBC {ADBC}": programs.adbc(one, table, other),
            f"dlt {DLT}": programs.dlt(one, table, other, folder / "dlt"),
            f"SeaTunnel {SEATUNNEL}": programs.seatunnel(
                folder / f"{table}.json",
                {**_jdbc(place, "postgres"), "query": f"SELECT * FROM {table}"},
                {
                    **_jdbc(place, "other"),
                    "database": "other",
                    "table": f"public.{table}",
                    "use_copy_statement": True,
                },
            ),
        }

        def ready(table: str = table) -> None:
            for each in ("pgcopydb", "dlt"):
                shutil.rmtree(folder / each, ignore_errors=True)
            place.postgres.psql(
                "SET client_min_messages = error; DROP TABLE IF EXISTS _dlt_loads, _dlt_version, "
                "_dlt_pipeline_state; DROP SCHEMA IF EXISTS public_staging CASCADE",
                database="other",
            )
            place.empty(table)

        def found(table: str = table) -> str:
            return place.sums(table)

        yield Job(name, commands, ready, found, place.sums(table, "postgres"), _pids(place))


def rows_into_parquet(place: Place) -> Iterator[Job]:
    programs, one, to = place.programs, place.uri("postgres"), place.folder / "out"
    commands = {
        **copy(place.table("postgres", "orders"), f"parquet:{to}/copy"),
        f"DuckDB {DUCKDB}": programs.duckdb(
            f"COPY (SELECT * FROM pg.orders) TO '{to}/a.parquet'", one
        ),
        f"ConnectorX {CONNECTORX}": programs.connectorx(one, to / "a.parquet"),
        f"ADBC {ADBC}": programs.adbc(one, "orders", to / "a.parquet"),
        f"dlt {DLT}": programs.dlt(one, "orders", to / "dlt", place.folder / "dlt"),
    }

    def ready() -> None:
        for folder in (to, place.folder / "dlt"):
            shutil.rmtree(folder, ignore_errors=True)
        to.mkdir()

    def found() -> str:
        (folder,) = {path.parent for path in to.rglob("*.parquet")}
        line = _SUMS["duckdb"].format(f"{folder}/*.parquet")
        (sums,) = duckdb.execute(line).fetchone() or ("",)
        return str(sums)

    yield Job(
        "PostgreSQL to Parquet",
        commands,
        ready,
        found,
        place.sums(database="postgres"),
        _pids(place),
    )


def files_into_postgresql(place: Place) -> Iterator[Job]:
    """Files have prices as floating point numbers, which all programs read."""
    programs, one, other = place.programs, place.uri("postgres"), place.uri("other")
    csv, columnar = place.folder / "orders.csv", place.folder / "orders.parquet"
    rows = "SELECT * REPLACE (price::DOUBLE AS price) FROM pg.orders"
    for statement in (
        f"COPY ({rows}) TO '{csv}' (HEADER)",
        f"COPY (SELECT * FROM read_csv('{csv}')) TO '{columnar}'",
    ):
        subprocess.run(list(map(str, programs.duckdb(statement, one))), check=True)
    psql = ["psql", "-q", other, "-c", f"\\copy orders FROM '{csv}' (FORMAT csv, HEADER)"]
    into = place.table("other", "orders")
    for name, commands in (
        (
            "CSV to PostgreSQL",
            {
                **copy(f"csv:{csv}", into),
                "psql": psql,
                f"sling {SLING}": programs.sling(other, "orders", "--src-stream", f"file://{csv}"),
            },
        ),
        (
            "Parquet to PostgreSQL",
            {
                **copy(f"parquet:{columnar}", into),
                f"DuckDB {DUCKDB}": programs.duckdb(
                    f"INSERT INTO pg.orders SELECT * FROM read_parquet('{columnar}')", other
                ),
            },
        ),
    ):
        yield Job(
            name,
            commands,
            lambda: place.empty(price="double precision"),
            place.sums,
            place.sums(database="postgres"),
            _pids(place),
        )


def rows_into_mariadb(place: Place) -> Iterator[Job]:
    """From PostgreSQL, and then from one database of MariaDB into another one."""
    mariadb, one = place.mariadb, place.uri("postgres")
    as_root = f"-u root -S {mariadb.directory}/s"
    load = f"mariadb --local-infile=1 {as_root} -e \"LOAD DATA LOCAL INFILE '/dev/stdin' INTO TABLE orders\" {DATABASE}"
    both = [*_pids(place), mariadb.directory / "pid"]
    into = {
        "url": f"jdbc:{mariadb.url}?rewriteBatchedStatements=true&useSSL=false",
        "driver": "com.mysql.cj.jdbc.Driver",
        "user": mariadb.user,
        "password": mariadb.password,
    }
    yield Job(
        "PostgreSQL to MariaDB, existing table",
        {
            **copy(place.table("postgres", "orders"), place.mariadb_table(DATABASE)),
            "COPY piped into LOAD DATA": [
                *("bash", "-c", f"psql -q '{one}' -c 'COPY orders TO STDOUT' | {load}")
            ],
            f"SeaTunnel {SEATUNNEL}": place.programs.seatunnel(
                place.folder / "mariadb.json",
                {**_jdbc(place, "postgres"), "query": "SELECT * FROM orders"},
                {**into, "database": DATABASE, "table": "orders"},
            ),
        },
        lambda: place.empty_mariadb(DATABASE),
        lambda: place.mariadb_sums(DATABASE),
        place.sums(database="postgres"),
        both,
    )
    place.empty_mariadb(DATABASE)
    subprocess.run(
        ["bash", "-c", f"psql -q '{one}' -c 'COPY orders TO STDOUT' | {load}"], check=True
    )
    dump = place.folder / "dump"
    dumped = (
        f"mydumper {as_root} -B {DATABASE} -T orders -o {dump} -t 1 -v 0 && "
        f"myloader {as_root} -d {dump} -B other -o -t 1 -v 0"
    )

    def ready() -> None:
        shutil.rmtree(dump, ignore_errors=True)
        place.empty_mariadb("other")

    yield Job(
        "MariaDB to MariaDB, existing table",
        {
            **copy(place.mariadb_table(DATABASE), place.mariadb_table("other")),
            "mydumper and myloader 0.10": ["bash", "-c", dumped],
        },
        ready,
        lambda: place.mariadb_sums("other"),
        place.mariadb_sums(DATABASE),
        both[1:],
    )


def _jdbc(place: Place, database: str) -> dict[str, Any]:
    parts = urlsplit(place.postgres.url)
    return {
        "url": f"jdbc:postgresql://{parts.netloc}/{database}",
        "driver": "org.postgresql.Driver",
        "user": place.postgres.user,
        "password": place.postgres.password,
    }


def _pids(place: Place) -> list[Path]:
    return [place.postgres.data / "postmaster.pid"]


if __name__ == "__main__":
    print_table(beside_programs())
