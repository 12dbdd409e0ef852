"""mongodbreader and mongodbwriter, also with Addax's spelling of their keys."""

import json
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.jobs.place import End, Place, at
from spark_channel.jobs.plugins.documents import ddl, local_zone, typed
from spark_channel.jobs.values import Flag, Positive, Section, Text, Texts, refusal, refused
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Rename

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
_CONDITIONS = ("$gt", "$gte", "$lt", "$lte", "$ne", "$in", "$nin", "$eq")


class MongoColumn(Section):
    """One field of the documents."""

    name: Text
    type: Text = "string"
    splitter: Text = ""
    item_type: Text = Field("string", alias="itemtype")


def _columns(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"name": "_id", "type": "string"}')
    return [{"name": one} if isinstance(one, str) else one for one in value]


Columns = Annotated[tuple[MongoColumn, ...], BeforeValidator(_columns)]


class MongoConnection(Section):
    """Addax's `connection` object: the address of a server."""

    address: Texts = ()
    database: Text = ""
    collection: Text = ""
    auth_db: Text = ""


class MongoPlugin(Section):
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


class Upsert(Section):
    is_upsert: Flag = False
    upsert_key: Text = ""
    is_replace: Flag = False
    replace_key: Text = ""


class PreItem(Section):
    name: Text
    condition: Text = ""
    value: Any


class PreAction(Section):
    type: Text
    json_text: Any = Field(None, alias="json")
    item: tuple[PreItem, ...] = ()


def _mode(value: Any) -> Any:
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
    write_mode: Annotated[Upsert, BeforeValidator(_mode)] = Upsert()
    upsert_info: Upsert = Upsert()
    pre_sql: PreAction | None = None
    batch_size: Positive | None = None


def mongodb_reader(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(MongoReader, parameter)
    columns = [(column.name, column.type) for column in given.column]
    options = {**_address(given, place), "schema": ddl(columns), "timeZone": local_zone()}
    separators = {}
    for number, column in enumerate(given.column):
        if column.type.strip().lower() == "array":
            if not column.splitter:
                raise place.missing(f"column[{number}].splitter", "the text between the items of an array")
            separators[column.name] = column.splitter
    if separators:
        options["arraySeparators"] = json.dumps(separators)
    if given.query not in (None, ""):
        options["filter"] = _json(given.query)
    return End(Endpoint("mongodb", options), (typed(columns, place),))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _address(given: MongoReader | MongoWriter, place: Place) -> dict[str, str]:
    connection = given.connection
    hosts = given.address or connection.address
    database, collection = (
        given.db_name or connection.database,
        given.collection_name or connection.collection,
    )
    for key, value in (("address", hosts), ("dbName", database), ("collectionName", collection)):
        if not value:
            raise place.missing(key, 'a list such as ["127.0.0.1:27017"]' if key == "address" else "a name")
    for host in hosts:
        if "/" in host or "@" in host:
            raise refusal(place.key("address"), host, "host:port, as 127.0.0.1:27017")
    options = {"url": f"mongodb://{','.join(host.strip() for host in hosts)}/{quote(database, safe='')}"}
    options["collection"] = collection
    user, password = given.user_name or given.username, given.user_password or given.password
    if user:
        options |= {"user": user, "password": password}
        # DataX asks the database itself for the user, where no other is named.
        options["authSource"] = given.auth_db or connection.auth_db or database
    return options


def mongodb_writer(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(MongoWriter, parameter)
    names = tuple(column.name for column in given.column)
    types = {
        column.name: _type(column, f"{place.key('column')}[{n}]") for n, column in enumerate(given.column)
    }
    options = {
        **_address(given, place),
        "fieldTypes": json.dumps(types),
        "timeZone": local_zone(),
        "truncateTimes": "true",
    }
    if given.batch_size is not None:
        options["batchSize"] = str(given.batch_size)
    key = _key(given, names, place)
    if key:
        options |= {"writeMode": "replace", "keyColumns": json.dumps([key])}
    else:
        place.warnings.append(
            f"{place.path}: documents are inserted, so a rerun inserts them again; "
            "writeMode with isReplace and replaceKey replaces them"
        )
    if given.pre_sql is not None:
        options["deleteFilter"] = _removed(given.pre_sql, place)
    with at(place.key("column")):
        step = Labelled(Rename(names), place.key("column"))
    return End(Endpoint("mongodb", options), (step,))


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


def _key(given: MongoWriter, names: tuple[str, ...], place: Place) -> str:
    """The column by which documents are replaced; "" = they are inserted."""
    for path, mode in (("writeMode", given.write_mode), ("upsertInfo", given.upsert_info)):
        if not (mode.is_replace or mode.is_upsert):
            continue
        key = mode.replace_key or mode.upsert_key
        word = "replaceKey" if mode.is_replace else "upsertKey"
        if not key:
            raise place.missing(f"{path}.{word}", "the column that identifies a document")
        if key not in names:
            raise refusal(f"{place.key(path)}.{word}", key, "one of the columns: " + ", ".join(names))
        return key
    return ""


def _removed(action: PreAction, place: Place) -> str:
    path, kind = place.key("preSql"), action.type.strip().lower()
    if kind == "drop":
        place.warnings.append(f"{path}: all documents are removed, and the collection keeps its indexes")
        return "{}"
    if kind != "remove":
        raise refusal(f"{path}.type", action.type, "drop or remove")
    if action.json_text:
        return _json(action.json_text)
    if not action.item:
        raise refused(path, "remove without json and item", "one of them; drop removes all documents")
    made: dict[str, Any] = {}
    for number, item in enumerate(action.item):
        if item.condition and item.condition not in _CONDITIONS:
            raise refusal(
                f"{path}.item[{number}].condition", item.condition, "one of " + ", ".join(_CONDITIONS)
            )
        if item.condition:
            made.setdefault(item.name, {})[item.condition] = item.value
        else:
            made[item.name] = item.value
    return json.dumps(made)
