"""kafkareader and kafkawriter, with the keys of DataWorks, Addax and the plugins of public jobs: DataX has none."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.document_columns import ddl, typed
from spark_channel.datax.plugins.files import times_as_text
from spark_channel.datax.sections import JobSection, refusal, refused
from spark_channel.datax.value_types import Flag, NotNegative, Positive, Text, Texts
from spark_channel.planning import Endpoint
from spark_channel.transform import JavaTexts, Labelled, Rename, Transformer
from spark_channel.transform.convert import local_zone

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


def _place_of(
    plugin: KafkaPlugin, settings_given: Mapping[str, str], context: PluginContext
) -> dict[str, str]:
    """The options of the address and of the login."""
    settings = {**plugin.kafka_config, **plugin.properties, **settings_given}
    servers = (
        plugin.bootstrap_servers
        or plugin.server
        or plugin.servers
        or plugin.brokers
        or plugin.broker_list
    )
    text = ",".join(servers) or settings.get("bootstrap.servers", "")
    if not text:
        raise context.missing("bootstrapServers", "brokers, such as kafka1:9092,kafka2:9092")
    if plugin.have_kerberos:
        raise refusal(
            context.key("haveKerberos"), "true", f"false: {KafkaPlugin.refused['kerberosConfig']}"
        )
    options = {"bootstrapServers": text, "topic": plugin.topic}
    for name, option in (
        ("security.protocol", "securityProtocol"),
        ("sasl.mechanism", "saslMechanism"),
    ):
        if settings.get(name):
            options[option] = settings[name].upper()
    if options.get("saslMechanism") == "GSSAPI":
        raise refused(
            context.key("kafkaConfig"),
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
            context.key("kafkaConfig"),
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
                context.key("kafkaConfig"),
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
    context.ineffective.extend(
        f"{context.key('kafkaConfig')}.{name} (the connector's own)"
        for name in settings
        if name not in used
    )
    return options


def kafka_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(KafkaReader, parameter)
    if plugin.type.lower() != "batch":
        raise refusal(
            context.key("type"),
            plugin.type,
            'batch: a job ends. Follow a topic with readStream.format("channel")',
        )
    for key, kind in (("keyType", plugin.key_type), ("valueType", plugin.value_type)):
        if kind.lower() not in _STRINGS:
            raise refusal(
                context.key(key), kind, "string: numbers in Java's binary form are not read"
            )
    if plugin.missing_key_value is not None:
        context.ineffective.append(
            f"{context.key('missingKeyValue')} (a field that a message lacks is NULL)"
        )
    names, form = _fields(plugin, context)
    options = {
        **_place_of(plugin, plugin.consumer_settings, context),
        **form,
        **_range(plugin, context),
    }
    options |= {"schema": ddl(names), "timeZone": local_zone()}
    if plugin.partition is not None:
        options["partitions"] = str(plugin.partition)
    return ParsedPlugin(Endpoint("kafka", options), (typed(names, context),))


def _fields(
    plugin: KafkaReader, context: PluginContext
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The columns (name, type) in the order of the row, and how values become them."""
    rule = (plugin.parsing_rules or plugin.write_type or plugin.record_type or plugin.codec).lower()
    delimiter = _plain(plugin.split or plugin.field_delimiter, context)
    if rule not in ("", "json", "split", "text", "csv"):
        raise refusal(context.key("parsingRules"), rule, "json or split")
    if plugin.kafka_reader_column_key and rule == "json":
        columns = [(name.strip(), "string") for name in plugin.kafka_reader_column_key.split(",")]
    elif plugin.column:
        columns = [(column.name, column.type) for column in plugin.column]
    elif plugin.column_count is not None:
        columns = [(f"c{number}", "string") for number in range(plugin.column_count)]
    else:
        raise context.missing(
            "column", 'the fields of a message, such as ["id", "name"], or ["__value__"]'
        )
    for name, _ in columns:
        if name == "*" or "[" in name or name == "__headers__" or name.startswith("'"):
            raise refusal(
                context.key("column"), name, "names of fields; a.b is the field b of the field a"
            )
    columns = [(_SPECIAL.get(name, name), kind) for name, kind in columns]
    cut = rule in ("split", "text", "csv") or (not rule and delimiter != "")
    form = (
        {"valueFormat": "text", "delimiter": delimiter or ","} if cut else {"valueFormat": "json"}
    )
    if all(name in _SPECIAL.values() for name, _ in columns):
        form = {"valueFormat": "text"}  # nothing is looked for inside of the values
    return _ordered(columns, plugin, context), form


