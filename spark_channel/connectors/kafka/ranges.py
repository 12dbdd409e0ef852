"""Which records a read covers: ranges of offsets, as the brokers know them when the read is planned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import repeat

from confluent_kafka import Consumer, TopicPartition

from spark_channel.connectors.kafka.administrator import Administrator, Edges, Part, Topic
from spark_channel.connectors.kafka.client import BrokerStatus, consumer
from spark_channel.connectors.kafka.options import EARLIEST, LATEST, KafkaReadOptions, Offsets
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

__all__ = [
    "Range",
    "at_moment",
    "offsets_at",
    "partitions",
    "planned",
    "portions",
    "ranges_of",
    "splits_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, without `end`."""

    topic: str
    partition: int
    begin: int
    end: int
    id: str = ""
    """`Topic.id`. Empty: not known."""

    @property
    def size(self) -> int:
        """The most records that it can have."""
        return max(0, self.end - self.begin)

    @property
    def part(self) -> Part:
        return self.topic, self.partition


def partitions(options: KafkaReadOptions, topics: Mapping[str, Topic]) -> list[Part]:
    """
    Raises:
        OptionError: a partition that a topic does not have.
    """
    parts: list[Part] = []
    for topic in options.topic:
        numbers = topics[topic].partitions
        for number in options.partitions or ():
            if number not in numbers:
                raise OptionError(
                    f"option 'partitions' names {number}; topic {topic!r} has the partitions 0 to {max(numbers)}",
                    option="partitions",
                    got=str(number),
                )
        parts += [(topic, number) for number in options.partitions or numbers]
    return parts


def offsets_at(
    link: BrokerStatus, client: Consumer, edges: Mapping[Part, Edges], moment: datetime
) -> dict[Part, int]:
    """The first record of `moment` or later in each partition; its end, where there is none."""
    # The first at `moment` or later. Negative ones mean something else; no record is that old.
    millis = max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
    times = [TopicPartition(topic, number, millis) for topic, number in edges]
    answers = link.asked(client, lambda seconds: client.offsets_for_times(times, timeout=seconds))
    offsets = {}
    for answer in answers:
        if answer.error is not None:
            raise link.failed(
                answer.error, f"partition {answer.partition} of topic {answer.topic!r}"
            )
        part = (answer.topic, answer.partition)
        part_edges = edges[part]
        offsets[part] = (
            part_edges.high
            if answer.offset < 0
            else min(max(answer.offset, part_edges.low), part_edges.high)
        )
    return offsets


def at_moment(
    options: KafkaReadOptions, edges: Mapping[Part, Edges], moment: datetime
) -> dict[Part, int]:
    """`offsets_at`, asked by a consumer of its own."""
    link = BrokerStatus(options, SourceError)
    with closing(consumer(options, link)) as client:
        return offsets_at(link, client, edges, moment)


def planned(options: KafkaReadOptions) -> list[Range]:
    """Return the ranges of offsets that the options name, resolved once.

    Raises:
        OptionError: offsets that a topic does not have, or has deleted.
    """
    brokers = Administrator(options)
    topics = brokers.topics(options.topic)
    edges = brokers.settled_edges(partitions(options, topics))
    ends = []
    for name, offsets, moment, default in (
        ("beginOffsets", options.begin_offsets, options.begin_timestamp, EARLIEST),
        ("endOffsets", options.end_offsets, options.end_timestamp, LATEST),
    ):
        if moment is not None:
            ends.append(at_moment(options, edges, moment))
        else:
            ends.append(_given(name, default if offsets is None else offsets, edges))
    begins, stops = ends
    return [Range(*part, begins[part], stops[part], topics[part[0]].id) for part in edges]


def _given(name: str, offsets: Offsets, edges: Mapping[Part, Edges]) -> dict[Part, int]:
    resolved = {}
    for (topic, number), part_edges in edges.items():
        if isinstance(offsets, int):
            offset = offsets
        else:
            if number not in offsets.get(topic, {}):
                raise OptionError(
                    f"option {name!r} names no offset for partition {number} of topic {topic!r}, "
                    "whose records would be left out: name each partition (-2 is earliest, -1 latest), "
                    "or choose some with 'partitions'",
                    option=name,
                )
            offset = offsets[topic][number]
        offset = {EARLIEST: part_edges.low, LATEST: part_edges.high}.get(offset, offset)
        if not part_edges.low <= offset <= part_edges.high:
            reason = (
                "its records before that were deleted (retention, or compaction)"
                if offset < part_edges.low
                else "there are no committed records after that"
            )
            raise OptionError(
                f"option {name!r} got {offset} for partition {number} of topic {topic!r}, which has the offsets "
                f"{part_edges.low} to {part_edges.high}: {reason}. Name an offset in between, or earliest or latest",
                option=name,
                got=str(offset),
                takes=f"{part_edges.low} to {part_edges.high}",
            )
        resolved[topic, number] = offset
    topics = {topic for topic, _ in edges}
    strange = (
        [] if isinstance(offsets, int) else [topic for topic in offsets if topic not in topics]
    )
    if strange:
        raise OptionError(
            f"option {name!r} names topic {strange[0]!r}, which 'topic' does not",
            option=name,
            got=strange[0],
        )
    return resolved


def splits_of(ranges: Sequence[Range], advice: int) -> list[Split]:
    """At most `advice` splits of equal numbers of offsets, but for the last; one may have several partitions."""
    total = sum(portion.size for portion in ranges)
    return [_split_of(portion) for portion in portions(ranges, repeat(-(-total // max(1, advice))))]


def portions(ranges: Iterable[Range], sizes: Iterator[int]) -> Iterator[list[Range]]:
    """The ranges in order, some together: of as many offsets as `sizes` says, the last of what is left."""
    some, room = list[Range](), next(sizes)
    for span in ranges:
        begin = span.begin
        while begin < span.end:
            end = min(span.end, begin + room)
            some.append(replace(span, begin=begin, end=end))
            begin, room = end, room - (end - begin)
            if not room:
                yield some
                some, room = [], next(sizes)
    if some:
        yield some


def _split_of(ranges: Sequence[Range]) -> Split:
    return Split({"ranges": [asdict(span) for span in ranges]}, sum(span.size for span in ranges))


def ranges_of(split: Split) -> list[Range]:
    """The ranges of a split. A tunnel or stream of an earlier version has splits of one range."""
    return [Range(**fields) for fields in split.params.get("ranges", [split.params])]
