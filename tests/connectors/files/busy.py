"""A process that appends to, overwrites and reads one directory until it is killed.

Each line of its history is one event, written before and after each operation. An operation that was not finished when
the process was killed is run again by the next process of the same worker, with the same transaction pair.
"""

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.connectors.files import log
from spark_channel.errors import SourceError, SupersededError, TargetError
from tests.connectors.files.helpers import read, writer_of

ROWS = 3
SHORT = 5
"""Seconds for which some writes keep what they replace."""


def rows_of(operation: str) -> pa.Table:
    return pa.table({"op": [operation] * ROWS, "n": pa.array(range(ROWS), pa.int64())})


def staged(out: Writer, plan: WritePlan, tables: Sequence[pa.Table]) -> list[Receipt]:
    """One task per table."""
    receipts = []
    for task, table in enumerate(tables):
        attempt = out.open(plan, task, task)
        for batch in table.to_batches():
            attempt.write(batch)
        receipts.append(attempt.close())
    return receipts


class Busy:
    def __init__(self, path: str, worker: str, seconds: float, history: Path) -> None:
        self.path = path
        self.worker = worker
        self.until = time.monotonic() + seconds
        self.history = history
        self.random = random.Random(f"{worker}-{os.getpid()}")
        log._KEPT = 1_000_000  # the history is checked against the order of the log

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

    def writer(self) -> Writer:
        retention = self.random.choice(["3600", "3600", str(SHORT)])
        return writer_of("parquet", self.path, retention=retention)

    def rows(self) -> pa.Table:
        return read("parquet", self.path)

    def write(self, op: str, *, overwrite: bool) -> None:
        self.note(event="begin", op=op, kind="overwrite" if overwrite else "append")
        name, number = op.split(".")
        out, table = self.writer(), rows_of(op)
        context = WriteContext(
            f"{op}-{os.getpid()}", txn=(name, int(number)), overwrite=overwrite, commit="job"
        )
        try:
            plan = out.prepare(context, table.schema)
            if plan.published_at is None:
                out.commit(plan, staged(out, plan, [table.slice(0, 1), table.slice(1)]))
            self.note(event="end", op=op)
        except SupersededError:
            pass  # this process hung, and the next one runs the operation
        except TargetError as error:
            if "another run took it over" not in str(error):
                raise

    def read(self) -> None:
        begun = time.monotonic()
        try:
            table = self.rows()
            seen = sorted(
                zip(table.column("op").to_pylist(), table.column("n").to_pylist(), strict=True)
            )
        except SourceError as error:
            if (
                "removed after the read was planned" in str(error)
                and time.monotonic() - begun > SHORT
            ):
                return  # stopped for longer than the files that it planned are kept
            if "no data files" not in str(error):
                raise
            seen = []
        self.note(event="read", begun=begun, seen=seen)
