"""What the brokers say of topics now: their partitions, their ids, and where each partition begins and ends."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.kafka.client import BrokerStatus, error_of, is_leaderless
from spark_channel.connectors.kafka.options import KafkaAddress
from spark_channel.errors import SourceError
from spark_channel.final_errors import of_input

__all__ = ["Administrator", "Edges", "Part", "Topic"]

_T = TypeVar("_T")
_SETTLED = 2.0
"""Seconds for the markers of a transaction to arrive. A commit returns before they are written."""
_LOOK = 0.02
_PAUSES = 4.0
"""A description has all partitions of its topic: those that many ranges wait for are this many times as far apart as
one takes, so that they are a fifth of the time at most."""
_LONGEST_PAUSE = 0.5
_AT_ONCE = 500
"""Partitions of one request for offsets: the client's work for it grows with their square, and a request whose time
ends during that work crashes the process.
"""
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # untyped
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call] # untyped
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What stands for the id of a topic whose brokers give none: those before 2.8."""
_NO_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_OF_TOPIC = frozenset({_NO_TOPIC, "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"})
"""Answers about one topic, which the message names."""

Part = tuple[str, int]
"""A topic, and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic was when its offsets were taken. Another topic of its name has other records at them."""

    partitions: tuple[int, ...]
    id: str
    """Changes when the topic is deleted and created again. Empty: its brokers give none."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The first offset that a partition has, and the one behind its last committed record."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Described:
    """A description that was asked for at a time, and had its answer at another."""

    topic: Topic
    asked: float
    answered: float


class Administrator:
    """A client for what consumers cannot ask. It is made when it is first needed, and again after it failed.

    Safe for several threads, which share its client, and descriptions of topics.
    """

    def __init__(self, options: KafkaAddress, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._clock = options, clock
        self._lock = threading.Lock()
        self._made: tuple[BrokerStatus, AdminClient] | None = None
        self._describing = threading.Condition()
        self._described: dict[str, _Described] = {}
        self._failed: dict[str, tuple[float, Exception]] = {}

    def topics(self, names: Collection[str], *, since: float | None = None) -> dict[str, Topic]:
        """Describe topics: now, or by what was asked at `since` or later.

        Raises:
            SourceError: a topic that does not exist.
        """
        wanted = self._clock.now() if since is None else since
        with self._describing:  # one at a time: those who waited share it
            return {name: self._topic(name, wanted) for name in names}

    def topics_after(self, names: Collection[str], moment: float) -> dict[str, Topic]:
        """As `topics`, asked at `moment` or later, for one of many ranges: waits so that they share a description."""
        with self._describing:
            for name in names:
                known = self._described.get(name)
                while known is not None and known.asked < moment:
                    pause = min(_LONGEST_PAUSE, _PAUSES * (known.answered - known.asked))
                    left = known.answered + pause - self._clock.now()
                    if left <= 0:
                        break
                    self._clock.wait(self._describing, left)
                    known = self._described.get(name)
            return {name: self._topic(name, moment) for name in names}

    def _topic(self, name: str, since: float) -> Topic:
        known, failed = self._described.get(name), self._failed.get(name)
        if known is not None and known.asked >= since:
            return known.topic
        # Each that waited would wait as long again for brokers that do not answer.
        if failed is not None and failed[0] >= since:
            raise failed[1]
        asked = self._clock.now()
        try:
            topic = self._describe(name)
        except Exception as error:
            self._failed[name] = self._clock.now(), error
            raise
        self._described[name] = _Described(topic, asked, self._clock.now())
        self._failed.pop(name, None)
        self._describing.notify_all()
        return topic

    def _describe(self, name: str) -> Topic:
        wanted = TopicCollection([name])

        def described(client: AdminClient, seconds: float) -> TopicDescription | KafkaError:
            try:
                found: TopicDescription = client.describe_topics(wanted, request_timeout=seconds)[
                    name
                ].result()
            except KafkaException as error:
                if error_of(error).name() in _OF_TOPIC:
                    return error_of(error)
                raise
            return found

        found = self._asked(described)
        if isinstance(found, KafkaError):
            link = BrokerStatus(self._options, SourceError)
            if found.name() == _NO_TOPIC:
                raise of_input(
                    SourceError(f"{link.address}: topic {name!r} does not exist; check 'topic'")
                )
            raise link.failed(found, f"topic {name!r}")
        shown = str(found.topic_id)
        numbers = sorted(each.id for each in found.partitions)
        return Topic(tuple(numbers), "" if shown == _NO_ID else shown)

    def edges(self, parts: Collection[Part]) -> dict[Part, Edges]:
        """Where partitions begin and end now. Records of transactions that are open lie behind the end."""
        lows = self._offsets(parts, _EARLIEST, IsolationLevel.READ_COMMITTED)
        highs = self._offsets(parts, _LATEST, IsolationLevel.READ_COMMITTED)
        return {part: Edges(lows[part], highs[part]) for part in parts}

    def last_offsets(self, parts: Collection[Part]) -> dict[Part, int]:
        """Where partitions end, with the records of transactions that are open."""
        return self._offsets(parts, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def settled_edges(self, parts: Sequence[Part]) -> dict[Part, Edges]:
        """`edges`, with the records of every transaction that was committed before this call.

        The brokers answer a commit before they write its markers, and only these make the records readable. So this
        waits until the partitions are readable up to their last record. Behind a transaction that stays open they are
        not: then it returns after 2 s.
        """
        edges = self.edges(parts)
        last = self.last_offsets(parts)
        end = self._clock.now() + _SETTLED
        while behind := [part for part in parts if edges[part].high < last[part]]:
            if self._clock.now() >= end:
                break
            self._serve(_LOOK)
            edges |= self.edges(behind)
        return edges

    def _offsets(
        self, parts: Collection[Part], of: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Part, int]:
        wanted, offsets = list(parts), dict[Part, int]()
        for begin in range(0, len(wanted), _AT_ONCE):
            offsets |= self._offsets_of(wanted[begin : begin + _AT_ONCE], of, isolation)
        return offsets

    def _offsets_of(
        self, parts: Collection[Part], of: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Part, int]:
        wanted = {TopicPartition(*part): of for part in parts}

        def ask(client: AdminClient, seconds: float) -> dict[Part, int]:
            answers = client.list_offsets(
                wanted, isolation_level=isolation, request_timeout=seconds
            )
            try:
                offsets = {
                    (place.topic, place.partition): answer.result().offset
                    for place, answer in answers.items()
                }
            except KafkaException as error:
                if error_of(error).name() != _NO_TOPIC:
                    raise
                self.topics({topic for topic, _ in parts})  # raises where there is none
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from error
            if min(offsets.values()) < 0:  # while a partition gets its leader
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return offsets

        return self._asked(ask)

    def _serve(self, seconds: float) -> None:
        link, client = self._client()
        link.serve(client, seconds)

    def _asked(self, call: Callable[[AdminClient, float], _T]) -> _T:
        link, client = self._client()

        def ask(seconds: float) -> _T:
            nonlocal client
            try:
                return call(client, seconds)
            except KafkaException as error:
                if is_leaderless(error):  # a client knows the leaders of when it asked first
                    self._forget(client)
                    client = self._client()[1]
                raise

        try:
            return link.asked(client, ask)
        except BaseException:
            self._forget(client)
            raise

    def _client(self) -> tuple[BrokerStatus, AdminClient]:
        with self._lock:
            if self._made is None:
                link = BrokerStatus(self._options, SourceError)
                self._made = link, link.made(AdminClient, {})
            return self._made

    def _forget(self, client: AdminClient) -> None:
        with self._lock:
            if self._made is not None and self._made[1] is client:
                self._made = None
