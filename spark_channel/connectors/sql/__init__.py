"""Databases: one reader, feed and splitter for all, and a package per database for its differences.

A connector to another database subclasses `Dialect` (its SQL), `Session` (a connection) and `SqlReader`, which names
both. One that writes subclasses `WriteDialect` and `SqlWriter` too.
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
    from spark_channel.connectors.sql.claim_tables import ClaimDialect
    from spark_channel.connectors.sql.claims import Claims
    from spark_channel.connectors.sql.dialect import Dialect, WriteDialect
    from spark_channel.connectors.sql.options import Credentials, SqlReadOptions, SqlWriteOptions
    from spark_channel.connectors.sql.publish import Merge, StandardMerge
    from spark_channel.connectors.sql.reader import SqlReader
    from spark_channel.connectors.sql.session import (
        BatchSize,
        Session,
        WriteSession,
        session_script,
    )
    from spark_channel.connectors.sql.source import ReadSource
    from spark_channel.connectors.sql.splits import Quantiles, Splitter
    from spark_channel.connectors.sql.task_writer import DirectTaskWriter, StagedTaskWriter
    from spark_channel.connectors.sql.write_protocol import SqlPlan, WriteTarget
    from spark_channel.connectors.sql.writer import SqlWriter
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
            "claim_tables": ["ClaimDialect"],
            "claims": ["Claims"],
            "dialect": ["Dialect", "WriteDialect"],
            "options": ["Credentials", "SqlReadOptions", "SqlWriteOptions"],
            "publish": ["Merge", "StandardMerge"],
            "reader": ["SqlReader"],
            "session": ["BatchSize", "Session", "WriteSession", "session_script"],
            "source": ["ReadSource"],
            "splits": ["Quantiles", "Splitter"],
            "task_writer": ["DirectTaskWriter", "StagedTaskWriter"],
            "write_protocol": ["SqlPlan", "WriteTarget"],
            "writer": ["SqlWriter"],
        },
    )

__all__ = [
    "BatchSize",
    "ClaimDialect",
    "Claims",
    "Column",
    "Credentials",
    "Dialect",
    "DirectTaskWriter",
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
    "StagedTaskWriter",
    "StandardMerge",
    "Table",
    "TargetTable",
    "WriteColumn",
    "WriteDialect",
    "WriteSession",
    "WriteTarget",
    "session_script",
]
