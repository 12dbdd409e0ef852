"""CPU seconds of whole copies beside other programs, client and server together: a part of `make bench BENCH=peers`.

Each copy is a process of its own, from its start to its end, in turns. Peers of PyPI are installed once, into
artifacts/peers/programs; mydumper is Debian's. A program that is missing is left out, and named.
"""

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tests.benchmarks.harness import Row
from tests.servers.mariadb import DATABASE, MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["cpu_beside_programs"]

PEERS = Path(__file__).resolve().parents[2] / "artifacts" / "peers" / "programs"
SLING, DUCKDB, CONNECTORX = "1.4.11", "1.5.5", "0.4.6"
INSTALLED = (
    f"sling-linux-amd64=={SLING}",
    f"duckdb=={DUCKDB}",
    f"duckdb-extension-postgres-scanner=={DUCKDB}",
    f"connectorx=={CONNECTORX}",
    "pyarrow",
)
COLUMNS = (
    "id bigint PRIMARY KEY, customer bigint, status varchar(1), price {}, day date, priority varchar(15), "
    "clerk varchar(15), ship bigint, note varchar(79)"
)
_DUCKDB = """
import sys, duckdb, duckdb_extension_postgres_scanner as scanner
from pathlib import Path
(file,) = Path(scanner.__file__).parent.rglob("*.duckdb_extension")
duckdb.sql(f"LOAD '{file}'")
duckdb.sql(f"ATTACH '{sys.argv[1]}' AS pg (TYPE postgres)")
duckdb.sql(sys.argv[2])
"""
_CONNECTORX = """
import sys, connectorx, pyarrow.parquet
rows = connectorx.read_sql(sys.argv[1], "SELECT * FROM orders", return_type="arrow")
pyarrow.parquet.write_table(rows, sys.argv[2])
"""
_TICKS = os.sysconf("SC_CLK_TCK")
Command = Sequence[object]


@dataclass(frozen=True)
class Job:
    """One copy. `ready` empties the target, `count` is how many rows it has; `peers` by name and version."""

    name: str
    ready: Callable[[], object]
    count: Callable[[], str]
    ours: Command
    peers: Mapping[str, Command]
    rows: int
    pids: Sequence[Path] = field(default_factory=list)
    """Files with the pids of the servers."""


