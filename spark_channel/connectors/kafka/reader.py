"""Reads ranges of offsets, which are resolved once, when the read is planned."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any, ClassVar, Self

import pyarrow as pa

from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.kafka.client import Link, consumer
from spark_channel.connectors.kafka.consume import pages
from spark_channel.connectors.kafka.offsets import Range, planned, splits_of
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.kafka.rows import fields_of, own_batch, own_schema, value_batches
from spark_channel.connectors.records import RecordReader, inferred_schema
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["KafkaReader"]


class KafkaReader(RecordReader):
    """See `KafkaReadOptions`."""

    Options: ClassVar[type[ReadOptions]] = KafkaReadOptions
    options: KafkaReadOptions

    @property
    def _place(self) -> str:
        return self.options.address

    def resource_mark(self, split: Split) -> str | None:
        return self.options.bootstrap_servers

    def _planned(self) -> list[Range]:
        link = Link(self.options, SourceError)
        with consumer(self.options, link) as client:
            return planned(self.options, link, client)

    def schema(self) -> pa.Schema:
        if self._schema is None and self.options.value_format == "binary":
            self._schema = self._picked(own_schema(self.options))
        return super().schema()

    def with_schema(self, schema: pa.Schema) -> Self:
        # The host casts Kafka's own columns, such as `key` to STRING.
        return self if self.options.value_format == "binary" else super().with_schema(schema)

    def _sampled(self) -> pa.Schema:
        wanted, some = self.options.sample_rows, list[dict[str, Any]]()
        for part in self._planned():
            left = wanted - len(some)
            if left <= 0:
                break
            with closing(pages(self.options, part, self.fetch_size)) as found:
                messages = (message for page in found for message in page)
                some += [fields_of(message, exact=False) for message in islice(messages, left)]
        if not any(some):
            raise SourceError(
                f"{self.options.address} has no records in this range, so the columns are not known: "
                "name them with option 'schema', such as id BIGINT, name STRING"
            )
        return inferred_schema(some)

    def split(self, advice: int) -> list[Split]:
        return splits_of(self._planned(), advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        if self.options.value_format == "binary":
            for page in pages(self.options, Range.of(split), self.fetch_size):
                yield own_batch(schema, page)
            return
        made = value_batches(self.options, schema)
        for page in pages(self.options, Range.of(split), self.fetch_size):
            yield made(page)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.kafka.feed import KafkaFeed

        return KafkaFeed(self, options)
