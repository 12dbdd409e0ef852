"""The records of a range of offsets, all of them or an error; and the change feed of a topic, which hands out ranges.

A range may have fewer records than offsets: compaction removes some, and each transaction ends with a marker that no
consumer sees. So the range ends when a record behind it comes, or when the client says that it reached the end of the
partition; and a record that is expected and does not come within `timeout` is an error.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import FetchSize, Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions, Read
from spark_channel.connectors.kafka.client import (
    BrokerStatus,
    Edges,
    Part,
    Range,
    Topic,
    administrator,
    consumer,
    edges_at,
    error_of,
    is_passing,
    last_offsets,
    offsets_at,
    partitions,
    planned,
    settled_edges,
    splits_of,
    topics_of,
)
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.kafka.serialization import (
    fields_of,
    own_batch,
    own_schema,
    value_batches,
)
from spark_channel.connectors.records import RecordReader, inferred_schema
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["KafkaFeed", "KafkaReader", "pages"]

_T = TypeVar("_T")
_ROWS = 10_000
_BYTES = 8 << 20
_RECORD = 1 << 10
"""Bytes that a record is taken for before the first ones have come: offsets say nothing of sizes."""
_LINGER = 0.05
_STEP = 1.0
_GONE = "_AUTO_OFFSET_RESET"
# The client asks for the coordinator of its group, which is not used here: the right to it is not needed.
_PASSING = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "GROUP_AUTHORIZATION_FAILED"}
)
_AGAIN = "Begin a new stream, or reset the tunnel"


def pages(
    options: KafkaReadOptions, part: Range, fetch: FetchSize, topics: "TopicChecks"
) -> Generator[list[Message], None, None]:
    """The range's records in order, some at a time.

    Raises:
        SourceError: records were deleted, or do not come.
    """
    if not part.size:
        return
    link = BrokerStatus(options, SourceError)
    topics.before(part)
    advance = _Advance(part)
    with consumer(options, link, advance.note, **_prefetch(fetch)) as client:
        try:
            client.assign([TopicPartition(part.topic, part.partition, part.begin)])
            yield from _Pages(options, part, fetch, link, client, advance).all()
        except KafkaException as error:
            raise link.failed(error_of(error), f"reading partition {part.partition}") from error
    topics.after(part)


class TopicChecks:
    """Checks that ranges which are read one after another are of the topics that they were planned for.

    Each check asks for all partitions of a topic, so there is one for a range, and one before the first: a topic's id
    never comes back, so the one behind a range says what its records were.
    """

    def __init__(self, options: KafkaReadOptions) -> None:
        self._options = options
        self._met: set[tuple[str, str]] = set()

    @cached_property
    def _asking(self) -> tuple[BrokerStatus, AdminClient]:
        link = BrokerStatus(self._options, SourceError)
        return link, administrator(link)

    def before(self, part: Range) -> None:
        """
        Raises:
            SourceError: the range's topic was deleted, whatever has its name now.
        """
        if (part.topic, part.id) not in self._met:
            self.after(part)

    def after(self, part: Range) -> None:
        """As `before`, for a range whose records were read."""
        if not part.id:
            return
        link, admin = self._asking
        if topics_of(link, admin, [part.topic])[part.topic].id != part.id:
            raise SourceError(
                f"{self._options.address}: topic {part.topic!r} was deleted and created again after the read was "
                f"planned: its offsets {part.begin} to {part.end - 1} of partition {part.partition} are other records "
                "now. Read again"
            )
        self._met.add((part.topic, part.id))


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
        topics = TopicChecks(self.options)
        for part in self._planned():
            left = wanted - len(some)
            if left <= 0:
                break
            with closing(pages(self.options, part, self.fetch_size, topics)) as found:
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
        with self.reading() as read:
            yield from read(split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        topics = TopicChecks(self.options)

        def read(split: Split) -> Iterator[pa.RecordBatch]:
            schema = self.schema()
            found = pages(self.options, Range.of(split), self.fetch_size, topics)
            if self.options.value_format == "binary":
                yield from (own_batch(schema, page) for page in found)
                return
            made = value_batches(self.options, schema)
            yield from map(made, found)

        yield read

    def feed(self, options: FeedOptions) -> ChangeFeed:
        return KafkaFeed(self, options)


class KafkaFeed(ChangeFeed):
    """A token is an offset: the next record to read.

    It also has the topic's id, since a topic that is created again has other records at its offsets, and the number of
    partitions that the topic had. A token of brokers that give no id has none.
    """

    def __init__(self, reader: KafkaReader, options: FeedOptions) -> None:
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
        self._unsettled: dict[Part, int] = {}
        """Ends behind which a transaction stayed open for as long as one that is committed needs."""
        self._look: _Look | None = None

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [_token(part, edges.low, topic) for part, edges, topic in self._edges()]

    def now(self) -> list[Token]:
        return [_token(part, edges.high, topic) for part, edges, topic in self._edges()]

    def end_of(self, token: Token) -> Token:
        position = self._read(token)
        edges, topic = self._checked(position, settled=True)
        return _token(position.part, edges.high, topic)

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
        edges = {part: (known, topic) for part, known, topic in self._edges()}
        link = BrokerStatus(self._reader.options, SourceError)
        with consumer(self._reader.options, link) as client:
            found = offsets_at(
                link, client, {part: known for part, (known, _) in edges.items()}, time
            )
        return [_token(part, found[part], topic) for part, (_, topic) in edges.items()]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        start = self._read(after)
        edges, topic = self._checked(start)
        last = None if upto is None else self._read(upto).offset
        if edges.high == start.offset != last and self._unsettled.get(start.part) != edges.high:
            edges, topic = self._checked(start, settled=True)
            # What is open for longer would be waited for in each call.
            self._unsettled[start.part] = edges.high
        end = edges.high if last is None else min(edges.high, last)
        most = limit.most_rows(_RECORD)
        if most is not None:
            end = min(end, start.offset + max(1, most))
        return _token(start.part, max(start.offset, end), topic)

    def reaches(self, token: Token, end: Token) -> bool:
        position, bound = self._read(token), self._read(end)
        if position.part != bound.part:
            raise OptionError(
                f"the positions {dict(token)} and {dict(end)} are of different partitions: "
                "give one for each, in the order of the partitions",
                option="endingOffsets",
            )
        return position.offset >= bound.offset

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end = self._read(after), self._read(upto)
        return splits_of([Range(*start.part, start.offset, end.offset, start.id or end.id)], 1)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        ranges = []
        for end in map(self._read, upto):
            edges, topic = self._checked(end)
            ranges.append(Range(*end.part, min(edges.low, end.offset), end.offset, topic.id))
        return splits_of(ranges, advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def reading(self) -> AbstractContextManager[Read]:
        return self._reader.reading()

    @contextmanager
    def shared_look(self) -> Iterator[None]:
        self._look = _Look(self._reader.options)
        try:
            yield
        finally:
            self._look = None

    def lag(self, token: Token) -> FeedLag:
        position = self._read(token)
        return FeedLag(rows=self._checked(position)[0].high - position.offset)

    def is_passing(self, error: BaseException) -> bool:
        return (
            isinstance(error, SourceError)
            and error.__cause__ is not None
            and is_passing(error.__cause__)
        )

    def _edges(self) -> list[tuple[Part, Edges, Topic]]:
        look = _Look(self._reader.options)
        edges = settled_edges(self._reader.options, look.link, look.admin, look.parts)
        return [(part, edges[part], look.topics[part[0]]) for part in look.parts]

    def _checked(self, position: "_Position", *, settled: bool = False) -> tuple[Edges, Topic]:
        """Where the partition begins and ends now, and what its topic is.

        Raises:
            SourceError: the next records of a token no longer exist, or the topic has other partitions.
        """
        (name, number), offset = position.part, position.offset
        look = self._look or _Look(self._reader.options, position.part)
        topic = look.topics[name]
        if position.id and position.id != topic.id:
            raise SourceError(
                f"{self._shown}: topic {name!r} was deleted and created again since the stream stood at offset "
                f"{offset} of partition {number}, which is another record now. {_AGAIN}"
            )
        count = len(topic.partitions)
        if count != position.of:
            raise SourceError(
                f"{self._shown}: topic {name!r} has {count} partitions, and had {position.of} when the stream began: "
                f"records of the others would not be read. {_AGAIN}"
            )
        known = look.edges(position.part, settled=settled)
        if offset < known.low:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} "
                f"of partition {number} of topic {name!r}, whose first record is {known.low}: "
                f"the topic's retention deleted the records between. {_AGAIN}, or raise the retention"
            )
        if offset > known.high:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} of partition {number} of topic {name!r}, "
                f"which ends at {known.high}: the topic was created again, or lost records. {_AGAIN}"
            )
        return known, topic

    def _read(self, token: Token) -> "_Position":
        names = {"topic": str, "partition": int, "offset": int, "of": int, "id": str}
        good = set(token) | {"id"} == set(names) and all(
            type(value) is names[name] for name, value in token.items()
        )
        if not good or token["topic"] not in self._reader.options.topic or token["offset"] < 0:
            raise SourceError(
                f"the checkpoint {str(dict(token))[:200]} is not an offset of {self._shown}: "
                f"it is damaged, or of another source. {_AGAIN}"
            )
        part = (token["topic"], token["partition"])
        return _Position(part, token["offset"], token["of"], token.get("id", ""))

    @property
    def _shown(self) -> str:
        return self._reader.options.address


class _Look:
    """What the brokers say of the topics, asked when it is first needed, and once: of all partitions, or of `only`."""

    def __init__(self, options: KafkaReadOptions, only: Part | None = None) -> None:
        self._options, self._only = options, only
        self.link = BrokerStatus(options, SourceError)
        self._edges: dict[Part, Edges] = {}
        self._last: dict[Part, int] = {}

    @cached_property
    def admin(self) -> AdminClient:
        return administrator(self.link)

    @cached_property
    def topics(self) -> dict[str, Topic]:
        names = self._options.topic if self._only is None else [self._only[0]]
        return topics_of(self.link, self.admin, names)

    @cached_property
    def parts(self) -> list[Part]:
        """Those that the options name."""
        return partitions(self._options, self.topics)

    def edges(self, part: Part, *, settled: bool) -> Edges:
        options, link = self._options, self.link
        known = self._of(part, self._edges, lambda parts: edges_at(options, link, parts))
        if settled and known.high < self._of(
            part, self._last, lambda parts: last_offsets(link, self.admin, parts)
        ):
            self._edges |= settled_edges(options, link, self.admin, [part])
        return self._edges[part]

    def _of(
        self, part: Part, known: dict[Part, _T], ask: Callable[[list[Part]], dict[Part, _T]]
    ) -> _T:
        if not known and self._only is None:
            known |= ask(self.parts)
        if part not in known:
            known |= ask([part])
        return known[part]


@dataclass(frozen=True, slots=True)
class _Position:
    """What a token says: the next record, and the topic's partitions and id when it was made."""

    part: Part
    offset: int
    of: int
    id: str


def _token(part: Part, offset: int, topic: Topic) -> dict[str, Any]:
    token = {"topic": part[0], "partition": part[1], "offset": offset, "of": len(topic.partitions)}
    return token | ({"id": topic.id} if topic.id else {})
