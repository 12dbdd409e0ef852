"""DataX's plugins for servers that speak the protocol of MySQL or PostgreSQL."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.databases import database_reader, database_writer, known_databases
from spark_channel.datax.sections import JobSection, refused
from spark_channel.datax.value_types import Flag, Positive, Text

__all__ = [
    "ALIASES",
    "AdbpgWriter",
    "OceanbaseReader",
    "OceanbaseWriter",
    "alias_reader",
    "alias_writer",
]

_S = TypeVar("_S", bound=JobSection)
_TENANT = re.compile(
    r"\|\|_dsc_ob10_dsc_\|\|(?P<tenant>.*?)\|\|_dsc_ob10_dsc_\|\|(?P<url>.*)", re.DOTALL
)
"""How oceanbasev10 writes `cluster:tenant` in front of a url: as a part of the user's name."""
_DIRECT = "rows are inserted by SQL"
_PACE = "set a limit: the server's memory is not watched"
_THREADS = "job.setting.speed.channel says how many write at the same time"
_SESSIONS = "each channel has one connection"


@dataclass(frozen=True, slots=True)
class Alias:
    """`protocol`: the plugin whose protocol the server speaks; `schemes`: those of its JDBC driver."""

    protocol: str
    schemes: tuple[str, ...] = ()


ALIASES: dict[str, Alias] = {
    "drds": Alias("mysql"),
    "oceanbasev10": Alias("mysql", ("oceanbase",)),
    "adbmysql": Alias("mysql"),
    "gaussdb": Alias("postgresql", ("opengauss", "gaussdb")),
    "adbpg": Alias("postgresql"),
    "kingbasees": Alias("postgresql", ("kingbase8", "kingbase")),
}
"""By DataX's name."""


class OceanbaseReader(JobSection):
    """What oceanbasev10reader takes beside the settings of every database reader."""

    ignored: ClassVar[dict[str, str]] = {
        "timeout": "a query may take as long as it does",
        "readByPartition": "splitPk splits the tables",
        "retryLimit": "Spark retries tasks",
        "weakRead": "each query goes to the address of the url",
        "obCompatibilityMode": "the tenant is read in MySQL's mode",
    }
    refused: ClassVar[dict[str, str]] = {
        "partitionName": "the whole table would be read; use querySql with `select ... from t partition (p0)`",
    }

    read_batch_size: Positive | None = None


