"""Transfers: what the channel costs, and how they compare with Spark's own sources and with our own
DataFrame path.

`TPCH_SCALE` (default 1) is the scale factor of lineitem, 6 M rows each.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.pipeline import (
    DirtyBudget,
    FanOutTarget,
    FanOutTargetRun,
    FanOutWork,
    GroupFanOut,
    GroupTransfer,
    TransferSource,
    TransferWork,
)
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import DirtyLimit
from spark_channel.transform import prepare
from tests.benchmarks.harness import Row, alternate, ratio, spark_session

SCALE = float(os.environ.get("TPCH_SCALE", "1"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
GENERATED = 20_000_000
ROOM = (1 << 20, 64 << 20)
SCHEMA = (
    "l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber int, l_quantity decimal(15,2), "
    "l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag string, "
    "l_linestatus string, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct string, "
    "l_shipmode string, l_comment string"
)


def make_lineitem(folder: Path, form: str) -> Path:
    """lineitem in two files."""
    tool = Path(sys.executable).with_name("tpchgen-cli")
    target = folder / form
    command = [
        str(tool),
        form,
        "-s",
        str(SCALE),
        "--tables=lineitem",
        "--parts=2",
        f"--output-dir={target}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target / "lineitem"


def against_a_bare_loop() -> Row:
    """Two channels of one task group, in this process; the loop consumes the same batches in one thread."""
    reader, _ = load_reader({"reader": "generator", "rows": GENERATED})
    writer, _ = load_writer({"writer": "discard"})
    splits = reader.split(10)
    pipeline = prepare((), reader.schema())
    plan = writer.prepare(WriteContext("bench"), pipeline.output_schema)
    work = TransferWork((TransferSource(reader, pipeline),), ((writer, plan),), "bench", *ROOM)
    tasks = tuple(Task(n, TransferSource.wrap(0, split)) for n, split in enumerate(splits))

    def ours() -> None:
        outcome = GroupTransfer(
            work, TaskGroup(0, tasks, 2), 0, budget=DirtyBudget(DirtyLimit())
        ).run()
        assert sum(each.receipt.rows for each in outcome.tasks if each.receipt) == GENERATED

    def bare() -> None:
        rows = 0
        for split in splits:
            for batch in reader.read(split):
                rows += batch.num_rows
        assert rows == GENERATED

    found = ratio(*alternate(ours, bare, ROUNDS))
    cpu = ratio(*alternate(ours, bare, ROUNDS, time.process_time))
    note = f"{GENERATED:,} rows; CPU seconds / CPU seconds: {cpu:.3f}"
    return Row("generator -> discard, 2 channels / bare loop", found, "<= 1.05", "x", note)


def whole_transfer(spark: SparkSession) -> Row:
    """The same through Spark, planning and all, two channels."""
    reader, _ = load_reader({"reader": "generator", "rows": GENERATED})
    splits = reader.split(10)

    def ours() -> None:
        source = {"name": "generator", "rows": GENERATED}
        spark_channel.transfer(spark, source, {"name": "discard"}, channels=2)

    def bare() -> None:
        for split in splits:
            for _batch in reader.read(split):
                pass

    found = ratio(*alternate(ours, bare, ROUNDS))
    return Row("the same as spark_channel.transfer / bare loop", found, "<= 1.05", "x", "local[2]")


def copies(spark: SparkSession, folder: Path, source: Path, form: str) -> list[Row]:
    """`form` -> parquet three ways, onto fresh directories."""
    fresh = iter(range(10_000))
    options: dict[str, Any] = {"path": str(source)}
    if form == "csv":
        options |= {"header": "true"}

    def timed(copy: Callable[[str], None]) -> Callable[[], None]:
        def run() -> None:
            target = folder / f"out-{next(fresh)}"
            copy(str(target))
            shutil.rmtree(target)

        return run

    def ours(target: str) -> None:
        schema = {"schema": SCHEMA} if form == "csv" else {}
        spark_channel.transfer(
            spark, {"name": form, **options, **schema}, {"name": "parquet", "path": target}
        )

    def sparks(target: str) -> None:
        reader = spark.read.format(form).options(**options)
        if form == "csv":
            reader = reader.schema(SCHEMA)
        reader.load().write.parquet(target)

    def frames(target: str) -> None:
        reader = spark.read.format("channel").option("reader", form).options(**options)
        if form == "csv":
            reader = reader.schema(SCHEMA)
        reader.load().write.format("channel").option("writer", "parquet").mode("append").save(
            target
        )

    note = f"lineitem SF{SCALE:g}, {_megabytes(source)} MB, local[2]"
    own = ratio(*alternate(timed(ours), timed(sparks), ROUNDS))
    jvm = ratio(*alternate(timed(frames), timed(ours), max(1, ROUNDS // 2)))
    return [
        Row(f"{form} -> parquet, transfer / Spark's sources", own, "<= 1.0", "x", note),
        Row(f"{form} -> parquet, our DataFrame path / transfer", jvm, ">= 2.0", "x", note),
    ]


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


class _Sleeper:
    """A reader whose splits take as long as they say, and which notes when each was read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.spans: list[tuple[float, float]] = []
        self.lock = threading.Lock()

    def reading(self) -> Any:
        return nullcontext(self.read)

    def read(self, split: Split) -> Any:
        start = time.perf_counter()
        time.sleep(split.params["seconds"])
        yield self.inner.batch(0, 10)
        with self.lock:
            self.spans.append((start, time.perf_counter()))


