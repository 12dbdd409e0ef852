"""The rows of one data file, in a table's columns."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from spark_channel.connectors.files.formats.base import pick
from spark_channel.connectors.files.partitions import partition_value
from spark_channel.connectors.lake.table import TableFile
from spark_channel.errors import TargetError

__all__ = ["file_rows"]

_ROWS = 1 << 16


def file_rows(
    fs: pafs.FileSystem, file: TableFile, columns: pa.Schema, partition_by: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Columns that the file lacks are NULL; those of its partition are as the log says."""
    texts = dict(file.partition)
    with (
        fs.open_input_file(file.path) as opened,
        closing(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")) as parquet,
    ):
        inside = [name for name in columns.names if name not in partition_by]
        for batch in parquet.iter_batches(
            _ROWS, columns=pick(inside, parquet.schema_arrow.names), use_threads=False
        ):
            yield _row_batch(batch, columns, partition_by, texts, file.path)


def _row_batch(
    batch: pa.RecordBatch,
    columns: pa.Schema,
    partition_by: Sequence[str],
    texts: dict[str, str | None],
    path: str,
) -> pa.RecordBatch:
    by_case = {name.lower(): name for name in batch.schema.names}
    made = []
    for field in columns:
        found = field.name if field.name in batch.schema.names else by_case.get(field.name.lower())
        if field.name in partition_by:
            value = partition_value(field.name, texts.get(field.name), field.type)
            made.append(pa.repeat(value, batch.num_rows))
        elif found is None:
            made.append(pa.nulls(batch.num_rows, field.type))
        else:
            values = batch.column(batch.schema.get_field_index(found))
            try:
                made.append(values if values.type.equals(field.type) else values.cast(field.type, safe=True))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TargetError(
                    f"{path}: column {field.name!r} is {values.type} there and does not fit {field.type}: {error}"
                ) from error
    return pa.RecordBatch.from_arrays(made, schema=columns)
