"""File servers over FTP, FTPS and SFTP: a client, and a filesystem for `pyarrow`."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.remote.address import Address, is_remote
    from spark_channel.connectors.remote.arrow_filesystem import filesystem
    from spark_channel.connectors.remote.client import Entry, Remote
    from spark_channel.connectors.remote.open import connect
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "address": ["Address", "is_remote"],
            "arrow_filesystem": ["filesystem"],
            "client": ["Entry", "Remote"],
            "open": ["connect"],
        },
    )

__all__ = ["Address", "Entry", "Remote", "connect", "filesystem", "is_remote"]
