"""Consumers and streaming queries in their own processes, which can be killed as a machine kills them."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark

__all__ = ["ADMISSION", "Child", "Query"]

ROOT = Path(__file__).resolve().parents[2]
ADMISSION = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this Spark asks a streaming source for a part of what is there."""

_PROGRAM = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
import spark_channel

class ReportProgress(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryProgress(self, event): print(event.progress.numInputRows, flush=True)
    def onQueryIdle(self, event): pass
    def onQueryTerminated(self, event): pass

given = json.loads(sys.argv[1])
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").config("spark.driver.memory", "512m").getOrCreate())
spark_channel.register(spark, progress=False)
spark.streams.addListener(ReportProgress())
sys.stdin.readline()
frame = spark.readStream.format("channel").options(**given["source"]).load().drop(*given["drop"])
write = (frame.writeStream.format("channel").options(**given["target"])
    .option("checkpointLocation", given["checkpoint"]))
write = write.trigger(availableNow=True) if given["drained"] else write.trigger(processingTime="200 milliseconds")
write.start().awaitTermination()
"""


class Child:
    """A program that prints a number for each batch, its rows; `next` waits for one, `kill` ends it hard.

    It waits for a line before it touches its source, which `go` gives it: another one may run until then.
    """

    def __init__(self, program: str, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._batches: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()

    def next(self, seconds: float = 300) -> int:
        """The rows of its next batch that has any.

        Raises:
            AssertionError: it has ended, or is silent for `seconds`; with what it last said.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._batches.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no batch in {seconds:g} s: {self._said()}") from None
            assert found is not None, f"it has ended: {self._said()}"
            if found:
                return found

    def finish(self, seconds: float = 300) -> None:
        """Wait for one that ends by itself."""
        assert self._process.wait(seconds) == 0, self._said()
        self._reader.join()

    def wait(self, seconds: float = 300) -> int:
        """The exit code of one that ends by itself."""
        code = self._process.wait(seconds)
        self._reader.join()
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it has not ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and to what it began. Safe twice."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._batches.put(int(line))
        self._batches.put(None)

    def _said(self) -> str:
        return self._log.read_text()[-3000:]


class Query(Child):
    """A separate driver that copies `source` into `target`, by a streaming query."""

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        checkpoint: Path,
        *,
        drop: Sequence[str] = (),
        drained: bool = False,
    ) -> None:
        given = {
            "source": dict(source),
            "target": dict(target),
            "checkpoint": str(checkpoint),
            "drop": list(drop),
            "drained": drained,
        }
        super().__init__(
            _PROGRAM, [json.dumps(given)], checkpoint.with_name(f"{checkpoint.name}.log")
        )
