"""Makes clients of librdkafka, turns their errors into spark-channel's, and asks the brokers for ranges of offsets."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.kafka.options import (
    EARLIEST,
    LATEST,
    KafkaAddress,
    KafkaReadOptions,
    KafkaWriteOptions,
    Offsets,
)
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = [
    "BrokerStatus",
    "Edges",
    "Part",
    "Range",
    "Topic",
    "administrator",
    "consumer",
    "edges_at",
    "ended",
    "error_of",
    "is_passing",
    "last_offsets",
    "member",
    "offsets_at",
    "partitions",
    "planned",
    "portions",
    "producer",
    "ranges_of",
    "settled_edges",
    "splits_of",
    "topics_of",
]

_log = log_of(__name__)
_T = TypeVar("_T")
_FIRST, _LONGEST = 0.5, 5.0
"""Seconds of a request. One that waits does not notice what its client meets, such as a login that is refused."""
_LAST = 5.0
_SETTLED = 2.0
"""Seconds for the markers of a transaction to arrive. A commit returns before they are written."""
_LOOK = 0.02
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What stands for the id of a topic whose brokers give none: those before 2.8."""
_DENIED = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_OF_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"})
"""Answers about one topic, which the message names."""
_SILENT = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL"}
)
_LEADERLESS = frozenset({"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"})
"""While a partition's leader changes. The administrator's client does not ask again by itself."""


class _DebugLogger:
    """The client's log, which has a line for each connection that fails: what matters becomes an error."""

    def log(self, _level: int, text: str, *values: object) -> None:
        _log.debug(text, *values)


class BrokerStatus:
    """Keeps the errors that a client reports about its brokers, and makes messages of them."""

    def __init__(self, options: KafkaAddress, failure: type[ChannelError]) -> None:
        self._options, self._failure = options, failure
        self._last: KafkaError | None = None
        self._denied: KafkaError | None = None
        self._fatal: KafkaError | None = None

    @property
    def address(self) -> str:
        return self._options.address

    @property
    def is_dead(self) -> bool:
        """Whether the client has met an error after which it does nothing."""
        return self._fatal is not None

    def settings(self) -> dict[str, Any]:
        """Return the settings that producers and consumers share."""
        options = self._options
        made: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap_servers,
            "client.id": "spark-channel",
            "security.protocol": options.protocol,
            # The brokers' default would create a topic whose name is mistyped: findings/kafka-look-creates-a-topic.sh
            "allow.auto.create.topics": False,
            "error_cb": self._noticed,
            "logger": _DebugLogger(),
        }
        if options.user is not None:
            made |= {
                "sasl.mechanism": options.sasl_mechanism or "PLAIN",
                "sasl.username": options.user,
                "sasl.password": ""
                if options.password is None
                else options.password.get_secret_value(),
            }
        for option, name, path in (
            ("sslrootcert", "ssl.ca.location", options.sslrootcert),
            ("sslcert", "ssl.certificate.location", options.sslcert),
            ("sslkey", "ssl.key.location", options.sslkey),
        ):
            if path is not None:
                if not Path(path).is_file():
                    raise OptionError(
                        f"option {option!r} got {path!r}, which is not a file on this machine; put it on the driver's "
                        "host and on the workers",
                        option=option,
                        got=path,
                    )
                made[name] = path
        if options.sslpassword is not None:
            made["ssl.key.password"] = options.sslpassword.get_secret_value()
        return {
            **made,
            **{
                name: value
                for name, value in options.properties.items()
                if name != "security.protocol"
            },
        }

    def _noticed(self, error: KafkaError) -> None:
        """Called by the client, in the thread that polls it."""
        self._last = error
        if error.fatal():
            self._fatal = error
        if error.name() in _DENIED:
            self._denied = error

    def serve(self, client: Any, seconds: float) -> None:
        """Let the client run its callbacks for at most `seconds`.

        Raises:
            ChannelError: an error that lasts.
        """
        try:
            client.poll(seconds)
        except KafkaException as error:
            self._noticed(error_of(error))
        self.check()

    def check(self) -> None:
        """
        Raises:
            ChannelError: the client met an error that lasts.
        """
        lasting = self._denied or self._fatal
        if lasting is not None:
            raise self.failed(lasting)

    def asked(self, client: Any, call: Callable[[float], _T]) -> _T:
        """Return the result of `call` (seconds to wait); repeat it until `timeout` while no broker answers."""
        end, step = SYSTEM_CLOCK.now() + self._options.timeout, _FIRST
        while True:
            left = end - SYSTEM_CLOCK.now()
            try:
                return call(max(0.1, min(step, left)))
            except KafkaException as error:
                self.serve(client, 0)
                if not is_passing(error) or SYSTEM_CLOCK.now() >= end:
                    raise self.failed(error_of(error)) from error
                step = min(_LONGEST, 2 * step)

    def silent(self, what: str, waited: str) -> ChannelError:
        """Return the error for no answer within the seconds of an option; `waited` names both."""
        met = "" if self._last is None else f"; the client says: {self._shown(self._last)}"
        return self._failure(
            f"{self._options.address}: {what} for {waited}{met}. Check that the brokers "
            "run and that this machine reaches each address that they advertise (advertised.listeners)"
        )

    def failed(self, error: KafkaError, what: str = "") -> ChannelError:
        shown = f"{self._options.address}: {f'{what}: ' if what else ''}{self._shown(error)}"
        if error.name() in _DENIED:
            return self._failure(
                f"{shown}; check 'user', 'password', 'saslMechanism', and the user's ACLs"
            )
        if error.name() in _SILENT and not what:
            met = self._last
            more = "" if met is None or met.name() == error.name() else f" ({self._shown(met)})"
            return self._failure(
                f"{shown}{more}; no broker answered for {self._options.timeout:g} s ('timeout'): check "
                "'bootstrapServers', 'securityProtocol', and that this machine reaches the brokers"
            )
        return self._failure(shown)

    def _shown(self, error: KafkaError) -> str:
        return self.shown(f"{error.name()}: {error.str()}")

    def shown(self, text: str) -> str:
        return self._options.hide(text)[:400]

    def made(self, kind: Callable[[dict[str, Any]], _T], settings: Mapping[str, Any]) -> _T:
        """
        Raises:
            ChannelError: a setting that the client refuses, such as a file that does not exist.
        """
        try:
            return kind({**self.settings(), **settings})
        except KafkaException as error:
            raise self._failure(
                f"{self._options.address}: the client cannot be made: {self.shown(error_of(error).str())}; "
                "check the options of TLS and SASL, and 'clientProperties'"
            ) from error


