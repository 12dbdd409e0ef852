"""Tables of Delta Lake, by the `deltalake` library: no JVM and no jar."""

from spark_channel.connectors.delta.reader import DeltaReader
from spark_channel.connectors.delta.writer import DeltaWriter

__all__ = ["DeltaReader", "DeltaWriter"]
