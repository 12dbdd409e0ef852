"""HTTP, Elasticsearch and Stream Load plugins."""

import json
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_channel.connectors.records.columns import path_of
from spark_channel.datax.place import ParsedPlugin, PluginContext, at
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
    refuse_twice,
    refused,
)
from spark_channel.masking import MASK
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Labelled, Output, Rename, Select, Transformer

__all__ = [
    "elasticsearch_reader",
    "elasticsearch_writer",
    "http_reader",
    "stream_load_writer",
]


# elasticsearchwriter, and Addax's elasticsearchreader.


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


def _object(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


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
    settings: Annotated[dict[str, Any], BeforeValidator(_object)] = Field(default_factory=dict)
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


# Addax's httpreader.


_SIZE = 20
"""Addax's own, of a page whose size the job does not say."""


def _one(value: object) -> object:
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError('one connection, such as {"url": "http://host/path"}')
        return value[0]
    return value


Object = Annotated[dict[str, Any], BeforeValidator(_object)]


class HttpProxy(JobSection):
    host: Text
    auth: Text = ""


class HttpConnection(JobSection):
    url: Text
    proxy: HttpProxy | None = None


class PageParameter(JobSection):
    key: Text = ""
    value: NotNegative | None = None


class PageParams(JobSection):
    page_index: PageParameter = PageParameter()
    page_size: PageParameter = PageParameter()


class HttpReader(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "sslVerify": "certificates are always verified; sslrootcert names another CA",
        "prefetchPages": "pages are read one after another",
    }
    refused: ClassVar[dict[str, str]] = {
        "authConfig": "get the token before the job, and give it as token, such as ${env:TOKEN}",
        "maxPages": "the rows of the pages behind it would be missing; ask for fewer with reqParams",
    }

    connection: Annotated[HttpConnection | None, BeforeValidator(_one)] = None
    url: Text = ""
    proxy: HttpProxy | None = None
    req_params: Object = Field(default_factory=dict)
    result_key: Text = ""
    method: Text = "get"
    column: Texts = ()
    username: Text = ""
    password: Text = ""
    token: Text = ""
    headers: Object = Field(default_factory=dict)
    encoding: Text = ""
    timeout: Positive | None = None
    is_page: Flag = False
    page_params: PageParams = PageParams()
    expect: Object | None = None
    sslrootcert: Text = ""


def http_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HttpReader, parameter)
    connection = plugin.connection or HttpConnection(url=plugin.url, proxy=plugin.proxy)
    if not connection.url:
        raise context.missing("connection.url", "the address of the service")
    method = plugin.method.strip().upper()
    if method not in ("GET", "POST"):
        raise refusal(context.key("method"), plugin.method, "get or post")
    if not plugin.column:
        raise context.missing("column", 'a list of keys, or ["*"]')
    options = {
        "url": connection.url,
        "method": method,
        **_sent(plugin, method, context),
        **_paged(plugin),
        **_columns(plugin.column, context),
    }
    proxy = connection.proxy or plugin.proxy
    if proxy is not None:
        options["proxy"] = _proxy(proxy, context)
    if (plugin.username == "") != (plugin.password == ""):
        raise refused(
            context.key("username"),
            "no password" if plugin.username else "nothing",
            "both, or neither",
        )
    texts = (
        ("resultKey", plugin.result_key),
        ("user", plugin.username),
        ("password", plugin.password),
        ("token", plugin.token),
        ("encoding", plugin.encoding),
        ("timeout", "" if plugin.timeout is None else str(plugin.timeout)),
        ("sslrootcert", plugin.sslrootcert),
        ("headers", json.dumps(plugin.headers) if plugin.headers else ""),
        ("expect", json.dumps(plugin.expect) if plugin.expect else ""),
    )
    return ParsedPlugin(
        Endpoint("http", {**options, **{name: text for name, text in texts if text}})
    )


def _sent(plugin: HttpReader, method: str, context: PluginContext) -> dict[str, str]:
    """What is asked for: with GET in the url, with POST as JSON, where the key "" is the body itself."""
    path = context.key("reqParams")
    if method == "GET":
        inner = next(
            (name for name, value in plugin.req_params.items() if isinstance(value, (dict, list))),
            None,
        )
        if inner is not None:
            raise refusal(
                f"{path}.{inner}", plugin.req_params[inner], "a text or a number, with method get"
            )
    elif "" in plugin.req_params:
        if plugin.is_page:
            raise refused(path, 'the key ""', "names, with isPage: the page is one of them")
        body = plugin.req_params[""]
        return {
            "body": body.strip() if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        }
    sent = {name: value for name, value in plugin.req_params.items() if name}
    return {"params": json.dumps(sent, ensure_ascii=False)} if sent else {}


def _paged(plugin: HttpReader) -> dict[str, str]:
    if not plugin.is_page:
        return {}
    index, size = plugin.page_params.page_index, plugin.page_params.page_size
    return {
        "pageParam": index.key or "pageIndex",
        "firstPage": str(1 if index.value is None else index.value),
        "pageSizeParam": size.key or "pageSize",
        "pageSize": str(size.value or _SIZE),
    }


def _columns(names: tuple[str, ...], context: PluginContext) -> dict[str, str]:
    """Texts, as Addax reads all values."""
    if names == ("*",):
        return {"inferSchema": "false"}
    path, columns = context.key("column"), []
    for number, key_text in enumerate(names):
        name = key_text.strip().removeprefix("$.")
        try:
            path_of(name)
        except ValueError:
            raise refusal(
                f"{path}[{number}]", key_text, "a key, or a path such as DEPT.ID or KK[0].COL1"
            ) from None
        columns.append((name, "string"))
    refuse_twice(path, [name.lower() for name, _ in columns])
    return {"schema": ddl(columns)}


def _proxy(proxy: HttpProxy, context: PluginContext) -> str:
    host = proxy.host.strip() if "://" in proxy.host else f"http://{proxy.host.strip()}"
    if not host.startswith("http://") or "@" in host:
        raise refusal(
            context.key("proxy.host"),
            proxy.host,
            "http://host:port; a SOCKS proxy is not supported",
        )
    if not proxy.auth:
        return host
    user, colon, password = proxy.auth.partition(":")
    if not user or not colon:
        raise refused(context.key("proxy.auth"), "***", "user:password")
    return (
        f"http://{quote(user, safe='')}:{quote(password, safe='')}@{host.removeprefix('http://')}"
    )


# starrockswriter, doriswriter and selectdbwriter: one connector, since their Stream Loads are one.


