"""Redis and Valkey: keys read by SCAN, and rows written as strings, hashes, lists, sets and sorted sets."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.redis.reader import RedisReader
    from spark_channel.connectors.redis.writer import RedisWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["RedisReader"], "writer": ["RedisWriter"]}
    )

__all__ = ["CONNECTOR", "RedisReader", "RedisWriter"]

CONNECTOR = Connector(
    "redis",
    "spark_channel.connectors.redis:RedisReader",
    "spark_channel.connectors.redis:RedisWriter",
    schemes=("redis", "rediss"),
    about="keys of Redis and Valkey",
    needs=("redis",),
    port=6379,
    secrets=("url", "password"),
    maturity="stable",
    tested="Redis 7.0 and 8.0, alone and as a cluster of three",
    delivery={"job": "once", "task": "at least once"},
    also=(AlsoReaches("Valkey", "stable", "Valkey 9.1, alone and as a cluster of three"),),
)
