"""The rows of a feed of several tables: with the name of each row's table."""

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.base.feed import TABLE, change_schema
from spark_channel.connectors.sql.feed.base_chunk import BaseChunk
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow, Key, WatermarkLog
from spark_channel.connectors.sql.feed.log_tables import of_table

__all__ = ["NamedLog", "rows_schema", "with_name"]


def rows_schema() -> pa.Schema:
    """The columns that the rows of all tables have."""
    common = change_schema(pa.schema([]))
    return common.append(pa.field(TABLE, pa.string()))


def with_name(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    names = pa.repeat(pa.scalar(name), batch.num_rows)
    schema = batch.schema.append(pa.field(TABLE, pa.string()))
    return pa.RecordBatch.from_arrays([*batch.columns, names], schema=schema)


class NamedLog:
    """Chunks whose rows have their table's name. See `WatermarkLog`."""

    def __init__(self, log: WatermarkLog[Any, Any], name: str) -> None:
        self._log, self._name = log, name
        self.mark, self.events = log.mark, log.events

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> "_NamedChunk":
        with of_table(self._name):
            return _NamedChunk(cast(BaseChunk, self._log.chunk(lower, upper, rows)), self._name)


class _NamedChunk:
    def __init__(self, chunk: BaseChunk, name: str) -> None:
        self._chunk, self._name = chunk, name
        self.last, self.nbytes, self.sees = chunk.last, chunk.nbytes, chunk.sees

    def kept(self, window: ChunkWindow) -> Iterator[pa.RecordBatch]:
        for batch in self._chunk.kept(window):
            yield with_name(batch, self._name)
