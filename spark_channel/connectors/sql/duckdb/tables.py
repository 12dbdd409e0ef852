"""What a DuckDB file says about a table, by the names that writers use."""

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.duckdb.dialect import DuckdbDialect, DuckdbTable
from spark_channel.connectors.sql.named import name_readings

__all__ = ["Column", "Table", "find_table", "readings", "same_name"]

Table = DuckdbTable
find_table = DuckdbDialect().find_table
same_name = DuckdbDialect().same_name


def readings(text: str) -> list[tuple[str, str]]:
    """(schema, name) that `dbtable` may mean."""
    return name_readings(text, "duckdb", "main")
