"""Writes Delta tables: the connector's writer, on the table of `lake_table`."""

from collections.abc import Iterator

import pyarrow as pa

from spark_channel.connectors.delta.lake_table import DeltaLake
from spark_channel.connectors.delta.options import DeltaWriteOptions
from spark_channel.connectors.lake.file_rows import file_rows
from spark_channel.connectors.lake.table import LakeTable, TableFile, TableState
from spark_channel.connectors.lake.writer import LakeWriter

__all__ = ["DeltaWriter"]


class DeltaWriter(LakeWriter):
    """Writes data files below `<table>/spark-channel/`; only the table's log says which of them are in the table."""

    Options = DeltaWriteOptions
    options: DeltaWriteOptions
    partitions_outside = True
    empty_text_is_null = True

    def lake(self, location: object = None) -> DeltaLake:
        return DeltaLake(self.options)

    def read_file(
        self, lake: LakeTable, table: TableState, file: TableFile, *, as_stored: bool = False
    ) -> Iterator[pa.RecordBatch]:
        by = table.partition_columns
        return file_rows(lake.store.place.fs, file, table.columns, by, as_stored=as_stored)
