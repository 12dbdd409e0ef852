"""The rows of one data file of an Iceberg table, found by the columns' ids."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["data_file_rows"]


def data_file_rows(
    io: "FileIO", metadata: "TableMetadata", schema_id: int, file: Any, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows in `columns`, those of the schema that the table had under `schema_id`, or some of them."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    schema = next(each for each in metadata.schemas if each.schema_id == schema_id)
    chosen = schema.select(*columns.names) if columns.names else schema
    at = metadata.model_copy(update={"current_schema_id": schema_id})
    scan = ArrowScan(at, io, chosen, AlwaysTrue())
    # The public method holds all rows of a file in memory.
    for batch in scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file)], {}):  # noqa: SLF001
        yield _in_columns(batch, columns)


def _in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    made = []
    for field in columns:
        values = batch.column(batch.schema.get_field_index(field.name))
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        made.append(values if values.type.equals(field.type) else values.cast(field.type, safe=True))
    return pa.RecordBatch.from_arrays(made, schema=columns)
