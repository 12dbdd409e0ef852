"""What a copy does to an application: its queries on PostgreSQL, while rows are copied out of the server and into it.

    make bench BENCH=harm      (about 15 minutes; draws docs/images/harm.png, and puts it with the medians into README)
    python -m tests.benchmarks.bench_harm auto      (about 11 minutes: five rounds of `protect=auto` alone)
    python -m tests.benchmarks.bench_harm verify    (about 5 minutes: three rounds of a copy and a verify at one limit)

The application is pgbench (its TPC-B-like transactions) at a third of what the machine can do (`-R`), in one process
for the whole benchmark; each latency counts from when the transaction was due. Server and pgbench run on one core,
Spark on the other. Copied are 2 M rows of 60 bytes, from one table into another on that server, by two tasks: by
Spark's JDBC source; by `transfer` at 40 000 rows/s; by `transfer` with `protect=auto` and no limit, which is compared
with the best fixed limit that keeps the application's p99 within its bound, found by bisection. Autovacuum is off,
since it would run in some of the runs. The job has a separate role, with pg_monitor, and pg_stat_statements is
loaded. `auto` uses the local engine, without Spark.

Two cores of one machine are not two machines: they share caches, and what is under them. So each round has a control,
`elsewhere`: the same job at the same limit from a generator into nothing, which never meets the server. Rounds
alternate all kinds of run, each ratio is taken within its round, and the result is the median of the rounds.
`SPARK_CHANNEL_BENCH_SCALE=0.1` is a short run, which draws nothing.

Needs the server, pgbench, and the JDBC driver that `.ci/servers` installs.
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

import spark_channel
from tests.benchmarks.harm_caption import HarmFigures, put_into_readme, spaced
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer, programs

ROOT = Path(__file__).resolve().parents[2]
JAR = Path("/usr/share/java/postgresql.jar")
PICTURE = ROOT / "docs" / "images" / "harm.png"
SCALE = float(os.environ.get("SPARK_CHANNEL_BENCH_SCALE", "1"))
ROWS = int(2_000_000 * SCALE)
LIMIT = 40_000
ASKED_FIXED, ASKED_AUTO, ASKED_USED, ASKED_EVEN = 1.15, 1.5, 0.7, 0.5
AUTO_ROUNDS, AUTO_ROWS, AUTO_IDLE_SECONDS = 5, int(2_000_000 * SCALE), 10.0
VERIFY_ROUNDS, VERIFY_ROWS = 3, int(600_000 * SCALE)
ROLE, SECRET = "loader", "of-loader"
CHANNELS = 2
CLIENTS = 4
ROUNDS = 3 if SCALE >= 1 else 1
IDLE_SECONDS = max(8.0, 15 * SCALE)
STEP_SECONDS = max(6.0, 12 * SCALE)
STEPS = 6 if SCALE >= 1 else 3
SLOWEST, FASTEST = 5_000, 320_000
AUTO_STEPS, AUTO_SLOWEST, AUTO_FASTEST, AUTO_STEP_SECONDS = 4, 10_000, 160_000, 20.0
LONGEST_SECONDS = 150.0
SETTLED_SECONDS = 2.0
APPLICATION, SPARK = ({0}, {1}) if (os.cpu_count() or 1) > 1 else ({0}, {0})
COLUMNS = "id bigint NOT NULL, customer bigint NOT NULL, total double precision NOT NULL, note text NOT NULL"


class Application:
    """pgbench, from `start` to `stop`; `latencies` are read from its log."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.rate = 0.0

    def make(self) -> None:
        self._run("-i", "-q", "-s", "10")
        done = self._run("-T", str(max(4, int(8 * SCALE))), "-c", str(CLIENTS))
        best = next(line for line in done.splitlines() if line.startswith("tps"))
        self.rate = float(best.split()[2]) / 3

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *self._command(),
                "-T",
                "3600",
                "-c",
                str(CLIENTS),
                "-R",
                f"{self.rate:.1f}",
                "-l",
                "--log-prefix",
                "app",
            ],
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(10)

    def latencies(self, begin: float, end: float) -> list[tuple[float, float]]:
        """(when it ended, milliseconds) of the transactions that ended in that time of the wall clock."""
        assert self._process is not None
        assert self._process.poll() is None, "pgbench has ended"
        found = []
        for path in self._directory.glob("app.*"):
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) < 6:
                    continue  # the last line, which is being written
                at = int(fields[4]) + int(fields[5]) / 1e6
                if begin <= at < end:
                    found.append((at, int(fields[2]) / 1000))
        return found

    def _command(self) -> list[str]:
        server = self._server
        return [
            "taskset",
            "-c",
            ",".join(map(str, APPLICATION)),
            str(programs() / "pgbench"),
            "-n",
            "-h",
            str(server.directory),
            "-p",
            str(server.port),
            "-U",
            server.user,
            "postgres",
        ]

    def _run(self, *arguments: str) -> str:
        command = [each for each in self._command() if each != "-n" or "-i" not in arguments]
        done = subprocess.run(
            [*command, *arguments],
            cwd=self._directory,
            capture_output=True,
            check=True,
            timeout=300,
        )
        return done.stdout.decode()


