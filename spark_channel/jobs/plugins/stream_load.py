"""starrockswriter, doriswriter and selectdbwriter: one connector, since their Stream Loads are one."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_channel.jobs.place import End, Place, at
from spark_channel.jobs.plugins.documents import local_zone
from spark_channel.jobs.plugins.files import times_as_text
from spark_channel.jobs.values import Section, Text, Texts, refusal
from spark_channel.planning import Endpoint
from spark_channel.transform import Labelled, Rename, Transformer

__all__ = ["stream_load_writer"]

_SHAPES = (
    "format", "column_separator", "row_delimiter", "line_delimiter", "strip_outer_array", "read_json_by_line",
    "strict_mode", "max_filter_ratio", "columns", "label", "enclose", "escape", "trim_double_quotes", "trim_space",
    "skip_lines", "skip_header", "compress_type", "timeout",
)  # fmt: skip
_OUR_SHAPE = "rows are sent as text with fixed delimiters, and a value that does not fit ends the job"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _texts_by_name(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return {
        str(name): str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()
    }


class LoadConnection(Section):
    jdbc_url: Text = ""
    selected_database: Text = ""
    database: Text = ""
    table: Texts = ()
    endpoint: Text = ""


class StreamLoadWriter(Section):
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
    load_props: Annotated[dict[str, str], BeforeValidator(_texts_by_name)] = Field(default_factory=dict)


def stream_load_writer(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(StreamLoadWriter, parameter)
    one = given.connection[0] if given.connection else LoadConnection()
    if len(given.connection) > 1:
        raise refusal(place.key("connection"), list(given.connection), "one connection")
    hosts = given.load_url or given.fe_load_url or ((one.endpoint,) if one.endpoint else ())
    urls = [_url(host, place) for text in hosts for host in text.replace(",", ";").split(";") if host.strip()]
    if not urls:
        raise place.missing("loadUrl", 'a list such as ["fe:8030"]')
    tables = given.table or one.table
    if len(tables) != 1:
        raise refusal(place.key("table"), list(tables), "one table")
    jdbc_url = given.jdbc_url or one.jdbc_url
    server, in_url = _server(jdbc_url)
    database, _, table = tables[0].replace("`", "").rpartition(".")
    database = (
        database
        or given.database
        or given.selected_database
        or one.selected_database
        or one.database
        or in_url
    )
    if not database:
        raise place.missing("database", "a name")
    options = {
        "url": ",".join(urls), "database": database, "dbtable": table, "timeZone": local_zone(),
        "user": given.username or "root",
    }  # fmt: skip
    if given.password:
        options["password"] = given.password
    options |= _sql(given, server, place)
    more = {name: text for name, text in given.load_props.items() if name.lower() not in _SHAPES}
    dropped = [name for name in given.load_props if name not in more]
    place.left.extend(f"{place.key('loadProps')}.{name} ({_OUR_SHAPE})" for name in dropped)
    if more:
        options["headers"] = json.dumps(more)
    place.warnings.append(
        f"{place.path}: each task is one load, which counts once; a rerun of the job adds its rows again, "
        "unless the table has a unique or primary key. It was not tested against this kind of server"
    )
    steps: list[Transformer] = [times_as_text(None, place)]
    if given.column != ("*",):
        path = place.key("column")
        with at(path):
            steps.append(Labelled(Rename(tuple(name.strip().strip("`") for name in given.column)), path))
    return End(Endpoint("streamload", options), tuple(steps), local_times=True)


def _url(host: str, place: Place) -> str:
    text = host.strip().rstrip("/")
    if "@" in text or text.count("/") not in (0, 2):
        raise refusal(place.key("loadUrl"), text, "host:port, as fe:8030")
    return text if "://" in text else f"http://{text}"


def _server(jdbc_url: str) -> tuple[str, str]:
    """(host:port, database) of a url of MySQL's driver; the first of several hosts."""
    rest = jdbc_url.partition("://")[2]
    hosts, _, database = rest.partition("/")
    return hosts.split(",")[0], database.partition("?")[0]


def _sql(given: StreamLoadWriter, server: str, place: Place) -> dict[str, str]:
    if not (given.pre_sql or given.post_sql):
        return {}
    if not server:
        raise place.missing("jdbcUrl", "the url under which preSql and postSql run, as jdbc:mysql://fe:9030/")
    made = {"queryServer": server}
    for option, statements in (("startSql", given.pre_sql), ("endSql", given.post_sql)):
        if statements:
            made[option] = json.dumps(list(statements))
    return made
