"""The rows of one data file of an Iceberg table, found by the columns' ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.arrow_schema import cast_exactly
from spark_channel.connectors.files.filesystem import Location
from spark_channel.connectors.files.formats.parquet import ParquetFormat
from spark_channel.connectors.files.formats.types import check_values
from spark_channel.connectors.files.store import LocalStore, ObjectStore, Store
from spark_channel.errors import SourceError, UnsupportedError
from spark_channel.lazy import compute as pc

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["data_file_of", "data_file_rows", "plain_file", "store_at"]

_PARQUET = ParquetFormat()
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


def data_file_of(plain: Mapping[str, Any]) -> Any:
    """The data file that `plain_file` was given. It is Parquet, and has no delete files: see `check_files`."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=plain["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*plain["partition"]),
        record_count=plain["rows"],
        file_size_in_bytes=plain["size"],
    )
    file.spec_id = plain["spec"]
    return file


def data_file_rows(
    io: "FileIO", metadata: "TableMetadata", schema_id: int, file: Any, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows in `columns`, those of the schema that the table had under `schema_id`, or some of them."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    _keep_nulls()
    schema = next(schema for schema in metadata.schemas if schema.schema_id == schema_id)
    chosen = schema.select(*columns.names) if columns.names else schema
    at = metadata.model_copy(update={"current_schema_id": schema_id})
    scan = ArrowScan(at, io, chosen, AlwaysTrue())
    path = str(file.file_path)
    with io.new_input(path).open() as stream:
        _PARQUET.check_times(stream, path)
    rows = 0
    # The public method holds all rows of a file in memory.
    for batch in scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file)], {}):  # noqa: SLF001 - pyiceberg has no public way
        rows += batch.num_rows
        check_values(batch, columns, path, decoded=True)
        yield _in_columns(batch, columns)
    if rows != file.record_count:
        raise SourceError(
            f"{path} has {rows} rows, and the table's log says {file.record_count}. The file is damaged, or was "
            "replaced; restore it"
        )


@cache
def _keep_nulls() -> None:
    """Have pyiceberg read a NULL list or map of structs as NULL. It copies them without their NULLs: as empty ones
    (findings/iceberg-null-list-of-structs.sh).
    """
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    def kept(project: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
        def projected(
            visitor: Any, kind: Any, array: pa.Array | None, *parts: pa.Array | None
        ) -> pa.Array | None:
            result = project(visitor, kind, array, *parts)
            if result is None or array is None or result.null_count == array.null_count:
                return result
            return pc.if_else(array.is_valid(), result, pa.scalar(None, result.type))

        return projected

    for name in ("list", "map"):
        setattr(ArrowProjectionVisitor, name, kept(getattr(ArrowProjectionVisitor, name)))


def _in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in columns:
        values = batch.column(batch.schema.get_field_index(field.name))
        arrays.append(cast_exactly(values, field.type, declared=True))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _ArrowStore(ObjectStore):
    """Writes and removes by `pyarrow.fs`, which has the table's credentials."""

    def put(self, path: str, data: bytes) -> None:
        self._put_by_arrow(path, data)

    def remove(self, path: str) -> None:
        self._remove_by_arrow(path)

    def remove_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)


def store_at(io: "FileIO", location: str) -> tuple[Store, str]:
    """(the store, the path of `location` in it)."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedError(
            f"{location} is opened by {type(io).__name__}; set py-io-impl to PyArrowFileIO"
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    fs: Any = io.fs_by_scheme(scheme, netloc)
    if scheme == "file":
        return LocalStore(Location(fs, path, "")), path
    return _ArrowStore(Location(fs, path, f"{scheme}://{netloc}")), path
