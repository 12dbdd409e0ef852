"""Makes an archive of Spark's classes, with which a JVM starts in little more than half of the CPU time.

`python -m tests.spark.archive FILE`. Without the file, or with one of another JVM or Spark, JVMs start as ever.
"""

import os
import sys
from pathlib import Path

__all__ = ["ARCHIVE", "java_options"]

ARCHIVE = Path(__file__).resolve().parents[2] / "artifacts" / f"{Path(sys.prefix).name}.jsa"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A test's JVM lives for seconds: compiling for the long run costs more than it brings, and nothing watches it."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Nothing is said of an archive that does not fit: standard output is what programs read."""


def java_options() -> str:
    """What `JDK_JAVA_OPTIONS` is for tests."""
    return (
        f'{_SHORT_LIVED} {_QUIET} "-XX:SharedArchiveFile={ARCHIVE}"'
        if ARCHIVE.exists()
        else _SHORT_LIVED
    )


def main(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    made = file.with_suffix(".new")
    os.environ["JDK_JAVA_OPTIONS"] = f'{_SHORT_LIVED} {_QUIET} "-XX:ArchiveClassesAtExit={made}"'
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.range(100).selectExpr("id", "cast(id AS string) s").mapInArrow(
        lambda batches: batches, "id long, s string"
    ).count()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # its JVM writes the archive, and ends
    gateway.proc.wait(120)
    made.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