@dataclass(frozen=True)
class Run:
    """Latencies of the application during the copy: (seconds since the copy began, milliseconds)."""

    name: str
    seen: list[tuple[float, float]]
    seconds: float
    rows: int

    @property
    def p50(self) -> float:
        return _quantile([each for _, each in self.settled], 0.5)

    @property
    def p99(self) -> float:
        return _quantile([each for _, each in self.settled], 0.99)

    @property
    def settled(self) -> list[tuple[float, float]]:
        """Without the first seconds, in which Spark starts tasks, where the run is longer than these."""
        begin = SETTLED_SECONDS if self.seconds > 3 * SETTLED_SECONDS else 0.0
        return [(at, each) for at, each in self.seen if at >= begin]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    def by_second(self, part: float) -> tuple[list[float], list[float]]:
        seconds: dict[int, list[float]] = {}
        for at, each in self.seen:
            seconds.setdefault(int(at), []).append(each)
        return [float(at) for at in sorted(seconds)], [
            _quantile(seconds[at], part) for at in sorted(seconds)
        ]


def _quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return (
        ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan
    )


class Bench:
    def __init__(
        self, server: PostgresServer, application: Application, spark: SparkSession | None
    ) -> None:
        self.server = server
        self.application = application
        self.spark = spark

    def fill(self) -> None:
        self.server.psql(
            "CREATE EXTENSION pg_stat_statements; "
            f"CREATE ROLE {ROLE} LOGIN PASSWORD '{SECRET}' IN ROLE pg_monitor; "
            f"GRANT CREATE ON SCHEMA public TO {ROLE}; SET ROLE {ROLE}; "
            f"CREATE TABLE orders ({COLUMNS}); INSERT INTO orders SELECT n, n % 997, n % 9973, lpad(n::text, 30, '.') "
            f"FROM generate_series(1, {2_000_000}) AS n; ALTER TABLE orders ADD PRIMARY KEY (id); "
            "RESET ROLE; VACUUM ANALYZE"
        )

    @property
    def login(self) -> dict[str, str]:
        """The job's own role, as options."""
        return {"url": self.server.url, "user": ROLE, "password": SECRET}

    def idle(self, seconds: float = IDLE_SECONDS) -> Run:
        return self._watched("idle", lambda: time.sleep(seconds), copied=False)

    def elsewhere(self) -> Run:
        """Spark and this machine as busy as under the limit, and the server left alone."""

        def copy() -> None:
            spark_channel.transfer(
                self.spark,
                reader={"name": "generator", "rows": int(LIMIT * IDLE_SECONDS), "rowBytes": 60},
                writer={"name": "discard"},
                channels=CHANNELS,
                rows_per_second=LIMIT,
            )

        return self._watched("elsewhere", copy, copied=False)

    def jdbc(self, rows: int) -> Run:
        login = {
            "url": f"jdbc:{self.server.url}?reWriteBatchedInserts=true",
            "user": ROLE,
            "password": SECRET,
            "driver": "org.postgresql.Driver",
        }
        split = {
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(rows),
            "numPartitions": str(CHANNELS),
        }
        table = f"(SELECT * FROM orders WHERE id <= {rows}) AS part"

        def copy() -> None:
            assert self.spark is not None
            read = self.spark.read.format("jdbc").options(
                dbtable=table, fetchsize="10000", **login, **split
            )
            read.load().write.format("jdbc").options(
                dbtable="copy", batchsize="10000", **login
            ).mode("append").save()

        return self._watched("Spark JDBC", copy)

    def transfer(
        self, name: str, rows: int, *, seconds: float = LONGEST_SECONDS, **more: object
    ) -> Run:
        """Ended after so many seconds, whatever is left; the local engine runs to the end."""

        ended = threading.Event()

        def end() -> None:
            if self.spark is not None:
                ended.set()
                self.spark.sparkContext.cancelAllJobs()

        def copy() -> None:
            timer = threading.Timer(seconds, end)
            timer.start()
            try:
                report = spark_channel.transfer(
                    self.spark,
                    reader={
                        "name": "postgresql",
                        "dbtable": "orders",
                        "where": f"id <= {rows}",
                        **self.login,
                    },
                    writer={"name": "postgresql", "dbtable": "copy", **self.login},
                    channels=CHANNELS,
                    commit="task",
                    **more,  # type: ignore[arg-type] # its keywords
                )
                if "protect" in more:
                    print(report, flush=True)
            except Exception:
                if not ended.is_set():
                    raise
            finally:
                timer.cancel()

        return self._watched(name, copy)

    def auto(self, rows: int, seconds: float) -> Run:
        """Without a limit."""
        return self.transfer("spark-channel, protect=auto", rows, seconds=seconds, protect="auto")

    def verify(self, rows: int) -> Run:
        """Half of the rows on each side, so that as many are paid for as a copy reads."""
        side = {"name": "postgresql", "dbtable": "orders", **self.login}
        side["where"] = f"id <= {rows // 2}"

        def compare() -> None:
            done = spark_channel.verify(
                self.spark, side, side, channels=CHANNELS, rows_per_second=LIMIT
            )
            assert (done.outcome, done.equal) == ("equal", rows // 2)

        run = self._watched(f"verify, {spaced(LIMIT)} rows/s", compare, copied=False)
        return replace(run, rows=rows)

    def best_limit(
        self,
        most_p99: float,
        *,
        slowest: float = SLOWEST,
        fastest: float = FASTEST,
        steps: int = STEPS,
        seconds: float = STEP_SECONDS,
    ) -> float:
        """The highest fixed limit, of a geometric bisection, under which the application's p99 stays at most that.

        A limit is bad that is seen to be bad twice: one run may have met another tenant of this machine.
        """

        def is_good(limit: float) -> bool:
            rows = min(2_000_000, int(limit * seconds))
            run = self.transfer(f"{limit:.0f} rows/s", rows, rows_per_second=int(limit))
            print(
                f"  {limit:7.0f} rows/s: p99 {run.p99:.2f} ms, at most {most_p99:.2f}", flush=True
            )
            return run.p99 <= most_p99

        good, bad = float(slowest), float(fastest)
        for _ in range(steps):
            limit = math.sqrt(good * bad)
            if is_good(limit) or is_good(limit):
                good = limit
            else:
                bad = limit
        return good

    def _watched(self, name: str, work: Callable[[], None], *, copied: bool = True) -> Run:
        self.server.psql(
            f"SET client_min_messages = error; DROP TABLE IF EXISTS copy; CREATE TABLE copy ({COLUMNS}); "
            f"ALTER TABLE copy OWNER TO {ROLE}; CHECKPOINT"
        )
        time.sleep(2.0)
        begin = time.time()
        work()
        end = time.time()
        time.sleep(1.5)  # until pgbench has written what it saw
        rows = int(self.server.psql("SELECT count(*) FROM copy"))
        assert not copied or rows, f"{name} has copied nothing"
        seen = [(at - begin, each) for at, each in self.application.latencies(begin, end)]
        return Run(name, seen, end - begin, rows)


def draw(rounds: "list[Round]", out: Path) -> None:
    """For each kind of run a line, the median of all rounds, in a band from their lowest to their highest value.

    Transparent, in colours that are seen on white and on black; lines differ also without colour.
    """
    from matplotlib.figure import Figure

    grey = "#7d8590"
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=160)
    figure.patch.set_alpha(0.0)
    axes = figure.subplots()
    axes.patch.set_alpha(0.0)
    looks = ((grey, "--"), ("#e5534b", "-"), ("#3b82f6", "-."), ("#1fa37a", ":"))
    for (colour, style), runs in zip(
        looks, zip(*(each.drawn for each in rounds), strict=True), strict=True
    ):
        at, lowest, middle, highest = band([run.by_second(0.99) for run in runs])
        p99 = statistics.median(run.p99 for run in runs)
        seconds = statistics.median(run.seconds for run in runs)
        copied = "" if not runs[0].rows else f", {runs[0].rows / 1e6:.1f} M rows in {seconds:.0f} s"
        axes.fill_between(at, lowest, highest, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            at,
            middle,
            color=colour,
            linewidth=1.6,
            linestyle=style,
            label=f"{runs[0].name}: p99 {p99:.1f} ms{copied}",
        )
    axes.set_yscale("log")
    axes.set_xlabel("seconds since the copy began", color=grey)
    axes.set_ylabel("ms, p99 of each second", color=grey)
    axes.set_title(
        "An application's transactions while rows are copied out of its PostgreSQL and into it",
        color=grey,
        fontsize=10,
    )
    axes.tick_params(colors=grey, which="both")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(
        lambda value, _: f"{value:g}" if f"{value:g}"[0] in "235" else ""
    )
    axes.grid(visible=True, which="both", axis="y", color=grey, alpha=0.25, linewidth=0.5)
    for name, spine in axes.spines.items():
        spine.set_color(grey)
        spine.set_visible(name in ("left", "bottom"))
    axes.legend(frameon=False, labelcolor=grey, fontsize=8, loc="upper right")
    figure.savefig(out, transparent=True)