def _ordered(
    columns: list[tuple[str, str]], plugin: KafkaReader, context: PluginContext
) -> list[tuple[str, str]]:
    order = plugin.writer_order.replace(" ", "")
    if not order or order == ",".join(str(number + 1) for number in range(len(columns))):
        return columns
    raise refusal(
        context.key("writerOrder"),
        plugin.writer_order,
        f"1 to {len(columns)} in this order: name the writer's columns in the order of the fields",
    )


def _plain(text: str, context: PluginContext) -> str:
    """A delimiter, of which Java makes a regular expression in `split`."""
    delimiter = _unescaped(text)
    if re.fullmatch(r"\\[^A-Za-z0-9]", delimiter):
        return delimiter[1]
    if len(delimiter) > 1 and re.search(r"[\\\[\](){}*+?^$]|(?<=.)\|", delimiter):
        raise refusal(
            context.key("split"), text, "a plain text, or one escaped character such as \\|"
        )
    return delimiter


def _unescaped(text: str) -> str:
    r"""`\t`, `\n` and `\u0001` as DataWorks writes them."""
    for sign, character in (("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r")):
        text = text.replace(sign, character)
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match.group(1), 16)), text)


def _range(plugin: KafkaReader, context: PluginContext) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text, option in (
        ("beginDateTime", plugin.begin_date_time, "beginTimestamp"),
        ("endDateTime", plugin.end_date_time, "endTimestamp"),
    ):
        if text:
            options[option] = _moment(context.key(key), text)
    for key, text, option in (
        ("beginOffset", plugin.begin_offset, "beginOffsets"),
        ("endOffset", plugin.end_offset, "endOffsets"),
    ):
        if text and option.replace("Offsets", "Timestamp") in options:
            context.ineffective.append(f"{context.key(key)} (the time is taken)")
        elif text:
            word = {"seektobeginning": "earliest", "seektoend": "latest"}.get(
                text.lower(), text.lower()
            )
            if not (word.isdigit() or word == ("earliest" if key == "beginOffset" else "latest")):
                raise refusal(
                    context.key(key),
                    text,
                    f"a number, or {'earliest' if key == 'beginOffset' else 'latest'}",
                )
            options[option] = word
    if not {"beginTimestamp", "beginOffsets"} & set(options):
        _check_start(plugin, context)
    return options


def _check_start(plugin: KafkaReader, context: PluginContext) -> None:
    """Without a begin, a job reads the whole topic, and never from the offsets of a group."""
    settings = {**plugin.kafka_config, **plugin.properties, **plugin.consumer_settings}
    named = 'beginDateTime (yyyyMMddHHmmss), beginOffset, or "beginOffset": "earliest" for the whole topic'
    for key, word in (
        ("mode", plugin.mode),
        ("offsetMode", plugin.offset_mode),
        ("kafkaConfig", settings.get("auto.offset.reset", "")),
    ):
        if word and word.lower() not in ("earliest", "earliest-offset"):
            raise refusal(
                context.key(key), word, f"earliest: a job ends where the topic ends now. Or {named}"
            )
    key = "groupId" if plugin.group_id else "groupid" if plugin.groupid else "kafkaConfig"
    if plugin.group_id or plugin.groupid or "group.id" in settings:
        raise refused(
            context.key(key),
            "a consumer group, and nothing that says where the read begins",
            f"{named}: the offsets of a group are neither read nor committed, so each run would read the whole topic",
        )
    context.warnings.append(
        f"{context.path}: the whole topic is read, up to its present end; name the begin by {named}"
    )


