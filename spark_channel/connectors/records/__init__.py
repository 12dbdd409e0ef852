"""Records without a declared schema, such as documents: as Arrow batches, by a schema that is given or sampled."""

from spark_channel.connectors.records.columns import Columns
from spark_channel.connectors.records.conversion import Rules
from spark_channel.connectors.records.inference import inferred_schema
from spark_channel.connectors.records.reader import RecordReader, declared_schema

__all__ = [
    "Columns",
    "RecordReader",
    "Rules",
    "declared_schema",
    "inferred_schema",
]
