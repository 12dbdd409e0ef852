"""What a SQLite file says about a table, by the names that writers use."""

from spark_channel.connectors.sql.sqlite.dialect import SqliteColumn, SqliteDialect, SqliteTable

__all__ = ["Column", "Table", "find_table", "same_name"]

Column = SqliteColumn
Table = SqliteTable
find_table = SqliteDialect().find_table
same_name = SqliteDialect().same_name
