"""Connectors made for the tests of the pipeline: in memory, with faults on demand."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_channel.connectors import Reader, Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.options import ReadOptions, WriteOptions
from spark_channel.planning import Split, Task, TaskGroup

SCHEMA = pa.schema([("n", pa.int64())])


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())}, schema=SCHEMA)


class MemoryReader(Reader):
    """Gives `batches` batches of 10 rows for each split; `before` is called ahead of each one."""

    def __init__(
        self, batches: int = 3, before: Callable[[Split, int], None] | None = None
    ) -> None:
        super().__init__(ReadOptions())
        self.batches = batches
        self.before = before
        self.open = 0
        self.most_open = 0
        self._lock = threading.Lock()

    def schema(self) -> pa.Schema:
        return SCHEMA

    def split(self, advice: int) -> list[Split]:
        return [Split({"number": number}) for number in range(advice)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.open += 1
            self.most_open = max(self.open, self.most_open)
        try:
            for number in range(self.batches):
                if self.before is not None:
                    self.before(split, number)
                yield batch((split.params["number"] * self.batches + number) * 10, 10)
        finally:
            with self._lock:
                self.open -= 1


def group(tasks: int, channels: int = 1) -> TaskGroup:
    return TaskGroup(0, tuple(Task(n, Split({"number": n})) for n in range(tasks)), channels)


@dataclass
class MemoryWriter(Writer):
    """Keeps what was written; `on_write`, `on_close` and `on_rollback` may raise."""

    on_write: Callable[[int], None] = lambda _number: None
    on_close: Callable[[], None] = lambda: None
    on_rollback: Callable[[], None] = lambda: None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(WriteOptions())

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(job=context.job, schema=schema, commit="job")

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        self.events.append("open")
        return MemoryTaskWriter(self, task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        self.events.append("commit")

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        self.events.append("abort")


class MemoryTaskWriter(TaskWriter):
    def __init__(self, owner: MemoryWriter, task: int, attempt: int) -> None:
        self.owner, self.task, self.attempt = owner, task, attempt

    def write(self, batch: pa.RecordBatch) -> None:
        self.owner.on_write(len(self.owner.batches))
        self.owner.batches.append(batch)

    def close(self) -> Receipt:
        self.owner.on_close()
        self.owner.events.append("close")
        rows = sum(b.num_rows for b in self.owner.batches)
        return Receipt(self.task, self.attempt, rows, sum(b.nbytes for b in self.owner.batches))

    def rollback(self) -> None:
        self.owner.events.append("rollback")
        self.owner.on_rollback()


def plan() -> WritePlan:
    return WritePlan(job="j", schema=SCHEMA, commit="job")