def _write_mode(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


class OceanbaseWriter(JobSection):
    """What oceanbasev10writer takes beside the settings of every database writer."""

    ignored: ClassVar[dict[str, str]] = {
        "writeMode": "oceanbasev10writer uses obWriteMode",
        "memstoreThreshold": _PACE,
        "memstoreCheckIntervalSecond": _PACE,
        "writerThreadCount": _THREADS,
        "writerSubTaskCount": _THREADS,
        "concurrentWrite": _THREADS,
        "parallel": _THREADS,
        "maxActiveConnection": _SESSIONS,
        "usePartCalculator": "the server routes rows to partitions",
        "directPath": _DIRECT,
        "rpcPort": _DIRECT,
        "bufferSize": _DIRECT,
        "heartBeatInterval": _DIRECT,
        "heartBeatTimeout": _DIRECT,
        "timeout": "a statement may take as long as it does",
        "failTryCount": "Spark retries tasks",
        "printCost": "the report says what took how long",
        "costBound": "the report says what took how long",
    }
    refused: ClassVar[dict[str, str]] = {
        "obUpdateColumns": "a row whose key exists is updated in all columns of `column`, or refused "
        '("obWriteMode": "insert")',
    }

    ob_write_mode: Annotated[Literal["insert", "update"], BeforeValidator(_write_mode)] = "update"


class AdbpgWriter(JobSection):
    """How adbpgwriter names its table, in place of `connection`."""

    ignored: ClassVar[dict[str, str]] = {
        "insertIgnore": "adbpgwriter uses ignoreInsert",
        "retryTimes": "Spark retries tasks",
        "retryIntervalTime": "Spark retries tasks",
        "commitSize": "batches follow the channel's bytes",
        "parallelNumber": _THREADS,
        "shareDataSource": _SESSIONS,
    }

    host: Text = ""
    port: Positive = 5432
    database: Text = ""
    schema_name: Text = Field("", alias="schema")
    table: Text = ""
    ignore_insert: Flag = False


def alias_reader(name: str, parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    translated = _translated(name, parameter, context)
    if name == "oceanbasev10":
        oceanbase, translated = _own(OceanbaseReader, translated, context)
        if oceanbase.read_batch_size is not None:
            translated["fetchSize"] = oceanbase.read_batch_size
    return database_reader(known_databases()[ALIASES[name].protocol], translated, context)


def alias_writer(name: str, parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    translated = _translated(name, parameter, context)
    if name == "oceanbasev10":
        oceanbase, translated = _own(OceanbaseWriter, translated, context)
        translated["writeMode"] = oceanbase.ob_write_mode
    elif name == "drds":
        # What drdswriter does unless a job says `insert ignore`.
        translated.setdefault("writeMode", "replace")
    elif name == "adbmysql":
        _adbmysql(translated, context)
    elif name == "adbpg":
        translated = _adbpg(translated, context)
    return database_writer(known_databases()[ALIASES[name].protocol], translated, context)


def _own(
    model: type[_S], parameter: dict[str, Any], context: PluginContext
) -> tuple[_S, dict[str, Any]]:
    """What only this plugin knows, and the rest of the parameter."""
    keys = {
        *(field.alias for field in model.model_fields.values()),
        *model.ignored,
        *model.refused,
    }
    own_parameter = {key: value for key, value in parameter.items() if key in keys}
    return context.read(model, own_parameter), {
        key: value for key, value in parameter.items() if key not in keys
    }


def _adbmysql(parameter: dict[str, Any], context: PluginContext) -> None:
    """DataX knows ON DUPLICATE KEY UPDATE for MySQL alone, and sends REPLACE for `update` elsewhere."""
    mode = parameter.get("writeMode")
    if mode is None:
        context.warnings.append(
            f"{context.key('writeMode')} is missing: rows are inserted, as DataX's adbmysqlwriter does, "
            "although its page names replace as the default"
        )
    elif isinstance(mode, str) and mode.strip().lower().startswith("update"):
        parameter["writeMode"] = "replace"
        context.warnings.append(
            f"{context.key('writeMode')}: update means replace, as in DataX's adbmysqlwriter; "
            "a column that is not written gets its default"
        )


def _adbpg(parameter: dict[str, Any], context: PluginContext) -> dict[str, Any]:
    adbpg, remaining = _own(AdbpgWriter, parameter, context)
    if "connection" not in remaining:
        address = {"host": adbpg.host, "database": adbpg.database, "table": adbpg.table}
        missing = next((key for key, value in address.items() if not value.strip()), None)
        if missing is not None:
            raise context.missing(missing, "host, port, database, schema and table, or connection")
        table = f"{adbpg.schema_name}.{adbpg.table}" if adbpg.schema_name else adbpg.table
        url = f"jdbc:postgresql://{adbpg.host}:{adbpg.port}/{quote(adbpg.database, safe='', errors='surrogatepass')}"
        remaining["connection"] = [{"jdbcUrl": url, "table": [table]}]
    if adbpg.ignore_insert:
        remaining["writeMode"] = "insert ignore"
    return remaining


def _translated(name: str, parameter: dict[str, Any], context: PluginContext) -> dict[str, Any]:
    """The parameter with urls of the protocol. What is malformed stays, and is refused where it is read."""
    protocol, schemes = ALIASES[name].protocol, ALIASES[name].schemes
    context.warnings.append(
        f"{context.path}: {context.plugin} is read and written by the protocol of {protocol}; it was not tested "
        "against this kind of server"
    )
    users: set[str] = set()

    def url(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        tenant_match = _TENANT.fullmatch(text.strip())
        if tenant_match is not None:
            text = tenant_match["url"]
            cluster, _, tenant = tenant_match["tenant"].partition(":")
            users.add(f"@{tenant}#{cluster}" if tenant else f"@{cluster}")
        for scheme in schemes:
            text = re.sub(rf"^\s*jdbc:{scheme}:", f"jdbc:{protocol}:", text, flags=re.IGNORECASE)
        return text

    translated = _with_urls(parameter, url)
    user = translated.get("username")
    if users and isinstance(user, str) and "@" not in user:
        if len(users) > 1:
            raise refused(
                context.key("connection"),
                "urls of several tenants",
                "urls of one, which becomes a part of the user's name",
            )
        translated["username"] = user + users.pop()
    return translated


def _with_urls(parameter: dict[str, Any], url: Callable[[Any], Any]) -> dict[str, Any]:
    connection_given = parameter.get("connection")
    connections = connection_given if isinstance(connection_given, list) else [connection_given]
    connections_made = []
    for connection in connections:
        if isinstance(connection, dict) and "jdbcUrl" in connection:
            urls = connection["jdbcUrl"]
            connection = {
                **connection,
                "jdbcUrl": [url(url_text) for url_text in urls]
                if isinstance(urls, list)
                else url(urls),
            }
        connections_made.append(connection)
    return (
        {
            **parameter,
            "connection": connections_made
            if isinstance(connection_given, list)
            else connections_made[0],
        }
        if connection_given is not None
        else dict(parameter)
    )
