"""Reads and copies through Spark: what the channel costs, how well a limit holds, what memory it takes."""

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_channel.connectors.generator.reader import GeneratorReader
from spark_channel.planning import Split
from spark_channel.spark.read import ChannelPartition, ChannelReader
from spark_channel.spark.source import ChannelDataSource
from spark_channel.spark.worker import SessionFacts
from tests.benchmarks.harness import Row, alternate
from tests.spark.planner import plan_in_a_process

ROOT = Path(__file__).resolve().parents[2]
ROWS = 4_000_000
SMALL = 3_000_000
"""Rows of the smaller copy: more than fit into the channel, so that both copies fill it."""
LIMIT = 100_000
SECONDS = 30
FETCH_SECONDS = 0.08
"""Seconds of a slow source: four times what a limit saves up."""


class BareReader(ChannelReader):
    """The same source, planned the same way, yielding batches without a channel."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ChannelPartition):
            return
        for task in partition.group.tasks:
            for batch in self._reader.read(task.split):
                yield batch.cast(self._schema) if batch.schema != self._schema else batch


class BareDataSource(ChannelDataSource):
    @classmethod
    def name(cls) -> str:
        return "bare"

    def reader(self, schema: StructType) -> BareReader:
        return BareReader(self.options, schema, SessionFacts(2), self._load)


class SlowGenerator(GeneratorReader):
    """A source that needs a while for each fetch, as a database over a network does."""

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for batch in super().read(split):
            time.sleep(FETCH_SECONDS)
            yield batch


class TimedReader(ChannelReader):
    """Notes when each batch left the channel."""

    def slow(self) -> Self:
        assert isinstance(self._reader, GeneratorReader)
        self._reader = SlowGenerator(self._reader.options)
        return self

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        log = []
        for batch in super().read(partition):
            log.append((time.monotonic(), batch.num_rows))
            yield batch
        Path(os.environ["SPARK_CHANNEL_BENCH_LOG"]).write_text(json.dumps(log))


class TimedDataSource(ChannelDataSource):
    @classmethod
    def name(cls) -> str:
        return "timed"

    def reader(self, schema: StructType) -> TimedReader:
        return TimedReader(self.options, schema, SessionFacts(1), self._load)


class SlowDataSource(TimedDataSource):
    @classmethod
    def name(cls) -> str:
        return "slow"

    def reader(self, schema: StructType) -> TimedReader:
        return super().reader(schema).slow()


def session(log: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["SPARK_CHANNEL_BENCH_LOG"] = str(log)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    for source in (ChannelDataSource, BareDataSource, TimedDataSource, SlowDataSource):
        spark.dataSource.register(source)
    return spark


def make_table(path: Path, rows: int) -> None:
    numbers = pa.array(np.arange(rows))
    table = pa.table(
        {
            "id": numbers,
            "a": numbers,
            "b": numbers.cast(pa.float64()),
            "c": numbers.cast(pa.string()),
        }
    )
    pq.write_table(table, path, row_group_size=100_000)


def read_cost(spark: SparkSession, source: Path) -> Row:
    def run(form: str) -> None:
        reader = spark.read.format(form).option("reader", "parquet").option("channels", 2)
        reader.load(str(source)).write.format("noop").mode("overwrite").save()

    ours, bare = alternate(lambda: run("channel"), lambda: run("bare"), 7)
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    return Row(
        "read -> noop, channel / no channel", ratio, "<= 1.03", "x", f"{ROWS:,} rows of 4 columns"
    )


def limit_rows(spark: SparkSession, log: Path, form: str = "timed") -> list[Row]:
    frame = (
        spark.read.format(form)
        .options(reader="generator", rows=LIMIT * SECONDS, channels=1, rowsPerSecond=LIMIT)
        .load()
    )
    frame.write.format("noop").mode("overwrite").save()
    seen = json.loads(log.read_text())
    start, end = seen[0][0], seen[-1][0]
    mean = (sum(rows for _, rows in seen) - seen[0][1]) / (end - start) / LIMIT
    worst = max(
        sum(rows for at, rows in seen if begin <= at < begin + 1.0)
        for begin in (at for at, _ in seen[::10])
    )
    name = "limit" if form == "timed" else f"limit, {FETCH_SECONDS * 1000:.0f} ms for each fetch"
    note = f"{SECONDS} s at {LIMIT:,} rows/s, one channel, seen where Spark takes the batches"
    return [
        Row(f"{name}: mean / limit", mean, "0.99 to 1.01", "x", note),
        Row(f"{name}: worst second / limit", worst / LIMIT, "<= 1.05", "x", note),
    ]


_PEAK = """
import json, os, sys
from pathlib import Path
from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.pipeline import GroupRead, TaskWrite
from spark_channel.planning import assign_fairly, merge_tasks
source, target = sys.argv[1:]
reader, _ = load_reader({"path": source, "reader": "parquet"})
writer, _ = load_writer({"path": target, "writer": "parquet"})
schema = reader.schema()
(group,) = assign_fairly(merge_tasks(reader.split(5)), 1)
room = dict(capacity_rows=1 << 20, capacity_bytes=64 << 20)
plan = writer.prepare(WriteContext(job="bench"), schema)
receipt = TaskWrite(writer, plan, 0, 0, **room).run(GroupRead(reader, group, schema, **room).batches())
writer.commit(plan, [receipt])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps([receipt.rows, int(peak.split()[1])]))
"""


def memory(folder: Path) -> Row:
    """The whole of a worker's pipeline, read and write, in one process: its peak resident memory."""
    peaks = {}
    for times in (1, 10):
        source = folder / f"x{times}.parquet"
        make_table(source, times * SMALL)
        found = []
        for run in range(3):
            command = [sys.executable, "-c", _PEAK, str(source), str(folder / f"out-{times}-{run}")]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            rows, peak = json.loads(done.stdout)
            assert rows == times * SMALL
            found.append(peak)
        peaks[times] = statistics.median(found)
    note = f"{peaks[1] / 1024:.0f} MiB at {SMALL:,} rows, parquet to parquet"
    return Row("peak memory, 10x the data / 1x", peaks[10] / peaks[1], "<= 1.10", "x", note)