def band(
    runs: Sequence[tuple[list[float], list[float]]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """(seconds, lowest, median, highest) of the values of several rounds; a round that has ended is left out."""
    seen: dict[float, list[float]] = {}
    for seconds, values in runs:
        for second, value in zip(seconds, values, strict=True):
            seen.setdefault(second, []).append(value)
    at = sorted(seen)
    values_of = [seen[second] for second in at]
    return (
        at,
        [min(each) for each in values_of],
        [statistics.median(each) for each in values_of],
        [max(each) for each in values_of],
    )


def figures(rounds: "list[Round]") -> HarmFigures:
    def median(run: str, figure: str) -> float:
        return float(statistics.median(getattr(getattr(each, run), figure) for each in rounds))

    return HarmFigures(
        rounds=len(rounds),
        rows=ROWS,
        limit=LIMIT,
        idle_ms=median("idle", "p99"),
        jdbc_ms=median("jdbc", "p99"),
        limited_ms=median("fixed", "p99"),
        jdbc_speed=median("jdbc", "rows_per_second"),
        limited_speed=median("fixed", "rows_per_second"),
    )


@contextlib.contextmanager
def _bench(*, with_spark: bool = True) -> Iterator[Bench]:
    assert JAR.exists() or not with_spark, f"no {JAR}: run .ci/servers"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-channel-harm-"))
        )
        os.sched_setaffinity(0, APPLICATION)  # the server inherits it
        server = PostgresServer.create(
            autovacuum="off", shared_preload_libraries="pg_stat_statements"
        )
        stack.callback(server.close)
        application = Application(server, directory)
        os.sched_setaffinity(0, SPARK)
        spark = _spark() if with_spark else None
        if spark is not None:
            stack.callback(spark.stop)
        stack.callback(application.stop)
        yield Bench(server, application, spark)


def _spark() -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{CHANNELS}]")
        .config("spark.jars", str(JAR))
        .config("spark.driver.extraClassPath", str(JAR))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark_channel.register(spark)
    return spark


