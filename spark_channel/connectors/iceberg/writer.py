"""The writer of Iceberg tables. `lake.writer` has the protocol of a write, `claims` its claim."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_channel.connectors.iceberg.log import IcebergLake, IcebergState
from spark_channel.connectors.iceberg.options import IcebergWriteOptions
from spark_channel.connectors.iceberg.rows import data_file_rows
from spark_channel.connectors.lake.table import Lake, TableFile, TableState
from spark_channel.connectors.lake.writer import LakeWriter

__all__ = ["IcebergWriter"]


class IcebergWriter(LakeWriter):
    """Writes data files below `<location>/data/spark-channel/`."""

    Options = IcebergWriteOptions
    options: IcebergWriteOptions
    partitions_outside = False

    def lake(self, place: Any = None) -> IcebergLake:
        return IcebergLake(self.options, place)

    def place(self, lake: Lake) -> Any:
        assert isinstance(lake, IcebergLake)
        return lake.place

    def read_file(self, lake: Lake, table: TableState, file: TableFile) -> Iterator[pa.RecordBatch]:
        assert isinstance(table, IcebergState)
        metadata = table.metadata
        return data_file_rows(table.io, metadata, metadata.current_schema_id, file.handle, table.columns)