def import_cost() -> Row:
    def seconds(code: str) -> float:
        timed = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
        done = subprocess.run(
            [sys.executable, "-c", timed], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    pairs = [
        (seconds("import pyarrow, spark_channel"), seconds("import pyarrow")) for _ in range(9)
    ]
    more = statistics.median(both - alone for both, alone in pairs)
    return Row(
        "import spark_channel over import pyarrow", more * 1000, "<= 50", "ms", "fresh interpreters"
    )


def planner_cost(folder: Path) -> list[Row]:
    """The CPU of the short processes that Spark starts on the driver's host, against that of Spark's own part."""
    source, database = folder / "few.parquet", folder / "few.db"
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), source)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    table = {"path": str(database), "dbtable": "t"}
    stream = {**table, "cursorColumn": "id", "tunnelType": "stream"}
    cases = {
        "read of Parquet": ("read", {"path": str(source)}),
        "write to SQLite": ("write", table),
    }
    rows = []
    for name, (step, options) in {**cases, "stream of a SQLite table": ("stream", stream)}.items():
        steps = [plan_in_a_process(step, options) for _ in range(9)]
        more = statistics.median(each.after / each.before for each in steps)
        rows.append(
            Row(f"process that plans a {name}, CPU / pyspark and pyarrow alone", more, "", "x")
        )
    return rows


def main() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="spark-channel-bench-") as name:
        folder = Path(name)
        source, log = folder / "source.parquet", folder / "log.json"
        make_table(source, ROWS)
        rows = [import_cost(), *planner_cost(folder), memory(folder)]
        spark = session(log)
        try:
            rows += [
                read_cost(spark, source),
                *limit_rows(spark, log),
                *limit_rows(spark, log, "slow"),
            ]
        finally:
            spark.stop()
    return rows
