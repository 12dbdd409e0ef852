"""The records of a range of offsets, all of them or an error.

A range may have fewer records than offsets: compaction removes some, and each transaction ends with a marker that no
consumer sees. So the range ends when a record behind it comes, or when the client says that it reached the end of the
partition; and a record that is expected and does not come within `timeout` is an error.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, ClassVar, Self

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.kafka.client import BrokerStatus, consumer, error_of
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.kafka.ranges import Range, planned, splits_of
from spark_channel.connectors.kafka.serialization import (
    fields_of,
    own_batch,
    own_schema,
    value_batches,
)
from spark_channel.connectors.records import RecordReader, inferred_schema
from spark_channel.errors import ChannelError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["KafkaReader", "pages"]

_ROWS = 10_000
_BYTES = 8 << 20
_RECORD = 1 << 10
"""Bytes of a record, before the first ones have come."""
_LINGER = 0.05
_STEP = 1.0
_GONE = "_AUTO_OFFSET_RESET"
# The client asks for the coordinator of its group, which is not used here: the right to it is not needed.
_PASSING = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "GROUP_AUTHORIZATION_FAILED"}
)


def pages(
    options: KafkaReadOptions, part: Range, fetch: FetchSize
) -> Generator[list[Message], None, None]:
    """The range's records in order, some at a time.

    Raises:
        SourceError: records were deleted, or do not come.
    """
    if not part.size:
        return
    link = BrokerStatus(options, SourceError)
    advance = _Advance(part)
    with consumer(options, link, advance.note, **_prefetch(fetch)) as client:
        try:
            client.assign([TopicPartition(part.topic, part.partition, part.begin)])
            yield from _Pages(options, part, fetch, link, client, advance).all()
        except KafkaException as error:
            raise link.failed(error_of(error), f"reading partition {part.partition}") from error


def _prefetch(fetch: FetchSize) -> dict[str, int]:
    """How far the client reads ahead: with a limit about a second of it."""
    wanted = min(fetch.nbytes or _BYTES, _BYTES if fetch.rows is None else fetch.rows * _RECORD)
    return {
        "queued.max.messages.kbytes": max(1, 2 * wanted >> 10),
        "queued.min.messages": max(1, min(fetch.rows or 100_000, 10_000_000)),
        "max.partition.fetch.bytes": max(_RECORD, min(wanted, 1 << 20)),
    }


class _Advance:
    """How far the client's fetching has come, also over records that it does not give."""

    def __init__(self, part: Range) -> None:
        self._part, self.offset = part, part.begin

    def note(self, statistics: dict[str, Any]) -> None:
        known = statistics.get("topics", {}).get(self._part.topic, {}).get("partitions", {})
        self.offset = max(
            self.offset, known.get(str(self._part.partition), {}).get("next_offset", -1)
        )


class _Pages:
    def __init__(
        self,
        options: KafkaReadOptions,
        part: Range,
        fetch: FetchSize,
        link: BrokerStatus,
        client: Consumer,
        advance: _Advance,
    ) -> None:
        self._options, self._part, self._fetch = options, part, fetch
        self._link, self._client, self._advance = link, client, advance
        self._next, self._ended = part.begin, False
        self._short: int | None = None
        """Where the partition ended when the client looked last, if that is before the range's end."""
        self._average = float(_RECORD)

    def all(self) -> Iterator[list[Message]]:
        while not self._ended:
            page = [each for each in self._some() if self._is_wanted(each)]
            if page:
                nbytes = sum(len(each) for each in page)
                self._average = max(1.0, nbytes / len(page))
                yield page

    def _some(self) -> list[Message]:
        """Return the messages that have arrived, at least one."""
        most = min(self._fetch.nbytes or _BYTES, _BYTES)
        rows = max(1, min(self._fetch.rows or _ROWS, _ROWS, int(most / self._average)))
        rows = min(rows, self._part.end - self._next)
        first = self._awaited()
        return [first] if rows == 1 else [first, *self._client.consume(rows - 1, _LINGER)]

    def _awaited(self) -> Message:
        seen, end = self._advance.offset, SYSTEM_CLOCK.now() + self._options.timeout
        while True:
            message = self._client.poll(_STEP)
            self._link.check()
            if message is not None and (message.error() is None or not self._waits(message)):
                return message
            if self._advance.offset > seen:
                seen, end = self._advance.offset, SYSTEM_CLOCK.now() + self._options.timeout
            if SYSTEM_CLOCK.now() >= end:
                raise self._late()

    def _late(self) -> ChannelError:
        if self._short is not None:
            return SourceError(
                f"{self._options.address}: {self._shown} had committed records up to offset "
                f"{self._part.end - 1} when the read was planned, and has them up to {self._short - 1} now: "
                "the topic was created again, or lost records with its leader. Read again"
            )
        return self._link.silent(
            f"{self._shown} has offsets up to {self._part.end}, and nothing after {self._next - 1} came",
            f"{self._options.timeout:g} s ('timeout')",
        )

    def _waits(self, message: Message) -> bool:
        """Whether to wait on after a message: the client tries again by itself."""
        error = message.error()
        if error is None:
            return False
        if error.name() == "_PARTITION_EOF":
            # An end before the range's, of a new leader that has not caught up, is not the end.
            found = message.offset() or 0
            self._short = found if found < self._part.end else None
            return self._short is not None
        return error.name() in _PASSING

    def _is_wanted(self, message: Message) -> bool:
        error, offset = message.error(), message.offset()
        if error is None:
            assert offset is not None
            self._short = None
            if offset >= self._part.end:
                self._ended = True
                return False
            self._next = offset + 1
            self._ended = self._ended or self._next >= self._part.end
            return True
        if error.name() == "_PARTITION_EOF":
            self._ended = self._ended or (offset or 0) >= self._part.end
            return False
        if error.name() == _GONE:
            raise SourceError(
                f"{self._options.address}: records of {self._shown} from offset {self._next} on "
                "were deleted after the read was planned: "
                f"{error.str()}. The topic's retention deleted them, or the topic was created again. "
                "Read again from 'beginOffsets' earliest, or raise the retention"
            )
        if error.name() in _PASSING:
            return False
        raise self._link.failed(error, f"reading {self._shown}")

    @property
    def _shown(self) -> str:
        return f"partition {self._part.partition} of topic {self._part.topic!r}"


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
        link = BrokerStatus(self.options, SourceError)
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
