"""What test_yarn.py submits. It imports nothing of the tests: a cluster has the package and no more.

yarn_application.py DATABASE copies RESULT      (all ways, as JSON)
yarn_application.py DATABASE grows RESULT       (one limited write)
yarn_application.py DATABASE slow PORT          (a slow write, which connects to PORT when rows have come)
"""

import json
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_channel

RATE = 1_000


def table(name: str) -> dict[str, str]:
    return {**json.loads(sys.argv[1]), "dbtable": name}


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("channel").options(channels="2", **options, **table("source")).load()


def times(frame: DataFrame) -> float:
    """Seconds from the first batch to the last, over all executors."""

    def when(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"at": [time.time()], "rows": [batch.num_rows]})

    seen = frame.mapInArrow(when, "at double, rows long").where("rows > 0")
    first, last = seen.selectExpr("min(at)", "max(at)").head()  # type: ignore[misc]
    return float(last - first)


def write(frame: DataFrame, name: str, **options: str) -> dict[str, Any]:
    """The report of the job."""
    writer = frame.write.format("channel").options(createTable="true", **options, **table(name))
    writer.mode("overwrite").save()
    return reported()


def reported() -> dict[str, Any]:
    report = spark_channel.last_report()
    assert report is not None
    return {"rows": report.rows, "limit": report.limit_scope}


def place(_rows: Iterable[int]) -> Iterator[tuple[str, str, str]]:
    """Where a task runs, and by which files."""
    from spark_channel import version

    yield socket.gethostname(), sys.prefix, version.__file__


def copies(spark: SparkSession, result: Path) -> None:
    context = spark.sparkContext
    answers: dict[str, Any] = {
        "driver": [sys.prefix, spark_channel.__file__],
        "driver host": context.getConf().get("spark.driver.host"),
        "executors": sorted(set(context.parallelize(range(2), 2).mapPartitions(place).collect())),
        "read": read(spark).selectExpr("count(*)", "sum(n)", "count(distinct n)").head()[:],  # type: ignore[index]
        "limited read": times(read(spark, rowsPerSecond=str(RATE))),
        "write": write(read(spark), "written", rowsPerSecond=str(RATE)),
    }
    answers["throttle"] = times(spark_channel.throttle(read(spark), rows_per_second=RATE))
    spark_channel.transfer(
        spark,
        {"name": "postgresql", **table("source")},
        {"name": "postgresql", "createTable": "true", **table("moved")},
        mode="overwrite",
        channels=2,
        rows_per_second=RATE,
    )
    answers["transfer"] = reported()
    result.write_text(json.dumps(answers))


def grows(spark: SparkSession, result: Path) -> None:
    """Dynamic allocation: it has no executor when the job begins."""
    context: Any = spark.sparkContext
    memory = context._jsc.sc().getExecutorMemoryStatus
    begin = memory().size() - 1
    report = write(read(spark).repartition(2), "grown", rowsPerSecond=str(RATE))
    result.write_text(json.dumps({"begin": begin, "end": memory().size() - 1, **report}))


def slow(spark: SparkSession, port: int) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1 and port:
                socket.create_connection(("127.0.0.1", port)).close()
            yield batch

    frame = read(spark, **({"rowsPerSecond": "500"} if port else {}))
    write(frame.mapInArrow(tell, frame.schema), "slow")


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    spark_channel.register(spark)
    if sys.argv[2] == "slow":
        slow(spark, int(sys.argv[3]))
    else:
        {"copies": copies, "grows": grows}[sys.argv[2]](spark, Path(sys.argv[3]))
    spark.stop()


if __name__ == "__main__":
    main()
