"""Redis and Valkey: keys read by SCAN, and rows written as strings, hashes, lists, sets and sorted sets."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.redis.reader import RedisReader
    from spark_channel.connectors.redis.writer import RedisWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["RedisReader"], "writer": ["RedisWriter"]}
    )

__all__ = ["RedisReader", "RedisWriter"]
