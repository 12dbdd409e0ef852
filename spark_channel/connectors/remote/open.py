"""Opens a connection to a file server."""

from importlib.util import find_spec

from spark_channel.connectors.remote.address import Address
from spark_channel.connectors.remote.client import Remote
from spark_channel.errors import MissingPackageError

__all__ = ["connect"]


def connect(address: Address) -> Remote:
    """
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
    from spark_channel.connectors.remote.sftp import SftpRemote

    return SftpRemote(address)
