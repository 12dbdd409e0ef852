"""mongodbreader and mongodbwriter, also with Addax's spelling of their keys."""

import json
import re
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.connectors.mongodb.shell import parse_query
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.plugins.document_columns import ddl, typed
from spark_channel.datax.sections import JobSection, refusal, refused
from spark_channel.datax.value_types import Flag, Positive, Text, Texts
from spark_channel.errors import JobFileError
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Rename
from spark_channel.transform.convert import local_zone

__all__ = ["mongodb_reader", "mongodb_writer"]


_TYPES = {
    "objectid": "objectId",
    "int": "int",
    "long": "long",
    "float": "double",
    "double": "double",
    "date": "date",
    "timestamp": "date",
    "string": "string",
    "bool": "bool",
    "boolean": "bool",
    "bytes": "binary",
    "json": "json",
}
_ISO_DAY = re.compile(r"""\bISODate\s*\(\s*["'][0-9]{4}-[0-9]{2}-[0-9]{2}["']""")
_CONDITIONS = ("$gt", "$gte", "$lt", "$lte", "$ne", "$in", "$nin", "$eq")


class MongoColumn(JobSection):
    """One field of the documents."""

    name: Text
    type: Text = "string"
    splitter: Text = ""
    item_type: Text = Field("string", alias="itemtype")


def _columns(value: object) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"name": "_id", "type": "string"}')
    return [{"name": one} if isinstance(one, str) else one for one in value]


Columns = Annotated[tuple[MongoColumn, ...], BeforeValidator(_columns)]


class MongoConnection(JobSection):
    """Addax's `connection` object: the address of a server."""

    address: Texts = ()
    database: Text = ""
    collection: Text = ""
    auth_db: Text = ""


class MongoPlugin(JobSection):
    address: Texts = ()
    user_name: Text = ""
    username: Text = ""
    user_password: Text = ""
    password: Text = ""
    auth_db: Text = ""
    db_name: Text = ""
    collection_name: Text = ""
    connection: MongoConnection = MongoConnection()
    column: Columns


class MongoReader(MongoPlugin):
    ignored: ClassVar[dict[str, str]] = {
        "batchSize": "documents are fetched by the speed limit",
        "fetchSize": "documents are fetched by the speed limit",
        "isObjectId": "splits are cut by the index of _id, of any type",
    }

    query: Any = None


class Upsert(JobSection):
    is_upsert: Flag = False
    upsert_key: Text = ""
    is_replace: Flag = False
    replace_key: Text = ""


class PreItem(JobSection):
    name: Text
    condition: Text = ""
    value: Any


class PreAction(JobSection):
    type: Text
    json_text: Any = Field(None, alias="json")
    item: tuple[PreItem, ...] = ()


def _mongodb_mode(value: object) -> object:
    """Addax's `insert` and `update(key)` in DataX's form."""
    if not isinstance(value, str):
        return value
    text = "".join(value.split())
    if text.lower() == "insert":
        return {}
    if text.lower().startswith(("update(", "replace(")) and text.endswith(")"):
        return {"isReplace": True, "replaceKey": text.partition("(")[2][:-1]}
    raise ValueError('insert, update(key), or {"isReplace": true, "replaceKey": "_id"}')


class MongoWriter(MongoPlugin):
    write_mode: Annotated[Upsert, BeforeValidator(_mongodb_mode)] = Upsert()
    upsert_info: Upsert = Upsert()
    pre_sql: PreAction | None = None
    batch_size: Positive | None = None


def mongodb_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(MongoReader, parameter)
    columns = [(column.name, column.type) for column in plugin.column]
    options = {
        **_mongodb_address(plugin, context),
        "schema": ddl(columns),
        "timeZone": local_zone(),
    }
    separators = {}
    for number, column in enumerate(plugin.column):
        if column.type.strip().lower() == "array":
            if not column.splitter:
                raise context.missing(
                    f"column[{number}].splitter", "the text between the items of an array"
                )
            separators[column.name] = column.splitter
    if separators:
        options["arraySeparators"] = json.dumps(separators)
    if plugin.query not in (None, ""):
        options["filter"] = _query(plugin.query, context, "query")
    return ParsedPlugin(Endpoint("mongodb", options), (typed(columns, context),))


def _query(value: object, context: PluginContext, key: str) -> str:
    """As extended JSON; a day without a time begins in the zone of this machine, as DataX's driver reads it."""
    text, zone = value if isinstance(value, str) else json.dumps(value), local_zone()
    try:
        query = parse_query(text, zone)
    except ValueError as error:
        raise JobFileError(
            f"{context.key(key)} is not a query document of MongoDB: {error}"
        ) from None
    if zone != "UTC" and _ISO_DAY.search(text):
        context.warnings.append(
            f"{context.key(key)}: a day in ISODate begins at midnight in {zone}, as in DataX; MongoDB's shell takes UTC"
        )
    return json.dumps(query, ensure_ascii=False)


