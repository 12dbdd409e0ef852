"""The options of Kafka."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SecretStr

from spark_channel.connectors.base.network import Seconds
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone
from spark_channel.errors import OptionError
from spark_channel.options import (
    Amount,
    CertificateFile,
    ColumnList,
    CommitMode,
    Options,
    Secret,
    Trait,
    resolve_secret,
)

__all__ = ["EARLIEST", "LATEST", "KafkaAddress", "KafkaReadOptions", "KafkaWriteOptions", "Offsets"]

_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_TOPIC = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")
# Settings for reaching the brokers. The connector itself sets those that choose records or define a delivery.
_CLIENT = re.compile(
    r"(?:sasl|ssl|enable\.sasl|enable\.ssl|security|socket|reconnect|broker\.address|broker\.version|api\.version|client"
    r"|connections|metadata|topic\.metadata|fetch)\..+"
    r"|linger\.ms|batch\.size|batch\.num\.messages|message\.max\.bytes|receive\.message\.max\.bytes|debug|check\.crcs"
    r"|compression\.level|request\.timeout\.ms|retry\.backoff\.ms|retry\.backoff\.max\.ms"
)
# What the connector sets after them, so that they would do nothing, and what would run other programs.
_NOT_TAKEN = frozenset(
    {
        "fetch.wait.max.ms",
        "fetch.message.max.bytes",
        "ssl.engine.location",
        "ssl.providers",
        "ssl.engine.id",
        "sasl.kerberos.kinit.cmd",
    }
)
_JAVA = {
    "sasl.jaas.config": "'user' and 'password'",
    "ssl.truststore.location": "'sslrootcert', a PEM file",
    "ssl.keystore.location": "'sslcert' and 'sslkey', PEM files",
}
EARLIEST, LATEST = -2, -1
"""Stand for the first offset that a partition has, and for its end, as in Spark's source."""
Offsets = int | Mapping[str, Mapping[int, int]]
"""One for all partitions, or by topic and partition."""
_SPARKS = {
    "kafka.bootstrap.servers": "bootstrapServers",
    "kafka.security.protocol": "securityProtocol",
    "kafka.sasl.mechanism": "saslMechanism",
}
_SPARKS_REFUSED = {
    "subscribePattern": "name the topics in 'topic'",
    "assign": "name the topics in 'topic', and the partitions in 'partitions'",
    "kafka.group.id": "partitions are assigned, and no consumer group is used",
    "failOnDataLoss": "records that the topic does not have any more are always an error",
    "kafka.sasl.jaas.config": "use 'user' and 'password'",
    "kafka.ssl.truststore.location": "use 'sslrootcert', a PEM file",
    "kafka.ssl.keystore.location": "use 'sslcert' and 'sslkey', PEM files",
}
_FIELDS = {"topicPartitions": "topic_partitions", "replicationFactor": "replication_factor"}


def _servers(value: object) -> str:
    takes = "host:port, such as kafka:9092; several are separated by commas"
    names = [
        str(server).strip()
        for server in (value if isinstance(value, (list, tuple)) else str(value).split(","))
    ]
    for name in names:
        match = _SERVER.fullmatch(name)
        if match is None or not 0 < int(match.group(1)) < 65_536:
            raise ValueError(takes)
    return ",".join(names)


def _topic(value: object) -> str:
    if not _TOPIC.fullmatch(str(value)):
        raise ValueError("the name of a topic: letters, digits, '.', '_' and '-'")
    return str(value)


def _topics(value: object) -> tuple[str, ...]:
    names = (
        value
        if isinstance(value, (list, tuple))
        else [topic.strip() for topic in str(value).split(",")]
    )
    topics = tuple(_topic(name) for name in names)
    if not topics or len(set(topics)) < len(topics):
        raise ValueError("the names of topics, separated by commas, each once")
    return topics


def _numbers(value: object) -> tuple[int, ...]:
    texts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    numbers = [str(text).strip() for text in texts]
    if (
        not numbers
        or not all(number.isdigit() and len(number) < 7 for number in numbers)
        or len(set(numbers)) < len(numbers)
    ):
        raise ValueError("numbers of partitions, separated by commas, each once")
    return tuple(map(int, numbers))


