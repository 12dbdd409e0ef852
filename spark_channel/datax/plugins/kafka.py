"""kafkareader and kafkawriter, with the keys of DataWorks, Addax and the plugins of public jobs: DataX has none."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field

from spark_channel.datax.place import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.documents import ddl, local_zone, typed
from spark_channel.datax.plugins.files import times_as_text
from spark_channel.datax.values import (
    Flag,
    JobSection,
    NotNegative,
    Positive,
    Text,
    Texts,
    refusal,
    refused,
)
from spark_channel.planning import Endpoint
from spark_channel.transform import JavaTexts, Labelled, Rename, Transformer

__all__ = ["kafka_reader", "kafka_writer"]

_SPECIAL = {
    f"__{name}__": f"_{name}" for name in ("key", "value", "partition", "offset", "timestamp")
}
_JAAS = re.compile(
    r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))"""
)
_STRINGS = ("string", "bytearray", "org.apache.kafka.common.serialization.stringserializer")
_TUNING = {
    "retries": "records are sent again until 'deliveryTimeout'",
    "retryTimes": "records are sent again until 'deliveryTimeout'",
    "lingerMs": "the client's own",
    "sync": "each delivery is confirmed",
    "keySerializer": "keys are texts",
    "valueSerializer": "values are texts",
    "timezone": "times are shown in this machine's zone, or by common.column",
}


class KafkaColumn(JobSection):
    """A field of the value. DataWorks names the parts of a record `__key__`, `__value__` and so on."""

    name: Text
    type: Text = "string"


def _columns(value: object) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of names, or of {"name": "id", "type": "long"}')
    return [{"name": one} if isinstance(one, (str, int)) else one for one in value]


