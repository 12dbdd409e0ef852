"""Opens HDFS: one client per NameNode and process, for all threads."""

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from spark_channel.errors import MissingPackageError

if TYPE_CHECKING:
    from spark_channel.connectors.hdfs.client import HdfsClient

__all__ = ["connect", "filesystem", "is_hdfs", "is_installed"]

_SCHEMES = ("hdfs", "viewfs")


def is_hdfs(root: str) -> bool:
    """Whether a `Location.root` names HDFS."""
    scheme, mark, _ = root.partition("://")
    return bool(mark) and scheme.lower() in _SCHEMES


def is_installed() -> bool:
    return find_spec("hdfs_native") is not None


def connect(root: str) -> "HdfsClient":
    """
    Raises:
        MissingPackageError: hdfs-native is not installed. OSError: a name service that the configuration lacks.
    """
    if not is_installed():
        raise MissingPackageError(
            "writing to hdfs:// needs hdfs-native: pip install 'spark-channel[hdfs]', "
            "on the driver's host and on the workers",
            name="hdfs_native",
        )
    return _opened(root, os.getpid())  # a forked process has none of its parent's threads


@lru_cache(maxsize=32)
def _opened(root: str, _process: int) -> "HdfsClient":
    from spark_channel.connectors.hdfs.client import HdfsClient

    return HdfsClient(root)


def filesystem(root: str) -> pafs.FileSystem:
    """A filesystem of `pyarrow`, to read. Opens no connection yet.

    Raises:
        ValueError: the uri has more than a host and a port.
    """
    parts = urlsplit(root)
    is_default = parts.scheme == "hdfs" and not parts.netloc  # fs.defaultFS of HADOOP_CONF_DIR
    if not parts.hostname and not is_default:
        raise ValueError(
            "the uri names no host; it takes hdfs://namenode:8020/path or hdfs://nameservice/path"
        )
    if parts.username or parts.query or parts.fragment:
        raise ValueError(
            "the uri names more than a host: the user is that of Kerberos or of HADOOP_USER_NAME, "
            "and settings are in HADOOP_CONF_DIR"
        )
    from spark_channel.connectors.remote.arrow_filesystem import filesystem_of

    return filesystem_of(root.partition("://")[0], root, lambda: connect(root))
