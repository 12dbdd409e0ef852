"""PostgreSQL into files and tables, exactly once: ours against Spark's JDBC source into Spark's own Parquet.

Every round loads TPC-H orders into a new directory on the same disk. The floor is the driver and the Parquet writer
alone, in as many processes as there are channels. Needs the server, and the JDBC driver of Debian's
libpostgresql-jdbc-java; `.ci/servers` installs both. And what other jobs wait for while one removes the 10 000 objects
that it replaced.
"""

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.files.publish import TargetDirectory
from tests.benchmarks.alone import Alone
from tests.benchmarks.bench_postgresql import CHANNELS, JAR, Bench, _load
from tests.benchmarks.harness import Row, print_table, spark_session
from tests.connectors.files.busy import staged
from tests.servers.postgres import PostgresServer
from tests.servers.stores import object_server

ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "5"))
REPLACED = int(os.environ.get("SPARK_CHANNEL_BENCH_OBJECTS", "10000"))
FLOOR = "the driver and the writer alone"
_versions = itertools.count(1)


class Lake(Bench):
    """Loads of the server's table into one folder each."""

    def __init__(self, server: PostgresServer, spark: SparkSession, folder: Path) -> None:
        super().__init__(server, spark)
        self.folder = folder
        uri = f"postgresql://{server.user}:{server.password}@127.0.0.1:{server.port}/postgres"
        self.floor = Alone(uri, int(self.split["upperBound"]), CHANNELS)

    @property
    def out(self) -> str:
        return str(self.folder / "out")

    def sparks_own(self) -> None:
        frame = (
            self.spark.read.format("jdbc")
            .options(dbtable="orders", **self.jdbc, **self.split)
            .load()
        )
        frame.write.mode("overwrite").parquet(self.out)

    def ours(self, writer: dict[str, Any]) -> None:
        """Under a transaction, so that a rerun adds nothing."""
        spark_channel.transfer(
            self.spark,
            reader={"name": "postgresql", "dbtable": "orders", **self.login},
            writer={**writer, "txnAppId": "bench", "txnVersion": str(next(_versions))},
            channels=CHANNELS,
            commit="job",
        )

    def alone(self) -> None:
        self.floor.load(Path(self.out))

    def parquet(self) -> None:
        self.ours({"name": "parquet", "path": self.out})

    def delta(self) -> None:
        self.ours({"name": "delta", "path": self.out})

    def as_parquet(self) -> None:
        """As `delta`, with the codec that `parquet` and Spark have."""
        self.ours({"name": "delta", "path": self.out, "compression": "snappy"})

    def iceberg(self) -> None:
        import json

        from pyiceberg.catalog import load_catalog

        Path(self.out).mkdir()
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self.out}/catalog.db",
            "warehouse": f"file://{self.out}",
        }
        made = load_catalog("default", **catalog)
        made.create_namespace("shop")
        made.close()
        self.ours(
            {"name": "iceberg", "dbtable": "shop.orders", "catalogProperties": json.dumps(catalog)}
        )

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in Path(self.out).rglob("*.parquet"))


def loads() -> list[Row]:
    assert JAR.exists(), f"no {JAR}: run .ci/servers"
    server = PostgresServer.create(shared_buffers="512MB")
    spark = None
    with tempfile.TemporaryDirectory(prefix="spark-channel-bench-") as directory:
        try:
            _load(server)
            spark = spark_session(JAR)
            lake = Lake(server, spark, Path(directory))
            with closing(lake.floor):
                return _measure(lake)
        finally:
            if spark is not None:
                spark.stop()
            server.close()


