"""DataX's plugins for servers that speak the protocol of MySQL or PostgreSQL."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.datax.place import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.databases import database_reader, database_writer, known_databases
from spark_channel.datax.values import Flag, JobSection, Positive, Text, refused

__all__ = [
    "ALIASES",
    "AdbpgWriter",
    "OceanbaseReader",
    "OceanbaseWriter",
    "alias_reader",
    "alias_writer",
]

_S = TypeVar("_S", bound=JobSection)


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
_TENANT = re.compile(
    r"\|\|_dsc_ob10_dsc_\|\|(?P<tenant>.*?)\|\|_dsc_ob10_dsc_\|\|(?P<url>.*)", re.DOTALL
)
"""How oceanbasev10 writes `cluster:tenant` in front of a url: as a part of the user's name."""

_DIRECT = "rows are inserted by SQL"
_PACE = "set a limit: the server's memory is not watched"
_THREADS = "job.setting.speed.channel says how many write at the same time"
_SESSIONS = "each channel has one connection"


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


def alias_reader(name: str, parameter: dict[str, Any], place: PluginContext) -> ParsedPlugin:
    made = _translated(name, parameter, place)
    if name == "oceanbasev10":
        own, made = _own(OceanbaseReader, made, place)
        if own.read_batch_size is not None:
            made["fetchSize"] = own.read_batch_size
    return database_reader(known_databases()[ALIASES[name].protocol], made, place)


def alias_writer(name: str, parameter: dict[str, Any], place: PluginContext) -> ParsedPlugin:
    made = _translated(name, parameter, place)
    if name == "oceanbasev10":
        given, made = _own(OceanbaseWriter, made, place)
        made["writeMode"] = given.ob_write_mode
    elif name == "drds":
        # What drdswriter does unless a job says `insert ignore`.
        made.setdefault("writeMode", "replace")
    elif name == "adbmysql":
        _adbmysql(made, place)
    elif name == "adbpg":
        made = _adbpg(made, place)
    return database_writer(known_databases()[ALIASES[name].protocol], made, place)


def _own(
    model: type[_S], parameter: dict[str, Any], place: PluginContext
) -> tuple[_S, dict[str, Any]]:
    """What only this plugin knows, and the rest of the parameter."""
    known = {
        *(field.alias for field in model.model_fields.values()),
        *model.ignored,
        *model.refused,
    }
    own = {key: value for key, value in parameter.items() if key in known}
    return place.read(model, own), {
        key: value for key, value in parameter.items() if key not in known
    }


def _adbmysql(parameter: dict[str, Any], place: PluginContext) -> None:
    """DataX knows ON DUPLICATE KEY UPDATE for MySQL alone, and sends REPLACE for `update` elsewhere."""
    mode = parameter.get("writeMode")
    if mode is None:
        place.warnings.append(
            f"{place.key('writeMode')} is missing: rows are inserted, as DataX's adbmysqlwriter does, "
            "although its page names replace as the default"
        )
    elif isinstance(mode, str) and mode.strip().lower().startswith("update"):
        parameter["writeMode"] = "replace"
        place.warnings.append(
            f"{place.key('writeMode')}: update means replace, as in DataX's adbmysqlwriter; "
            "a column that is not written gets its default"
        )


def _adbpg(parameter: dict[str, Any], place: PluginContext) -> dict[str, Any]:
    given, made = _own(AdbpgWriter, parameter, place)
    if "connection" not in made:
        wanted = {"host": given.host, "database": given.database, "table": given.table}
        missing = next((key for key, value in wanted.items() if not value.strip()), None)
        if missing is not None:
            raise place.missing(missing, "host, port, database, schema and table, or connection")
        table = f"{given.schema_name}.{given.table}" if given.schema_name else given.table
        url = f"jdbc:postgresql://{given.host}:{given.port}/{quote(given.database, safe='', errors='surrogatepass')}"
        made["connection"] = [{"jdbcUrl": url, "table": [table]}]
    if given.ignore_insert:
        made["writeMode"] = "insert ignore"
    return made


def _translated(name: str, parameter: dict[str, Any], place: PluginContext) -> dict[str, Any]:
    """The parameter with urls of the protocol. What is malformed stays, and is refused where it is read."""
    protocol, schemes = ALIASES[name].protocol, ALIASES[name].schemes
    place.warnings.append(
        f"{place.path}: {place.plugin} is read and written by the protocol of {protocol}; it was not tested "
        "against this kind of server"
    )
    users: set[str] = set()

    def url(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        found = _TENANT.fullmatch(text.strip())
        if found is not None:
            text = found["url"]
            cluster, _, tenant = found["tenant"].partition(":")
            users.add(f"@{tenant}#{cluster}" if tenant else f"@{cluster}")
        for scheme in schemes:
            text = re.sub(rf"^\s*jdbc:{scheme}:", f"jdbc:{protocol}:", text, flags=re.IGNORECASE)
        return text

    made = _with_urls(parameter, url)
    user = made.get("username")
    if users and isinstance(user, str) and "@" not in user:
        if len(users) > 1:
            raise refused(
                place.key("connection"),
                "urls of several tenants",
                "urls of one, which becomes a part of the user's name",
            )
        made["username"] = user + users.pop()
    return made


def _with_urls(parameter: dict[str, Any], url: Callable[[Any], Any]) -> dict[str, Any]:
    given = parameter.get("connection")
    listed = given if isinstance(given, list) else [given]
    made = []
    for connection in listed:
        if isinstance(connection, dict) and "jdbcUrl" in connection:
            urls = connection["jdbcUrl"]
            connection = {
                **connection,
                "jdbcUrl": [url(each) for each in urls] if isinstance(urls, list) else url(urls),
            }
        made.append(connection)
    return (
        {**parameter, "connection": made if isinstance(given, list) else made[0]}
        if given is not None
        else dict(parameter)
    )
