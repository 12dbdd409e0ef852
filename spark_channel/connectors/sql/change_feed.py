"""Rows of a change feed: the operation in the column `_op`."""

import pyarrow as pa

from spark_channel.errors import SchemaError, SourceError

__all__ = [
    "DELETES",
    "OPERATION",
    "TRUNCATES",
    "WRITES",
    "change_schema",
    "missing_source",
    "new_columns_advice",
    "row_fields",
]

OPERATION = "_op"
"""The column that says what a row does to the row of its key."""
WRITES = ("insert", "update", "upsert", "create", "read", "i", "u", "c", "r")
"""The row is there afterwards, with these values."""
DELETES = ("delete", "d")
"""The row is gone afterwards."""
TRUNCATES = ("truncate", "t")
"""No row of before is there afterwards."""


def change_schema(columns: pa.Schema) -> pa.Schema:
    """The table's columns, all nullable (a truncate has none), with `_op`, `_lsn` and `_commit_ts`.

    `_lsn` is the position in the log, as the database writes it.
    """
    return pa.schema(
        [
            *(pa.field(each.name, each.type) for each in columns),
            pa.field(OPERATION, pa.string()),
            pa.field("_lsn", pa.string()),
            pa.field("_commit_ts", pa.timestamp("us", "UTC")),
        ]
    )


def new_columns_advice(*, goes_on: bool) -> str:
    """What to do when a table has other columns than its stream began with. `goes_on`: its log may have both."""
    if goes_on:
        return "Start it again: it continues where it is, with the columns that the table has then (onSchemaChange)"
    return (
        "Start it again with onSchemaChange=evolve to continue with its new columns; or begin a new stream, or reset "
        "the tunnel, to read all rows again"
    )


def missing_source(error: SourceError, advice: str = "") -> SourceError:
    """Why a stream ends whose table is not there any more. `error` tells which; `advice` is what else may be done."""
    return SourceError(
        f"{error}. Ranges of its stream that were handed out before are delivered from the log, and nothing else. "
        f"{advice}Remove the tunnel (`spark-channel tunnel delete`); or reset it, or begin with a new checkpoint "
        "directory, when there is a new table of that name"
    )


def row_fields(schema: pa.Schema) -> list[pa.Field]:
    """The columns of the rows themselves.

    Raises:
        SchemaError: nothing says what each row does.
    """
    if OPERATION not in schema.names:
        raise SchemaError(
            f"writeMode apply needs column {OPERATION!r}, which says what each row does; the rows have "
            f"{', '.join(schema.names)}"
        )
    return [field for field in schema if field.name != OPERATION]
