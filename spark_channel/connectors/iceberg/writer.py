"""Writes Iceberg tables: the connector's writer, on the table of `lake_table`."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_channel.connectors.iceberg.data_files import data_file_rows
from spark_channel.connectors.iceberg.lake_table import IcebergLake, IcebergState
from spark_channel.connectors.iceberg.options import IcebergWriteOptions
from spark_channel.connectors.lake.table import LakeTable, TableFile, TableState
from spark_channel.connectors.lake.writer import LakeWriter

__all__ = ["IcebergWriter"]


class IcebergWriter(LakeWriter):
    """Writes data files below `<location>/data/spark-channel/`."""

    Options = IcebergWriteOptions
    options: IcebergWriteOptions
    partitions_outside = False

    def lake(self, location: Any = None) -> IcebergLake:
        return IcebergLake(self.options, location)

    def place(self, lake: LakeTable) -> Any:
        assert isinstance(lake, IcebergLake)
        return lake.place

    def read_file(
        self, lake: LakeTable, table: TableState, file: TableFile, *, as_stored: bool = False
    ) -> Iterator[pa.RecordBatch]:
        assert isinstance(table, IcebergState)
        metadata = table.metadata
        return data_file_rows(
            table.io, metadata, metadata.current_schema_id, file.handle, table.columns
        )
