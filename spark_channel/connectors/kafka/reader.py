"""The records of ranges of offsets, all of them or an error; and the change feed of a topic, which hands out ranges.

A range may have fewer records than offsets: compaction removes some, and each transaction ends with a marker that no
consumer sees. So the range ends when a record behind it comes, or when the client says that it reached the end of the
partition; and a record that is expected and does not come within `timeout` is an error.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from heapq import nsmallest
from itertools import count
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaException, Message, TopicPartition

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import FetchSize, Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions, Read
from spark_channel.connectors.kafka.administrator import Administrator, Edges, Part, Topic
from spark_channel.connectors.kafka.client import error_of, is_passing
from spark_channel.connectors.kafka.consumers import ConsumerPool, PooledConsumer
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.kafka.ranges import (
    Range,
    at_moment,
    partitions,
    planned,
    portions,
    ranges_of,
    splits_of,
)
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
_AT_ONCE = 100
"""Partitions whose records a client fetches together."""
_LINGER = 0.05
_STEP = 1.0
_GONE = "_AUTO_OFFSET_RESET"
# The client asks for the coordinator of its group, which is not used here: the right to it is not needed.
_PASSING = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "GROUP_AUTHORIZATION_FAILED"}
)
_GOOD_SECONDS = 1.0
"""So old the description of a topic may be when a tunnel looks for new records. What it reads is checked by a newer
one."""
_IDLE_SECONDS = 30.0
_AGAIN = "Begin a new stream, or reset the tunnel"


def pages(
    options: KafkaReadOptions,
    ranges: Sequence[Range],
    fetch: FetchSize,
    consumers: ConsumerPool,
) -> Generator[list[Message], None, None]:
    """The records of `ranges`, of different partitions: those of each in order, some at a time.

    Raises:
        SourceError: records were deleted, or do not come.
    """
    nonempty = [span for span in ranges if span.size]
    if not nonempty:
        return
    at_once = min(len(nonempty), _AT_ONCE)
    with consumers.taken(**_prefetch(fetch, at_once)) as held:
        for begin in range(0, len(nonempty), _AT_ONCE):
            some = nonempty[begin : begin + _AT_ONCE]
            held.advance.begin(some)
            try:
                held.client.assign([TopicPartition(*span.part, span.begin) for span in some])
                yield from _Pages(options, some, fetch, held).all()
            except KafkaException as error:
                numbers = ", ".join(str(span.partition) for span in some[:10])
                raise held.link.failed(error_of(error), f"reading partition {numbers}") from error


class TopicChecks:
    """Checks that ranges which are read one after another are of the topics that they were planned for.

    Each check asks for all partitions of a topic, so there is one behind the ranges that are read together, and one
    before the first: a topic's id never comes back, so the one behind says what their records were.
    """

    def __init__(self, address: str, brokers: Administrator, good_for: float = 0.0) -> None:
        self._address, self._brokers = address, brokers
        self._since = SYSTEM_CLOCK.now() - good_for

    def before(self, ranges: Sequence[Range]) -> None:
        """
        Raises:
            SourceError: the topic of a range was deleted, whatever has its name now.
        """
        self._compare(ranges, self._brokers.topics(_known(ranges), since=self._since))

    def after(self, ranges: Sequence[Range]) -> None:
        """As `before`, for ranges whose records were read."""
        self._compare(ranges, self._brokers.topics(_known(ranges)))

    def some_after(self, ranges: Sequence[Range], moment: float) -> None:
        """As `after`, for some of many ranges, which were read up to `moment`."""
        self._compare(ranges, self._brokers.topics_after(_known(ranges), moment))

    def _compare(self, ranges: Sequence[Range], topics: Mapping[str, Topic]) -> None:
        for each in ranges:
            if each.id and topics[each.topic].id != each.id:
                raise SourceError(
                    f"{self._address}: topic {each.topic!r} was deleted and created again after the read was "
                    f"planned: its offsets {each.begin} to {each.end - 1} of partition {each.partition} are other "
                    "records now. Read again"
                )


def _known(ranges: Sequence[Range]) -> set[str]:
    """The topics whose ids are known."""
    return {each.topic for each in ranges if each.id}


def _prefetch(fetch: FetchSize, partitions: int) -> dict[str, int]:
    """How far the client reads ahead in `partitions` together: with a limit about a second of it."""
    nbytes = min(fetch.nbytes or _BYTES, _BYTES if fetch.rows is None else fetch.rows * _RECORD)
    return {
        "queued.max.messages.kbytes": max(1, 2 * nbytes >> 10),
        "queued.min.messages": max(1, min(fetch.rows or 100_000, 10_000_000) // partitions),
        "max.partition.fetch.bytes": max(_RECORD, min(nbytes // partitions, 1 << 20)),
    }


@dataclass(slots=True)
class _Left:
    """What is left of a range."""

    range: Range
    next: int
    short: int | None = None
    """Where the partition ended when the client looked last, if that is before the range's end."""

    @property
    def shown(self) -> str:
        return f"partition {self.range.partition} of topic {self.range.topic!r}"


