"""MongoDB: collections read by ranges of `_id`, and documents written in bulk."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import AT_LEAST_ONCE, AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.mongodb.reader import MongoReader
    from spark_channel.connectors.mongodb.writer import MongoWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["MongoReader"], "writer": ["MongoWriter"]}
    )

__all__ = ["CONNECTOR", "MongoReader", "MongoWriter"]

CONNECTOR = Connector(
    "mongodb",
    "spark_channel.connectors.mongodb:MongoReader",
    "spark_channel.connectors.mongodb:MongoWriter",
    schemes=("mongodb", "mongodb+srv"),
    about="MongoDB collections",
    needs=("pymongo",),
    port=27017,
    secrets=("url", "password"),
    maturity="preview",
    tested="only FerretDB, another server of its protocol",
    delivery=AT_LEAST_ONCE,
    also=(AlsoReaches("FerretDB", "stable", "FerretDB 1.24 over SQLite"),),
)
