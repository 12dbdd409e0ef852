"""Makes clients of librdkafka, and turns their errors into spark-channel's."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.kafka.options import KafkaAddress, KafkaReadOptions, KafkaWriteOptions
from spark_channel.errors import ChannelError, OptionError
from spark_channel.plain_text import log_of

__all__ = [
    "BrokerStatus",
    "consumer",
    "ended",
    "error_of",
    "is_leaderless",
    "is_passing",
    "member",
    "producer",
]

_log = log_of(__name__)
_T = TypeVar("_T")
_FIRST, _LONGEST = 0.5, 5.0
"""Seconds of a request. One that waits does not notice what its client meets, such as a login that is refused."""
_PAUSE = 0.05
"""Seconds before a request is made again: an answer may come at once each time."""
_LAST = 5.0
_DENIED = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_SILENT = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL"}
)
_LEADERLESS = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
    }
)
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
        settings: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap_servers,
            "client.id": "spark-channel",
            "security.protocol": options.protocol,
            # The brokers' default would create a topic whose name is mistyped: findings/kafka-look-creates-a-topic.sh
            "allow.auto.create.topics": False,
            "error_cb": self._noticed,
            "logger": _DebugLogger(),
        }
        if options.user is not None:
            settings |= {
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
                settings[name] = path
        if options.sslpassword is not None:
            settings["ssl.key.password"] = options.sslpassword.get_secret_value()
        return {
            **settings,
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
            seconds_left = end - SYSTEM_CLOCK.now()
            try:
                return call(max(0.1, min(step, seconds_left)))
            except KafkaException as error:
                self.serve(client, 0)
                if not is_passing(error) or SYSTEM_CLOCK.now() >= end:
                    raise self.failed(error_of(error)) from error
                step = min(_LONGEST, 2 * step)
                self.serve(client, _PAUSE)

    def silent(self, subject: str, waited: str) -> ChannelError:
        """Return the error for no answer within the seconds of an option; `waited` names both."""
        met = "" if self._last is None else f"; the client says: {self._shown(self._last)}"
        return self._failure(
            f"{self._options.address}: {subject} for {waited}{met}. Check that the brokers "
            "run and that this machine reaches each address that they advertise (advertised.listeners)"
        )

    def failed(self, error: KafkaError, subject: str = "") -> ChannelError:
        text = f"{self._options.address}: {f'{subject}: ' if subject else ''}{self._shown(error)}"
        if error.name() in _DENIED:
            return self._failure(
                f"{text}; check 'user', 'password', 'saslMechanism', and the user's ACLs"
            )
        if error.name() in _SILENT and not subject:
            met = self._last
            met_text = "" if met is None or met.name() == error.name() else f" ({self._shown(met)})"
            return self._failure(
                f"{text}{met_text}; no broker answered for {self._options.timeout:g} s ('timeout'): check "
                "'bootstrapServers', 'securityProtocol', and that this machine reaches the brokers"
            )
        return self._failure(text)

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
    kafka_error: KafkaError = error.args[0]
    return kafka_error


def is_passing(error: BaseException) -> bool:
    """Whether what a client raised is of the moment: brokers that do not answer, or change their leaders."""
    if not isinstance(error, KafkaException):
        return False
    met = error_of(error)
    return met.name() in _SILENT | _LEADERLESS or met.retriable()


def is_leaderless(error: KafkaException) -> bool:
    """Whether a partition's leader is another than its client knows, or none."""
    return error_of(error).name() in _LEADERLESS


def consumer(
    options: KafkaReadOptions,
    link: BrokerStatus,
    on_statistics: Callable[[dict[str, Any]], None] | None = None,
    **extra_settings: Any,
) -> Consumer:
    """A consumer without a group: the caller assigns its partitions, closes it, and it commits nothing.

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
        # So long an empty answer takes, which says that the end of a partition is reached, and for which the fetches of
        # the next range wait.
        "fetch.wait.max.ms": 10,
        # A limit may hold the reader for longer than a group would allow.
        "max.poll.interval.ms": 86_400_000,
        **extra_settings,
    }
    if on_statistics is not None:
        seconds = max(1.0, options.timeout / 4)
        settings |= {
            "statistics.interval.ms": int(seconds * 1_000),
            "stats_cb": lambda text: on_statistics(json.loads(text)),
        }
    return link.made(Consumer, settings)


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
