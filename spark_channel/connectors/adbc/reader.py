"""Reads any database with an ADBC driver."""

from contextlib import AbstractContextManager
from typing import ClassVar

from spark_channel.connectors.adbc.dialect import AdbcDialect
from spark_channel.connectors.adbc.options import AdbcReadOptions
from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions

__all__ = ["AdbcReader"]


class AdbcReader(SqlReader):
    """One split, or ranges of `partitionColumn` of about equal rows. Types are those that the driver gives."""

    Options: ClassVar[type[ReadOptions]] = AdbcReadOptions
    options: AdbcReadOptions

    def __init__(self, options: AdbcReadOptions) -> None:
        super().__init__(options, AdbcDialect(options.sql_dialect()))

    feed = Reader.feed  # none: drivers do not say how their databases order and compare values

    def connect(self, purpose: str) -> AbstractContextManager[Session]:
        return AdbcSession(self.options, SourceError)
