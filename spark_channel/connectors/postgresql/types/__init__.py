"""PostgreSQL's types as Arrow's: reading, encoding, and rows that another table takes unchanged."""

from spark_channel.connectors.postgresql.types.arrow import (
    ELEMENTS,
    INSTANT,
    LOCAL,
    TIME,
    ReadType,
    numeric_digits,
    numeric_size,
    read_type,
)
from spark_channel.connectors.postgresql.types.casts import selected
from spark_channel.connectors.postgresql.types.encode import (
    PgWriteColumn,
    check_values,
    encode,
    lenient_column,
    native_column,
    write_column,
)
from spark_channel.connectors.postgresql.types.native import (
    SYSTEM,
    are_native,
    native_types,
)
from spark_channel.connectors.postgresql.types.texts import OF_SESSION, decode, text_sql, value_sql

__all__ = [
    "ELEMENTS",
    "INSTANT",
    "LOCAL",
    "OF_SESSION",
    "SYSTEM",
    "TIME",
    "PgWriteColumn",
    "ReadType",
    "are_native",
    "check_values",
    "decode",
    "encode",
    "lenient_column",
    "native_column",
    "native_types",
    "numeric_digits",
    "numeric_size",
    "read_type",
    "selected",
    "text_sql",
    "value_sql",
    "write_column",
]