def idle_channels() -> Row:
    """4 channels over 20 tasks, one of them ten times as long."""
    inner, _ = load_reader({"reader": "generator", "rows": 10})
    writer, _ = load_writer({"writer": "discard"})
    pipeline = prepare((), inner.schema())
    plan = writer.prepare(WriteContext("bench"), pipeline.output_schema)
    sizes = [500, *[50] * 19]
    worst = []
    for _ in range(ROUNDS):
        reader: Any = _Sleeper(inner)
        work = TransferWork((TransferSource(reader, pipeline),), ((writer, plan),), "bench", *ROOM)
        tasks = tuple(
            Task(n, TransferSource.wrap(0, Split({"seconds": size / 1000}, rows=size)))
            for n, size in enumerate(sizes)
        )
        GroupTransfer(work, TaskGroup(0, tasks, 4), 0, budget=DirtyBudget(DirtyLimit())).run()
        begin, last = (
            min(start for start, _ in reader.spans),
            max(start for start, _ in reader.spans),
        )
        busy = sum(max(0.0, min(end, last) - start) for start, end in reader.spans)
        worst.append(100 * (1 - busy / (4 * (last - begin))))
    note = "4 channels over 20 tasks, one 10x; until the last task starts"
    return Row("idle channels", statistics.median(worst), "<= 5", "%", note)


def two_targets() -> Row:
    """One read for two targets, against two transfers to one each: the source is what costs here."""
    reader, _ = load_reader({"reader": "generator", "rows": GENERATED})
    writer, _ = load_writer({"writer": "discard"})
    pipeline = prepare((), reader.schema())
    plan = writer.prepare(WriteContext("bench"), pipeline.output_schema)
    source = TransferSource(reader, pipeline)
    tasks = tuple(
        Task(n, TransferSource.wrap(0, split)) for n, split in enumerate(reader.split(10))
    )
    group = TaskGroup(0, tasks, 2)
    alone = TransferWork((source,), ((writer, plan),), "bench", *ROOM)
    both = FanOutWork(
        (source,), tuple(FanOutTarget(writer, plan, name, pipeline) for name in "ab"), *ROOM
    )

    def together() -> None:
        runs = [FanOutTargetRun(DirtyBudget(DirtyLimit())) for _ in both.branches]
        outcome = GroupFanOut(both, group, 0, runs).run()
        for target in outcome.targets:
            assert sum(each.receipt.rows for each in target.tasks if each.receipt) == GENERATED

    def one_by_one() -> None:
        for _ in both.branches:
            GroupTransfer(alone, group, 0, budget=DirtyBudget(DirtyLimit())).run()

    found = ratio(*alternate(together, one_by_one, ROUNDS))
    return Row(
        "one transfer to two targets / two transfers", found, "< 1", "x", "generator -> discard"
    )


def main() -> list[Row]:
    rows = [idle_channels(), against_a_bare_loop(), two_targets()]
    with tempfile.TemporaryDirectory(prefix="spark-channel-bench-") as name:
        folder = Path(name)
        sources = {form: make_lineitem(folder, form) for form in ("parquet", "csv")}
        spark = spark_session(memory="4g")
        try:
            rows.append(whole_transfer(spark))
            for form, source in sources.items():
                rows += copies(spark, folder, source, form)
        finally:
            spark.stop()
    return rows
