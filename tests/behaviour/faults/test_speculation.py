"""Two attempts of one task: Spark speculates on a slow one, or loses the executor of one that still writes.

It speculates on another host only: a master and two workers, whose hosts are two names of this one.
"""

import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.options import CommitMode
from tests.spark.recorded import TIMEOUT
from tests.spark.remote_driver import RemoteDriver

pytestmark = [pytest.mark.spark, pytest.mark.newest]

ROWS = 80_000
SLOW_SECONDS = 20.0


@contextmanager
def daemon(name: str, *arguments: str, host: str, ready: str) -> Iterator[str]:
    """Run one of Spark's daemons until the end of the block; yield what the group in `ready` matched in its log."""
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host}
    process = subprocess.Popen(
        [*command, "--port", "0", "--webui-port", "0", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    draining = threading.Thread(target=lambda: all(True for _ in process.stderr or ()))
    try:
        found = next(filter(None, (re.search(ready, line) for line in process.stderr)), None)
        assert found is not None, f"{name} ended"
        draining.start()
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)
        if draining.ident is not None:
            draining.join()
        process.stderr.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteDriver]:
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.efficiency.enabled": "false",
    }
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon("master.Master", host="127.0.0.1", ready="Starting Spark master at (.*)")
        )
        for host in ("127.0.0.2", "127.0.0.3"):
            work = tmp_path_factory.mktemp("work")
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(work), master)
            stack.enter_context(
                daemon("worker.Worker", *size, host=host, ready="Successfully (registered)")
            )
        yield stack.enter_context(RemoteDriver(master, conf))


def _first(folder: str) -> bool:
    """Notes the attempt, and says whether it is the first of the first task."""
    task = TaskContext.get()
    assert task is not None
    if task.partitionId():
        return False
    Path(folder, f"attempt-{task.taskAttemptId()}").touch()
    return len(list(Path(folder).glob("attempt-*"))) == 1


class Disturbed:
    """Something happens to the first attempt of the first task, in the middle of what it writes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.batches = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.num_rows:
            return batch  # the driver asks for the columns
        self.batches += 1
        if _first(self.folder) and self.batches == 2:
            self.disturb()
        return batch

    def all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(self, batches)

    def disturb(self) -> None:
        raise NotImplementedError


class Slow(Disturbed):
    def disturb(self) -> None:
        time.sleep(SLOW_SECONDS)


class Lost(Disturbed):
    """The JVM of its executor ends; its Python process goes on."""

    def disturb(self) -> None:
        of_daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(of_daemon[1]), signal.SIGKILL)


def written(spark: SparkSession, path: str, commit: CommitMode, disturbed: type[Disturbed]) -> None:
    spark_channel.register(spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    df = spark.range(0, ROWS, 1, 6).mapInArrow(disturbed(str(Path(path).parent)).all, "id long")
    writer = df.write.format("channel").options(writer="sqlite", dbtable="t", commit=commit)
    writer.mode("append").save(path)


def transferred(
    spark: SparkSession, path: str, commit: CommitMode, disturbed: type[Disturbed]
) -> None:
    spark_channel.transfer(
        spark,
        {"name": "generator", "rows": ROWS, "columns": "id", "rowsPerBatch": 1_000},
        {"name": "sqlite", "path": path, "dbtable": "t"},
        transformers=[disturbed(str(Path(path).parent))],
        channels=6,
        channels_per_task=1,
        commit=commit,
    )


@pytest.mark.parametrize(
    ("moved", "commit"),
    [
        (written, "job"),
        pytest.param(transferred, "task", marks=pytest.mark.soak),
        pytest.param(written, "task", marks=pytest.mark.soak),
        pytest.param(transferred, "job", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("disturbed", [Slow, Lost])
def test_two_attempts_of_one_task_write_its_rows_once(
    cluster: RemoteDriver, tmp_path: Path, moved: Any, commit: str, disturbed: type[Disturbed]
) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
    cluster.run(moved, str(path), commit, disturbed, timeout=TIMEOUT)
    assert len(list(tmp_path.glob("attempt-*"))) > 1, "one attempt only"
    with closing(sqlite3.connect(path)) as connection:
        count, distinct = connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM t"
        ).fetchone()
    assert (count, distinct) == (ROWS, ROWS)
