"""A connector that writes down when rows leave its source and when they reach its target.

Found by entry point, so that processes that Spark starts find it where this folder is on their path. Each
line of `log` is `instant pid rows`, the instant of the monotonic clock, which all processes of a host share.
For a target, `log.connections` has a line with 1 for each task writer that is opened, with -1 for its end.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from spark_channel.connectors import Reader, Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.connector import Connector
from spark_channel.options import Amount, ByteAmount, ReadOptions, WriteOptions
from spark_channel.planning import Split
from tests.spark.timeline import record

CONNECTOR = Connector(
    "recorder",
    "recorder:RecordingReader",
    "recorder:RecordingWriter",
    schemes=("recorder",),
    about="keeps the times at which rows pass",
)
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("padding", pa.string())])


class RecordingReadOptions(ReadOptions):
    """Where the record is kept, and what is read."""

    url: str | None = Field(None, description="`recorder:`")
    log: str = Field(description="the record")
    rows: Amount = Field(1_000, description="how many rows")
    row_bytes: ByteAmount = Field(
        2_000, description="bytes per row: small rows wait in Spark's buffers"
    )
    marks: str = Field("", description="resource marks, dealt to the splits in turn")


class RecordingWriteOptions(WriteOptions):
    """Where the record is kept."""

    url: str | None = Field(None, description="`recorder:`")
    log: str = Field(description="the record")


class RecordingReader(Reader):
    """Numbers its rows, and keeps to the fetch size that it gets."""

    Options: ClassVar[type[ReadOptions]] = RecordingReadOptions
    options: RecordingReadOptions

    def schema(self) -> pa.Schema:
        return SCHEMA

    def split(self, advice: int) -> list[Split]:
        rows = self.options.rows
        edges = [rows * part // advice for part in range(advice + 1)]
        return [
            Split({"start": start, "end": end, "number": number}, end - start)
            for number, (start, end) in enumerate(pairwise(edges))
            if end > start
        ]

    def resource_mark(self, split: Split) -> str | None:
        marks = self.options.marks.split(",") if self.options.marks else []
        return marks[int(split.params["number"]) % len(marks)] if marks else None

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        padding = "x" * self.options.row_bytes
        start, end = int(split.params["start"]), int(split.params["end"])
        step = min(self.fetch_size.rows or 1_000, 1_000)
        mark = self.resource_mark(split)
        log = f"{self.options.log}.{mark}" if mark else self.options.log
        for begin in range(start, end, step):
            count = min(step, end - begin)
            record(log, count)
            columns = [
                pa.array(range(begin, begin + count), pa.int64()),
                pa.array([padding] * count),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class RecordingWriter(Writer):
    """Keeps nothing but the record."""

    Options: ClassVar[type[WriteOptions]] = RecordingWriteOptions
    options: RecordingWriteOptions

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(job=context.job, schema=schema, commit="job", overwrite=context.overwrite)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        record(f"{self.options.log}.connections", 1)
        return _Recorder(self.options.log, task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        """Writes down what was published, beside the record."""
        Path(f"{self.options.log}.published").write_text(
            str(sum(receipt.rows for receipt in receipts))
        )

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        """Nothing was staged."""


class _Recorder(TaskWriter):
    def __init__(self, log: str, task: int, attempt: int) -> None:
        self._log, self._task, self._attempt = log, task, attempt
        self._rows = self._nbytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        record(self._log, batch.num_rows)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes

    def close(self) -> Receipt:
        record(f"{self._log}.connections", -1)
        return Receipt(self._task, self._attempt, self._rows, self._nbytes)

    def rollback(self) -> None:
        """Nothing was kept."""
        record(f"{self._log}.connections", -1)