class _Pages:
    def __init__(
        self,
        options: KafkaReadOptions,
        ranges: Sequence[Range],
        fetch: FetchSize,
        held: PooledConsumer,
    ) -> None:
        self._options, self._fetch, self._held = options, fetch, held
        self._link, self._client, self._advance = held.link, held.client, held.advance
        self._left = {span.part: _Left(span, span.begin) for span in ranges}
        self._average = float(_RECORD)

    def all(self) -> Iterator[list[Message]]:
        while self._left:
            before = list(self._left)
            page = [message for message in self._some() if self._is_wanted(message)]
            ended = [part for part in before if part not in self._left]
            if ended and self._left:  # what follows in them would fill the client's memory
                self._held.has_paused = True
                self._client.pause([TopicPartition(*part) for part in ended])
            if page:
                nbytes = sum(len(message) for message in page)
                self._average = max(1.0, nbytes / len(page))
                yield page

    def _some(self) -> list[Message]:
        """Return the messages that have arrived, at least one."""
        most = min(self._fetch.nbytes or _BYTES, _BYTES)
        rows = max(1, min(self._fetch.rows or _ROWS, _ROWS, int(most / self._average)))
        rows = min(
            rows, sum(remainder.range.end - remainder.next for remainder in self._left.values())
        )
        first = self._awaited()
        return [first] if rows == 1 else [first, *self._client.consume(rows - 1, _LINGER)]

    def _awaited(self) -> Message:
        offsets, end = self._advance.offsets, SYSTEM_CLOCK.now() + self._options.timeout
        while True:
            message = self._client.poll(_STEP)
            self._link.check()
            if message is not None and (message.error() is None or not self._waits(message)):
                return message
            if self._advance.offsets > offsets:
                offsets, end = self._advance.offsets, SYSTEM_CLOCK.now() + self._options.timeout
            if SYSTEM_CLOCK.now() >= end:
                raise self._late()

    def _late(self) -> ChannelError:
        some = list(self._left.values())
        late = next((remainder for remainder in some if remainder.short is not None), some[0])
        if late.short is not None:
            return SourceError(
                f"{self._options.address}: {late.shown} had committed records up to offset "
                f"{late.range.end - 1} when the read was planned, and has them up to {late.short - 1} now: "
                "the topic was created again, or lost records with its leader. Read again"
            )
        return self._link.silent(
            f"{late.shown} has offsets up to {late.range.end}, and nothing after {late.next - 1} came",
            f"{self._options.timeout:g} s ('timeout')",
        )

    def _waits(self, message: Message) -> bool:
        """Whether to wait on after a message: the client tries again by itself."""
        error = message.error()
        if error is None:
            return False
        if error.name() == "_PARTITION_EOF":
            remainder = self._of(message)
            if remainder is None:
                return True
            # An end before the range's, of a new leader that has not caught up, is not the end.
            offset = message.offset() or 0
            remainder.short = offset if offset < remainder.range.end else None
            return remainder.short is not None
        return error.name() in _PASSING

    def _of(self, message: Message) -> _Left | None:
        """What is left of the range of its partition; None: nothing."""
        topic, number = message.topic(), message.partition()
        return None if topic is None or number is None else self._left.get((topic, number))

    def _is_wanted(self, message: Message) -> bool:
        error, offset = message.error(), message.offset()
        remainder = self._of(message)
        if error is None:
            if remainder is None:
                return False
            assert offset is not None
            remainder.short = None
            remainder.next = offset + 1
            if remainder.next >= remainder.range.end:
                del self._left[remainder.range.part]
            return offset < remainder.range.end
        if error.name() == "_PARTITION_EOF":
            if remainder is not None and (offset or 0) >= remainder.range.end:
                del self._left[remainder.range.part]
            return False
        if error.name() == _GONE:
            if remainder is None:  # of what lies behind the range
                return False
            raise SourceError(
                f"{self._options.address}: records of {remainder.shown} from offset {remainder.next} on "
                "were deleted after the read was planned: "
                f"{error.str()}. The topic's retention deleted them, or the topic was created again. "
                "Read again from 'beginOffsets' earliest, or raise the retention"
            )
        if error.name() in _PASSING:
            return False
        subject = "the topic" if remainder is None else remainder.shown
        raise self._link.failed(error, f"reading {subject}")


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
        return planned(self.options)

    def schema(self) -> pa.Schema:
        if self._schema is None and self.options.value_format == "binary":
            self._schema = self._picked(own_schema(self.options))
        return super().schema()

    def with_schema(self, schema: pa.Schema) -> Self:
        # The host casts Kafka's own columns, such as `key` to STRING.
        return self if self.options.value_format == "binary" else super().with_schema(schema)

    def _sampled(self) -> pa.Schema:
        sample_rows, planned_ranges = self.options.sample_rows, self._planned()
        some = list[Message]()
        places = {span.part: number for number, span in enumerate(planned_ranges)}
        # The records of several partitions come in any order, and the columns must be the same each time.
        with _reading(self.options) as read:
            for ranges in portions(
                planned_ranges, (sample_rows << doublings for doublings in count())
            ):
                with closing(read(ranges, self.fetch_size)) as read_pages:
                    messages = (message for page in read_pages for message in page)
                    some += nsmallest(sample_rows - len(some), messages, partial(_place_of, places))
                if len(some) >= sample_rows:
                    break
        fields = [fields_of(message, exact=False) for message in some]
        if not any(fields):
            raise SourceError(
                f"{self.options.address} has no records in this range, so the columns are not known: "
                "name them with option 'schema', such as id BIGINT, name STRING"
            )
        return inferred_schema(fields)

    def split(self, advice: int) -> list[Split]:
        return splits_of(self._planned(), advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self.reading() as read:
            yield from read(split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with _reading(self.options) as read:
            yield lambda split: self.batches(read(ranges_of(split), self.fetch_size))

    def batches(self, found: Iterator[list[Message]]) -> Iterator[pa.RecordBatch]:
        """The rows of pages of records."""
        schema = self.schema()
        if self.options.value_format == "binary":
            yield from (own_batch(schema, page) for page in found)
            return
        made = value_batches(self.options, schema)
        yield from map(made, found)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        return KafkaFeed(self, options)


_Pager = Callable[[Sequence[Range], FetchSize], Generator[list[Message], None, None]]


@contextmanager
def _reading(options: KafkaReadOptions) -> Iterator[_Pager]:
    """Give one thread pages of records, with checks of their topics."""
    checks = TopicChecks(options.address, Administrator(options))
    with closing(ConsumerPool(options)) as consumers:
        yield _pager(options, consumers, checks, checks.after)


def _pager(
    options: KafkaReadOptions,
    consumers: ConsumerPool,
    checks: TopicChecks,
    after: Callable[[Sequence[Range]], None],
) -> _Pager:
    """Reads `pages`. `after` is called when all records of some ranges were read, whose topics were checked before."""

    def read(ranges: Sequence[Range], fetch: FetchSize) -> Generator[list[Message], None, None]:
        filled = [span for span in ranges if span.size]
        checks.before(filled)
        yield from pages(options, filled, fetch, consumers)
        after(filled)

    return read


def _place_of(places: Mapping[Part, int], message: Message) -> tuple[int, int]:
    topic, number, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert number is not None
    assert offset is not None
    return places[topic, number], offset


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
        read_options = reader.options
        for option, streams, value in (
            ("beginOffsets", "startingOffsets", read_options.begin_offsets),
            ("beginTimestamp", "startingTimestamp", read_options.begin_timestamp),
            ("endOffsets", "endingOffsets", read_options.end_offsets),
            ("endTimestamp", "endingTimestamp", read_options.end_timestamp),
        ):
            if value is not None:
                raise OptionError(
                    f"option {option!r} is for batch reads; a stream takes {streams!r}, with tunnelType=stream",
                    option=option,
                )
        self._reader, self._options = reader, options
        self.brokers = Administrator(read_options)
        self.consumers = ConsumerPool(read_options)
        self._good_for = 0.0
        self._unsettled: dict[Part, int] = {}
        """Ends behind which a transaction stayed open for as long as one that is committed needs."""
        self._look: _Look | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaFeed, (self._reader, self._options)

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
        edges = {part: (part_edges, topic) for part, part_edges, topic in self._edges()}
        offsets = at_moment(
            self._reader.options,
            {part: part_edges for part, (part_edges, _) in edges.items()},
            time,
        )
        return [_token(part, offsets[part], topic) for part, (_, topic) in edges.items()]

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
        with self.shared_look():
            for end in map(self._read, upto):
                edges, topic = self._checked(end)
                ranges.append(Range(*end.part, min(edges.low, end.offset), end.offset, topic.id))
        return splits_of(ranges, advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def reading(self) -> AbstractContextManager[Read]:
        return self._reader.reading()

    def share(self, other: ChangeFeed) -> None:
        assert isinstance(other, KafkaFeed)
        self.brokers, self.consumers = other.brokers, other.consumers
        self._good_for = _GOOD_SECONDS

    @contextmanager
    def reading_ahead(self) -> Iterator[tuple[Read, Callable[[], None]]]:
        if not self._good_for:
            with self.reading() as read:
                yield read, lambda: None
            return
        checks = TopicChecks(self._shown, self.brokers, self._good_for)
        were_read: list[tuple[Sequence[Range], float]] = []

        def note(ranges: Sequence[Range]) -> None:
            were_read.append((ranges, SYSTEM_CLOCK.now()))

        def check() -> None:
            for ranges, moment in were_read:
                checks.some_after(ranges, moment)

        reader = self._reader
        read_pages = _pager(reader.options, self.consumers, checks, note)
        yield lambda split: reader.batches(read_pages(ranges_of(split), reader.fetch_size)), check

    def rest(self, *, ends: bool = False) -> None:
        if ends:
            self.consumers.close()
        else:
            self.consumers.rest(_IDLE_SECONDS)

    @contextmanager
    def shared_look(self) -> Iterator[None]:
        self._look = self._new_look()
        try:
            yield
        finally:
            self._look = None

    def _new_look(self, only: Part | None = None) -> "_Look":
        return _Look(self._reader.options, self.brokers, only, self._good_for)

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
        look = self._new_look()
        edges = self.brokers.settled_edges(look.parts)
        return [(part, edges[part], look.topics[part[0]]) for part in look.parts]

    def _checked(self, position: "_Position", *, settled: bool = False) -> tuple[Edges, Topic]:
        """Where the partition begins and ends now, and what its topic is.

        Raises:
            SourceError: the next records of a token no longer exist, or the topic has other partitions.
        """
        (name, number), offset = position.part, position.offset
        look = self._look or self._new_look(position.part)
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
        edges = look.edges(position.part, settled=settled)
        if offset < edges.low:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} "
                f"of partition {number} of topic {name!r}, whose first record is {edges.low}: "
                f"the topic's retention deleted the records between. {_AGAIN}, or raise the retention"
            )
        if offset > edges.high:
            raise SourceError(
                f"{self._shown}: the stream continues at offset {offset} of partition {number} of topic {name!r}, "
                f"which ends at {edges.high}: the topic was created again, or lost records. {_AGAIN}"
            )
        return edges, topic

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
    """What the brokers say of the topics, asked when it is first needed, and once: of all partitions, or of `only`.

    A description of the topics may be `good_for` seconds old.
    """

    def __init__(
        self, options: KafkaReadOptions, brokers: Administrator, only: Part | None, good_for: float
    ) -> None:
        self._options, self._brokers, self._only = options, brokers, only
        self._since = SYSTEM_CLOCK.now() - good_for
        self._edges: dict[Part, Edges] = {}
        self._last: dict[Part, int] = {}

    @cached_property
    def topics(self) -> dict[str, Topic]:
        names = self._options.topic if self._only is None else [self._only[0]]
        return self._brokers.topics(names, since=self._since)

    @cached_property
    def parts(self) -> list[Part]:
        """Those that the options name."""
        return partitions(self._options, self.topics)

    def edges(self, part: Part, *, settled: bool) -> Edges:
        edges = self._of(part, self._edges, self._brokers.edges)
        if settled and edges.high < self._of(part, self._last, self._brokers.last_offsets):
            self._edges |= self._brokers.settled_edges([part])
        return self._edges[part]

    def _of(
        self, part: Part, cache: dict[Part, _T], ask: Callable[[list[Part]], dict[Part, _T]]
    ) -> _T:
        if not cache and self._only is None:
            cache |= ask(self.parts)
        if part not in cache:
            cache |= ask([part])
        return cache[part]


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
