"""One new session and its first job, as JSON: `python -m tests.benchmarks.first_hour count-channel FOLDER`.

Seconds by the clock, and CPU seconds of the driver, its JVM and each Python process of Spark: on a busy machine the
second says more.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
TABLE, COLUMNS = "t", "id BIGINT, a BIGINT, b DOUBLE, c STRING"
ROWS = 1_000
LIMIT = 100_000
WARM = 9
SQLITE_JDBC = Path(os.environ.get("SQLITE_JDBC", "/usr/share/java/sqlite-jdbc.jar"))
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The options of docs/operations.md for the JVM of a short job."""
NATIVE = os.environ.get("SQLITE_JDBC_NATIVE", "/usr/lib/x86_64-linux-gnu/jni")
"""Where Debian's `libxerial-sqlite-jdbc-java` puts both."""


def processes() -> dict[str, float]:
    """CPU seconds so far of this process and all below it, by what they are; a fork of a daemon is a `task`."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            table[int(entry.name)] = (int(fields[1]), command, sum(map(int, fields[11:13])) / TICKS)
    found: dict[str, float] = {}
    for pid in table:
        line = [pid]
        while line[-1] in table and line[-1] != os.getpid():
            line.append(table[line[-1]][0])
        if line[-1] == os.getpid():
            name = _role(table[pid][1], table.get(table[pid][0], (0, [], 0.0))[1], pid)
            found[name] = found.get(name, 0.0) + table[pid][2]
    return found


def _role(command: list[str], parent: list[str], pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    if command[0].endswith("java"):
        return "jvm"
    if "pyspark.daemon" not in command:
        return "other"
    module = command[command.index("pyspark.daemon") + 1].rpartition(".")[2]
    return f"{module}: ours" if "pyspark.daemon" in parent else f"{module}: daemon"


class Watch:
    """What each step took: seconds, and CPU of every process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, dict[str, float]] = {}
        self._cpu, self._at = processes(), time.perf_counter()

    def step(self, name: str) -> None:
        now, cpu = time.perf_counter(), processes()
        self.seconds[name] = now - self._at
        self.cpu[name] = {role: spent - self._cpu.get(role, 0.0) for role, spent in cpu.items()}
        self._cpu, self._at = cpu, time.perf_counter()


def timed(reader: Any, marks: str) -> Any:
    """`reader`, whose tasks write down when they began, had their partition, and were through with it."""
    from pyspark.sql.datasource import DataSourceReader

    class Timed(DataSourceReader):
        def __init__(self) -> None:
            self.reader = reader
            self.at: list[float] = []

        # quoted: a class that is sent by value has no names for its annotations
        def __setstate__(self, state: "dict[str, Any]") -> None:
            self.__dict__.update(state)
            self.at = [time.time()]

        def partitions(self) -> "Any":
            return self.reader.partitions()

        def read(self, partition: "Any") -> "Iterator[Any]":
            self.at.append(time.time())
            yield from self.reader.read(partition)
            self.at.append(time.time())
            with Path(marks).open("a") as file:
                file.write(json.dumps(self.at) + "\n")

    Timed.__module__ = "__main__"
    return Timed()


def timed_source(source: Any, marks: str) -> Any:
    """The same data source as `timed`."""
    make = timed

    class Timed(source):  # type: ignore[misc] # its base is untyped
        @classmethod
        def name(cls) -> str:
            return "timed"

        def reader(self, schema: "Any") -> "Any":
            return make(super().reader(schema=schema), marks)

    Timed.__module__ = make.__module__ = "__main__"
    return Timed