def _offsets(value: object) -> Offsets:
    takes = (
        'earliest, latest, an offset, or a JSON object such as {"orders": {"0": 23, "1": -2}}, where -2 is earliest '
        "and -1 latest"
    )
    text = str(value).strip()
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    try:
        offsets: Any = value if isinstance(value, Mapping) else json.loads(text)
        if isinstance(offsets, int) and not isinstance(offsets, bool):
            return _offset(offsets)
        return {
            _topic(topic): {int(number): _offset(offset) for number, offset in parts.items()}
            for topic, parts in offsets.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(takes) from None


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not LATEST - 1 <= value < 2**63:
        raise ValueError
    return value


def _moment(value: object) -> datetime:
    takes = "a time such as 2024-01-31T08:30:00Z, in UTC unless it has a zone, or milliseconds since 1970"
    try:
        text = str(value).strip()
        if isinstance(value, datetime):
            moment = value
        elif text.isdigit():
            moment = datetime.fromtimestamp(int(text) / 1000, UTC)
        else:
            moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ValueError(takes) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _properties(value: object) -> SecretStr:
    if isinstance(value, SecretStr):
        return value
    takes = 'a JSON object of properties of librdkafka, such as {"socket.keepalive.enable": true}'
    text = (
        json.dumps(value)
        if isinstance(value, Mapping)
        else resolve_secret(value).get_secret_value()
    )
    try:
        properties: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(takes) from None
    if not isinstance(properties, dict) or any(
        isinstance(setting, (dict, list)) or setting is None for setting in properties.values()
    ):
        raise ValueError(takes)
    for name in properties:
        if name in _JAVA:
            raise ValueError(
                f"properties of librdkafka, not of Java; for {name!r} use {_JAVA[name]}"
            )
        if not _CLIENT.fullmatch(name) or name in _NOT_TAKEN:
            raise ValueError(
                "properties that say how the brokers are reached (sasl.*, ssl.*, socket.*, linger.ms, "
                f"batch.size, fetch.* and others); {name!r} is the connector's own, or not one"
            )
    return SecretStr(json.dumps(properties))


Names = Annotated[tuple[str, ...], BeforeValidator(_topics)]


class KafkaAddress(Options):
    """Where the brokers are, and as whom they are asked."""

    bootstrap_servers: Annotated[str, BeforeValidator(_servers)] = Field(
        description="brokers, `host:9092`, several with commas; they name the others"
    )
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None, Trait.SAME_ROWS
    ] = Field(
        None,
        description="`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`; default: `SASL_SSL` with `user`, `SSL` with "
        "`sslrootcert` or `sslcert`, else `PLAINTEXT`",
    )
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None, Trait.SAME_ROWS
    ] = Field(
        None,
        description="how the login is sent: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`; default: `PLAIN`",
    )
    user: str | None = Field(None, description="user name; default: none")
    password: Secret | None = Field(
        None, description="password, or `${env:NAME}` or `${file:PATH}`; default: none"
    )
    sslrootcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None,
        description="PEM file of the CA certificates that verify the brokers'; default: the system's",
    )
    sslcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None, description="PEM file of the client's certificate; default: none"
    )
    sslkey: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None, description="PEM file of the client's private key; default: none"
    )
    sslpassword: Secret | None = Field(None, description="password of `sslkey`; default: none")
    client_properties: (
        Annotated[SecretStr, BeforeValidator(_properties), Trait.SAME_ROWS] | None
    ) = Field(
        None,
        description='JSON object of more properties of librdkafka, such as `{"socket.keepalive.enable": true}`; '
        "default: none",
    )
    timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0,
        description="seconds to wait for an answer of the brokers, or for the next record of a range",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.password is not None and self.user is None:
            raise OptionError("option 'password' needs 'user'", option="user")
        if (self.sslkey is None) != (self.sslcert is None):
            raise OptionError("options 'sslcert' and 'sslkey' go together", option="sslcert")
        protocol = self.protocol
        if self.user is not None and not protocol.startswith("SASL"):
            raise OptionError(
                f"option 'securityProtocol' got {protocol!r}; "
                "with 'user' it takes SASL_SSL or SASL_PLAINTEXT: the login would not be used",
                option="securityProtocol",
                got=protocol,
                takes="SASL_SSL, SASL_PLAINTEXT",
            )
        unused = next(
            (name for name in ("sslrootcert", "sslcert") if getattr(self, name) is not None), None
        )
        if unused is not None and not protocol.endswith("SSL"):
            raise OptionError(
                f"option {unused!r} is for TLS, and 'securityProtocol' {protocol} asks for none: use SSL or SASL_SSL",
                option=unused,
            )

    @property
    def protocol(self) -> str:
        if self.security_protocol is not None:
            return self.security_protocol
        if "security.protocol" in self.properties:
            return str(self.properties["security.protocol"]).upper()
        if self.user is not None:
            return "SASL_SSL"
        return "PLAINTEXT" if self.sslrootcert is None and self.sslcert is None else "SSL"

    @property
    def properties(self) -> dict[str, Any]:
        if self.client_properties is None:
            return {}
        properties: dict[str, Any] = json.loads(self.client_properties.get_secret_value())
        return properties

    @property
    def shown_topics(self) -> str:
        return ""

    @property
    def address(self) -> str:
        return f"kafka://{self.bootstrap_servers}/{self.shown_topics}".rstrip("/")

    @property
    def url(self) -> str:
        """For messages."""
        return self.address


