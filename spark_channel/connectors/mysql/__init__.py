"""MySQL and MariaDB: read as Arrow with even splits, written by LOAD DATA, exact in both directions."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.mysql.read.reader import MysqlReader
    from spark_channel.connectors.mysql.write.writer import MysqlWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"read.reader": ["MysqlReader"], "write.writer": ["MysqlWriter"]}
    )

__all__ = ["MysqlReader", "MysqlWriter"]
