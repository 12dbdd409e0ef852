"""Elasticsearch and OpenSearch, over HTTP: indexes read by sliced scrolls, and documents written in bulk."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.elasticsearch.reader import ElasticsearchReader
    from spark_channel.connectors.elasticsearch.writer import ElasticsearchWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["ElasticsearchReader"], "writer": ["ElasticsearchWriter"]}
    )

__all__ = ["ElasticsearchReader", "ElasticsearchWriter"]
