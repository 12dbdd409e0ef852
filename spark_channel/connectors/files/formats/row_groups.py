"""Writes a Parquet file: batches are gathered into row groups."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_channel.connectors.files.formats.base import Encoder

__all__ = ["RowGroupEncoder"]


class RowGroupEncoder(Encoder):
    """A row group has at most `group_rows` rows, and ends once it has `group_bytes` of Arrow.

    `in_file` is the schema in the file, if it is another one than that of the rows. `more` is for
    `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        group_rows: int,
        group_bytes: int,
        *,
        in_file: pa.Schema | None = None,
        **more: Any,
    ) -> None:
        self._schema, self._in_file = schema, in_file or schema
        self._group_rows, self._group_bytes = group_rows, group_bytes
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self.held_bytes = 0
        """Arrow bytes of the row group that is being gathered."""
        self._writer = pq.ParquetWriter(sink, self._in_file, version="2.6", **more)

    def write(self, batch: pa.RecordBatch) -> None:
        start = 0
        while start < batch.num_rows:
            taken = batch.slice(start, self._group_rows - self._rows)
            start += taken.num_rows
            self._held.append(taken)
            self._rows += taken.num_rows
            self.held_bytes += taken.nbytes
            if self._rows >= self._group_rows or self.held_bytes >= self._group_bytes:
                self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._held, self._schema)
            if self._in_file is not self._schema:
                table = table.cast(self._in_file)
            self._writer.write_table(table, row_group_size=self._rows)
        self._held, self._rows, self.held_bytes = [], 0, 0

    def finish(self) -> None:
        self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        self._held = []
        try:
            self._writer.close()
        except (OSError, ValueError, pa.ArrowException):
            self._writer.is_open = False  # or it would try again when it is collected
