"""A picture of docs/benchmarks.md: rows that arrive in a table, by a Spark JDBC job, under DataX's rule, and by ours.

    python -m tests.benchmarks.picture_speed [--out docs/images/speed.png]

In each of three rounds the same rows go from one table into another on one server, by two tasks: by Spark's JDBC
source, which knows no limit; by DataX's flow control; by `transfer` with `rows_per_second`. `transfer` runs over
one and eight channels, too, which is printed and not drawn.

Measured
    The growth of the server's log (`pg_current_wal_insert_lsn`), asked for by a session of its own every 50 ms. All
    rows have one width, so that bytes are rows, also of transactions that are not committed yet. The table's file
    would not do: sessions that wait for each other extend it by more pages than they fill. Time 0 is the first row.
    By commits: a row arrives when its transaction commits (`track_commit_timestamp`).
DataX
    Its rule (see `datax`), in real time, in two channels of half the limit each, as DataX deals them. Around the rule,
    what DataX does: batches of 32 records, a queue of 512, a writer that sends 2 048 at once. The reading and
    writing are ADBC's here, so this is DataX's rule, not DataX.

Needs the server and the JDBC driver that `.ci/servers` installs.
"""

import argparse
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from queue import Queue
from statistics import median
from typing import Any

import pyarrow as pa
from adbc_driver_postgresql import dbapi
from pyspark.sql import SparkSession

import spark_channel
from tests.benchmarks.datax import DataxChannel
from tests.benchmarks.harness import Row, print_table, spark_session
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
JAR = Path("/usr/share/java/postgresql.jar")
ROWS = 200_000
LIMIT = 20_000
CHANNELS = 2
OTHER_CHANNELS = (1, 8)
OURS = "spark-channel, rows_per_second=20_000"
ASKED_EVERY = 0.05
BIN = 0.25
ROUNDS = 3
DATAX_BATCH, DATAX_QUEUE, DATAX_WRITE = 32, 512, 2048
COLUMNS = "id bigint NOT NULL, customer bigint NOT NULL, total double precision NOT NULL, note text NOT NULL"

Arrivals = list[tuple[float, float]]
"""(seconds, rows that have arrived by then)."""


