"""A process that appends to, overwrites and reads one directory until it is killed: `busy PATH WORKER SECONDS HISTORY`.

Each line of HISTORY is one event, written before and after each operation. An operation that was not finished when the
process was killed is run again by the next process of the same worker, with the same transaction pair.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors.files import log
from spark_channel.errors import ChannelError, SourceError, SupersededError
from tests.connectors.files.helpers import prepare, read, stage, writer_of

ROWS = 3
SHORT = 5
"""Seconds for which some writes keep what they replace."""


def rows_of(operation: str) -> pa.Table:
    return pa.table({"op": [operation] * ROWS, "n": pa.array(range(ROWS), pa.int64())})


class Busy:
    def __init__(self, path: str, worker: str, seconds: float, history: Path) -> None:
        self.path = path
        self.worker = worker
        self.until = time.monotonic() + seconds
        self.history = history
        self.random = random.Random(f"{worker}-{os.getpid()}")

    def note(self, **event: Any) -> None:
        with self.history.open("a") as file:
            file.write(json.dumps({"at": time.monotonic(), **event}) + "\n")

    def unfinished(self) -> dict[str, bool]:
        """The operations that processes before this one left, and whether they overwrite."""
        begun: dict[str, bool] = {}
        for line in self.history.read_text().splitlines() if self.history.exists() else ():
            event = json.loads(line)
            if event["event"] == "begin":
                begun[event["op"]] = event["kind"] == "overwrite"
            elif event["event"] == "end":
                begun.pop(event["op"], None)
        return begun

    def run(self) -> None:
        for op, overwrite in self.unfinished().items():
            self.write(op, overwrite=overwrite)
        number = 0
        while time.monotonic() < self.until:
            choice = self.random.random()
            if choice < 0.4:
                self.read()
            else:
                # A process that was stopped, and wakes up, works beside the one that took its place.
                self.write(f"{self.worker}-{os.getpid()}.{number}", overwrite=choice > 0.85)
                number += 1

    def write(self, op: str, *, overwrite: bool) -> None:
        self.note(event="begin", op=op, kind="overwrite" if overwrite else "append")
        name, number = op.split(".")
        retention = self.random.choice(["3600", "3600", str(SHORT)])
        out = writer_of("parquet", self.path, retention=retention)
        table = rows_of(op)
        try:
            plan = prepare(
                out,
                table.schema,
                f"{op}-{os.getpid()}",
                txn=(name, int(number)),
                overwrite=overwrite,
                commit="job",
            )
            if plan.published_at is None:
                out.commit(plan, stage(out, plan, [table.slice(0, 1), table.slice(1)]))
            self.note(event="end", op=op)
        except SupersededError:
            pass  # this process hung, and the next one runs the operation

    def read(self) -> None:
        begun = time.monotonic()
        try:
            table = read("parquet", self.path)
            seen = sorted(zip(table.column("op").to_pylist(), table.column("n").to_pylist(), strict=True))
        except SourceError as error:
            if "was removed" in str(error) and time.monotonic() - begun > SHORT:
                return  # stopped for longer than the files that it planned are kept
            if "no data files" not in str(error):
                raise
            seen = []
        self.note(event="read", begun=begun, seen=seen)


if __name__ == "__main__":
    log._KEPT = 1_000_000  # the history is checked against the order of the log
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        Busy(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])).run()
    except ChannelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise
