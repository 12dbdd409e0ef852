"""elasticsearchwriter, and Addax's elasticsearchreader."""

import json
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.plugins.document_columns import ddl, typed
from spark_channel.datax.sections import JobSection, refusal, refuse_twice
from spark_channel.datax.value_types import Flag, Object, Positive, Text
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Labelled, Output, Select
from spark_channel.transform.convert import local_zone

__all__ = ["elasticsearch_reader", "elasticsearch_writer"]


_WHOLE = pa.int64()
_KINDS: dict[str, pa.DataType | None] = {
    "id": pa.string(),
    "string": pa.string(),
    "text": pa.string(),
    "keyword": pa.string(),
    "ip": pa.string(),
    "long": _WHOLE,
    "integer": _WHOLE,
    "short": _WHOLE,
    "byte": _WHOLE,
    "double": pa.float64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "date": None,
    "binary": None,
    "nested": pa.string(),
    "object": pa.string(),
    "geo_point": pa.string(),
    "geo_shape": pa.string(),
}
_JSON = ("nested", "object", "geo_shape")


class ElasticColumn(JobSection):
    """One field of the documents."""

    name: Text = ""
    type: Text = "string"
    array: Flag = False
    format: Text = ""
    timezone: Text = ""
    analyzer: Text = ""


def _index_columns(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"name": "id", "type": "id"}')
    return [{"name": one} if isinstance(one, str) else one for one in value]


Columns = Annotated[tuple[ElasticColumn, ...], BeforeValidator(_index_columns)]


class ElasticPlugin(JobSection):
    endpoint: Text
    access_id: Text = ""
    access_key: Text = ""
    username: Text = ""
    password: Text = ""
    index: Text
    column: Columns


class ElasticReader(ElasticPlugin):
    ignored: ClassVar[dict[str, str]] = {
        "type": "an index has one type since Elasticsearch 7",
        "pageSize": "documents are fetched by the speed limit",
        "batchSize": "documents are fetched by the speed limit",
        "searchType": "documents are not scored",
        "scroll": "a search is kept for ten minutes between two portions",
        "discovery": "the endpoint is asked",
        "compression": "answers are not compressed",
        "multiThread": "slices are read by channels",
        "timeout": "one answer may take a minute",
        "trySize": "a server that is busy is asked again for a minute",
    }

    search: Any = None


class ElasticWriter(ElasticPlugin):
    ignored: ClassVar[dict[str, str]] = {
        "type": "an index has one type since Elasticsearch 7",
        "discovery": "the endpoint is asked",
        "compression": "requests are not compressed",
        "multiThread": "channels write at the same time",
        "timeout": "one answer may take a minute",
        "trySize": "a server that is busy is asked again for a minute",
        "tryInterval": "a server that is busy is asked again for a minute",
        "ignoreWriteError": "refused documents are dirty rows; see errorLimit",
        "ignoreParseError": "refused documents are dirty rows; see errorLimit",
        "esVersion": "the server says what it takes",
    }
    refused: ClassVar[dict[str, str]] = {
        "alias": "the index is written under its name; move an alias when the job has ended",
        "aliasMode": "the index is written under its name; move an alias when the job has ended",
    }

    cleanup: Flag = False
    batch_size: Positive | None = None
    splitter: Text = "-,-"
    dynamic: Flag = False
    settings: Object = Field(default_factory=dict)
    action_type: Text = "index"


def elasticsearch_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(ElasticReader, parameter)
    columns = [(column.name, column.type) for column in plugin.column]
    if not all(name for name, _ in columns):
        raise context.missing("column[].name", "the name of a field")
    options = {**_address(plugin), "schema": ddl(columns), "timeZone": local_zone()}
    search = plugin.search
    if isinstance(search, list) and len(search) == 1:
        search = search[0]
    if search not in (None, "", [], {}):
        if not isinstance(search, dict):
            raise refusal(
                context.key("search"), search, 'a search, such as {"query": {"match_all": {}}}'
            )
        strange = [name for name in search if name not in ("query", "_source", "size")]
        if strange or "query" not in search:
            got = strange[0] if strange else "no query"
            raise refusal(f"{context.key('search')}", got, "an object with a query")
        options["filter"] = json.dumps(search["query"])
    return ParsedPlugin(Endpoint("elasticsearch", options), (typed(columns, context),))


def _address(plugin: ElasticPlugin) -> dict[str, str]:
    options = {"url": plugin.endpoint, "index": plugin.index}
    user, password = plugin.access_id or plugin.username, plugin.access_key or plugin.password
    return {**options, "user": user, "password": password} if user else options


def elasticsearch_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(ElasticWriter, parameter)
    outputs, names, ids = [], [], []
    for number, column in enumerate(plugin.column):
        kind, path = column.type.strip().lower(), f"{context.key('column')}[{number}]"
        if kind not in _KINDS:
            raise refusal(f"{path}.type", column.type, "one of " + ", ".join(_KINDS))
        name = "_id" if kind == "id" else column.name
        if not name:
            raise context.missing(f"column[{number}].name", "the name of a field")
        if kind == "id":
            ids.append(name)
        names.append(name)
        outputs.append(Output(number, name, pa.string() if column.array else _KINDS[kind]))
    if len(ids) > 1:
        raise refusal(
            context.key("column"), "several columns of type id", "one; join them in the reader"
        )
    refuse_twice(context.key("column"), names)
    options = {
        **_address(plugin),
        "timeZone": local_zone(),
        "writeMode": _mode(plugin, bool(ids), context),
    }
    if plugin.batch_size is not None:
        options["batchSize"] = str(plugin.batch_size)
    options |= _shapes(plugin, names)
    if not ids:
        context.warnings.append(
            f"{context.path}: documents get new ids, so a rerun adds them again; a column of type id replaces them"
        )
    path = context.key("column")
    with at(path):
        step = Labelled(Select(tuple(outputs), exhaustive=True), path)
    mode: SaveMode = "overwrite" if plugin.cleanup else "append"
    return ParsedPlugin(Endpoint("elasticsearch", options), (step,), mode)


def _mode(plugin: ElasticWriter, has_id: bool, context: PluginContext) -> str:
    action = plugin.action_type.strip().lower()
    modes = {"index": "replace" if has_id else "insert", "create": "insert", "update": "upsert"}
    if action not in modes or (action == "update" and not has_id):
        raise refusal(
            context.key("actionType"),
            plugin.action_type,
            "index, create, or update with a column of type id",
        )
    return modes[action]


def _shapes(plugin: ElasticWriter, names: list[str]) -> dict[str, str]:
    """Which columns are arrays or JSON, and the index that is created if none exists."""
    options = {}
    kinds = {
        name: column.type.strip().lower() for name, column in zip(names, plugin.column, strict=True)
    }
    arrays = {
        name: plugin.splitter
        for name, column in zip(names, plugin.column, strict=True)
        if column.array
    }
    if arrays:
        options["arraySeparators"] = json.dumps(arrays)
    texts = [name for name, kind in kinds.items() if kind in _JSON and name not in arrays]
    if texts:
        options["jsonColumns"] = json.dumps(texts)
    index: dict[str, Any] = {"settings": plugin.settings} if plugin.settings else {}
    if not plugin.dynamic:
        fields: dict[str, Any] = {}
        for name, column in zip(names, plugin.column, strict=True):
            if name != "_id":
                kind = "text" if kinds[name] == "string" else kinds[name]
                mapping = {"format": column.format} if column.format and kind == "date" else {}
                mapping |= (
                    {"analyzer": column.analyzer} if column.analyzer and kind == "text" else {}
                )
                fields[name] = {"type": kind, **mapping}
        index["mappings"] = {"properties": fields}
    return {**options, "createIndex": json.dumps(index)} if index else options
