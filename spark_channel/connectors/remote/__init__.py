"""File servers over FTP, FTPS and SFTP: a client, and a filesystem for `pyarrow`."""

from importlib.util import find_spec

from pyarrow import fs as pafs

from spark_channel.connectors.remote.client import (
    Address,
    Entry,
    Remote,
    filesystem_of,
    is_remote,
)
from spark_channel.errors import MissingPackageError
from spark_channel.requirements import check_versions

__all__ = ["Address", "Entry", "Remote", "connect", "filesystem", "is_remote"]


def connect(address: Address) -> Remote:
    """Open a connection.

    Raises:
        MissingPackageError: SFTP without paramiko. OSError: no answer, or the login is refused.
    """
    if address.scheme != "sftp":
        from spark_channel.connectors.remote.ftp import FtpRemote

        return FtpRemote(address)
    if find_spec("paramiko") is None:
        raise MissingPackageError(
            "sftp:// needs paramiko: pip install 'spark-channel[sftp]', on the driver's host and on the workers",
            name="paramiko",
        )
    check_versions("sftp")
    from spark_channel.connectors.remote.sftp import SftpRemote

    return SftpRemote(address)


def filesystem(address: Address) -> pafs.FileSystem:
    """A read-only filesystem of `pyarrow`. Opens no connection yet; each call opens one and closes it."""
    return filesystem_of(address.scheme, address, lambda: connect(address))
