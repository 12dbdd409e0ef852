"""One more job after half a million: its CPU and memory beside those of the first, on each kind of target.

`tests.behaviour.growth.aged` makes the targets in the product's own form. A folder is compared with deltalake's append
to a table of as many files, an Iceberg table with pyiceberg's append at the same number of snapshots. All in this
process, in turns; peaks of memory are those of a process for each job. Needs PostgreSQL, MariaDB and Redis;
`.ci/servers` installs them.
"""

import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_channel
from tests.behaviour.growth.aged import NAME, VERSIONS, age_delta, age_folder, age_redis, age_sql
from tests.benchmarks.followed import many_followed
from tests.benchmarks.harness import Row, alternate, print_table, ratio
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "7"))
FILES = int(os.environ.get("SPARK_CHANNEL_BENCH_FILES", "100000"))
SNAPSHOTS = int(os.environ.get("SPARK_CHANNEL_BENCH_SNAPSHOTS", "300"))
_PEAKS = 3
_ONE = pa.table({"id": pa.array([1], pa.int64())})
_JOB = (
    "import json, sys; from spark_channel import transfer; source, target = map(json.loads, sys.argv[1:]); "
    "transfer(None, source, target, channels=1); "
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)
_versions = itertools.count(VERSIONS + 1_000)


class Growth:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "source.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(
                "CREATE TABLE s (id INTEGER NOT NULL PRIMARY KEY); INSERT INTO s VALUES (1)"
            )
        self.source = {"reader": "sqlite", "path": str(path), "dbtable": "s"}
        self.rows: list[Row] = []

    def job(self, target: dict[str, Any]) -> None:
        spark_channel.transfer(None, self.source, self._named(target), channels=1)

    def _named(self, target: dict[str, Any]) -> dict[str, Any]:
        return {**target, "txnAppId": NAME, "txnVersion": next(_versions)}

    def _peak(self, target: dict[str, Any]) -> float:
        """MiB of a process that runs one job."""
        words = [json.dumps(self.source), json.dumps(self._named(target))]
        done = subprocess.run(
            [sys.executable, "-c", _JOB, *words], check=True, capture_output=True, text=True
        )
        return (
            int(done.stdout.splitlines()[-1]) / 1024
        )  # VmHWM: ru_maxrss has the peak of this process, too

    def compare(self, kind: str, first: dict[str, Any], aged: dict[str, Any]) -> None:
        late, early = alternate(
            lambda: self.job(aged), lambda: self.job(first), ROUNDS, time.process_time
        )
        seconds = f"{statistics.median(late):.3f} and {statistics.median(early):.3f} s"
        self.rows.append(
            Row(f"CPU of one more job, {kind}", ratio(late, early), "<= 1.1", note=seconds)
        )
        peaks = [
            statistics.median(self._peak(each) for _ in range(_PEAKS)) for each in (aged, first)
        ]
        self.rows.append(
            Row(
                f"memory of one more job, {kind}",
                peaks[0] / peaks[1],
                "<= 1.1",
                note=f"{peaks[0]:.0f} and {peaks[1]:.0f} MiB",
            )
        )

    def against(self, kind: str, asked: str, ours: Callable[[], object], peers: Any) -> None:
        mine, others = alternate(ours, peers, ROUNDS, time.process_time)
        seconds = f"{statistics.median(mine):.3f} and {statistics.median(others):.3f} s"
        self.rows.append(Row(kind, ratio(mine, others), asked, note=seconds))


def _databases(growth: Growth) -> None:
    for kind in ("sqlite", "duckdb"):
        pair = [
            {"writer": kind, "path": str(growth.folder / f"{name}.{kind}"), "dbtable": "t"}
            for name in ("first", "aged")
        ]
        for each in pair:
            growth.job(each)
        age_sql(pair[1])
        growth.compare(kind, *pair)


def _servers(growth: Growth, held: ExitStack) -> None:
    postgres = PostgresServer.create()
    held.callback(postgres.close)
    mariadb = MariadbServer.create()
    held.callback(mariadb.close)
    for schema in ("first", "aged"):
        postgres.psql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id bigint)")
        mariadb.sql(f"CREATE DATABASE {schema}; CREATE TABLE {schema}.t (id bigint)")
    login = {"user": mariadb.user, "password": mariadb.password, "dbtable": "t"}
    for kind, made in (
        ("PostgreSQL", lambda name: {**postgres.login, "currentschema": name, "dbtable": "t"}),
        ("MariaDB", lambda name: {"url": f"mysql://127.0.0.1:{mariadb.port}/{name}", **login}),
    ):
        pair = made("first"), made("aged")
        for each in pair:
            growth.job(each)
        age_sql(pair[1])
        growth.compare(kind, *pair)


