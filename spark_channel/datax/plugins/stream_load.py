"""starrockswriter, doriswriter and selectdbwriter: one connector, since their Stream Loads are one."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.plugins.files import times_as_text
from spark_channel.datax.sections import JobSection, refusal, refuse_twice
from spark_channel.datax.value_types import Text, Texts
from spark_channel.masking import MASK
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Rename, Transformer
from spark_channel.transform.convert import local_zone

__all__ = ["stream_load_writer"]


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