def _mongodb_address(plugin: MongoReader | MongoWriter, context: PluginContext) -> dict[str, str]:
    connection = plugin.connection
    hosts = plugin.address or connection.address
    database, collection = (
        plugin.db_name or connection.database,
        plugin.collection_name or connection.collection,
    )
    for key, value in (("address", hosts), ("dbName", database), ("collectionName", collection)):
        if not value:
            raise context.missing(
                key, 'a list such as ["127.0.0.1:27017"]' if key == "address" else "a name"
            )
    for host in hosts:
        if "/" in host or "@" in host:
            raise refusal(context.key("address"), host, "host:port, as 127.0.0.1:27017")
    options = {
        "url": f"mongodb://{','.join(host.strip() for host in hosts)}/{quote(database, safe='')}"
    }
    options["collection"] = collection
    user, password = plugin.user_name or plugin.username, plugin.user_password or plugin.password
    if user:
        options |= {"user": user, "password": password}
        # DataX asks the database itself for the user, where no other is named.
        options["authSource"] = plugin.auth_db or connection.auth_db or database
    return options


def mongodb_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(MongoWriter, parameter)
    names = tuple(column.name for column in plugin.column)
    types = {
        column.name: _type(column, f"{context.key('column')}[{n}]")
        for n, column in enumerate(plugin.column)
    }
    options = {
        **_mongodb_address(plugin, context),
        "fieldTypes": json.dumps(types),
        "timeZone": local_zone(),
        "truncateTimes": "true",
    }
    if plugin.batch_size is not None:
        options["batchSize"] = str(plugin.batch_size)
    key = _key(plugin, names, context)
    if key:
        options |= {"writeMode": "replace", "keyColumns": json.dumps([key])}
    else:
        context.warnings.append(
            f"{context.path}: documents are inserted, so a rerun inserts them again; "
            "writeMode with isReplace and replaceKey replaces them"
        )
    if plugin.pre_sql is not None:
        options["deleteFilter"] = _removed(plugin.pre_sql, context)
    with at(context.key("column")):
        step = Labelled(Rename(names), context.key("column"))
    return ParsedPlugin(Endpoint("mongodb", options), (step,))


def _type(column: MongoColumn, path: str) -> str:
    kind = column.type.strip().lower()
    if kind == "array":
        item = column.item_type.strip().lower() or "string"
        if item not in _TYPES:
            raise refusal(f"{path}.itemtype", column.item_type, "one of " + ", ".join(_TYPES))
        if not column.splitter:
            raise refused(path, "an array without splitter", "splitter, the text between the items")
        return f"array:{column.splitter}:{_TYPES[item]}"
    if kind not in _TYPES:
        raise refusal(f"{path}.type", column.type, "one of " + ", ".join([*_TYPES, "array"]))
    return _TYPES[kind]


def _key(plugin: MongoWriter, names: tuple[str, ...], context: PluginContext) -> str:
    """The column by which documents are replaced; "" = they are inserted."""
    for path, mode in (("writeMode", plugin.write_mode), ("upsertInfo", plugin.upsert_info)):
        if not (mode.is_replace or mode.is_upsert):
            continue
        key = mode.replace_key or mode.upsert_key
        word = "replaceKey" if mode.is_replace else "upsertKey"
        if not key:
            raise context.missing(f"{path}.{word}", "the column that identifies a document")
        if key not in names:
            raise refusal(
                f"{context.key(path)}.{word}", key, "one of the columns: " + ", ".join(names)
            )
        return key
    return ""


def _removed(action: PreAction, context: PluginContext) -> str:
    path, kind = context.key("preSql"), action.type.strip().lower()
    if kind == "drop":
        context.warnings.append(
            f"{path}: all documents are removed, and the collection keeps its indexes"
        )
        return "{}"
    if kind != "remove":
        raise refusal(f"{path}.type", action.type, "drop or remove")
    if action.json_text:
        return _query(action.json_text, context, "preSql.json")
    if not action.item:
        raise refused(
            path, "remove without json and item", "one of them; drop removes all documents"
        )
    conditions: dict[str, Any] = {}
    for number, item in enumerate(action.item):
        if item.condition and item.condition not in _CONDITIONS:
            raise refusal(
                f"{path}.item[{number}].condition",
                item.condition,
                "one of " + ", ".join(_CONDITIONS),
            )
        if item.condition:
            conditions.setdefault(item.name, {})[item.condition] = item.value
        else:
            conditions[item.name] = item.value
    return json.dumps(conditions)
