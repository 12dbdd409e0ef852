"""Tables of Apache Iceberg, by the `pyiceberg` library: no JVM and no jar."""

from spark_channel.connectors.iceberg.reader import IcebergReader
from spark_channel.connectors.iceberg.writer import IcebergWriter

__all__ = ["IcebergReader", "IcebergWriter"]