def _moment(path: str, text: str) -> str:
    try:
        moment = datetime.strptime(text, "%Y%m%d%H%M%S")
    except ValueError:
        raise refusal(path, text, "yyyyMMddHHmmss, such as 20240131083000") from None
    return moment.replace(tzinfo=ZoneInfo(local_zone())).isoformat()


def kafka_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(KafkaWriter, parameter)
    names = [column.name for column in plugin.column or plugin.table_fields]
    if names == ["*"]:
        names = []
    options = {
        **_place_of(plugin, plugin.producer_settings, context),
        **_form(plugin, names, context),
        "timeZone": local_zone(),
    }
    keys = [_named(number, names, "keyIndex", context) for number in plugin.key_index]
    if plugin.key_field:
        keys = [plugin.key_field]
    if keys:
        options["keyColumns"] = json.dumps(keys)
    if plugin.value_index is not None:
        options |= {
            "valueFormat": "text",
            "valueColumns": json.dumps([_named(plugin.value_index, names, "valueIndex", context)]),
        }
    if plugin.partition is not None:
        options["partition"] = str(plugin.partition)
    if plugin.null_key_format:
        raise refusal(
            context.key("nullKeyFormat"),
            plugin.null_key_format,
            "nothing: a NULL is a record without a key",
        )
    if plugin.compression_type:
        options["compression"] = plugin.compression_type.lower()
    for key, word in (("ack", plugin.ack), ("acks", plugin.acks)):
        if word and word.lower() not in ("all", "-1"):
            context.ineffective.append(
                f"{context.key(key)} (a record counts when all replicas in sync have it)"
            )
    if plugin.no_topic_create or plugin.notopic_create:
        options["createTopic"] = "true"
        for option, number in (
            ("topicPartitions", plugin.topic_num_partition),
            ("replicationFactor", plugin.topic_replication_factor),
        ):
            if number is not None:
                options[option] = str(number)
    path = context.key("column")
    steps: list[Transformer] = [Labelled(Rename(tuple(names)), path)] if names else []
    steps.append(times_as_text(None, context))
    if options["valueFormat"] == "text":
        steps.append(JavaTexts())
    return ParsedPlugin(Endpoint("kafka", options), tuple(steps), local_times=True)


def _form(plugin: KafkaWriter, names: list[str], context: PluginContext) -> dict[str, str]:
    """DataWorks and most plugins join the values, Addax and FlinkX write objects."""
    given_as = (
        ("writeType", plugin.write_type),
        ("writeMode", plugin.write_mode),
        ("format", plugin.format),
    )
    key, word = next(((key, word) for key, word in given_as if word), ("writeType", ""))
    objects = bool(plugin.broker_list or plugin.table_fields or (plugin.brokers and names))
    kind = word.lower() or ("json" if objects else "text")
    if kind == "json":
        if not names:
            raise context.missing(
                "column",
                'the names of the fields: values are written as {"id": 1}, not as DataX\'s own records',
            )
        return {"valueFormat": "json"}
    if kind not in ("text", "csv"):
        raise refusal(context.key(key), word, "text or json")
    # DataWorks, whose key is `server`, puts a tab between values, and the other plugins a comma.
    delimiter = _unescaped(plugin.field_delimiter) or ("\t" if plugin.server else ",")
    return {"valueFormat": "text", "delimiter": delimiter, "nullValue": plugin.null_value_format}


def _named(number: int, names: list[str], key: str, context: PluginContext) -> str:
    if not names:
        raise context.missing("column", f"the names of the columns, with {key}")
    if number >= len(names):
        raise refusal(context.key(key), number, f"0 to {len(names) - 1}, the positions of column")
    return names[number]