_SHAPES = (
    "format",
    "column_separator",
    "row_delimiter",
    "line_delimiter",
    "strip_outer_array",
    "read_json_by_line",
    "strict_mode",
    "max_filter_ratio",
    "columns",
    "label",
    "enclose",
    "escape",
    "trim_double_quotes",
    "trim_space",
    "skip_lines",
    "skip_header",
    "compress_type",
    "timeout",
)
_OUR_SHAPE = (
    "rows are sent as text with fixed delimiters, and a value that does not fit ends the job"
)


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _texts_by_name(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return {
        str(name): str(item).lower() if isinstance(item, bool) else str(item)
        for name, item in value.items()
    }


class LoadConnection(JobSection):
    jdbc_url: Text = ""
    selected_database: Text = ""
    database: Text = ""
    table: Texts = ()
    endpoint: Text = ""


class StreamLoadWriter(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "maxBatchRows": "a task is one load",
        "batchSize": "a task is one load",
        "maxBatchSize": "a task is one load, of a gigabyte at most",
        "maxBatchByteSize": "a task is one load, of a gigabyte at most",
        "flushInterval": "a task is one load",
        "flushQueueLength": "a task is one load",
        "labelPrefix": "labels are the job's and the task's, so that a task is loaded once",
        "beLoadUrl": "the frontend names the backend",
        "maxRetries": "a load is sent again for two minutes",
        "lineDelimiter": _OUR_SHAPE,
        "format": _OUR_SHAPE,
        "clusterName": "the frontend names the backend",
    }

    load_url: Texts = ()
    fe_load_url: Texts = ()
    jdbc_url: Text = ""
    database: Text = ""
    selected_database: Text = ""
    table: Texts = ()
    connection: Annotated[tuple[LoadConnection, ...], BeforeValidator(_listed)] = ()
    username: Text = ""
    password: Text = ""
    column: Texts
    pre_sql: Texts = ()
    post_sql: Texts = ()
    load_props: Annotated[dict[str, str], BeforeValidator(_texts_by_name)] = Field(
        default_factory=dict
    )


def stream_load_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(StreamLoadWriter, parameter)
    one = plugin.connection[0] if plugin.connection else LoadConnection()
    if len(plugin.connection) > 1:
        raise refusal(context.key("connection"), list(plugin.connection), "one connection")
    hosts = plugin.load_url or plugin.fe_load_url or ((one.endpoint,) if one.endpoint else ())
    urls = [
        _url(host, context)
        for text in hosts
        for host in text.replace(",", ";").split(";")
        if host.strip()
    ]
    if not urls:
        raise context.missing("loadUrl", 'a list such as ["fe:8030"]')
    tables = plugin.table or one.table
    if len(tables) != 1:
        raise refusal(context.key("table"), list(tables), "one table")
    jdbc_url = plugin.jdbc_url or one.jdbc_url
    server, in_url = _server(jdbc_url)
    database, _, table = tables[0].replace("`", "").rpartition(".")
    database = (
        database
        or plugin.database
        or plugin.selected_database
        or one.selected_database
        or one.database
        or in_url
    )
    if not database:
        raise context.missing("database", "a name")
    options = {
        "url": ",".join(urls),
        "database": database,
        "dbtable": table,
        "timeZone": local_zone(),
        "user": plugin.username or "root",
    }
    if plugin.password:
        options["password"] = plugin.password
    options |= _sql(plugin, server, context)
    properties = {
        name: text for name, text in plugin.load_props.items() if name.lower() not in _SHAPES
    }
    dropped = [name for name in plugin.load_props if name not in properties]
    context.ineffective.extend(
        f"{context.key('loadProps')}.{name} ({_OUR_SHAPE})" for name in dropped
    )
    if properties:
        options["headers"] = json.dumps(properties)
    context.warnings.append(
        f"{context.path}: each task is one load, which counts once; a rerun of the job adds its rows again, "
        "unless the table has a unique or primary key. It was not tested against this kind of server"
    )
    steps: list[Transformer] = [times_as_text(None, context)]
    if plugin.column != ("*",):
        path = context.key("column")
        with at(path):
            names = tuple(name.strip().strip("`") for name in plugin.column)
            refuse_twice(path, names)
            steps.append(Labelled(Rename(names), path))
    return ParsedPlugin(Endpoint("streamload", options), tuple(steps), local_times=True)


def _url(host: str, context: PluginContext) -> str:
    text = host.strip().rstrip("/")
    if "@" in text or text.count("/") not in (0, 2):
        host_shown = f"{MASK}@{text.rpartition('@')[2]}" if "@" in text else text
        raise refusal(context.key("loadUrl"), host_shown, "host:port, as fe:8030")
    return text if "://" in text else f"http://{text}"


def _server(jdbc_url: str) -> tuple[str, str]:
    """(host:port, database) of a url of MySQL's driver; the first of several hosts."""
    address = jdbc_url.partition("://")[2]
    hosts, _, database = address.partition("/")
    return hosts.split(",")[0], database.partition("?")[0]


def _sql(plugin: StreamLoadWriter, server: str, context: PluginContext) -> dict[str, str]:
    if not (plugin.pre_sql or plugin.post_sql):
        return {}
    if not server:
        raise context.missing(
            "jdbcUrl", "the url under which preSql and postSql run, as jdbc:mysql://fe:9030/"
        )
    options = {"queryServer": server}
    for option, statements in (("startSql", plugin.pre_sql), ("endSql", plugin.post_sql)):
        if statements:
            options[option] = json.dumps(list(statements))
    return options