def _settings(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or any(
        isinstance(one, (dict, list)) for one in value.values()
    ):
        raise ValueError('an object of properties, such as {"security.protocol": "SASL_SSL"}')
    return {str(key): str(one) for key, one in value.items() if one is not None}


def _key_index(value: object) -> object:
    return value if isinstance(value, (list, tuple)) else [value]


Columns = Annotated[tuple[KafkaColumn, ...], BeforeValidator(_columns)]
Settings = Annotated[dict[str, str], BeforeValidator(_settings)]


class KafkaPlugin(JobSection):
    """Where the topic is, as each plugin spells it."""

    refused: ClassVar[dict[str, str]] = {
        "kerberosConfig": "Kerberos needs a client with libsasl2, which confluent-kafka does not contain",
    }

    bootstrap_servers: Texts = ()
    server: Texts = ()
    servers: Texts = ()
    brokers: Texts = ()
    broker_list: Texts = ()
    topic: Text
    column: Columns = ()
    field_delimiter: Text = ""
    kafka_config: Settings = Field(default_factory=dict)
    properties: Settings = Field(default_factory=dict)
    have_kerberos: Flag = False


class KafkaReader(KafkaPlugin):
    ignored: ClassVar[dict[str, str]] = {
        **_TUNING,
        "kafkaPartitions": "all partitions are read, in parallel",
        "topicNumPartition": "all partitions are read, in parallel",
        "topicReplicationFactor": "a reader creates no topic",
        "noTopicCreate": "a reader creates no topic",
        "batchSize": "records are fetched by the speed limit",
        "ack": "a reader writes nothing",
        "skipExceedRecord": "records behind the end are never read",
        "waitTime": "a read ends where the topic ended when it began",
        "exceptionPath": "a value that does not fit ends the job",
        "execptionPath": "a value that does not fit ends the job",
        "addMessage": "a column __value__ has the whole message",
    }
    refused: ClassVar[dict[str, str]] = {
        **KafkaPlugin.refused,
        "filterContaintsStr": "use transformer dx_filter",
        "maxMessageNumber": "name the range by endOffset or endDateTime",
    }

    group_id: Text = ""
    groupid: Text = ""
    consumer_settings: Settings = Field(default_factory=dict)
    type: Text = "batch"
    mode: Text = ""
    offset_mode: Text = ""
    begin_date_time: Text = ""
    end_date_time: Text = ""
    begin_offset: Text = ""
    end_offset: Text = ""
    partition: NotNegative | None = None
    key_type: Text = "string"
    value_type: Text = "string"
    parsing_rules: Text = ""
    write_type: Text = ""
    record_type: Text = ""
    codec: Text = ""
    split: Text = ""
    column_count: Positive | None = None
    writer_order: Text = ""
    kafka_reader_column_key: Text = ""
    missing_key_value: Text | None = None


class KafkaWriter(KafkaPlugin):
    ignored: ClassVar[dict[str, str]] = {
        **_TUNING,
        "batchSize": "the client's own; the option of the connector counts records",
        "print": "records are not shown",
        "encoding": "texts are UTF-8",
    }
    refused: ClassVar[dict[str, str]] = {
        **KafkaPlugin.refused,
        "headers": "write with format(\"channel\"), whose column 'headers' has them",
    }

    table_fields: Columns = ()
    producer_settings: Settings = Field(default_factory=dict)
    write_type: Text = ""
    write_mode: Text = ""
    format: Text = ""
    key_index: Annotated[tuple[NotNegative, ...], BeforeValidator(_key_index)] = ()
    key_field: Text = ""
    value_index: NotNegative | None = None
    partition: NotNegative | None = None
    null_key_format: Text = ""
    null_value_format: Text = ""
    ack: Text = ""
    acks: Text = ""
    compression_type: Text = ""
    no_topic_create: Flag = False
    notopic_create: Flag = Field(False, alias="notopicCreate")
    topic_num_partition: Positive | None = None
    topic_replication_factor: Positive | None = None


def _place_of(given: KafkaPlugin, more: Mapping[str, str], place: PluginContext) -> dict[str, str]:
    """The options of the address and of the login."""
    settings = {**given.kafka_config, **given.properties, **more}
    servers = (
        given.bootstrap_servers
        or given.server
        or given.servers
        or given.brokers
        or given.broker_list
    )
    text = ",".join(servers) or settings.get("bootstrap.servers", "")
    if not text:
        raise place.missing("bootstrapServers", "brokers, such as kafka1:9092,kafka2:9092")
    if given.have_kerberos:
        raise refusal(
            place.key("haveKerberos"), "true", f"false: {KafkaPlugin.refused['kerberosConfig']}"
        )
    options = {"bootstrapServers": text, "topic": given.topic}
    for name, option in (
        ("security.protocol", "securityProtocol"),
        ("sasl.mechanism", "saslMechanism"),
    ):
        if settings.get(name):
            options[option] = settings[name].upper()
    if options.get("saslMechanism") == "GSSAPI":
        raise refused(
            place.key("kafkaConfig"),
            "sasl.mechanism GSSAPI",
            "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
        )
    jaas = settings.get("sasl.jaas.config", "")
    login = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _JAAS.findall(jaas)
    }
    if jaas and "username" not in login:
        raise refused(
            place.key("kafkaConfig"),
            "sasl.jaas.config without a username",
            'one with username="..." and password="..."',
        )
    if login:
        options |= {"user": login.get("username", ""), "password": login.get("password", "")}
    for name in settings:
        if name.startswith("ssl.") and name not in (
            "ssl.endpoint.identification.algorithm",
            "ssl.ca.location",
        ):
            raise refused(
                place.key("kafkaConfig"),
                name,
                "ssl.ca.location, a PEM file, in place of Java's stores",
            )
    if "ssl.ca.location" in settings:
        options["sslrootcert"] = settings["ssl.ca.location"]
    used = (
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "ssl.ca.location",
        "group.id",
    )
    place.left.extend(
        f"{place.key('kafkaConfig')}.{name} (the connector's own)"
        for name in settings
        if name not in used
    )
    return options


def kafka_reader(parameter: dict[str, Any], place: PluginContext) -> ParsedPlugin:
    given = place.read(KafkaReader, parameter)
    if given.type.lower() != "batch":
        raise refusal(
            place.key("type"),
            given.type,
            'batch: a job ends. Follow a topic with readStream.format("channel")',
        )
    for key, kind in (("keyType", given.key_type), ("valueType", given.value_type)):
        if kind.lower() not in _STRINGS:
            raise refusal(
                place.key(key), kind, "string: numbers in Java's binary form are not read"
            )
    if given.missing_key_value is not None:
        place.left.append(f"{place.key('missingKeyValue')} (a field that a message lacks is NULL)")
    names, form = _fields(given, place)
    options = {**_place_of(given, given.consumer_settings, place), **form, **_range(given, place)}
    options |= {"schema": ddl(names), "timeZone": local_zone()}
    if given.partition is not None:
        options["partitions"] = str(given.partition)
    return ParsedPlugin(Endpoint("kafka", options), (typed(names, place),))