def _measure(lake: Lake) -> list[Row]:
    jobs: dict[str, Callable[[], None]] = {
        "JDBC -> Spark's Parquet": lake.sparks_own,
        "transfer -> Parquet": lake.parquet,
        "transfer -> Delta": lake.delta,
        "transfer -> Delta, snappy": lake.as_parquet,
        "transfer -> Iceberg": lake.iceberg,
        FLOOR: lake.alone,
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    sizes: dict[str, int] = {}
    for number in range(ROUNDS + 1):
        # In turns, the first one changing: what the machine does meanwhile hits all of them.
        names = list(jobs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            shutil.rmtree(lake.out, ignore_errors=True)
            begin = time.perf_counter()
            jobs[name]()
            took = time.perf_counter() - begin
            sizes[name] = lake.bytes()
            if number:  # the first round warms the JVM, the workers and the server's cache
                seconds[name].append(took)

    def times(name: str, than: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[name], seconds[than], strict=True))

    note = f"{lake.rows / 1e6:.2f} M rows, {CHANNELS} channels, medians of {ROUNDS}"
    jdbc, parquet, *_ = jobs
    found = [
        Row(
            f"postgresql: {name}",
            statistics.median(took),
            "",
            "s",
            f"{note}; {sizes[name] / 1e6:.0f} MB",
        )
        for name, took in seconds.items()
    ]
    for name in ("transfer -> Delta", "transfer -> Iceberg"):
        found.append(Row(f"{jdbc} / {name}", times(jdbc, name), ">= 2", "x"))
        found.append(Row(f"{name} / {parquet}", times(name, parquet), "<= 1.10", "x"))
    found.append(Row(f"{jdbc} / {FLOOR}", times(jdbc, FLOOR), "", "x", "what no load can be above"))
    return found


def _rows(number: int) -> pa.Table:
    return pa.table({"n": [number]})


def _write(path: str, job: str, *, overwrite: bool = False, files: int = 1) -> float:
    """Seconds of a whole write."""
    begin = time.perf_counter()
    options = {"writer": "parquet", "path": path, "retention": "0", "maxRecordsPerFile": "1"}
    writer, _ = load_writer(options)
    plan = writer.prepare(WriteContext(job, overwrite=overwrite), _rows(0).schema)
    writer.commit(plan, staged(writer, plan, [pa.table({"n": range(files)})]))
    return time.perf_counter() - begin


def waits_for_a_cleanup(path: str, where: str, replaced: int) -> list[Row]:
    """An overwrite replaces many objects; jobs append while it removes them."""
    _write(path, "many", files=replaced)
    alone = statistics.median(_write(path, f"alone-{n}") for n in range(3))
    removing, removed = threading.Event(), threading.Event()
    original = TargetDirectory._remove

    def remove(self: Any, due: Any, visible_again: Any) -> Any:
        """Held, until the other jobs have ended: they have to, if they do not wait for it."""
        if len(due) >= replaced:
            removing.set()
            assert removed.wait(300), "the jobs beside it did not end"
        return original(self, due, visible_again)

    TargetDirectory._remove = remove  # type: ignore[method-assign] # replaced for a while
    try:
        overwrite = threading.Thread(
            target=_write, args=(path, "overwrite"), kwargs={"overwrite": True}
        )
        overwrite.start()
        assert removing.wait(600), "the overwrite did not get to its removals"
        beside = statistics.median(_write(path, f"beside-{n}") for n in range(3))
        removed.set()
        begin = time.perf_counter()
        overwrite.join()
        took = time.perf_counter() - begin
    finally:
        removed.set()
        TargetDirectory._remove = original  # type: ignore[method-assign] # replaced for a while
    note = (
        f"an append takes {alone:.2f} s alone, {beside:.2f} s meanwhile; the removal {took:.1f} s"
    )
    name = f"an append's wait while another job removes {replaced} objects, {where}"
    return [Row(name, max(0.0, beside - alone), "0", "s", note)]


def waits() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="spark-channel-bench-") as directory:
        rows += waits_for_a_cleanup(f"{directory}/out", "a disk", REPLACED)
    with object_server("s3") as server:  # it handles some hundred requests a second
        os.environ.update(server.environment)
        rows += waits_for_a_cleanup(server.uri("bench/out"), "S3 emulator", REPLACED)
    return rows


def main() -> list[Row]:
    return [*waits(), *loads()]


if __name__ == "__main__":  # `python -m tests.benchmarks.bench_lake loads`: a part of it
    print_table({"waits": waits, "loads": loads}.get(" ".join(sys.argv[1:]), main)())
