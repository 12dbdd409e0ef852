"""The writer of Delta tables. `lake.writer` has the protocol of a write, `claims` its claim."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_channel.connectors.delta.log import DeltaLake
from spark_channel.connectors.delta.options import DeltaWriteOptions
from spark_channel.connectors.lake.read import file_rows
from spark_channel.connectors.lake.table import Lake, TableFile, TableState
from spark_channel.connectors.lake.writer import LakeWriter

__all__ = ["DeltaWriter"]


class DeltaWriter(LakeWriter):
    """Writes data files below `<table>/spark-channel/`; only the table's log says which of them are in the table."""

    Options = DeltaWriteOptions
    options: DeltaWriteOptions
    partitions_outside = True
    empty_text_is_null = True

    def lake(self, place: Any = None) -> DeltaLake:
        return DeltaLake(self.options if place is None else self.options.with_unity(place))

    def place(self, lake: Lake) -> Any:
        return self.options.unity()

    def read_file(self, lake: Lake, table: TableState, file: TableFile) -> Iterator[pa.RecordBatch]:
        return file_rows(lake.store.place.fs, file, table.columns, table.partition_columns)
