"""One data file: Parquet, with the statistics that a table's log keeps."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from spark_channel.connectors.files.formats.row_groups import RowGroupEncoder
from spark_channel.connectors.lake.options import LakeWriteOptions

__all__ = ["DataFileEncoder"]

_LONGEST_TEXT = 32


class DataFileEncoder(RowGroupEncoder):
    """`statistics` are there after `finish`."""

    def __init__(self, sink: Any, schema: pa.Schema, options: LakeWriteOptions) -> None:
        self._metadata: list[Any] = []
        self.rows = 0
        super().__init__(
            sink, schema, options.row_group_rows, options.row_group_bytes,
            compression=options.compression, metadata_collector=self._metadata,
        )  # fmt: skip

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self.rows += batch.num_rows

    @property
    def statistics(self) -> dict[str, Any]:
        """{column: [smallest, largest, nulls]} of whole numbers, dates and short texts; plain data.

        A bound of None is not known. A column whose NULLs are not known is left out.
        """
        metadata = self._metadata[0]
        found = {}
        for index, field in enumerate(self._schema):
            if pa.types.is_nested(field.type):
                continue
            column = _column_index(metadata, field.name, index)
            chunks = [metadata.row_group(n).column(column).statistics for n in range(metadata.num_row_groups)]
            if any(chunk is None or not chunk.has_null_count for chunk in chunks):
                continue
            nulls = sum(chunk.null_count for chunk in chunks)
            low, high = _bounds(field.type, chunks)
            found[field.name] = [low, high, nulls]
        return found


def _column_index(metadata: Any, name: str, start: int) -> int:
    """The leaf column of a top-level field: at its own place, or behind the leaves of nested ones."""
    return next(
        index for index in range(start, metadata.num_columns) if metadata.schema.column(index).path == name
    )


def _bounds(kind: pa.DataType, chunks: Sequence[Any]) -> tuple[Any, Any]:
    known = [chunk for chunk in chunks if chunk.has_min_max]
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind)):
        return None, None
    if not known or any(not chunk.has_min_max and chunk.num_values for chunk in chunks):
        return None, None
    low, high = min(chunk.min for chunk in known), max(chunk.max for chunk in known)
    if isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT:
        return None, None
    return (low.isoformat(), high.isoformat()) if isinstance(low, date) else (low, high)
