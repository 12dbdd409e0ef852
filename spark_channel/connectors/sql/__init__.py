"""Databases: one reader, feed and splitter for all of them, and a package for what is each one's own.

A connector to another database subclasses `Dialect` (its SQL), `Session` (a connection) and `SqlReader`, which names
both.
"""

from typing import TYPE_CHECKING

from spark_channel import deferred, lazy

if TYPE_CHECKING:
    from spark_channel.connectors.sql.catalog import Column, MisfitError, ReadColumn, Table
    from spark_channel.connectors.sql.dialect import Dialect
    from spark_channel.connectors.sql.options import Credentials, SqlReadOptions, SqlWriteOptions
    from spark_channel.connectors.sql.reader import SqlReader
    from spark_channel.connectors.sql.session import BatchSize, Session
    from spark_channel.connectors.sql.source import ReadSource
    from spark_channel.connectors.sql.splits import Quantiles, Splitter
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = [
    "BatchSize",
    "Column",
    "Credentials",
    "Dialect",
    "MisfitError",
    "Quantiles",
    "ReadColumn",
    "ReadSource",
    "Session",
    "Splitter",
    "SqlReadOptions",
    "SqlReader",
    "SqlWriteOptions",
    "Table",
]

# ADBC's dbapi imports it to know a dataset when it is given one, and with it comes pandas: 0.4 s of every process.
deferred.defer("pyarrow.dataset")