def _fields(
    given: KafkaReader, place: PluginContext
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The columns (name, type) in the order of the row, and how values become them."""
    rule = (given.parsing_rules or given.write_type or given.record_type or given.codec).lower()
    delimiter = _plain(given.split or given.field_delimiter, place)
    if rule not in ("", "json", "split", "text", "csv"):
        raise refusal(place.key("parsingRules"), rule, "json or split")
    if given.kafka_reader_column_key and rule == "json":
        columns = [(name.strip(), "string") for name in given.kafka_reader_column_key.split(",")]
    elif given.column:
        columns = [(column.name, column.type) for column in given.column]
    elif given.column_count is not None:
        columns = [(f"c{number}", "string") for number in range(given.column_count)]
    else:
        raise place.missing(
            "column", 'the fields of a message, such as ["id", "name"], or ["__value__"]'
        )
    for name, _ in columns:
        if name == "*" or "[" in name or name == "__headers__" or name.startswith("'"):
            raise refusal(
                place.key("column"), name, "names of fields; a.b is the field b of the field a"
            )
    columns = [(_SPECIAL.get(name, name), kind) for name, kind in columns]
    cut = rule in ("split", "text", "csv") or (not rule and delimiter != "")
    form = (
        {"valueFormat": "text", "delimiter": delimiter or ","} if cut else {"valueFormat": "json"}
    )
    if all(name in _SPECIAL.values() for name, _ in columns):
        form = {"valueFormat": "text"}  # nothing is looked for inside of the values
    return _ordered(columns, given, place), form


def _ordered(
    columns: list[tuple[str, str]], given: KafkaReader, place: PluginContext
) -> list[tuple[str, str]]:
    order = given.writer_order.replace(" ", "")
    if not order or order == ",".join(str(number + 1) for number in range(len(columns))):
        return columns
    raise refusal(
        place.key("writerOrder"),
        given.writer_order,
        f"1 to {len(columns)} in this order: name the writer's columns in the order of the fields",
    )


def _plain(text: str, place: PluginContext) -> str:
    """A delimiter, of which Java makes a regular expression in `split`."""
    made = _unescaped(text)
    if re.fullmatch(r"\\[^A-Za-z0-9]", made):
        return made[1]
    if len(made) > 1 and re.search(r"[\\\[\](){}*+?^$]|(?<=.)\|", made):
        raise refusal(
            place.key("split"), text, "a plain text, or one escaped character such as \\|"
        )
    return made


def _unescaped(text: str) -> str:
    r"""`\t`, `\n` and `\u0001` as DataWorks writes them."""
    for sign, character in (("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r")):
        text = text.replace(sign, character)
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found.group(1), 16)), text)


def _range(given: KafkaReader, place: PluginContext) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text, option in (
        ("beginDateTime", given.begin_date_time, "beginTimestamp"),
        ("endDateTime", given.end_date_time, "endTimestamp"),
    ):
        if text:
            options[option] = _moment(place.key(key), text)
    for key, text, option in (
        ("beginOffset", given.begin_offset, "beginOffsets"),
        ("endOffset", given.end_offset, "endOffsets"),
    ):
        if text and option.replace("Offsets", "Timestamp") in options:
            place.left.append(f"{place.key(key)} (the time is taken)")
        elif text:
            word = {"seektobeginning": "earliest", "seektoend": "latest"}.get(
                text.lower(), text.lower()
            )
            if not (word.isdigit() or word == ("earliest" if key == "beginOffset" else "latest")):
                raise refusal(
                    place.key(key),
                    text,
                    f"a number, or {'earliest' if key == 'beginOffset' else 'latest'}",
                )
            options[option] = word
    if not {"beginTimestamp", "beginOffsets"} & set(options):
        _check_start(given, place)
    return options


def _check_start(given: KafkaReader, place: PluginContext) -> None:
    """Without a begin, a job reads the whole topic, and never from the offsets of a group."""
    settings = {**given.kafka_config, **given.properties, **given.consumer_settings}
    named = 'beginDateTime (yyyyMMddHHmmss), beginOffset, or "beginOffset": "earliest" for the whole topic'
    for key, word in (
        ("mode", given.mode),
        ("offsetMode", given.offset_mode),
        ("kafkaConfig", settings.get("auto.offset.reset", "")),
    ):
        if word and word.lower() not in ("earliest", "earliest-offset"):
            raise refusal(
                place.key(key), word, f"earliest: a job ends where the topic ends now. Or {named}"
            )
    key = "groupId" if given.group_id else "groupid" if given.groupid else "kafkaConfig"
    if given.group_id or given.groupid or "group.id" in settings:
        raise refused(
            place.key(key),
            "a consumer group, and nothing that says where the read begins",
            f"{named}: the offsets of a group are neither read nor committed, so each run would read the whole topic",
        )
    place.warnings.append(
        f"{place.path}: the whole topic is read, up to its present end; name the begin by {named}"
    )


def _moment(path: str, text: str) -> str:
    try:
        found = datetime.strptime(text, "%Y%m%d%H%M%S")
    except ValueError:
        raise refusal(path, text, "yyyyMMddHHmmss, such as 20240131083000") from None
    return found.replace(tzinfo=ZoneInfo(local_zone())).isoformat()


def kafka_writer(parameter: dict[str, Any], place: PluginContext) -> ParsedPlugin:
    given = place.read(KafkaWriter, parameter)
    names = [column.name for column in given.column or given.table_fields]
    if names == ["*"]:
        names = []
    options = {
        **_place_of(given, given.producer_settings, place),
        **_form(given, names, place),
        "timeZone": local_zone(),
    }
    keys = [_named(number, names, "keyIndex", place) for number in given.key_index]
    if given.key_field:
        keys = [given.key_field]
    if keys:
        options["keyColumns"] = json.dumps(keys)
    if given.value_index is not None:
        options |= {
            "valueFormat": "text",
            "valueColumns": json.dumps([_named(given.value_index, names, "valueIndex", place)]),
        }
    if given.partition is not None:
        options["partition"] = str(given.partition)
    if given.null_key_format:
        raise refusal(
            place.key("nullKeyFormat"),
            given.null_key_format,
            "nothing: a NULL is a record without a key",
        )
    if given.compression_type:
        options["compression"] = given.compression_type.lower()
    for key, word in (("ack", given.ack), ("acks", given.acks)):
        if word and word.lower() not in ("all", "-1"):
            place.left.append(
                f"{place.key(key)} (a record counts when all replicas in sync have it)"
            )
    if given.no_topic_create or given.notopic_create:
        options["createTopic"] = "true"
        for option, number in (
            ("topicPartitions", given.topic_num_partition),
            ("replicationFactor", given.topic_replication_factor),
        ):
            if number is not None:
                options[option] = str(number)
    path = place.key("column")
    steps: list[Transformer] = [Labelled(Rename(tuple(names)), path)] if names else []
    steps.append(times_as_text(None, place))
    if options["valueFormat"] == "text":
        steps.append(JavaTexts())
    return ParsedPlugin(Endpoint("kafka", options), tuple(steps), local_times=True)


def _form(given: KafkaWriter, names: list[str], place: PluginContext) -> dict[str, str]:
    """DataWorks and most plugins join the values, Addax and FlinkX write objects."""
    given_as = (
        ("writeType", given.write_type),
        ("writeMode", given.write_mode),
        ("format", given.format),
    )
    key, word = next(((key, word) for key, word in given_as if word), ("writeType", ""))
    objects = bool(given.broker_list or given.table_fields or (given.brokers and names))
    kind = word.lower() or ("json" if objects else "text")
    if kind == "json":
        if not names:
            raise place.missing(
                "column",
                'the names of the fields: values are written as {"id": 1}, not as DataX\'s own records',
            )
        return {"valueFormat": "json"}
    if kind not in ("text", "csv"):
        raise refusal(place.key(key), word, "text or json")
    # DataWorks, whose key is `server`, puts a tab between values, and the other plugins a comma.
    delimiter = _unescaped(given.field_delimiter) or ("\t" if given.server else ",")
    return {"valueFormat": "text", "delimiter": delimiter, "nullValue": given.null_value_format}


def _named(number: int, names: list[str], key: str, place: PluginContext) -> str:
    if not names:
        raise place.missing("column", f"the names of the columns, with {key}")
    if number >= len(names):
        raise refusal(place.key(key), number, f"0 to {len(names) - 1}, the positions of column")
    return names[number]
