"""MongoDB: collections read by ranges of `_id`, and documents written in bulk."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.mongodb.reader import MongoReader
    from spark_channel.connectors.mongodb.writer import MongoWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["MongoReader"], "writer": ["MongoWriter"]}
    )

__all__ = ["MongoReader", "MongoWriter"]
