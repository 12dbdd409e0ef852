"""The rows of one data file, in a table's columns."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.arrow_schema import InexactError, cast_exactly
from spark_channel.connectors import FetchSize
from spark_channel.connectors.files.formats.base import ReadRequest
from spark_channel.connectors.files.formats.parquet import ParquetFormat
from spark_channel.connectors.files.partition_columns import partition_value
from spark_channel.connectors.lake.columns import with_blanks
from spark_channel.connectors.lake.table import TableFile
from spark_channel.errors import TargetError

__all__ = ["file_rows"]

_PARQUET = ParquetFormat()


def file_rows(
    fs: pafs.FileSystem,
    file: TableFile,
    columns: pa.Schema,
    partition_by: Sequence[str],
    *,
    as_stored: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Columns that the file lacks are NULL; those of its partition are as the log says. `as_stored`: without the blanks
    that Spark adds to values of a CHAR.
    """
    texts = dict(file.partition)
    inside = pa.schema([field for field in columns if field.name not in partition_by])
    request = ReadRequest(inside, inside, None, FetchSize(), None, file.path)
    with fs.open_input_file(file.path) as stream:
        for batch in _PARQUET.batches(stream, file.path, {}, request):
            rows = _row_batch(batch, columns, partition_by, texts, file.path)
            if not as_stored:
                filled = [with_blanks(*pair) for pair in zip(rows.columns, columns, strict=True)]
                rows = pa.RecordBatch.from_arrays(filled, schema=columns)
            yield rows


def _row_batch(
    batch: pa.RecordBatch,
    columns: pa.Schema,
    partition_by: Sequence[str],
    texts: dict[str, str | None],
    path: str,
) -> pa.RecordBatch:
    arrays = []
    for field in columns:
        number = batch.schema.get_field_index(field.name)
        if field.name in partition_by:
            value = partition_value(field.name, texts.get(field.name), field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        elif number < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            values = batch.column(number)
            try:
                arrays.append(cast_exactly(values, field.type, declared=True))
            except InexactError as error:
                raise TargetError(
                    f"{path}: column {field.name!r} is {values.type} there and does not fit {field.type}: {error}"
                ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