def error_of(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


def is_passing(error: BaseException) -> bool:
    """Whether what a client raised is of the moment: brokers that do not answer, or change their leaders."""
    if not isinstance(error, KafkaException):
        return False
    met = error_of(error)
    return met.name() in _SILENT | _LEADERLESS or met.retriable()


@contextmanager
def consumer(
    options: KafkaReadOptions,
    link: BrokerStatus,
    on_statistics: Callable[[dict[str, Any]], None] | None = None,
    **more: Any,
) -> Iterator[Consumer]:
    """A consumer without a group: the caller assigns its partitions, and it commits nothing.

    `on_statistics` gets the client's statistics. They wait in memory while the reader is paused.
    """
    settings: dict[str, Any] = {
        "group.id": "spark-channel",  # the client asks for a name, and does nothing with it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An offset that no longer exists is an error, and no reason to continue somewhere else.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # So long an empty answer takes, which says that the end of a partition is reached.
        "fetch.wait.max.ms": 100,
        # A limit may hold the reader for longer than a group would allow.
        "max.poll.interval.ms": 86_400_000,
        **more,
    }
    if on_statistics is not None:
        seconds = max(1.0, options.timeout / 4)
        settings |= {
            "statistics.interval.ms": int(seconds * 1_000),
            "stats_cb": lambda text: on_statistics(json.loads(text)),
        }
    client = link.made(Consumer, settings)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def member(link: BrokerStatus, group: str) -> Iterator[Consumer]:
    """A consumer that knows the offsets recorded for `group`, and reads nothing."""
    client = link.made(
        Consumer,
        {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"},
    )
    try:
        yield client
    finally:
        client.close()


def producer(options: KafkaWriteOptions, link: BrokerStatus, transaction: str | None) -> Producer:
    """A producer whose batches are stored once and in order, however often they are sent."""
    settings: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": int(options.delivery_timeout * 1000),
        # Java's: records with equal keys are in one partition, whoever wrote them. The client's own default is another:
        # findings/kafka-partitioner-of-librdkafka.sh
        "partitioner": "murmur2_random",
        "compression.type": options.compression,
        "queue.buffering.max.messages": max(1_000, options.batch_size),
        "queue.buffering.max.kbytes": max(1 << 10, options.capacity_bytes >> 10),
    }
    if transaction is not None:
        timeout = int(options.transaction_timeout * 1000)
        settings |= {
            "transactional.id": transaction,
            "transaction.timeout.ms": timeout,
            "message.timeout.ms": min(settings["message.timeout.ms"], timeout),
        }
    return link.made(Producer, settings)


@contextmanager
def ended(client: Producer, link: BrokerStatus, *, hangs: bool = False) -> Iterator[Producer]:
    """Ends a producer; its own context manager would first send what is left.

    `hangs`: it has a transaction whose end is not known. `close` would wait for that end forever.
    """
    try:
        yield client
    finally:
        try:
            client.purge()
            client.flush(_LAST)
        except KafkaException as error:  # it has failed for good, which was reported
            _log.debug("a producer ends: %s", error)
        # One that failed for good would warn that it cannot abort its transaction. Both end when they are freed.
        if not hangs and not link.is_dead:
            client.close()


# Which records a read covers: ranges of offsets, as the brokers know them when the read is planned.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Part = tuple[str, int]
"""A topic, and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic was when its offsets were taken. Another topic of its name has other records at them."""

    partitions: tuple[int, ...]
    id: str
    """Changes when the topic is deleted and created again. Empty: its brokers give none."""


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


@dataclass(frozen=True, slots=True)
class Edges:
    """The first offset that a partition has, and the one behind its last committed record."""

    low: int
    high: int


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


def administrator(link: BrokerStatus) -> AdminClient:
    """A client for what consumers cannot ask."""
    return link.made(AdminClient, {})


def topics_of(link: BrokerStatus, client: AdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """
    Raises:
        SourceError: a topic that does not exist.
    """
    return {name: _topic_of(link, client, name) for name in names}


def _topic_of(link: BrokerStatus, client: AdminClient, name: str) -> Topic:
    wanted = TopicCollection([name])

    def described(seconds: float) -> TopicDescription | KafkaError:
        try:
            found: TopicDescription = client.describe_topics(wanted, request_timeout=seconds)[
                name
            ].result()
        except KafkaException as error:
            if error_of(error).name() in _OF_TOPIC:
                return error_of(error)
            raise
        return found

    found = link.asked(client, described)
    if isinstance(found, KafkaError):
        if found.name() == "UNKNOWN_TOPIC_OR_PART":
            raise of_input(
                SourceError(f"{link.address}: topic {name!r} does not exist; check 'topic'")
            )
        raise link.failed(found, f"topic {name!r}")
    shown = str(found.topic_id)
    numbers = sorted(each.id for each in found.partitions)
    return Topic(tuple(numbers), "" if shown == _NO_ID else shown)


def edges_at(
    options: KafkaReadOptions, link: BrokerStatus, parts: Iterable[Part]
) -> dict[Part, Edges]:
    """Where partitions begin and end now. Records of transactions that are open lie behind the end."""
    with consumer(options, link) as client:
        return _edges_at(link, client, parts)


def _edges_at(link: BrokerStatus, client: Consumer, parts: Iterable[Part]) -> dict[Part, Edges]:
    # `list_offsets` would be one request, and may answer -1001 while a partition gets its leader.
    return {part: _edges(link, client, part) for part in parts}


def _edges(link: BrokerStatus, client: Consumer, part: Part) -> Edges:
    place = TopicPartition(*part)
    return Edges(
        *link.asked(client, lambda seconds: client.get_watermark_offsets(place, timeout=seconds))
    )


def last_offsets(link: BrokerStatus, admin: AdminClient, parts: Iterable[Part]) -> dict[Part, int]:
    """Where partitions end, with the records of transactions that are open."""
    wanted = {TopicPartition(*part): OffsetSpec.latest() for part in parts}  # type: ignore[no-untyped-call] # untyped

    def ask(seconds: float) -> dict[Part, int]:
        answers = admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=seconds
        )
        offsets = {
            (place.topic, place.partition): answer.result().offset
            for place, answer in answers.items()
        }
        if min(offsets.values(), default=0) < 0:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return offsets

    return link.asked(admin, ask)


def settled_edges(
    options: KafkaReadOptions, link: BrokerStatus, admin: AdminClient, parts: Sequence[Part]
) -> dict[Part, Edges]:
    """`edges_at`, with the records of every transaction that was committed before this call.

    The brokers answer a commit before they write its markers, and only these make the records readable. So this waits
    until the partitions are readable up to their last record. Behind a transaction that stays open they are not: then
    it returns after 2 s.
    """
    with consumer(options, link) as client:
        edges = _edges_at(link, client, parts)
        last = last_offsets(link, admin, parts)
        end = SYSTEM_CLOCK.now() + _SETTLED
        while behind := [part for part in parts if edges[part].high < last[part]]:
            if SYSTEM_CLOCK.now() >= end:
                break
            link.serve(client, _LOOK)
            edges |= _edges_at(link, client, behind)
    return edges


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
    admin = administrator(link)
    topics = topics_of(link, admin, options.topic)
    edges = settled_edges(options, link, admin, partitions(options, topics))
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
