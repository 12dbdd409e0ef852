"""MySQL's and MariaDB's SQL, and the definitions of their tables."""

from spark_channel.connectors.mysql.dialect.dialect import (
    LOCAL_ENGINES,
    CatalogRows,
    MysqlColumn,
    MysqlDialect,
    MysqlTable,
    catalog_rows,
    declared_in,
    find_rows,
    in_file_names,
    name_places,
    of_tables,
    parted,
    places_of,
    state_of,
    table_named,
    table_of,
)

__all__ = [
    "LOCAL_ENGINES",
    "CatalogRows",
    "MysqlColumn",
    "MysqlDialect",
    "MysqlTable",
    "catalog_rows",
    "declared_in",
    "find_rows",
    "in_file_names",
    "name_places",
    "of_tables",
    "parted",
    "places_of",
    "state_of",
    "table_named",
    "table_of",
]