@dataclass(frozen=True)
class Round:
    """One run of each kind, one after the other."""

    idle: Run
    elsewhere: Run
    jdbc: Run
    fixed: Run
    auto: Run
    verify: Run

    @property
    def drawn(self) -> list[Run]:
        return [self.idle, self.jdbc, self.fixed, self.auto]


def _begin(bench: Bench) -> None:
    """Fill the tables, start the application, and warm the JVM, the workers and the server."""
    bench.fill()
    bench.application.make()
    bench.application.start()
    print(f"  the application: {bench.application.rate:.0f} transactions/s", flush=True)
    some = min(ROWS, 100_000)
    if bench.spark is not None:
        bench.jdbc(some)
    bench.transfer("warm", some)


def measure() -> tuple[list[Round], float]:
    """The rounds, and the best fixed limit."""
    with _bench() as bench:
        _begin(bench)
        rounds = []
        for _ in range(ROUNDS):
            each = Round(
                bench.idle(),
                bench.elsewhere(),
                bench.jdbc(ROWS),
                bench.transfer(
                    f"spark-channel, {spaced(LIMIT)} rows/s", ROWS, rows_per_second=LIMIT
                ),
                bench.auto(ROWS, 50.0),
                bench.verify(ROWS),
            )
            rounds.append(each)
            percentiles = ", ".join(
                f"{run.name} {run.p99:.2f}" for run in (each.elsewhere, *each.drawn, each.verify)
            )
            print(f"  p99 in ms: {percentiles}", flush=True)
        best = bench.best_limit(
            ASKED_AUTO * statistics.median(each.elsewhere.p99 for each in rounds)
        )
        return rounds, best


