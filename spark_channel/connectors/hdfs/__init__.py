"""HDFS without a JVM, through the library `hdfs-native`: a client, and a filesystem for `pyarrow` to read."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.hdfs.client import HdfsClient
    from spark_channel.connectors.hdfs.open import connect, filesystem, is_hdfs, is_installed
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {"client": ["HdfsClient"], "open": ["connect", "filesystem", "is_hdfs", "is_installed"]},
    )

__all__ = ["HdfsClient", "connect", "filesystem", "is_hdfs", "is_installed"]
