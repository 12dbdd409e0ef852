"""Tables, transactions, slots in the server's catalog."""

from spark_channel.connectors.postgresql.catalog.slots import kept_bytes, retained_logs
from spark_channel.connectors.postgresql.catalog.tables import (
    LOOKS_UP_MANY,
    Part,
    PartReader,
    PgColumn,
    PgTable,
    described,
    find_rows,
    find_table,
    lacking,
    name_parts,
    relation_names,
    same_table,
    table_names,
)
from spark_channel.connectors.postgresql.catalog.transactions import oldest_of, table_sql

__all__ = [
    "LOOKS_UP_MANY",
    "Part",
    "PartReader",
    "PgColumn",
    "PgTable",
    "described",
    "find_rows",
    "find_table",
    "kept_bytes",
    "lacking",
    "name_parts",
    "oldest_of",
    "relation_names",
    "retained_logs",
    "same_table",
    "table_names",
    "table_sql",
]
