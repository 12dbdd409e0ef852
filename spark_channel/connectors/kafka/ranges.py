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
    found: list[Part] = []
    for topic in options.topic:
        known = topics[topic].partitions
        for number in options.partitions or ():
            if number not in known:
                raise OptionError(
                    f"option 'partitions' names {number}; topic {topic!r} has the partitions 0 to {max(known)}",
                    option="partitions",
                    got=str(number),
                )
        found += [(topic, number) for number in options.partitions or known]
    return found


def offsets_at(
    link: BrokerStatus, client: Consumer, edges: Mapping[Part, Edges], moment: datetime
) -> dict[Part, int]:
    """The first record of `moment` or later in each partition; its end, where there is none."""
    # The first at `moment` or later. Negative ones mean something else; no record is that old.
    millis = max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
    wanted = [TopicPartition(topic, number, millis) for topic, number in edges]
    answers = link.asked(client, lambda seconds: client.offsets_for_times(wanted, timeout=seconds))
    found = {}
    for answer in answers:
        if answer.error is not None:
            raise link.failed(
                answer.error, f"partition {answer.partition} of topic {answer.topic!r}"
            )
        part = (answer.topic, answer.partition)
        known = edges[part]
        found[part] = (
            known.high if answer.offset < 0 else min(max(answer.offset, known.low), known.high)
        )
    return found


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
    for name, given, moment, default in (
        ("beginOffsets", options.begin_offsets, options.begin_timestamp, EARLIEST),
        ("endOffsets", options.end_offsets, options.end_timestamp, LATEST),
    ):
        if moment is not None:
            ends.append(at_moment(options, edges, moment))
        else:
            ends.append(_given(name, default if given is None else given, edges))
    begins, stops = ends
    return [Range(*part, begins[part], stops[part], topics[part[0]].id) for part in edges]


def _given(name: str, offsets: Offsets, edges: Mapping[Part, Edges]) -> dict[Part, int]:
    found = {}
    for (topic, number), known in edges.items():
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
        offset = {EARLIEST: known.low, LATEST: known.high}.get(offset, offset)
        if not known.low <= offset <= known.high:
            why = (
                "its records before that were deleted (retention, or compaction)"
                if offset < known.low
                else "there are no committed records after that"
            )
            raise OptionError(
                f"option {name!r} got {offset} for partition {number} of topic {topic!r}, which has the offsets "
                f"{known.low} to {known.high}: {why}. Name an offset in between, or earliest or latest",
                option=name,
                got=str(offset),
                takes=f"{known.low} to {known.high}",
            )
        found[topic, number] = offset
    strange = (
        []
        if isinstance(offsets, int)
        else [topic for topic in offsets if topic not in {t for t, _ in edges}]
    )
    if strange:
        raise OptionError(
            f"option {name!r} names topic {strange[0]!r}, which 'topic' does not",
            option=name,
            got=strange[0],
        )
    return found


def splits_of(ranges: Sequence[Range], advice: int) -> list[Split]:
    """At most `advice` splits of equal numbers of offsets, but for the last; one may have several partitions."""
    total = sum(each.size for each in ranges)
    return [_split_of(each) for each in portions(ranges, repeat(-(-total // max(1, advice))))]


def portions(ranges: Iterable[Range], sizes: Iterator[int]) -> Iterator[list[Range]]:
    """The ranges in order, some together: of as many offsets as `sizes` says, the last of what is left."""
    some, room = list[Range](), next(sizes)
    for each in ranges:
        begin = each.begin
        while begin < each.end:
            end = min(each.end, begin + room)
            some.append(replace(each, begin=begin, end=end))
            begin, room = end, room - (end - begin)
            if not room:
                yield some
                some, room = [], next(sizes)
    if some:
        yield some


def _split_of(ranges: Sequence[Range]) -> Split:
    return Split({"ranges": [asdict(each) for each in ranges]}, sum(each.size for each in ranges))


def ranges_of(split: Split) -> list[Range]:
    """The ranges of a split. A tunnel or stream of an earlier version has splits of one range."""
    return [Range(**each) for each in split.params.get("ranges", [split.params])]
