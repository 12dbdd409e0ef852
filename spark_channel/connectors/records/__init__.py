"""Records without a declared schema, such as documents: as Arrow batches, by a schema that is given or sampled."""

from spark_channel.connectors.records.columns import Columns
from spark_channel.connectors.records.infer import inferred_schema
from spark_channel.connectors.records.options import RecordReadOptions, declared_schema
from spark_channel.connectors.records.reader import RecordReader
from spark_channel.connectors.records.values import Rules

__all__ = ["Columns", "RecordReadOptions", "RecordReader", "Rules", "declared_schema", "inferred_schema"]
