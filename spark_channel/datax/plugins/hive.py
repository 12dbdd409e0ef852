"""hivereader and hivewriter, onto Spark's own Hive tables."""

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.sections import JobSection, refusal, refuse_twice
from spark_channel.datax.value_types import Text, Texts
from spark_channel.planning import Endpoint, EndpointOverrides
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Labelled, Rename

__all__ = ["hive_reader", "hive_writer"]


_METASTORE = "Spark reads the metastore: spark.sql.catalogImplementation=hive"
_SERVER_KEYS = (
    "jdbcUrl",
    "user",
    "username",
    "password",
    "defaultFS",
    "hadoopConfig",
    "haveKerberos",
    "kerberosKeytabFilePath",
    "kerberosPrincipal",
    "tmpDatabase",
    "tmpDatabasePath",
    "fileType",
    "fieldDelimiter",
    "compress",
    "connection",
)
_SERVER = dict.fromkeys(_SERVER_KEYS, _METASTORE)
_IDENTIFIER = re.compile(r"\w+(\.\w+)?")


class HiveReader(JobSection):
    ignored: ClassVar[dict[str, str]] = _SERVER

    sqls: Texts = ()
    hive_sql: Texts = ()
    query_sql: Texts = ()


def _columns(value: object) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of names, or of objects with a name")
    return tuple(one.get("name") if isinstance(one, dict) else one for one in value)


class HiveWriter(JobSection):
    ignored: ClassVar[dict[str, str]] = _SERVER

    database_name: Text = ""
    table_name: Text
    column: Annotated[Texts, BeforeValidator(_columns)]
    write_mode: Text = "insert"
    partition: Texts = ()


def hive_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HiveReader, parameter)
    queries = plugin.sqls or plugin.hive_sql or plugin.query_sql
    if not queries:
        raise context.missing("sqls", "a list of queries")
    bare = [query.strip().rstrip(";").rstrip() for query in queries]
    if len(bare) == 1:
        return ParsedPlugin(Endpoint("hive", {"query": bare[0]}, spark_format=True))
    parts = tuple(EndpointOverrides({"query": query}) for query in bare)
    return ParsedPlugin(Endpoint("hive", {}, spark_format=True, parts=parts))


def hive_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HiveWriter, parameter)
    table = (
        f"{plugin.database_name}.{plugin.table_name}" if plugin.database_name else plugin.table_name
    )
    if _IDENTIFIER.fullmatch(table) is None:
        raise refusal(context.key("tableName"), table, "a table, or database.table")
    modes: dict[str, SaveMode] = {"insert": "append", "append": "append", "overwrite": "overwrite"}
    mode = modes.get(plugin.write_mode.strip().lower())
    if mode is None:
        raise refusal(context.key("writeMode"), plugin.write_mode, "insert or overwrite")
    path = context.key("column")
    refuse_twice(path, plugin.column)
    options = {"dbtable": table}
    if plugin.partition:
        missing = [name for name in plugin.partition if name not in plugin.column]
        if missing:
            raise refusal(context.key("partition"), missing[0], "names that column has too")
        options["partitionBy"] = ",".join(plugin.partition)
    step = Labelled(Rename(plugin.column), path)
    return ParsedPlugin(Endpoint("hive", options, spark_format=True), (step,), mode)
