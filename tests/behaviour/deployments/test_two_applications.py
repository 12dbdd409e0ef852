"""Two Spark applications that share one served limit by its address and token."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.behaviour.faults.test_spark import eventually
from tests.spark import recorded
from tests.spark.recorded import PROMPT, TIMEOUT
from tests.spark.remote_driver import RemoteDriver
from tests.spark.served_limit import ServedLimit
from tests.spark.timeline import Timeline

pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.real_time,
    pytest.mark.soak,  # two drivers; tests/service holds two processes to their parts of one limit
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ends a process by a signal"),
]

RATE = 2_000
LONG, SHORT = 20_000, 5_000
"""Rows of the copy that survives, and of the one that ends first."""
SETTLED = 1.0
"""Seconds from the first rows of the second application until both have their parts."""


@pytest.fixture(scope="module")
def drivers() -> Iterator[tuple[RemoteDriver, RemoteDriver]]:
    with RemoteDriver("local[1]", PROMPT) as first, RemoteDriver("local[3]", PROMPT) as second:
        yield first, second


def copy(spark: SparkSession, folder: str, options: dict[str, str], limit: dict[str, str]) -> None:
    """Limited where it is written, so that no pipe is between the limit and the record."""
    recorded.save(recorded.source(spark, folder, options), folder, limit)


def begun(copying: Future[None], folder: Path) -> bool:
    return copying.done() or (folder / "target").exists()


def test_each_gets_half_whatever_its_channels_and_all_when_the_other_ends(
    drivers: tuple[RemoteDriver, RemoteDriver], tmp_path: Path
) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    served = ServedLimit(f"two-{os.getpid()}", RATE, tmp_path / "token")
    limit = {"sharedLimit": served.address, "sharedLimitToken": f"${{file:{served.token_file}}}"}
    try:
        for driver, channels in zip(drivers, (1, 3), strict=True):
            # The first tasks of a driver start slowly.
            warm = tmp_path / f"warm{channels}"
            warm.mkdir()
            driver.run(
                copy, str(warm), {"rows": "30", "channels": str(channels)}, {}, timeout=TIMEOUT
            )
        copies = []
        for driver, folder, channels, rows in (
            (drivers[0], one, 1, LONG),
            (drivers[1], three, 3, SHORT),
        ):
            folder.mkdir()
            options = {"rows": str(rows), "channels": str(channels)}
            copies.append(driver.submit(copy, str(folder), options, limit))
            eventually(partial(begun, copies[-1], folder), TIMEOUT)
        for each in copies:
            each.result(TIMEOUT)
    finally:
        served.end(signal.SIGTERM)
    both = Timeline(one / "target", three / "target")
    first, second = (Timeline(folder / "target", zero=both.zero) for folder in (one, three))
    print(
        *(
            f"\n{name} {line.bins(both.times[-1])}"
            for name, line in (("one", first), ("three", second))
        )
    )
    assert (first.sums[-1], second.sums[-1]) == (LONG, SHORT)
    assert both.worst(1.0) <= 1.15 * RATE
    begin, end = max(first.times[0], second.times[0]) + SETTLED, second.times[-1] - 0.3
    assert end - begin > 1.0, "both ran together"
    assert first.times[-1] - second.times[-1] > 2.0, "one survived the other"
    for line in (first, second):
        assert 0.35 * RATE <= line.rows(begin, end) / (end - begin) <= 0.65 * RATE
    assert first.back(second.times[-1], 0.9 * RATE) <= 3.0