def main() -> list[Row]:
    rounds, best = measure()
    if SCALE >= 1:
        draw(rounds, PICTURE)
        put_into_readme(figures(rounds))
    if kept := os.environ.get("SPARK_CHANNEL_BENCH_OUT"):
        seconds = [
            {
                run.name: {"p50": run.by_second(0.5)[1], "p99": run.by_second(0.99)[1]}
                for run in each.drawn
            }
            for each in rounds
        ]
        Path(kept).write_text(json.dumps(seconds))
    rows = [
        Row("idle: p50", statistics.median(each.idle.p50 for each in rounds), unit="ms"),
        Row("idle: p99", statistics.median(each.idle.p99 for each in rounds), unit="ms"),
    ]
    for what, asked in (
        ("elsewhere", ""),
        ("jdbc", ""),
        ("fixed", ASKED_FIXED),
        ("auto", ASKED_AUTO),
        ("verify", ASKED_FIXED),
    ):
        runs = [getattr(each, what) for each in rounds]
        ratios = [run.p99 / each.idle.p99 for run, each in zip(runs, rounds, strict=True)]
        control = statistics.median(
            run.p99 / each.elsewhere.p99 for run, each in zip(runs, rounds, strict=True)
        )
        p50, p99, speed = (
            statistics.median(getattr(run, figure) for run in runs)
            for figure in ("p50", "p99", "rows_per_second")
        )
        note = (
            f"{', '.join(f'{each:.2f}' for each in ratios)}; {control:.2f} x elsewhere; "
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms" + (f", {speed:.0f} rows/s" if speed else "")
        )
        rows += [
            Row(
                f"{runs[0].name}: p99",
                statistics.median(ratios),
                f"<= {asked}" if asked else "",
                "x idle",
                note,
            ),
            Row(f"{runs[0].name}: p99 in ms", p99, unit="ms"),
        ]
    auto = statistics.median(each.auto.rows_per_second for each in rounds)
    rows.append(Row("best fixed limit", best, unit="rows/s", note=f"{STEPS} steps of bisection"))
    rows.append(Row("protect=auto: rows/s of the best limit", auto / best, f">= {ASKED_USED}", "x"))
    spread = statistics.median(statistics.pstdev(each.idle.by_second(0.99)[1]) for each in rounds)
    rows.append(
        Row("idle: spread of a second's p99", spread, unit="ms", note="how noisy this machine was")
    )
    return rows


