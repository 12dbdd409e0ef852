"""The rows of one data file of an Iceberg table, found by the columns' ids."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["data_file_of", "data_file_rows", "plain_file"]

_PLAIN = (bool, int, float, str, bytes, Decimal)


def plain_file(file: Any) -> dict[str, Any]:
    """The data file of a split, as plain data, because tunnels store splits, too."""
    values = [file.partition[number] for number in range(len(file.partition))]
    return {
        "path": str(file.file_path),
        "rows": int(file.record_count),
        "size": int(file.file_size_in_bytes),
        "spec": int(file.spec_id),
        "partition": [value if isinstance(value, _PLAIN) else None for value in values],
    }


def data_file_of(found: Mapping[str, Any]) -> Any:
    """The data file that `plain_file` was given. It is Parquet, and has no delete files: see `check_files`."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=found["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*found["partition"]),
        record_count=found["rows"],
        file_size_in_bytes=found["size"],
    )
    made.spec_id = found["spec"]
    return made


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
