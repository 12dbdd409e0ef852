"""A topic as a change feed: its records, by offsets. Each partition of the topic is one of the feed."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer

from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.kafka.client import BrokerStatus, consumer, is_passing
from spark_channel.connectors.kafka.ranges import (
    Edges,
    Part,
    Range,
    edges_at,
    offsets_at,
    partitions,
    splits_of,
    topic_of,
)
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.kafka.reader import KafkaReader

__all__ = ["KafkaFeed"]

_RECORD = 1 << 10
"""Bytes that a record is taken for: offsets say nothing of sizes."""
_AGAIN = "Begin a new stream, or reset the tunnel"


class KafkaFeed(ChangeFeed):
    """A token is an offset: the next record to read. It also has the number of partitions that the topic had."""

    def __init__(self, reader: "KafkaReader", options: FeedOptions) -> None:
        if options.cursor_column is not None:
            raise OptionError(
                "option 'cursorColumn' is for databases; a topic is streamed by its offsets",
                option="cursorColumn",
            )
        given = reader.options
        for option, streams, value in (
            ("beginOffsets", "startingOffsets", given.begin_offsets),
            ("beginTimestamp", "startingTimestamp", given.begin_timestamp),
            ("endOffsets", "endingOffsets", given.end_offsets),
            ("endTimestamp", "endingTimestamp", given.end_timestamp),
        ):
            if value is not None:
                raise OptionError(
                    f"option {option!r} is for batch reads; a stream takes {streams!r}, with tunnelType=stream",
                    option=option,
                )
        self._reader = reader

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [_token(part, edges.low, of) for part, edges, of in self._edges()]

    def now(self) -> list[Token]:
        return [_token(part, edges.high, of) for part, edges, of in self._edges()]

    def end_of(self, token: Token) -> Token:
        part, start, of = self._read(token)
        return _token(part, self._checked(part, start, of).high, of)

    def at(self, time: datetime) -> list[Token]:
        if time > datetime.now(UTC):
            # The brokers know no offset for it, and the present end is not it: earlier records may follow.
            raise OptionError(
                f"options 'startingTimestamp' and 'endingTimestamp' of a topic take times that have passed; "
                f"{time.isoformat()} is in the future, and the offset of the first record then is not known yet. Name "
                "an earlier time, or omit the option",
                option="startingTimestamp",
                got=time.isoformat(),
                takes="a time that has passed",
            )
        link = self._link()
        with consumer(self._reader.options, link) as client:
            parts = partitions(self._reader.options, link, client)
            counts = _counts(link, client, parts)
            found = offsets_at(link, client, edges_at(link, client, parts), time)
            return [_token(part, found[part], counts[part[0]]) for part in parts]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        part, start, of = self._read(after)
        known = self._checked(part, start, of)
        end = known.high if upto is None else min(known.high, self._read(upto)[1])
        most = limit.most_rows(_RECORD)
        if most is not None:
            end = min(end, start + max(1, most))
        return _token(part, max(start, end), of)

    def reaches(self, token: Token, end: Token) -> bool:
        (part, offset, _), (other, bound, _) = self._read(token), self._read(end)
        if part != other:
            raise OptionError(
                f"the positions {dict(token)} and {dict(end)} are of different partitions: "
                "give one for each, in the order of the partitions",
                option="endingOffsets",
            )
        return offset >= bound

    def changes(self, after: Token, upto: Token) -> list[Split]:
        (topic, number), start, _ = self._read(after)
        return splits_of([Range(topic, number, start, self._read(upto)[1])], 1)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        lows = {part: edges.low for part, edges, _ in self._edges()}
        ends = [self._read(token) for token in upto]
        return splits_of([Range(*part, min(lows[part], end), end) for part, end, _ in ends], advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        part, offset, of = self._read(token)
        return FeedLag(rows=self._checked(part, offset, of).high - offset)

    def is_passing(self, error: BaseException) -> bool:
        return (
            isinstance(error, SourceError)
            and error.__cause__ is not None
            and is_passing(error.__cause__)
        )

    def _link(self) -> BrokerStatus:
        return BrokerStatus(self._reader.options, SourceError)

    def _edges(self) -> list[tuple[Part, Edges, int]]:
        link = self._link()
        with consumer(self._reader.options, link) as client:
            parts = partitions(self._reader.options, link, client)
            counts = _counts(link, client, parts)
            return [
                (part, edges, counts[part[0]])
                for part, edges in edges_at(link, client, parts).items()
            ]

    def _checked(self, part: Part, offset: int, of: int) -> Edges:
        """Where the partition begins and ends now.

        Raises:
            SourceError: the next records of a token no longer exist, or the topic has other partitions.
        """
        link, (topic, number) = self._link(), part
        with consumer(self._reader.options, link) as client:
            count = len(topic_of(link, client, topic))
            if count != of:
                raise SourceError(
                    f"{self._shown}: topic {topic!r} has {count} partitions, and had {of} when the stream began: "
                    f"records of the others would not be read. {_AGAIN}"
                )
            known = edges_at(link, client, [part])[part]
        if offset < known.low:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} "
                f"of partition {number} of topic {topic!r}, whose first record is {known.low}: "
                f"the topic's retention deleted the records between. {_AGAIN}, or raise the retention"
            )
        if offset > known.high:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} of partition {number} of topic {topic!r}, "
                f"which ends at {known.high}: the topic was created again, or lost records. {_AGAIN}"
            )
        return known

    def _read(self, token: Token) -> tuple[Part, int, int]:
        names = {"topic": str, "partition": int, "offset": int, "of": int}
        good = set(token) == set(names) and all(
            type(token[name]) is kind for name, kind in names.items()
        )
        if not good or token["topic"] not in self._reader.options.topic or token["offset"] < 0:
            raise SourceError(
                f"the checkpoint {str(dict(token))[:200]} is not an offset of {self._shown}: "
                f"it is damaged, or of another source. {_AGAIN}"
            )
        return (token["topic"], token["partition"]), token["offset"], token["of"]

    @property
    def _shown(self) -> str:
        return self._reader.options.address


def _counts(link: BrokerStatus, client: Consumer, parts: Sequence[Part]) -> dict[str, int]:
    return {topic: len(topic_of(link, client, topic)) for topic in {topic for topic, _ in parts}}


def _token(part: Part, offset: int, of: int) -> dict[str, Any]:
    return {"topic": part[0], "partition": part[1], "offset": offset, "of": of}
