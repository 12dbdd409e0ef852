"""One data file: Parquet, with the statistics that a table's log keeps."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import has_promises, without_hidden_nulls
from spark_channel.connectors.files.formats.base import Sink
from spark_channel.connectors.files.formats.parquet import RowGroupEncoder
from spark_channel.connectors.files.formats.types import leaf_columns
from spark_channel.connectors.lake.options import LakeWriteOptions

__all__ = ["DataFileEncoder"]

_LONGEST_TEXT = 32


class DataFileEncoder(RowGroupEncoder):
    """`statistics` are there after `finish`."""

    def __init__(self, sink: Sink, schema: pa.Schema, options: LakeWriteOptions) -> None:
        self._metadata: list[Any] = []
        self.rows = 0
        self._promises = any(has_promises(field.type) for field in schema)
        super().__init__(
            sink,
            schema,
            options.row_group_rows,
            options.row_group_bytes,
            compression=options.compression,
            metadata_collector=self._metadata,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        if self._promises:
            columns = [without_hidden_nulls(column) for column in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        super().write(batch)
        self.rows += batch.num_rows

    @property
    def statistics(self) -> dict[str, Any]:
        """{column: [smallest, largest, nulls]} of whole numbers, dates and short texts; plain data.

        A bound of None is not known. A column whose NULLs are not known is left out.
        """
        metadata = self._metadata[0]
        statistics = {}
        for column, number in enumerate(leaf_columns(self._schema)):
            field = self._schema.field(number)
            if pa.types.is_nested(field.type):
                continue
            chunks = [
                metadata.row_group(n).column(column).statistics
                for n in range(metadata.num_row_groups)
            ]
            if any(chunk is None or not chunk.has_null_count for chunk in chunks):
                continue
            nulls = sum(chunk.null_count for chunk in chunks)
            low, high = _bounds(field.type, chunks)
            statistics[field.name] = [low, high, nulls]
        return statistics


def _bounds(kind: pa.DataType, chunks: Sequence[Any]) -> tuple[Any, Any]:
    with_bounds = [chunk for chunk in chunks if chunk.has_min_max]
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind)):
        return None, None
    if not with_bounds or any(not chunk.has_min_max and chunk.num_values for chunk in chunks):
        return None, None
    low, high = min(chunk.min for chunk in with_bounds), max(chunk.max for chunk in with_bounds)
    if isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT:
        return None, None
    return (low.isoformat(), high.isoformat()) if isinstance(low, date) else (low, high)
