"""hivereader and hivewriter, onto Spark's own Hive tables."""

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from spark_channel.jobs.place import End, Place
from spark_channel.jobs.values import Section, Text, Texts, refusal
from spark_channel.planning import Endpoint, EndpointPart
from spark_channel.planning.spec import SaveMode
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


class HiveReader(Section):
    ignored: ClassVar[dict[str, str]] = _SERVER

    sqls: Texts = ()
    hive_sql: Texts = ()
    query_sql: Texts = ()


def _columns(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of names, or of objects with a name")
    return tuple(one.get("name") if isinstance(one, dict) else one for one in value)


class HiveWriter(Section):
    ignored: ClassVar[dict[str, str]] = _SERVER

    database_name: Text = ""
    table_name: Text
    column: Annotated[Texts, BeforeValidator(_columns)]
    write_mode: Text = "insert"
    partition: Texts = ()


def hive_reader(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(HiveReader, parameter)
    queries = given.sqls or given.hive_sql or given.query_sql
    if not queries:
        raise place.missing("sqls", "a list of queries")
    bare = [query.strip().rstrip(";").rstrip() for query in queries]
    if len(bare) == 1:
        return End(Endpoint("hive", {"query": bare[0]}, spark_format=True))
    parts = tuple(EndpointPart({"query": query}) for query in bare)
    return End(Endpoint("hive", {}, spark_format=True, parts=parts))


def hive_writer(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(HiveWriter, parameter)
    table = f"{given.database_name}.{given.table_name}" if given.database_name else given.table_name
    if _IDENTIFIER.fullmatch(table) is None:
        raise refusal(place.key("tableName"), table, "a table, or database.table")
    modes: dict[str, SaveMode] = {"insert": "append", "append": "append", "overwrite": "overwrite"}
    mode = modes.get(given.write_mode.strip().lower())
    if mode is None:
        raise refusal(place.key("writeMode"), given.write_mode, "insert or overwrite")
    path = place.key("column")
    if len(set(given.column)) < len(given.column):
        raise refusal(path, list(given.column), "each name once")
    options = {"dbtable": table}
    if given.partition:
        missing = [name for name in given.partition if name not in given.column]
        if missing:
            raise refusal(place.key("partition"), missing[0], "names that column has too")
        options["partitionBy"] = ",".join(given.partition)
    step = Labelled(Rename(given.column), path)
    return End(Endpoint("hive", options, spark_format=True), (step,), mode)
