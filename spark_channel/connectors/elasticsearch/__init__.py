"""Elasticsearch and OpenSearch, over HTTP: indexes read by sliced scrolls, and documents written in bulk."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import AT_LEAST_ONCE, AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.elasticsearch.reader import ElasticsearchReader
    from spark_channel.connectors.elasticsearch.writer import ElasticsearchWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["ElasticsearchReader"], "writer": ["ElasticsearchWriter"]}
    )

__all__ = ["CONNECTOR", "ElasticsearchReader", "ElasticsearchWriter"]

CONNECTOR = Connector(
    "elasticsearch",
    "spark_channel.connectors.elasticsearch:ElasticsearchReader",
    "spark_channel.connectors.elasticsearch:ElasticsearchWriter",
    about="Elasticsearch and OpenSearch indexes",
    secrets=("url", "password", "apiKey"),
    maturity="stable",
    tested="OpenSearch 2.19",
    delivery=AT_LEAST_ONCE,
    also=(AlsoReaches("Elasticsearch", "stable", "Elasticsearch 7.17; 8 was not run"),),
)
