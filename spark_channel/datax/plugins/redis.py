"""rediswriter and redisreader, as the plugins that write and read values (not Addax's, which copy dumps)."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.plugins.document_columns import ddl, typed
from spark_channel.datax.plugins.files import times_as_text
from spark_channel.datax.sections import JobSection, refusal, refused
from spark_channel.datax.value_types import Flag, NotNegative, Positive, Text, Texts
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Output, Select
from spark_channel.transform.convert import local_zone

__all__ = ["redis_reader", "redis_writer"]


_KEY = "_key"


class RedisColumn(JobSection):
    """A column of the reader, by its position."""

    name: Text = ""
    index: NotNegative


class RedisReaderColumn(JobSection):
    name: Text
    type: Text = "string"


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _named(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of names, or of {"name": "_key", "type": "string"}')
    return [{"name": one} if isinstance(one, str) else one for one in value]


class RedisConfig(JobSection):
    """The columns that a value is made of."""

    col_key: RedisColumn | None = None
    str_key: Text = ""
    col_value: Annotated[tuple[RedisColumn, ...], BeforeValidator(_one_or_more)] = ()
    expire: Positive | None = None
    batch_size: Positive | None = None
    key_prefix: Text = ""
    key_suffix: Text = ""
    value_delimiter: Text = ""
    push_type: Literal["overwrite", "rpush", "lpush"] = "overwrite"
    hash_fields: Text = ""


class RedisPlugin(JobSection):
    ignored: ClassVar[dict[str, str]] = {"timeout": "one answer may take a minute"}
    refused: ClassVar[dict[str, str]] = {
        "connection": "Addax's plugins copy dumps of keys; here values are read and written: name the server in address"
    }

    address: Texts
    auth: Text = ""
    ssl: Flag = False
    db: NotNegative = 0


class RedisWriter(RedisPlugin):
    redis_mode: Literal["singleton", "cluster"] = "singleton"
    write_type: Literal["string", "list", "hash", "set"]
    write_mode: Literal["insert", "delete"] = "insert"
    config: RedisConfig


class RedisReader(RedisPlugin):
    mode: Literal["standalone", "singleton", "cluster"] = "standalone"
    include: Text = "*"
    column: Annotated[tuple[RedisReaderColumn, ...], BeforeValidator(_named)] = (
        RedisReaderColumn(name="_key"),
        RedisReaderColumn(name="_value"),
    )


def redis_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(RedisReader, parameter)
    columns = [(column.name, column.type) for column in plugin.column]
    options = {**_redis_address(plugin, plugin.mode == "cluster", context), "keys": plugin.include}
    options |= {"schema": ddl(columns), "timeZone": local_zone()}
    return ParsedPlugin(Endpoint("redis", options), (typed(columns, context),))


def _redis_address(plugin: RedisPlugin, cluster: bool, context: PluginContext) -> dict[str, str]:
    hosts = [host.strip() for text in plugin.address for host in text.split(",") if host.strip()]
    if not hosts or any(sign in host for host in hosts for sign in "/@"):
        raise refusal(
            context.key("address"), ",".join(plugin.address), "host:port, as 127.0.0.1:6379"
        )
    if len(hosts) > 1 and not cluster:
        raise refusal(
            context.key("address"), ",".join(hosts), "one address; a cluster is redisMode cluster"
        )
    scheme = "rediss" if plugin.ssl else "redis"
    options = {"url": f"{scheme}://{hosts[0]}/{plugin.db or ''}".rstrip("/")}
    if cluster:
        options["cluster"] = "true"
    return {**options, "password": plugin.auth} if plugin.auth else options


def redis_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(RedisWriter, parameter)
    config, path = plugin.config, context.key("config")
    if config.str_key or config.col_key is None:
        raise refused(
            f"{path}.colKey", "nothing" if not config.str_key else "strKey", "the column of the key"
        )
    deletes = plugin.write_mode == "delete"
    if not deletes and not config.col_value:
        raise context.missing("config.colValue", 'a column, such as {"name": "city", "index": 1}')
    values = () if deletes else config.col_value
    names = [column.name or f"c{column.index}" for column in values]
    if len({*names, _KEY}) <= len(names):
        raise refused(f"{path}.colValue", "a name twice", "each name once, and not _key")
    if plugin.write_type in ("list", "set") and len(names) > 1:
        raise refused(
            f"{path}.colValue", f"{len(names)} columns", f"one column for {plugin.write_type}"
        )
    options = {
        **_redis_address(plugin, plugin.redis_mode == "cluster", context),
        "valueType": plugin.write_type,
        "writeMode": _redis_mode(plugin, context),
        "keyColumns": json.dumps([_KEY]),
        "timeZone": local_zone(),
    }
    texts = (
        ("keyPrefix", config.key_prefix),
        ("keySuffix", config.key_suffix),
        ("valueDelimiter", config.value_delimiter if plugin.write_type in ("list", "set") else ""),
        ("expireSeconds", "" if config.expire is None or deletes else str(config.expire)),
        ("batchSize", "" if config.batch_size is None else str(config.batch_size)),
    )
    options |= {option: text for option, text in texts if text}
    if deletes and plugin.write_type == "hash" and config.hash_fields:
        options["hashFields"] = json.dumps(
            [name.strip() for name in config.hash_fields.split(",") if name.strip()]
        )
    outputs = [Output(config.col_key.index, _KEY)]
    outputs += [Output(column.index, name) for column, name in zip(values, names, strict=True)]
    with at(path):
        step = Labelled(Select(tuple(outputs)), path)
    return ParsedPlugin(
        Endpoint("redis", options), (step, times_as_text(None, context)), local_times=True
    )


def _redis_mode(plugin: RedisWriter, context: PluginContext) -> str:
    if plugin.write_mode == "delete":
        return "delete"
    if plugin.write_type != "list":
        return "upsert"
    if plugin.config.push_type == "lpush":
        raise refusal(
            context.key("config.pushType"),
            "lpush",
            "overwrite or rpush: items are appended at the end",
        )
    if plugin.config.push_type == "rpush":
        context.warnings.append(
            f"{context.path}: items are appended, so a rerun appends them again; pushType overwrite replaces "
            "the list, and a transaction (--commit job --txn NAME:VERSION) appends them once"
        )
        return "upsert"
    return "replace"