def cpu_beside_programs(rows: int, rounds: int, install: Callable[..., None]) -> list[Row]:
    """The medians of spark-channel's CPU seconds divided by those of each peer."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "lib").exists() or not any(PEERS.rglob("sling-linux-amd64")):
        shutil.rmtree(PEERS, ignore_errors=True)
        install(sys.executable, "-m", "venv", PEERS)
        install(python, "-m", "pip", "install", "-q", *INSTALLED)
    found: list[Row] = []
    with (
        contextlib.closing(PostgresServer.create(autovacuum="off")) as postgres,
        contextlib.closing(MariadbServer.create()) as mariadb,
        tempfile.TemporaryDirectory() as folder,
    ):
        for job in _jobs(postgres, mariadb, Path(folder), python, rows):
            found += _measured(job, rounds, folder)
    return found


def _measured(job: Job, rounds: int, folder: str) -> list[Row]:
    commands = {"": job.ours, **job.peers}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(commands) if number % 2 else reversed(list(commands)):
            job.ready()
            seconds[name].append(_cpu(commands[name], job.pids, folder))
            assert job.count() == str(job.rows), (job.name, name)
    ours = statistics.median(seconds.pop(""))
    return [
        Row(
            f"{job.name}: CPU, spark-channel / {name}",
            ours / statistics.median(theirs),
            "",
            "x",
            f"{job.rows:,} rows; {ours:.2f} s, {statistics.median(theirs):.2f} s",
        )
        for name, theirs in seconds.items()
    ]


def _cpu(command: Command, pids: Sequence[Path], folder: str) -> float:
    """CPU seconds of the command and of the servers while it runs."""
    server, begun = _of_servers(pids), resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "HOME": folder, "SLING_DISABLE_TELEMETRY": "TRUE"}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=env,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return client + _of_servers(pids) - server


def _of_servers(pids: Sequence[Path]) -> float:
    """CPU seconds of the servers so far, with those of their processes, ended ones too."""
    roots = {int(path.read_text().split()[0]) for path in pids}
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(stat.parent.name) in roots:
            total += sum(map(int, values[11:15]))
        elif int(values[1]) in roots:
            total += sum(map(int, values[11:13]))
    return total / _TICKS


def _jobs(
    postgres: PostgresServer, mariadb: MariadbServer, folder: Path, python: Path, rows: int
) -> Iterator[Job]:
    dsn = postgres.url.replace("//", f"//{postgres.user}:{postgres.password}@")
    for table in ("orders", "ten"):
        postgres.psql(
            f"CREATE TABLE {table} ({COLUMNS.format('numeric(15,2)')}); INSERT INTO {table} SELECT i, i % 150000, 'O', "
            "i % 50000 / 100.0, date '1992-01-01' + i % 2400, '1-URGENT', 'Clerk#' || i % 1000, 0, 'carefully final ' "
            f"|| md5(i::text) FROM generate_series(1, {rows if table == 'orders' else 10}) i; VACUUM ANALYZE {table}"
        )
    sling = next(path for path in PEERS.rglob("sling-linux-amd64") if path.is_file())
    ours = Path(sys.executable).with_name("spark-channel")
    login = f"user={postgres.user}&password={postgres.password}"
    source, target = (f"{postgres.url}?dbtable={name}&{login}" for name in ("orders", "copy"))
    other = f"{mariadb.url}?dbtable=copy&user={mariadb.user}&password={quote(mariadb.password, safe='')}"
    sling_target = ["--tgt-conn", f"{dsn}?sslmode=disable", "--tgt-object", "public.copy"]

    def by_sling(*source: object) -> Command:
        return [sling, "run", *source, *sling_target, "--mode", "truncate"]

    def by_duckdb(statement: str) -> Command:
        return [python, "-c", _DUCKDB, dsn, statement]

    def empty(price: str) -> Callable[[], object]:
        made = f"DROP TABLE IF EXISTS copy; CREATE TABLE copy ({COLUMNS.format(price)}); CHECKPOINT"
        return lambda: postgres.psql(f"SET client_min_messages = error; {made}")

    def copied() -> str:
        return postgres.psql("SELECT count(*) FROM copy").strip()

    out, into = "COPY {} TO STDOUT (FORMAT binary)", "COPY copy FROM STDIN (FORMAT binary)"
    pipe = f"psql -q '{dsn}' -c '{out}' | psql -q '{dsn}' -c '{into}'"
    pids = [postgres.data / "postmaster.pid"]
    for name, table, count in (
        ("ten rows, PostgreSQL to PostgreSQL", "ten", 10),
        ("PostgreSQL to PostgreSQL, existing table", "orders", rows),
    ):
        yield Job(
            name,
            empty("numeric(15,2)"),
            copied,
            [ours, "copy", source.replace("orders", table), target],
            {
                "binary COPY piped into COPY": ["bash", "-c", pipe.format(table)],
                f"sling {SLING}": by_sling(
                    "--src-conn", f"{dsn}?sslmode=disable", "--src-stream", f"public.{table}"
                ),
                f"DuckDB {DUCKDB}": by_duckdb(f"INSERT INTO pg.copy SELECT * FROM pg.{table}"),
            },
            count,
            pids,
        )

    parquet = folder / "out"

    def no_files() -> None:
        shutil.rmtree(parquet, ignore_errors=True)
        parquet.mkdir()

    def in_files() -> str:
        import duckdb

        (found,) = duckdb.execute(
            "SELECT count(*) FROM read_parquet(?)", [f"{parquet}/**/*.parquet"]
        ).fetchone() or (0,)
        return str(found)

    yield Job(
        "PostgreSQL to Parquet",
        no_files,
        in_files,
        [ours, "copy", source, f"parquet:{parquet}/copy"],
        {
            f"DuckDB {DUCKDB}": by_duckdb(
                f"COPY (SELECT * FROM pg.orders) TO '{parquet}/a.parquet'"
            ),
            f"ConnectorX {CONNECTORX}": [python, "-c", _CONNECTORX, dsn, parquet / "a.parquet"],
        },
        rows,
        pids,
    )
    csv, columnar = folder / "orders.csv", folder / "orders.parquet"
    subprocess.run(
        [
            *map(
                str,
                by_duckdb(
                    f"COPY (SELECT * REPLACE (price::DOUBLE AS price) FROM pg.orders) TO '{csv}' (HEADER)"
                ),
            )
        ],
        check=True,
    )
    subprocess.run(
        [*map(str, by_duckdb(f"COPY (SELECT * FROM read_csv('{csv}')) TO '{columnar}'"))],
        check=True,
    )
    yield Job(
        "CSV to PostgreSQL",
        empty("double precision"),
        copied,
        [ours, "copy", f"csv:{csv}", target],
        {
            "psql": ["psql", "-q", dsn, "-c", f"\\copy copy FROM '{csv}' (FORMAT csv, HEADER)"],
            f"sling {SLING}": by_sling("--src-stream", f"file://{csv}"),
        },
        rows,
        pids,
    )
    yield Job(
        "Parquet to PostgreSQL",
        empty("double precision"),
        copied,
        [ours, "copy", f"parquet:{columnar}", target],
        {
            f"DuckDB {DUCKDB}": by_duckdb(
                f"INSERT INTO pg.copy SELECT * FROM read_parquet('{columnar}')"
            )
        },
        rows,
        pids,
    )
    as_root = f"-u root -S {mariadb.directory}/s"
    load = f"mariadb --local-infile=1 {as_root} -e \"LOAD DATA LOCAL INFILE '/dev/stdin' INTO TABLE copy\" {DATABASE}"
    made = COLUMNS.format("decimal(15,2)")

    def empty_in_mariadb() -> None:
        mariadb.sql(f"DROP TABLE IF EXISTS copy; CREATE TABLE copy ({made})", database=DATABASE)

    def copied_in_mariadb() -> str:
        return mariadb.sql("SELECT COUNT(*) FROM copy", database=DATABASE).strip()

    yield Job(
        "PostgreSQL to MariaDB, existing table",
        empty_in_mariadb,
        copied_in_mariadb,
        [ours, "copy", source, other],
        {
            "COPY piped into LOAD DATA": [
                *("bash", "-c", f"psql -q '{dsn}' -c 'COPY orders TO STDOUT' | {load}")
            ]
        },
        rows,
        [*pids, mariadb.directory / "pid"],
    )
    if shutil.which("mydumper") is None:
        return
    mariadb.sql("RENAME TABLE copy TO orders; CREATE DATABASE other", database=DATABASE)
    dump = folder / "dump"
    dumped = (
        f"mydumper {as_root} -B {DATABASE} -T orders -o {dump} -t 1 -v 0 && "
        f"myloader {as_root} -d {dump} -B other -o -t 1 -v 0"
    )

    def empty_other() -> None:
        shutil.rmtree(dump, ignore_errors=True)
        mariadb.sql(f"DROP TABLE IF EXISTS orders; CREATE TABLE orders ({made})", database="other")

    yield Job(
        "MariaDB to MariaDB, existing table",
        empty_other,
        lambda: mariadb.sql("SELECT COUNT(*) FROM orders", database="other").strip(),
        [
            ours,
            "copy",
            other.replace("=copy", "=orders"),
            other.replace("=copy", "=orders").replace(f"/{DATABASE}?", "/other?"),
        ],
        {"mydumper and myloader": ["bash", "-c", dumped]},
        rows,
        [mariadb.directory / "pid"],
    )
