"""Transfers whose tasks die: `python -m tests.spark.transfer_faults FOLDER` prints what arrived, as JSON.

Its own session, in which a task may fail three times.
"""

import json
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors.sql.write.attempt import TaskAttempt

ROWS = 300_000


def _attempt() -> int:
    task = TaskContext.get()
    assert task is not None
    return int(task.attemptNumber()) if task.partitionId() == 0 else 99


_seen = 0


def _died() -> None:
    """Leaves a mark, so that the test knows that it tested something."""
    Path(os.environ["FAULTS"]).joinpath(f"died-{_attempt()}").touch()


def fails_twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first group dies in its second batch, in its first two attempts."""
    global _seen
    _seen += batch.num_rows > 0
    if batch.num_rows and _seen % 2 == 0 and _attempt() < 2:
        _died()
        raise RuntimeError("dies")
    return batch


def killed_while_it_writes(batch: pa.RecordBatch) -> pa.RecordBatch:
    global _seen
    _seen += batch.num_rows > 0
    if batch.num_rows and _seen % 2 == 0 and _attempt() == 0:
        _died()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def killed_after_its_receipt(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first task of the first group ends, durably, and the driver never hears of it."""
    if batch.num_rows and _attempt() == 0:
        close = TaskAttempt.close

        def close_and_die(self: TaskAttempt[Any]) -> Any:
            close(self)
            _died()
            os.kill(os.getpid(), signal.SIGKILL)

        TaskAttempt.close = close_and_die  # type: ignore[method-assign] # replaced for a while
    return batch


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def arrived(path: Path) -> tuple[int, int, int]:
    with closing(sqlite3.connect(path)) as connection:
        found: tuple[int, int, int] = connection.execute(
            "SELECT count(*), count(DISTINCT id), sum(id) FROM t"
        ).fetchone()
        return found


def main(folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    marks = folder / "marks"
    marks.mkdir()
    os.environ["FAULTS"] = str(marks)
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    found: dict[str, Any] = {}
    faults: list[Callable[[pa.RecordBatch], pa.RecordBatch]] = [
        same,
        fails_twice,
        killed_while_it_writes,
        killed_after_its_receipt,
    ]
    try:
        for commit in ("job", "task"):
            for fault in faults:
                path = Path(tempfile.mkdtemp(dir=folder)) / "t.db"
                with closing(sqlite3.connect(path)) as connection, connection:
                    connection.execute("CREATE TABLE t (id INTEGER, value REAL, name TEXT)")
                report = spark_channel.transfer(
                    spark,
                    {"name": "generator", "rows": ROWS, "rowsPerBatch": 10_000},
                    {"name": "sqlite", "path": str(path), "dbtable": "t"},
                    transformers=[fault],
                    channels=4,
                    channels_per_task=2,
                    commit=commit,
                )
                left = sorted(each.name for each in path.parent.iterdir())
                found[f"{commit} {fault.__name__}"] = [
                    *arrived(path),
                    report.rows,
                    len(list(marks.iterdir())),
                    left,
                ]
                for mark in marks.iterdir():
                    mark.unlink()
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
