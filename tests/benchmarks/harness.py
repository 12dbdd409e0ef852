"""Shared code of the benchmarks: rows of results, and alternating measurements of two things.

A benchmark module has `main()`, which returns its rows; `python -m tests.benchmarks.bench_channel` prints
those of one module.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Row", "alternate", "print_table", "ratio", "spark_session"]

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `target` is the target as text (`"<= 1.5"`), or empty if there is none."""

    name: str
    value: float
    target: str = ""
    unit: str = ""
    note: str = ""


def alternate(
    a: Callable[[], object],
    b: Callable[[], object],
    rounds: int = 11,
    timer: Callable[[], float] = time.perf_counter,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> tuple[list[float], list[float]]:
    """Seconds of `a` and of `b`, round by round.

    They run in turns, the first one changing from round to round, after a round that is not counted:
    what the machine does meanwhile hits both. Compare them pair by pair: see `ratio`. `before` and `after` each of
    them are not timed.
    """
    for work in (a, b):
        before()
        work()
        after()
    times_a: list[float] = []
    times_b: list[float] = []
    for number in range(rounds):
        order = [(a, times_a), (b, times_b)]
        for work, times in order if number % 2 else reversed(order):
            before()
            times.append(_timed(work, timer))
            after()
    return times_a, times_b


def ratio(times_a: list[float], times_b: list[float]) -> float:
    """The median of a / b over the rounds."""
    return statistics.median(one / other for one, other in zip(times_a, times_b, strict=True))


def _timed(work: Callable[[], object], timer: Callable[[], float]) -> float:
    gc.collect()
    start = timer()
    work()
    return timer() - start


def print_table(rows: Iterable[Row]) -> None:
    """Print name, figure and unit, target and note in columns."""
    lines = [("what", "measured", "asked", "note")]
    lines += [
        (row.name, f"{row.value:.4g} {row.unit}".strip(), row.target, row.note) for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def spark_session(
    jar: Path | None = None,
    *,
    cores: int = 2,
    progress: bool = False,
    memory: str = "1g",
    unix_sockets: bool = False,
) -> "SparkSession":
    """A session on this machine, registered, that prints errors only; with the JDBC driver in `jar`.

    `unix_sockets`: Python tasks do not wait 40 ms for their rows, as docs/deploy.md advises.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    from pyspark.sql import SparkSession

    import spark_channel

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", str(unix_sockets).lower())
    )
    if jar is not None:
        builder = builder.config("spark.jars", str(jar))
        builder = builder.config("spark.driver.extraClassPath", str(jar))
    spark: SparkSession = builder.getOrCreate()
    spark_channel.register(spark, progress=progress)
    return spark
