"""Any database with an ADBC driver, by the driver's name."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.adbc.writer import AdbcReader, AdbcWriter
else:
    __getattr__, __dir__ = lazy.exports(__name__, {"writer": ["AdbcReader", "AdbcWriter"]})

__all__ = ["AdbcReader", "AdbcWriter"]
