"""Two tables of 10 million rows compared: by verify, by Spark's exceptAll, by two sums of hashes, and by reladiff.

    make bench BENCH=verify                                    (all parts)
    python -m tests.benchmarks.bench_verify load equal         (some of them: equal, peer, parquet, differences)

`SPARK_CHANNEL_BENCH_ROWS` makes the tables smaller. With `SPARK_CHANNEL_BENCH_DIRECTORY`, the server and its tables
stay there for the next call; `load` fills them and measures nothing. exceptAll reads each side once, in one direction,
which alone does not prove that the sides are equal. reladiff comes from PyPI, once, into artifacts/peers.

Needs the server, and the JDBC driver that `.ci/servers` installs.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_channel
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
RELADIFF = ROOT / "artifacts" / "peers" / "reladiff"
RELADIFF_VERSION = "0.6.0"
JAR = Path("/usr/share/java/postgresql.jar")
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "1"))
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "10000000"))
KEPT = os.environ.get("SPARK_CHANNEL_BENCH_DIRECTORY")
TABLE = "(id bigint, name text, total numeric(12, 4), share float8, at timestamptz)"
FILL = (
    "SELECT n * 3, 'name ' || n, n / 8.0, n / 3.0, timestamptz '2026-01-31 00:00Z' + n * interval '1 s' "
    "FROM generate_series({}, {}) n"
)
SUM = "SELECT count(*), sum(hashtextextended(CAST(t AS text), 0)) FROM {} t"
CHANGED = "id IN (SELECT 3 * (1 + n * {every}) FROM generate_series(0, {count} - 1) n)"
FILLED_AT_ONCE = 1_000_000
DIFFERENCES = ((1, 1.1), (1_000, 1.5), (100_000, 3.0))


class Bench:
    """The tables `a` and `b`, which are equal, and the same rows as Parquet files."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.a, self.b = ({**server.login, "dbtable": name} for name in ("a", "b"))
        self.files = {"name": "parquet", "path": str(server.directory / f"rows-{ROWS}")}

    def load(self) -> None:
        for name in ("a", "b"):
            if self.server.psql(f"SELECT to_regclass('{name}')") == name and (
                int(self.server.psql(f"SELECT count(*) FROM {name}")) == ROWS
            ):
                continue
            self.server.psql(f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} {TABLE}")
            for first in range(1, ROWS + 1, FILLED_AT_ONCE):
                last = min(ROWS, first + FILLED_AT_ONCE - 1)
                self.server.psql(f"INSERT INTO {name} {FILL.format(first, last)}")
            self.server.psql(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
            self.server.psql(f"VACUUM ANALYZE {name}")
        self.server.psql("CHECKPOINT")
        if not Path(self.files["path"]).exists():
            spark_channel.transfer(None, self.a, self.files)

    def verified(self, other: Mapping[str, Any] | None = None) -> None:
        report = spark_channel.verify(None, self.a, other or self.b, key=["id"], confirm=0)
        assert (report.outcome, report.equal) == ("equal", ROWS), report

    def summed(self) -> None:
        assert len({self.server.psql(SUM.format(name)) for name in ("a", "b")}) == 1

    def equal(self) -> list[Row]:
        """Both sides in PostgreSQL."""
        with self._spark() as spark:

            def excepted() -> None:
                assert self._jdbc(spark, "a").exceptAll(self._jdbc(spark, "b")).isEmpty()

            seconds = timed(verify=self.verified, sums=self.summed, spark=excepted)
        return [
            Row("verify, equal", median(seconds["verify"]), "", "s", shown(seconds)),
            Row("exceptAll / verify", ratio(seconds, "spark", "verify"), ">= 3", "x"),
            Row("verify / two sums of hashes", ratio(seconds, "verify", "sums"), "<= 1.3", "x"),
        ]

    def parquet(self) -> list[Row]:
        """The other side as files."""
        with self._spark() as spark:

            def excepted() -> None:
                files = spark.read.parquet(self.files["path"])
                assert self._jdbc(spark, "a").exceptAll(files).isEmpty()

            seconds = timed(verify=lambda: self.verified(self.files), spark=excepted)
        found = ratio(seconds, "spark", "verify")
        return [Row("exceptAll / verify, Parquet", found, ">= 2", "x", shown(seconds))]

    def differences(self) -> list[Row]:
        """Some rows of `b` changed: a third is removed, and a third moved to keys that `a` lacks."""
        seconds = timed(equal=self.verified)
        rows = []
        for count, asked in DIFFERENCES:
            if count * 10 > ROWS:
                continue
            changed = CHANGED.format(every=ROWS // count, count=count)
            thirds = f"{changed} AND id / 3 / {ROWS // count} % 3 ="
            self.server.psql(
                f"UPDATE b SET share = share + 1 WHERE {thirds} 0; DELETE FROM b WHERE {thirds} 1; "
                f"UPDATE b SET id = id + 1 WHERE {thirds} 2"
            )
            different, gone, moved = ((count + 2 - each) // 3 for each in range(3))

            def found(expected: tuple[int, int, int] = (different, gone + moved, moved)) -> None:
                report = spark_channel.verify(None, self.a, self.b, confirm=0)
                assert (report.different, report.missing, report.extra) == expected, report

            name = f"{count} differ"
            seconds |= timed(**{name: found})
            self.server.psql(
                f"DELETE FROM b WHERE id % 3 = 1; DELETE FROM b WHERE {changed}; "
                f"INSERT INTO b SELECT * FROM a WHERE {changed}"
            )
            rows.append(
                Row(
                    f"{count} rows differ / none", ratio(seconds, name, "equal"), f"<= {asked}", "x"
                )
            )
        self.server.psql("VACUUM ANALYZE b")
        return [
            *rows,
            Row("verify: none differs", median(seconds["equal"]), "", "s", shown(seconds)),
        ]

    def peer(self) -> list[Row]:
        """reladiff, which computes checksums in both databases, too."""
        program = reladiff()
        if program is None:
            return [Row("skipped: reladiff cannot be installed", float("nan"))]

        login = f"postgresql://{self.server.user}:{self.server.password}@"
        url = self.server.url.replace("postgresql://", login)
        columns = [each for name in ("name", "total", "share", "at") for each in ("-c", name)]

        def compared() -> None:
            done = subprocess.run(
                [
                    str(program),
                    url,
                    "a",
                    url,
                    "b",
                    "-k",
                    "id",
                    *columns,
                    "-a",
                    "hashdiff",
                    "-j",
                    "2",
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=600,
            )
            assert not done.stdout.strip(), done.stdout[:500]

        seconds = timed(verify=self.verified, reladiff=compared)
        note = f"reladiff {RELADIFF_VERSION}, two threads: {shown(seconds)}"
        return [Row("reladiff / verify", ratio(seconds, "reladiff", "verify"), "", "x", note)]

    def _jdbc(self, spark: SparkSession, table: str) -> DataFrame:
        login = {"user": self.server.user, "password": self.server.password}
        split = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(3 * ROWS)}
        return (
            spark.read.format("jdbc")
            .options(url=f"jdbc:{self.server.url}", driver="org.postgresql.Driver", dbtable=table)
            .options(fetchsize="10000", numPartitions="4", **login, **split)
            .load()
        )

    @contextlib.contextmanager
    def _spark(self) -> Iterator[SparkSession]:
        assert JAR.exists(), f"no {JAR}: run .ci/servers"
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", str(JAR))
            .config("spark.driver.extraClassPath", str(JAR))
            .config("spark.driver.memory", "4g")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        try:
            few = self._jdbc(spark, "a").where("id < 1000")
            assert few.exceptAll(few).isEmpty()  # the JVM is warm
            yield spark
        finally:
            spark.stop()


def reladiff() -> Path | None:
    """The program; None = it cannot be installed."""
    program = RELADIFF / "bin" / "reladiff"
    if not program.exists():
        wanted = f"reladiff[postgresql]=={RELADIFF_VERSION}"
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(RELADIFF)],
            [str(RELADIFF / "bin" / "pip"), "install", "-q", wanted],
        ):
            if subprocess.run(command, check=False, timeout=300).returncode:
                return None
    return program


def timed(**works: Callable[[], None]) -> dict[str, list[float]]:
    """The seconds of each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS):
        for name in list(works)[:: 1 if number % 2 == 0 else -1]:
            start = time.perf_counter()
            works[name]()
            seconds[name].append(time.perf_counter() - start)
            print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    return seconds


def median(values: list[float]) -> float:
    return float(statistics.median(values))


def ratio(seconds: Mapping[str, list[float]], one: str, other: str) -> float:
    return median([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])


def shown(seconds: Mapping[str, list[float]]) -> str:
    return ", ".join(f"{name} {median(each):.1f} s" for name, each in seconds.items())


@contextlib.contextmanager
def _bench() -> Iterator[Bench]:
    server = PostgresServer.create() if KEPT is None else PostgresServer.kept(Path(KEPT))
    try:
        bench = Bench(server)
        bench.load()
        yield bench
    finally:
        if KEPT is None:
            server.close()
        else:
            server.stop()


def main(parts: list[str] | None = None) -> list[Row]:
    """The rows of this benchmark, or of some of its parts."""
    with _bench() as bench:
        return [
            row
            for part in parts or ["equal", "peer", "parquet", "differences"]
            if part != "load"
            for row in getattr(bench, part)()
        ]


if __name__ == "__main__":
    print_table(main(sys.argv[1:]))
