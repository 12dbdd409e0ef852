"""Databases: one reader, feed and splitter for all, and a package per database for its differences.

A connector to another database subclasses `Dialect` (its SQL), `Session` (a connection) and `SqlReader`, which names
both. One that writes subclasses `WriteDialect` and `TableDatabase` too.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.sql.catalog import (
        Column,
        KeyColumn,
        MisfitError,
        ReadColumn,
        Table,
        TargetTable,
        WriteColumn,
    )
    from spark_channel.connectors.sql.dialect import Dialect, WriteDialect
    from spark_channel.connectors.sql.options import Credentials, SqlReadOptions, SqlWriteOptions
    from spark_channel.connectors.sql.read.reader import SqlReader
    from spark_channel.connectors.sql.read.source import ReadSource
    from spark_channel.connectors.sql.read.splits import Quantiles, Splitter
    from spark_channel.connectors.sql.session import (
        BatchSize,
        Session,
        WriteSession,
        session_script,
    )
    from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
    from spark_channel.connectors.sql.write.claims import Claims
    from spark_channel.connectors.sql.write.database import WriteDatabase
    from spark_channel.connectors.sql.write.job import SqlWriter
    from spark_channel.connectors.sql.write.merge import Merge, StandardMerge
    from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
    from spark_channel.connectors.sql.write.sessions import Verdict
    from spark_channel.connectors.sql.write.table_database import TableDatabase
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "catalog": [
                "Column",
                "KeyColumn",
                "MisfitError",
                "ReadColumn",
                "Table",
                "TargetTable",
                "WriteColumn",
            ],
            "write.claim_tables": ["ClaimDialect"],
            "write.claims": ["Claims"],
            "dialect": ["Dialect", "WriteDialect"],
            "options": ["Credentials", "SqlReadOptions", "SqlWriteOptions"],
            "write.merge": ["Merge", "StandardMerge"],
            "read.reader": ["SqlReader"],
            "session": ["BatchSize", "Session", "WriteSession", "session_script"],
            "read.source": ["ReadSource"],
            "read.splits": ["Quantiles", "Splitter"],
            "write.plan": ["SqlPlan", "WriteTarget"],
            "write.database": ["WriteDatabase"],
            "write.sessions": ["Verdict"],
            "write.table_database": ["TableDatabase"],
            "write.job": ["SqlWriter"],
        },
    )

__all__ = [
    "BatchSize",
    "ClaimDialect",
    "Claims",
    "Column",
    "Credentials",
    "Dialect",
    "KeyColumn",
    "Merge",
    "MisfitError",
    "Quantiles",
    "ReadColumn",
    "ReadSource",
    "Session",
    "Splitter",
    "SqlPlan",
    "SqlReadOptions",
    "SqlReader",
    "SqlWriteOptions",
    "SqlWriter",
    "StandardMerge",
    "Table",
    "TableDatabase",
    "TargetTable",
    "Verdict",
    "WriteColumn",
    "WriteDatabase",
    "WriteDialect",
    "WriteSession",
    "WriteTarget",
    "session_script",
]