class Target:
    """The table that fills, and the witness of it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.uri = f"postgresql://{server.user}:{server.password}@127.0.0.1:{server.port}/postgres"
        server.psql(f"CREATE TABLE orders ({COLUMNS})")
        server.psql(
            "INSERT INTO orders SELECT n, n % 997, n % 9973, lpad(n::text, 40, '.') "
            f"FROM generate_series(1, {ROWS}) AS n"
        )
        server.psql("ALTER TABLE orders ADD PRIMARY KEY (id); VACUUM ANALYZE orders")

    def fill(self, work: Callable[[], object]) -> Arrivals:
        """Run `work` into an empty table; what arrived when."""
        self.server.psql(
            f"SET client_min_messages = error; DROP TABLE IF EXISTS copy; CREATE TABLE copy ({COLUMNS}); CHECKPOINT"
        )
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(self._watch, ended)
            try:
                work()
            finally:
                ended.set()
            positions = watching.result()
        assert self.server.psql("SELECT count(*), count(DISTINCT id) FROM copy") == f"{ROWS}|{ROWS}"
        return _rows(positions)

    def commits(self) -> Arrivals:
        """The same by the times of commits."""
        lines = self.server.psql(
            "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)), count(*) FROM copy GROUP BY 1 ORDER BY 1"
        ).splitlines()
        found = [tuple(map(float, line.split("|"))) for line in lines]
        totals = accumulate(rows for _, rows in found)
        return [
            (0.0, 0.0),
            *((at - found[0][0], all_) for (at, _), all_ in zip(found, totals, strict=True)),
        ]

    def _watch(self, ended: threading.Event) -> Arrivals:
        seen: Arrivals = []
        with (
            closing(dbapi.connect(self.uri, autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            while not ended.wait(ASKED_EVERY):
                seen.append((time.monotonic(), self._position(cursor)))
            seen.append((time.monotonic(), self._position(cursor)))
        return seen

    @staticmethod
    def _position(cursor: Any) -> float:
        cursor.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8")
        (position,) = cursor.fetchone()
        return float(position)


def _rows(positions: Arrivals) -> Arrivals:
    """Rows since the first one, for the positions in the log; the first and last 0.1 % are other records."""
    start, end = positions[0][1], positions[-1][1]
    low, high = start + (end - start) / 1000, end - (end - start) / 1000
    begin = max(at for at, position in positions if position <= low)
    scale = ROWS / (high - low)
    reached = (
        (at - begin, min(position - low, high - low) * scale)
        for at, position in positions
        if at > begin
    )
    return [(0.0, 0.0), *reached]


def speeds(arrivals: Arrivals, width: float) -> tuple[list[float], list[float]]:
    """Edges of windows of `width` seconds, and the mean speed in each, up to the last row."""
    last = next(at for at, rows in arrivals if rows >= ROWS)
    edges = [number * width for number in range(int(last / width) + 2)]
    reached = [_at(arrivals, edge) for edge in edges]
    return edges, [(b - a) / width for a, b in pairwise(reached)]


def _at(arrivals: Arrivals, when: float) -> float:
    for (start, before), (end, after) in pairwise(arrivals):
        if start <= when < end:
            return before + (after - before) * (when - start) / (end - start)
    return arrivals[-1][1]


def worst_second(arrivals: Arrivals) -> float:
    """The most rows in any second."""
    return max(_at(arrivals, at + 1.0) - rows for at, rows in arrivals)


def worst_second_of_commits(arrivals: Arrivals) -> float:
    """The same, for rows that arrive together."""
    worst, first = 0.0, 0
    for last, (at, _) in enumerate(arrivals):
        while arrivals[first][0] <= at - 1.0:
            first += 1
        before = arrivals[first - 1][1] if first else 0.0
        worst = max(worst, arrivals[last][1] - before)
    return worst


def jdbc(spark: SparkSession, server: PostgresServer) -> None:
    login = {
        "url": f"jdbc:{server.url}?reWriteBatchedInserts=true",
        "user": server.user,
        "password": server.password,
        "driver": "org.postgresql.Driver",
    }
    split = {
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": str(ROWS),
        "numPartitions": str(CHANNELS),
    }
    frame = (
        spark.read.format("jdbc")
        .options(dbtable="orders", fetchsize="10000", **login, **split)
        .load()
    )
    frame.write.format("jdbc").options(dbtable="copy", batchsize="10000", **login).mode(
        "append"
    ).save()


def ours(spark: SparkSession, server: PostgresServer, channels: int = CHANNELS) -> None:
    spark_channel.transfer(
        spark,
        reader={"name": "postgresql", "dbtable": "orders", **server.login},
        writer={"name": "postgresql", "dbtable": "copy", **server.login},
        channels=channels,
        rows_per_second=LIMIT,
        commit="task",
    )


def datax(target: Target) -> None:
    share = ROWS // CHANNELS
    with ThreadPoolExecutor(2 * CHANNELS) as pool:
        for number in range(CHANNELS):
            queue: Queue[pa.RecordBatch | None] = Queue(DATAX_QUEUE // DATAX_BATCH)
            pool.submit(_datax_writer, target, queue)
            pool.submit(_datax_reader, target, queue, number * share + 1, (number + 1) * share)


def _datax_reader(
    target: Target, queue: "Queue[pa.RecordBatch | None]", first: int, last: int
) -> None:
    rule = DataxChannel(rows_per_second=LIMIT // CHANNELS, last_ms=int(time.time() * 1000))
    with closing(dbapi.connect(target.uri)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM orders WHERE id BETWEEN {first} AND {last}")
        for batch in cursor.fetch_record_batch():
            for start in range(0, batch.num_rows, DATAX_BATCH):
                part = batch.slice(start, DATAX_BATCH)
                queue.put(part)
                time.sleep(rule.push(part.num_rows, part.nbytes, time.time()))
    queue.put(None)


def _datax_writer(target: Target, queue: "Queue[pa.RecordBatch | None]") -> None:
    with closing(dbapi.connect(target.uri)) as connection, connection.cursor() as cursor:
        held: list[pa.RecordBatch] = []
        while (batch := queue.get()) is not None:
            held.append(batch)
            if len(held) * DATAX_BATCH >= DATAX_WRITE:
                _send(cursor, held)
        _send(cursor, held)
        connection.commit()


def _send(cursor: Any, held: list[pa.RecordBatch]) -> None:
    if held:
        cursor.adbc_ingest("copy", pa.Table.from_batches(held), mode="append")
        held.clear()


def draw(measured: dict[str, list[Arrivals]], out: Path) -> None:
    """One panel a job, the same axes for all: a bar has the median of the rounds, the band all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained", dpi=160)
    panels = figure.subplots(1, len(measured), sharey=True)
    colours = ("tab:gray", "tab:orange", "tab:blue")
    for axes, colour, (name, rounds) in zip(panels, colours, measured.items(), strict=True):
        edges, lowest, middle, highest = _band([speeds(each, BIN) for each in rounds])
        axes.stairs(middle, edges, fill=True, color=colour, alpha=0.75)
        axes.stairs(highest, edges, baseline=lowest, fill=True, color="black", alpha=0.25)
        axes.axhline(LIMIT / 1000, color="tab:red", linestyle="--", linewidth=1)
        axes.set_title(
            f"{name}\nworst second of {len(rounds)} rounds {max(map(worst_second, rounds)) / LIMIT:.2g}x the limit",
            fontsize=9,
        )
        axes.set_xlim(0, 1.1 * ROWS / LIMIT)
        axes.set_xlabel("seconds since the first row")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("thousand rows/s at the target")
    panels[0].annotate(
        f"limit {LIMIT:,} rows/s".replace(",", " "),
        (0.97, LIMIT / 1000),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color="tab:red",
        fontsize=8,
    )
    figure.savefig(out)


