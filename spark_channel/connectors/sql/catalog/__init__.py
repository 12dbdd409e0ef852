"""Tables and columns: in the catalog, read, written."""

from spark_channel.connectors.sql.catalog.tables import (
    Column,
    KeyColumn,
    MisfitError,
    ReadColumn,
    Table,
)
from spark_channel.connectors.sql.catalog.target_table import (
    NOWHERE,
    TABLE,
    Declared,
    DefinitionStep,
    TargetTable,
    WriteColumn,
    declared_columns,
    listed,
)

__all__ = [
    "NOWHERE",
    "TABLE",
    "Column",
    "Declared",
    "DefinitionStep",
    "KeyColumn",
    "MisfitError",
    "ReadColumn",
    "Table",
    "TargetTable",
    "WriteColumn",
    "declared_columns",
    "listed",
]
