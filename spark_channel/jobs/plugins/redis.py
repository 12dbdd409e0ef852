"""rediswriter and redisreader, as the plugins for DataX that write and read values (not Addax's, which copy dumps)."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from spark_channel.jobs.place import End, Place, at
from spark_channel.jobs.plugins.documents import ddl, local_zone, typed
from spark_channel.jobs.plugins.files import times_as_text
from spark_channel.jobs.values import Flag, NotNegative, Positive, Section, Text, Texts, refusal, refused
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Output, Select

__all__ = ["redis_reader", "redis_writer"]

_KEY = "_key"


class RedisColumn(Section):
    """A column of the reader, by its position."""

    name: Text = ""
    index: NotNegative


class RedisReaderColumn(Section):
    name: Text
    type: Text = "string"


def _one_or_more(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _named(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of names, or of {"name": "_key", "type": "string"}')
    return [{"name": one} if isinstance(one, str) else one for one in value]


class RedisConfig(Section):
    """What a value is made of."""

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


class RedisPlugin(Section):
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


def redis_reader(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(RedisReader, parameter)
    columns = [(column.name, column.type) for column in given.column]
    options = {**_address(given, given.mode == "cluster", place), "keys": given.include}
    options |= {"schema": ddl(columns), "timeZone": local_zone()}
    return End(Endpoint("redis", options), (typed(columns, place),))


def _address(given: RedisPlugin, cluster: bool, place: Place) -> dict[str, str]:
    hosts = [host.strip() for text in given.address for host in text.split(",") if host.strip()]
    if not hosts or any(sign in host for host in hosts for sign in "/@"):
        raise refusal(place.key("address"), ",".join(given.address), "host:port, as 127.0.0.1:6379")
    if len(hosts) > 1 and not cluster:
        raise refusal(place.key("address"), ",".join(hosts), "one address; a cluster is redisMode cluster")
    scheme = "rediss" if given.ssl else "redis"
    options = {"url": f"{scheme}://{hosts[0]}/{given.db or ''}".rstrip("/")}
    if cluster:
        options["cluster"] = "true"
    return {**options, "password": given.auth} if given.auth else options


def redis_writer(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(RedisWriter, parameter)
    config, path = given.config, place.key("config")
    if config.str_key or config.col_key is None:
        raise refused(
            f"{path}.colKey", "nothing" if not config.str_key else "strKey", "the column of the key"
        )
    deletes = given.write_mode == "delete"
    if not deletes and not config.col_value:
        raise place.missing("config.colValue", 'a column, such as {"name": "city", "index": 1}')
    values = () if deletes else config.col_value
    names = [column.name or f"c{column.index}" for column in values]
    if len({*names, _KEY}) <= len(names):
        raise refused(f"{path}.colValue", "a name twice", "each name once, and not _key")
    if given.write_type in ("list", "set") and len(names) > 1:
        raise refused(f"{path}.colValue", f"{len(names)} columns", f"one column for {given.write_type}")
    options = {
        **_address(given, given.redis_mode == "cluster", place),
        "valueType": given.write_type,
        "writeMode": _mode(given, place),
        "keyColumns": json.dumps([_KEY]),
        "timeZone": local_zone(),
    }
    more = (
        ("keyPrefix", config.key_prefix),
        ("keySuffix", config.key_suffix),
        ("valueDelimiter", config.value_delimiter if given.write_type in ("list", "set") else ""),
        ("expireSeconds", "" if config.expire is None or deletes else str(config.expire)),
        ("batchSize", "" if config.batch_size is None else str(config.batch_size)),
    )
    options |= {option: text for option, text in more if text}
    if deletes and given.write_type == "hash" and config.hash_fields:
        options["hashFields"] = json.dumps(
            [name.strip() for name in config.hash_fields.split(",") if name.strip()]
        )
    outputs = [Output(config.col_key.index, _KEY)]
    outputs += [Output(column.index, name) for column, name in zip(values, names, strict=True)]
    with at(path):
        step = Labelled(Select(tuple(outputs)), path)
    return End(Endpoint("redis", options), (step, times_as_text(None, place)), local_times=True)


def _mode(given: RedisWriter, place: Place) -> str:
    if given.write_mode == "delete":
        return "delete"
    if given.write_type != "list":
        return "upsert"
    if given.config.push_type == "lpush":
        raise refusal(
            place.key("config.pushType"), "lpush", "overwrite or rpush: items are appended at the end"
        )
    if given.config.push_type == "rpush":
        place.warnings.append(
            f"{place.path}: items are appended, so a rerun appends them again; pushType overwrite replaces "
            "the list, and a transaction (--commit job --txn NAME:VERSION) appends them once"
        )
        return "upsert"
    return "replace"