def _redis(growth: Growth, held: ExitStack) -> None:
    from tests.servers.redis import PASSWORD, PROGRAMS, redis_server

    servers = [held.enter_context(redis_server(next(iter(PROGRAMS)))) for _ in range(2)]
    pair = [
        {
            "writer": "redis",
            "url": each.url,
            "password": PASSWORD,
            "keyColumns": "id",
            "valueColumns": "id",
            "keyPrefix": "row:",
            "commit": "job",
        }
        for each in servers
    ]
    age_redis(pair[1], servers[1].client)
    growth.compare("Redis", *pair)


def _folders(growth: Growth) -> None:
    from deltalake import write_deltalake

    pair = [{"writer": "parquet", "path": str(growth.folder / name)} for name in ("few", "many")]
    for each in pair:
        growth.job(each)
    age_folder(Path(pair[1]["path"]), FILES)
    growth.job(pair[1])
    growth.compare(f"a folder of {FILES} files", *pair)
    log = Path(pair[1]["path"]) / "_spark_channel"
    before = {path: path.stat().st_ino for path in log.rglob("*.json")}
    growth.job(pair[1])
    written = [path for path in log.rglob("*.json") if before.get(path) != path.stat().st_ino]
    nbytes = sum(path.stat().st_size for path in written)
    growth.rows.append(Row("log of a folder, written", nbytes / 1000, "<= 20", "kB"))

    replaced = {"writer": "parquet", "path": str(growth.folder / "replaced")}
    growth.job(replaced)
    age_folder(Path(replaced["path"]), FILES)
    spark_channel.transfer(None, growth.source, replaced, mode="overwrite", channels=1)
    growth.compare(f"a folder that keeps {FILES} replaced files", pair[0], replaced)

    delta = [{"writer": "delta", "path": str(growth.folder / name)} for name in ("d1", "d2")]
    for target in delta:
        growth.job(target)
    age_delta(Path(delta[1]["path"]), delta[1]["path"])
    growth.compare("Delta", *delta)
    path = str(growth.folder / "peer")
    _peer(path, FILES)
    growth.against(
        "CPU of a job, beside deltalake's append to as many files",
        "<= 1.0",
        lambda: growth.job(pair[1]),
        lambda: write_deltalake(path, _ONE, mode="append"),
    )


def _peer(path: str, files: int) -> None:
    """A Delta table of so many files, all but one in its log alone, with a checkpoint."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.transaction import AddAction, RemoveAction

    write_deltalake(path, _ONE)
    table = DeltaTable(path)
    stats = json.dumps({"numRecords": 1})
    added: list[AddAction | RemoveAction] = [
        AddAction(f"part-{number:08}-{number:032}.parquet", 500, {}, 0, True, stats)
        for number in range(files)
    ]
    table.create_write_transaction(added, "append", table.schema(), [])
    DeltaTable(path).create_checkpoint()


def _iceberg(growth: Growth, held: ExitStack) -> None:
    from tests.connectors.iceberg.helpers import create, options_of, shop

    path = growth.folder / "iceberg"
    path.mkdir()
    catalog = held.enter_context(shop(path))
    target = {"writer": "iceberg", **options_of(path, "shop.ours")}
    for name in ("shop.ours", "shop.peer"):
        create(catalog, name, _ONE.schema)
        table = catalog.load_table(name)
        for _ in range(SNAPSHOTS):
            table.append(_ONE)
    name = f"CPU of a job beside pyiceberg's append, {SNAPSHOTS} snapshots"
    plain = target

    def named() -> None:
        growth.job(target)

    def unnamed() -> None:
        spark_channel.transfer(None, growth.source, plain, channels=1)

    def peer() -> None:
        catalog.load_table("shop.peer").append(_ONE)

    growth.against(f"{name}, with a transaction id", "<= 1.2", named, peer)
    growth.against(f"{name}, without one", "<= 1.2", unnamed, peer)


def _parts() -> Iterator[tuple[str, Callable[[Growth, ExitStack], None]]]:
    yield "files", lambda growth, _: _folders(growth)
    yield "databases", lambda growth, _: _databases(growth)
    yield "redis", _redis
    yield "iceberg", _iceberg
    yield "servers", _servers
    yield "followed", lambda growth, held: growth.rows.extend(many_followed(growth.folder, held))


def main() -> list[Row]:
    chosen = os.environ.get("SPARK_CHANNEL_BENCH_PARTS", "").split()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        growth = Growth(Path(folder))
        for name, part in _parts():
            if not chosen or name in chosen:
                part(growth, held)
        return growth.rows


if __name__ == "__main__":
    print_table(main())