class KafkaReadOptions(KafkaAddress, RecordReadOptions):
    """Options of the reader."""

    no_where: ClassVar[str] = (
        "Kafka has no conditions; 'beginTimestamp' and 'endTimestamp' choose records by time"
    )
    aliases: ClassVar[Mapping[str, str]] = {
        **RecordReadOptions.aliases,
        **_SPARKS,
        "subscribe": "topic",
    }
    refused: ClassVar[Mapping[str, str]] = _SPARKS_REFUSED

    topic: Names = Field(description="the topic; several with commas")
    partitions: Annotated[tuple[int, ...], BeforeValidator(_numbers)] | None = Field(
        None, description="only these partitions, such as `0,2`; default: all"
    )
    begin_offsets: Annotated[Any, BeforeValidator(_offsets)] = Field(
        None,
        description="the first offset of a batch read: `earliest`, a number for all partitions, or a JSON object such "
        'as `{"orders": {"0": 23, "1": -2}}`; default: `earliest`',
    )
    end_offsets: Annotated[Any, BeforeValidator(_offsets)] = Field(
        None,
        description="the offset before which a batch read ends, as `beginOffsets`; default: `latest`, the end of each "
        "partition when the read is planned",
    )
    begin_timestamp: Annotated[datetime, BeforeValidator(_moment)] | None = Field(
        None,
        description="begin at the first record of this time or later, in place of `beginOffsets`; default: none",
    )
    end_timestamp: Annotated[datetime, BeforeValidator(_moment)] | None = Field(
        None, description="end before the first record of this time or later; default: none"
    )
    value_format: Literal["binary", "json", "text"] = Field(
        "binary",
        description="`binary`: Kafka's own columns; `json`: the fields of each value; `text`: each value cut at "
        "`delimiter` into the columns of `schema`",
    )
    delimiter: Annotated[str, Field(min_length=1)] = Field(
        ",", description="with `valueFormat=text`: the text between two columns"
    )
    null_value: str | None = Field(
        None, description="with `valueFormat=text`: the text that is read as NULL; default: none"
    )
    include_headers: bool = Field(
        False, description="with `valueFormat=binary`: the column `headers`, too"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        for offsets, time, name in (
            (self.begin_offsets, self.begin_timestamp, "begin"),
            (self.end_offsets, self.end_timestamp, "end"),
        ):
            if offsets is not None and time is not None:
                raise OptionError(
                    f"options '{name}Offsets' and '{name}Timestamp' name one position: omit one of them",
                    option=f"{name}Timestamp",
                )
        if self.value_format == "binary" and self.record_schema is not None:
            raise OptionError(
                "option 'schema' is for valueFormat json and text; 'binary' has Kafka's own columns",
                option="schema",
                got=self.record_schema,
            )
        if self.value_format == "text" and self.record_schema is None:
            raise OptionError(
                "option 'schema' is missing: with valueFormat=text it names the columns, in the order of the text",
                option="schema",
            )
        if self.include_headers and self.value_format != "binary":
            raise OptionError(
                f"option 'includeHeaders' goes with valueFormat=binary, not {self.value_format}: "
                "omit it, or read the topic with valueFormat=binary",
                option="includeHeaders",
            )

    @property
    def shown_topics(self) -> str:
        return ",".join(self.topic)


class KafkaWriteOptions(KafkaAddress, DirectOptions):
    """Options of the writer."""

    aliases: ClassVar[Mapping[str, str]] = {**DirectOptions.aliases, **_SPARKS}
    refused: ClassVar[Mapping[str, str]] = {
        **_SPARKS_REFUSED,
        "acks": "a record counts as written when all replicas in sync have it (acks=all)",
        "kafka.acks": "a record counts as written when all replicas in sync have it (acks=all)",
    }

    commit: CommitMode | None = Field(
        None,
        description="`task`, the only mode: records are visible as they are written, or with `transactional` when "
        "their task ends; default: `task`",
    )
    batch_size: Amount = Field(
        10_000, description="records whose delivery is not confirmed yet, at most"
    )
    topic: Annotated[str, BeforeValidator(_topic)] | None = Field(
        None, description="the topic; default: the column `topic`, with `valueFormat=binary`"
    )
    value_format: Literal["binary", "json", "text"] = Field(
        "binary",
        description="`binary`: rows have the columns `value`, and if wanted `key`, `topic`, `partition`, `headers`; "
        "`json`: each row is a JSON object; `text`: its values with `delimiter` between them",
    )
    key_columns: ColumnList | None = Field(
        None,
        description="with `json` and `text`: the columns whose texts are the record's key; default: no key",
    )
    key_delimiter: str = Field(
        ":", description="the text between the values of several key columns"
    )
    value_columns: ColumnList | None = Field(
        None, description="with `json` and `text`: the columns of the value; default: all"
    )
    delimiter: Annotated[str, Field(min_length=1)] = Field(
        ",",
        description="with `valueFormat=text`: the text between two values; values that contain it are not quoted",
    )
    null_value: str = Field(
        "", description="with `valueFormat=text`: the text of NULL; default: empty"
    )
    ignore_null_fields: bool = Field(
        True, description="with `valueFormat=json`: omit fields that are NULL"
    )
    time_zone: Zone = Field(
        "UTC", description="with `text`, and in keys: zone in which instants are shown"
    )
    partition: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None,
        description="write to this partition; default: by the key, as Java's producers do, or random without one",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        "none", description="how batches of records are compressed"
    )
    transactional: bool = Field(
        False,
        description="each task is one transaction, and writes its rows once in a run: consumers that read committed "
        "records see all records of a task or none, and none of a failed attempt",
    )
    transaction_timeout: Annotated[float, Field(ge=1, le=86_400)] = Field(
        900.0,
        description="with `transactional`: seconds after which the brokers abort a task's transaction; at most their "
        "`transaction.max.timeout.ms`",
    )
    delivery_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        120.0,
        description="seconds for which a record is sent again until its delivery is confirmed",
    )
    create_topic: bool = Field(False, description="create the topic if it does not exist")
    topic_partitions: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="with `createTopic`: its partitions; default: the brokers' `num.partitions`",
    )
    replication_factor: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="with `createTopic`: its replicas; default: the brokers' `default.replication.factor`",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.value_format == "binary":
            for option, value in (
                ("keyColumns", self.key_columns),
                ("valueColumns", self.value_columns),
            ):
                if value is not None:
                    raise OptionError(
                        f"option {option!r} is for valueFormat json and text; 'binary' takes the columns key and value",
                        option=option,
                        got=",".join(value),
                    )
        elif self.topic is None:
            raise OptionError(
                f"option 'topic' is missing; valueFormat={self.value_format} needs it",
                option="topic",
            )
        if self.transactional and self.topic is None:
            raise OptionError(
                "option 'transactional' needs 'topic': an offset of its first partition records which tasks have "
                "committed",
                option="topic",
            )
        if self.create_topic and self.topic is None:
            raise OptionError(
                "option 'createTopic' needs 'topic', the name of the topic", option="topic"
            )
        unused = next(
            (
                name
                for name in ("topicPartitions", "replicationFactor")
                if getattr(self, _FIELDS[name]) is not None
            ),
            None,
        )
        if unused is not None and not self.create_topic:
            raise OptionError(
                f"option {unused!r} has no effect without createTopic=true: set that, or omit {unused!r}",
                option=unused,
            )

    @property
    def shown_topics(self) -> str:
        return self.topic or ""