def _band(
    rounds: list[tuple[list[float], list[float]]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """(edges, lowest, median, highest) in thousand rows/s; a round that has ended counts as 0."""
    edges = max((each for each, _ in rounds), key=len)
    bars = len(edges) - 1
    heights = [[*found, *[0.0] * (bars - len(found))] for _, found in rounds]
    columns = [[each / 1000 for each in column] for column in zip(*heights, strict=True)]
    return (
        edges,
        [min(each) for each in columns],
        list(map(median, columns)),
        [max(each) for each in columns],
    )


def measure() -> dict[str, list[tuple[Arrivals, Arrivals]]]:
    """What arrived when in each round, and what was committed when, by the name of the job."""
    assert JAR.exists(), f"no {JAR}: run .ci/servers"
    server = PostgresServer.create(autovacuum="off", track_commit_timestamp="on")
    spark = None
    try:
        target = Target(server)
        spark = spark_session(JAR, cores=CHANNELS)
        session = spark
        jobs: dict[str, Callable[[], None]] = {
            "Spark JDBC": lambda: jdbc(session, server),
            "DataX's flow control (its rule, run here)": lambda: datax(target),
            OURS: lambda: ours(session, server),
            **{
                f"{OURS}, {channels} channels": partial(ours, session, server, channels)
                for channels in OTHER_CHANNELS
            },
        }
        target.fill(jobs["Spark JDBC"])  # warms the JVM and the server
        found: dict[str, list[tuple[Arrivals, Arrivals]]] = {name: [] for name in jobs}
        for _ in range(ROUNDS):
            for name, work in jobs.items():
                found[name].append((target.fill(work), target.commits()))
        return found
    finally:
        if spark is not None:
            spark.stop()
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures and draws docs/images/speed.png.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "speed.png")
    out = parser.parse_args().out
    measured = measure()
    panels = list(measured.items())[: -len(OTHER_CHANNELS)]
    draw({name: [arrivals for arrivals, _ in rounds] for name, rounds in panels}, out)
    rows = []
    for name, rounds in measured.items():
        ends = [next(at for at, arrived in each if arrived >= ROWS) for each, _ in rounds]
        worst = [worst_second(each) / LIMIT for each, _ in rounds]
        committed = [worst_second_of_commits(each) / LIMIT for _, each in rounds]
        rows += [
            Row(f"{name}: mean", ROWS / median(ends) / LIMIT, unit="x the limit"),
            Row(f"{name}: worst second", max(worst), unit="x the limit", note=_each(worst)),
            Row(f"{name}: by commits", max(committed), unit="x the limit", note=_each(committed)),
        ]
    print_table(rows)


def _each(rounds: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in rounds)


if __name__ == "__main__":
    main()
