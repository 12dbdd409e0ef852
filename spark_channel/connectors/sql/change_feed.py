"""Rows of a change feed: the operation in the column `_op`."""

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = ["DELETES", "OPERATION", "TRUNCATES", "WRITES", "row_fields"]

OPERATION = "_op"
"""The column that says what a row does to the row of its key."""
WRITES = ("insert", "update", "upsert", "create", "read", "i", "u", "c", "r")
"""The row is there afterwards, with these values."""
DELETES = ("delete", "d")
"""The row is gone afterwards."""
TRUNCATES = ("truncate", "t")
"""No row of before is there afterwards."""


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