def made_up(rows_of_it: int = ROWS) -> Any:
    """A Python source of a dozen lines: what any costs. Its class is sent by value, and imports what Spark does."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            rows = range(partition.value, rows_of_it, 2)
            columns = [pa.array(rows, pa.int64())] * 2
            columns += [pa.array(rows, pa.float64()), pa.array(map(str, rows), pa.string())]
            if rows:
                yield pa.RecordBatch.from_arrays(columns, names=["id", "a", "b", "c"])

    class MadeUp(DataSource):
        @classmethod
        def name(cls) -> str:
            return "made_up"

        def schema(self) -> str:
            return COLUMNS

        def reader(self, schema: object) -> Reader:
            return Reader()

    for kind in (Reader, MadeUp):
        kind.__module__ = "__main__"
    return MadeUp


def frame_of(how: str, spark: Any, folder: Path) -> Callable[[], Any]:
    """Makes the DataFrame of the table, after what a session needs once."""
    database = str(folder / "first.db")
    if how in ("channel", "short"):
        import spark_channel

        spark_channel.register(spark)
        return lambda: spark.read.format("channel").option("dbtable", TABLE).load(database)
    if how in ("made_up", "empty"):
        spark.dataSource.register(made_up(ROWS if how == "made_up" else 0))
        return lambda: spark.read.format("made_up").load()
    if how == "jdbc":
        options = {"url": f"jdbc:sqlite:{database}", "dbtable": TABLE, "driver": "org.sqlite.JDBC"}
        return lambda: spark.read.format("jdbc").options(**options).load()
    return lambda: spark.read.csv(str(folder / "first.csv"), header=True, inferSchema=True)


def count(how: str, spark: Any, folder: Path) -> dict[str, Any]:
    watch = Watch()
    load = frame_of(how, spark, folder)
    watch.step("register")
    frame = load()
    watch.step("load")
    rows = 0 if how == "empty" else ROWS
    assert frame.count() == rows
    watch.step("count")
    warm = []
    for _ in range(WARM):
        began = time.perf_counter()
        assert frame.count() == rows
        warm.append(time.perf_counter() - began)
    found = {
        "seconds": watch.seconds,
        "cpu": watch.cpu,
        "warm": statistics.median(warm),
        "best": min(warm),
    }
    return {**found, "steps": steps(how, spark, folder)}


def steps(how: str, spark: Any, folder: Path) -> dict[str, float]:
    """Where the seconds of a warm count go, in the slower one of its tasks; medians."""
    if how not in ("channel", "short", "made_up", "empty"):
        return {}
    marks = folder / f"marks-{os.getpid()}"
    if how in ("channel", "short"):
        import spark_channel

        source = timed_source(spark_channel.ChannelDataSource, str(marks))
    else:
        source = timed_source(made_up(0 if how == "empty" else ROWS), str(marks))
    spark.dataSource.register(source)
    frame = spark.read.format("timed").option("dbtable", TABLE).load(str(folder / "first.db"))
    taken: dict[str, list[float]] = {}
    for number in range(2 * WARM):
        marks.write_text("")
        began = time.time()
        frame.count()
        ended = time.time()
        code, partition, through = max(
            map(json.loads, marks.read_text().splitlines()), key=lambda at: at[-1]
        )
        if number >= WARM // 2:  # the first ones plan the read, and start other workers
            for name, seconds in {
                "to its task's code": code - began,
                "to the partition": partition - code,
                "reads": through - partition,
                "to the result": ended - through,
            }.items():
                taken.setdefault(name, []).append(seconds)
    marks.unlink()
    return {name: statistics.median(each) for name, each in taken.items()}


def save(spark: Any, folder: Path) -> dict[str, Any]:
    """The demo's copy: CSV to SQLite under a limit."""
    import spark_channel
    from spark_channel.spark import session

    spark_channel.register(spark)
    opened: list[float] = []

    class Clock:
        def job_opened(self, progress: Any) -> None:
            opened.append(time.perf_counter())

        def job_closed(self, progress: Any) -> None:
            pass

    for server in session._services.values():
        server.jobs.subscribe(Clock())
    frame = spark.read.format("channel").option("nullValue", "NA").load(str(folder / "flights.csv"))
    target = folder / f"copy-{os.getpid()}.db"
    watch, began = Watch(), time.perf_counter()
    writer = (
        frame.write.format("channel").option("dbtable", "flights").option("rowsPerSecond", LIMIT)
    )
    writer.mode("overwrite").save(str(target))
    watch.step("save")
    target.unlink()
    report = spark_channel.last_report()
    assert report is not None
    assert report.kind == "write", report
    launching = report.last_row_seconds - report.moving_seconds
    first = min(trace.phases.get("first_row", 0.0) for trace in report.traces)
    return {
        "seconds": {
            **watch.seconds,
            "before the clock": opened[0] - began,
            "to the first task": launching,
            "to the first row": first,
            "moving": report.last_row_seconds - launching,
            "publish": report.publish_seconds,
        },
        "rows": report.rows,
        "cpu": watch.cpu,
        "samples": [[each.seconds, each.rows_per_second] for each in report.samples],
    }


def main() -> None:
    what, _, how = sys.argv[1].partition("-")
    folder = Path(sys.argv[2])
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if how == "jdbc":
        builder = builder.config("spark.jars", str(SQLITE_JDBC)).config(
            "spark.driver.extraJavaOptions", f"-Dorg.sqlite.lib.path={NATIVE}"
        )
    if how == "short":
        builder = builder.config("spark.driver.extraJavaOptions", SHORT_LIFE)
    began = time.perf_counter()
    spark = builder.getOrCreate()
    session = time.perf_counter() - began
    try:
        found = save(spark, folder) if what == "save" else count(how, spark, folder)
        print(json.dumps({**found, "session": session}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
