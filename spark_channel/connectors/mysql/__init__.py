"""MySQL and MariaDB: read as Arrow with even splits, written by LOAD DATA, exact in both directions."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.mysql.reader import MysqlReader
    from spark_channel.connectors.mysql.writer import MysqlWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["MysqlReader"], "writer": ["MysqlWriter"]}
    )

__all__ = ["MysqlReader", "MysqlWriter"]
