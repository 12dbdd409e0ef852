"""What the server says about a table, by the names that writers use."""

from spark_channel.connectors.sql.mysql.dialect import (
    MysqlColumn,
    MysqlDialect,
    MysqlTable,
    name_places,
    table_named,
)

__all__ = ["Column", "Table", "find_table", "readings", "same_name", "table_named"]

Column = MysqlColumn
Table = MysqlTable
find_table = MysqlDialect().find_table
same_name = MysqlDialect().same_name
readings = name_places
