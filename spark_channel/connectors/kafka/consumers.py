"""Consumers that are used again: a new one asks for all partitions of its topic, and connects."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.kafka.administrator import Part
from spark_channel.connectors.kafka.client import BrokerStatus, consumer
from spark_channel.connectors.kafka.options import KafkaReadOptions
from spark_channel.connectors.kafka.ranges import Range
from spark_channel.errors import SourceError

__all__ = ["Advance", "ConsumerPool", "PooledConsumer"]


class Advance:
    """How far a client's fetching has come, also over records that it does not give."""

    def __init__(self) -> None:
        self._offsets: dict[Part, int] = {}

    def begin(self, ranges: Sequence[Range]) -> None:
        self._offsets = {each.part: each.begin for each in ranges}

    @property
    def offsets(self) -> int:
        """Grows with each of them."""
        return sum(self._offsets.values())

    def note(self, statistics: dict[str, Any]) -> None:
        topics = statistics.get("topics", {})
        for (topic, number), known in self._offsets.items():
            said = topics.get(topic, {}).get("partitions", {}).get(str(number), {})
            self._offsets[topic, number] = max(known, said.get("next_offset", -1))


@dataclass(slots=True, eq=False)
class PooledConsumer:
    """A consumer without a group, that one thread has."""

    settings: frozenset[tuple[str, int]]
    link: BrokerStatus
    client: Consumer
    advance: Advance
    has_paused: bool = False
    """A partition that was paused stays so for its client, also when it is assigned again:
    findings/kafka-pause-outlives-assign.sh"""


class ConsumerPool:
    """Consumers of one topic's readers. Safe for several threads: each has another one, and as many stay as threads
    read at a time. One that failed, has paused a partition, or was left in the middle of a range, is closed.
    """

    def __init__(self, options: KafkaReadOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._clock = options, clock
        self._lock = threading.Lock()
        self._idle: list[tuple[float, PooledConsumer]] = []
        """The one that was used last is at the end."""
        self._is_closed = False

    @contextmanager
    def taken(self, **settings: int) -> Iterator[PooledConsumer]:
        """Give a block a consumer of these settings, without partitions."""
        held = self._take(frozenset(settings.items()))
        try:
            yield held
            held.client.unassign()
        except BaseException:
            held.client.close()
            raise
        with self._lock:
            stays = not (self._is_closed or held.has_paused)
            if stays:
                self._idle.append((self._clock.now(), held))
        if not stays:
            held.client.close()

    def rest(self, seconds: float) -> None:
        """Close those that no thread has had for so long: their statistics fill memory."""
        with self._lock:
            end = self._clock.now() - seconds
            old = [held for used, held in self._idle if used <= end]
            self._idle = [(used, held) for used, held in self._idle if used > end]
        for held in old:
            held.client.close()

    def close(self) -> None:
        """Close all: those that a thread has when it gives them back."""
        with self._lock:
            self._is_closed = True
        self.rest(0.0)

    def _take(self, settings: frozenset[tuple[str, int]]) -> PooledConsumer:
        with self._lock:
            found = next(
                (each for each in reversed(self._idle) if each[1].settings == settings), None
            )
            if found is not None:
                self._idle.remove(found)
                return found[1]
        link, advance = BrokerStatus(self._options, SourceError), Advance()
        return PooledConsumer(
            settings, link, consumer(self._options, link, advance.note, **dict(settings)), advance
        )
