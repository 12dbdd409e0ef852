"""Records without a declared schema, such as documents: as Arrow batches, by a schema that is given or sampled."""

from spark_channel.connectors.records.columns import Columns, Rules
from spark_channel.connectors.records.reader import (
    RecordReader,
    declared_schema,
    inferred_schema,
)

__all__ = [
    "Columns",
    "RecordReader",
    "Rules",
    "declared_schema",
    "inferred_schema",
]
