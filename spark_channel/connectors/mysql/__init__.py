"""MySQL and MariaDB: read as Arrow with even splits, written by LOAD DATA, exact in both directions."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import (
    CURSOR,
    LENIENT,
    LOCAL_TEXTS,
    ONCE,
    AlsoReaches,
    Connector,
    DataxCompatibility,
)

if TYPE_CHECKING:
    from spark_channel.connectors.mysql.read.reader import MysqlReader
    from spark_channel.connectors.mysql.write.database import MysqlDatabase
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"read.reader": ["MysqlReader"], "write.database": ["MysqlDatabase"]}
    )

__all__ = ["CONNECTOR", "MysqlDatabase", "MysqlReader"]

CONNECTOR = Connector(
    "mysql",
    "spark_channel.connectors.mysql:MysqlReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="spark_channel.connectors.mysql:MysqlDatabase",
    schemes=("mysql", "mariadb"),
    about="MySQL and MariaDB",
    needs=("pymysql", "numpy"),
    port=3306,
    dialect="mysql",
    datax=("mysql",),
    secrets=("url", "password"),
    feed=(CURSOR, "binlog"),
    as_datax=DataxCompatibility(
        reader={"tinyInt1IsBit": "false", "zeroDates": "null", "wideDecimals": "text"},
        writer=LENIENT,
        texts=LOCAL_TEXTS,
        own_mode={"sqlMode": "session"},
        modes={
            word: {"duplicates": word.rpartition(" ")[2]}
            for word in ("update", "replace", "insert ignore")
        },
    ),
    maturity="stable",
    tested="MariaDB 10.11 and 11.8",
    delivery=ONCE,
    also=(
        AlsoReaches(
            "MySQL",
            "stable",
            "MySQL 9.7, and recorded logs of MySQL 5.6 to 8.0",
        ),
    ),
    together="spark_channel.connectors.mysql.write.small_tables:joined",
)
