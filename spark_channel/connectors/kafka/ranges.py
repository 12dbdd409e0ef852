"""Which records a read covers: ranges of offsets, as the brokers know them when the read is planned."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from spark_channel.connectors.kafka.client import BrokerStatus
from spark_channel.connectors.kafka.options import EARLIEST, LATEST, KafkaReadOptions, Offsets
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

__all__ = [
    "Edges",
    "Part",
    "Range",
    "edges_at",
    "offsets_at",
    "partitions",
    "planned",
    "splits_of",
    "topic_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Part = tuple[str, int]
"""A topic, and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, without `end`."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The most records that it can have."""
        return max(0, self.end - self.begin)

    @classmethod
    def of(cls, split: Split) -> "Range":
        return cls(**split.params)


@dataclass(frozen=True, slots=True)
class Edges:
    """The first offset that a partition has, and the one behind its last committed record."""

    low: int
    high: int


def partitions(options: KafkaReadOptions, link: BrokerStatus, client: Consumer) -> list[Part]:
    """
    Raises:
        SourceError: a topic that does not exist. OptionError: a partition that it does not have.
    """
    found: list[Part] = []
    for topic in options.topic:
        known = topic_of(link, client, topic)
        for number in options.partitions or ():
            if number not in known:
                raise OptionError(
                    f"option 'partitions' names {number}; topic {topic!r} has the partitions 0 to {max(known)}",
                    option="partitions",
                    got=str(number),
                )
        found += [(topic, number) for number in options.partitions or known]
    return found


def topic_of(link: BrokerStatus, client: Any, topic: str) -> list[int]:
    """The numbers of its partitions."""
    met = link.asked(client, lambda seconds: client.list_topics(topic, timeout=seconds)).topics[
        topic
    ]
    if met.error is not None:
        if met.error.name() == "UNKNOWN_TOPIC_OR_PART":
            raise SourceError(f"{link.address}: topic {topic!r} does not exist; check 'topic'")
        raise link.failed(met.error, f"topic {topic!r}")
    return sorted(met.partitions)


def edges_at(link: BrokerStatus, client: Consumer, parts: Iterable[Part]) -> dict[Part, Edges]:
    """Where partitions begin and end now. Records of transactions that are open lie behind the end."""
    return {part: _edges(link, client, part) for part in parts}


def _edges(link: BrokerStatus, client: Consumer, part: Part) -> Edges:
    place = TopicPartition(*part)
    return Edges(
        *link.asked(client, lambda seconds: client.get_watermark_offsets(place, timeout=seconds))
    )


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


def planned(options: KafkaReadOptions, link: BrokerStatus, client: Consumer) -> list[Range]:
    """Return the ranges of offsets that the options name, resolved once.

    Raises:
        OptionError: offsets that a topic does not have, or has deleted.
    """
    edges = edges_at(link, client, partitions(options, link, client))
    ends = []
    for name, given, moment, default in (
        ("beginOffsets", options.begin_offsets, options.begin_timestamp, EARLIEST),
        ("endOffsets", options.end_offsets, options.end_timestamp, LATEST),
    ):
        if moment is not None:
            ends.append(offsets_at(link, client, edges, moment))
        else:
            ends.append(_given(name, default if given is None else given, edges))
    begins, stops = ends
    return [Range(*part, begins[part], stops[part]) for part in edges]


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
    """About `advice` splits of about equal numbers of offsets."""
    total = sum(each.size for each in ranges)
    size = max(1, -(-total // max(1, advice)))
    made = []
    for each in ranges:
        pieces = -(-each.size // size)
        for piece in range(pieces):
            begin = each.begin + each.size * piece // pieces
            end = each.begin + each.size * (piece + 1) // pieces
            params = {"topic": each.topic, "partition": each.partition, "begin": begin, "end": end}
            made.append(Split(params, end - begin))
    return made
