"""Tables of Delta Lake, by the `deltalake` library: no JVM and no jar."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import ONCE_BY_JOB, S3, AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.delta.reader import DeltaReader
    from spark_channel.connectors.delta.writer import DeltaWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["DeltaReader"], "writer": ["DeltaWriter"]}
    )

__all__ = ["CONNECTOR", "DeltaReader", "DeltaWriter"]

CONNECTOR = Connector(
    "delta",
    "spark_channel.connectors.delta:DeltaReader",
    "spark_channel.connectors.delta:DeltaWriter",
    about="Delta Lake tables",
    needs=("deltalake", "obstore"),
    datax=("delta",),
    secrets=("storageOptions",),
    feed=("new versions",),
    maturity="stable",
    tested="deltalake 1.6, and Delta Lake 4.4 in Spark 4.1, tables on a disk",
    delivery=ONCE_BY_JOB,
    also=(
        AlsoReaches("Delta tables on S3", "stable", S3),
        AlsoReaches("Delta tables on GCS, Azure", "preview", "emulators of the stores"),
    ),
)