def auto() -> list[Row]:
    """Rounds of idle and `protect=auto`, and the best fixed limit that keeps the bound that is asked."""
    with _bench(with_spark=False) as bench:
        _begin(bench)
        rounds = []
        for _ in range(AUTO_ROUNDS):
            idle, run = bench.idle(AUTO_IDLE_SECONDS), bench.auto(AUTO_ROWS, 60.0)
            rounds.append((idle, run))
            print(
                f"  p99 {idle.p99:.2f} and {run.p99:.2f} ms, {run.rows_per_second:.0f} rows/s; each second: "
                f"{' '.join(f'{each:.1f}' for each in run.by_second(0.99)[1])}",
                flush=True,
            )
        best = bench.best_limit(
            ASKED_AUTO * statistics.median(idle.p99 for idle, _ in rounds),
            slowest=AUTO_SLOWEST,
            fastest=AUTO_FASTEST,
            steps=AUTO_STEPS,
            seconds=AUTO_STEP_SECONDS,
        )
    ratios = [run.p99 / idle.p99 for idle, run in rounds]
    speeds = [run.rows_per_second for _, run in rounds]
    middle = statistics.median(speeds)
    return [
        Row(
            "protect=auto: highest p99",
            max(ratios),
            f"<= {ASKED_AUTO}",
            "x idle",
            ", ".join(f"{each:.2f}" for each in ratios),
        ),
        Row(
            "protect=auto: rows/s of the best limit",
            middle / best,
            f">= {ASKED_USED}",
            "x",
            f"{middle:.0f} of {best:.0f} rows/s",
        ),
        Row(
            "protect=auto: slowest round",
            min(speeds) / middle,
            f">= {ASKED_EVEN}",
            "x median",
            ", ".join(f"{each:.0f}" for each in speeds),
        ),
    ]


def verify() -> list[Row]:
    """Rounds of idle, the control, a copy and a verify, both under one limit."""
    with _bench() as bench:
        _begin(bench)
        bench.verify(min(VERIFY_ROWS, 100_000))  # warm
        rounds = []
        for _ in range(VERIFY_ROUNDS):
            copy = bench.transfer("copy", VERIFY_ROWS, rows_per_second=LIMIT)
            each = (bench.idle(), bench.elsewhere(), copy, bench.verify(VERIFY_ROWS))
            rounds.append(each)
            shown = ", ".join(f"{run.name} {run.p99:.2f}" for run in each)
            print(f"  p99 in ms: {shown}; {each[3].rows_per_second:.0f} rows/s", flush=True)
    rows = []
    for place, name in enumerate(("idle", "control", "copy", "verify")):
        runs = [each[place] for each in rounds]
        ratios = [run.p99 / each[0].p99 for run, each in zip(runs, rounds, strict=True)]
        note = f"{', '.join(f'{each:.2f}' for each in ratios)} x idle"
        p99 = statistics.median(run.p99 for run in runs)
        rows.append(Row(f"{name}: p99", p99, unit="ms", note=note))
    ratios = [each[3].p99 / each[2].p99 for each in rounds]
    note = ", ".join(f"{each:.2f}" for each in ratios)
    rows.append(Row("verify / copy: p99", statistics.median(ratios), "<= 1.1", "x", note))
    return rows


if __name__ == "__main__":
    chosen = {"auto": auto, "verify": verify}
    print_table(chosen.get("".join(sys.argv[1:]), main)())
