"""DataX's database plugins: onto the connectors that declare them, and the others onto Spark's JDBC."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.compatibility import (
    decimal_steps,
    duplicate_options,
    mode_options,
    reading_options,
    writing_options,
    zone_options,
)
from spark_channel.datax.query_names import with_unique_names
from spark_channel.datax.sections import JobSection, refusal, refuse_twice, refused
from spark_channel.datax.sql import (
    bare_names,
    expand_tables,
    plain_columns,
    select_statements,
    selects,
)
from spark_channel.datax.value_types import Flag, Positive, Text, Texts
from spark_channel.planning import Endpoint, EndpointOverrides
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import Labelled, Output, Rename, Select, Transformer

__all__ = [
    "Database",
    "database_reader",
    "database_writer",
    "jdbc_port",
    "known_databases",
]

_SCHEME = re.compile(r"\s*(?:jdbc:)?([a-z][a-z0-9]*):", re.IGNORECASE)
_WHERE_END = re.compile("\\s*[;\uff1b]+\\s*$")
_UPDATE = re.compile(r"(?:update|replace(?:\s+into)?)\s*(?:\((.*)\))?", re.IGNORECASE | re.DOTALL)
_TRUNCATE = re.compile(r"^\s*truncate\s+(?:table\s+)?(\S+?)\s*;?\s*$", re.IGNORECASE)
_TRUNCATED = frozenset({"oracle", "sqlserver", "db2", "derby", "teradata"})
"""Where Spark's JDBC writer empties a table: it drops the tables of others, and creates them with its own types."""
_EMPTIES = re.compile(r"(?:truncate\s+table|delete\s+from)\s+(\S+?)\s*;?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Database:
    """A kind of server: the connector that reaches it, or None for Spark's JDBC source and its `driver`."""

    connector: str | None
    dialect: str
    schemes: tuple[str, ...]
    driver: str | None = None
    port: int | None = None


_BY_JDBC = {
    "oracle": Database(None, "oracle", ("oracle",), "oracle.jdbc.OracleDriver", 1521),
    "sqlserver": Database(
        None, "tsql", ("sqlserver",), "com.microsoft.sqlserver.jdbc.SQLServerDriver", 1433
    ),
    "db2": Database(None, "", ("db2",), "com.ibm.db2.jcc.DB2Driver", 50000),
    "dm": Database(None, "oracle", ("dm",), "dm.jdbc.driver.DmDriver", 5236),
}
"""Databases without a connector, by DataX's name; `dm` has no own plugin, and is an `rdbms`."""
_OTHER = Database(None, "", ())


def known_databases() -> dict[str, Database]:
    """By DataX's plugin names without `reader` or `writer`: those that connectors declare, then Spark's JDBC source."""
    declared = {
        name: _of(connector)
        for connector in all_connectors()
        if _is_database(connector)
        for name in connector.datax
    }
    by_jdbc = {name: database for name, database in _BY_JDBC.items() if name != "dm"}
    return {**by_jdbc, **declared, "rdbms": _OTHER}


def jdbc_port(scheme: str) -> int | None:
    """The port of a database that Spark's JDBC source reaches, where its url names none."""
    return next(
        (database.port for database in _BY_JDBC.values() if scheme in database.schemes), None
    )


def _by_scheme(scheme: str) -> Database:
    for connector in all_connectors():
        if scheme in connector.schemes and _is_database(connector):
            return _of(connector)
    return next((database for database in _BY_JDBC.values() if scheme in database.schemes), _OTHER)


def _is_database(connector: Connector) -> bool:
    return connector.dialect != "" and connector.schemes != ()


def _of(connector: Connector) -> Database:
    return Database(connector.name, connector.dialect, connector.schemes, port=connector.port)


def _objects(value: object) -> object:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"jdbcUrl": [...], "table": [...]}')
    return value


def _properties(value: object) -> object:
    if not isinstance(value, dict) or any(isinstance(one, (dict, list)) for one in value.values()):
        raise ValueError("an object of the driver's settings")
    return {key: str(one) for key, one in value.items()}


def _fetch_size(value: object) -> int | None:
    """MySQL's driver takes a negative one for a stream of rows, which is what is read here."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise ValueError("a whole number below 2**63")
    return value if value > 0 else None


class ReaderConnection(JobSection):
    jdbc_url: Texts
    table: Texts = ()
    query_sql: Texts = ()


class WriterConnection(JobSection):
    jdbc_url: Texts
    table: Texts


class DatabaseReader(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "splitMode": "splits hold about equal rows whatever the skew",
        "samplePercentage": "splits hold about equal rows whatever the skew",
        "mandatoryEncoding": "the driver decodes text",
        "checkSlave": "the replica's lag is not checked",
        "hint": "the database plans the query",
    }

    username: Text | None = None
    password: Text | None = None
    jdbc_config: Annotated[dict[str, str], BeforeValidator(_properties)] = Field(
        default_factory=dict
    )
    column: Texts = ()
    connection: Annotated[tuple[ReaderConnection, ...], BeforeValidator(_objects)]
    where: Text = ""
    split_pk: Text = ""
    split_factor: Positive | None = None
    fetch_size: Annotated[int | None, BeforeValidator(_fetch_size)] = None
    session: Texts = ()
    lower_bound: Text | None = None
    upper_bound: Text | None = None


class DatabaseWriter(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "batchByteSize": "batches follow the channel's bytes",
        "dryRun": "use `spark-channel run --dry-run`, or `plan`",
    }
    refused: ClassVar[dict[str, str]] = {
        "dbNamePattern": "rows are not routed by value; name the tables",
        "dbRule": "rows are not routed by value; name the tables",
        "tableNamePattern": "rows are not routed by value; name the tables",
        "tableRule": "rows are not routed by value; name the tables",
    }

    username: Text | None = None
    password: Text | None = None
    column: Texts
    connection: Annotated[tuple[WriterConnection, ...], BeforeValidator(_objects)]
    write_mode: Text = "insert"
    key_columns: Texts = ()
    conflict_column: Texts = ()
    pre_sql: Texts = ()
    post_sql: Texts = ()
    session: Texts = ()
    batch_size: Positive | None = None
    empty_as_null: Flag = False
    staging_schema: Text | None = None
    ledger_table: Text | None = None
    ledger: Literal["required", "optional", "none"] | None = None


def _login(plugin: DatabaseReader | DatabaseWriter) -> dict[str, str]:
    login = {"user": plugin.username, "password": plugin.password}
    return {key: value for key, value in login.items() if value is not None}


def _database(named: Database, urls: Sequence[str], path: str) -> Database:
    """The server kind that the urls are of; a plugin for any database uses them alone."""
    if not urls:
        raise refusal(path, [], "a jdbc url, or a list of them")
    kind = None
    for url in urls:
        match = _SCHEME.match(url)
        if match is None:
            raise refusal(path, url, "a jdbc url, such as jdbc:mysql://host:3306/database")
        scheme = match.group(1).lower()
        if named.schemes and scheme not in named.schemes:
            raise refused(path, f"a url of {scheme}", "jdbc:" + " or jdbc:".join(named.schemes))
        this = _by_scheme(scheme)
        if kind not in (None, this):
            raise refused(path, "urls of several kinds of database", "urls of one kind")
        kind = this
    return kind or named


def _endpoint(
    database: Database, options: dict[str, str], parts: list[EndpointOverrides]
) -> Endpoint:
    if database.connector is None:
        if database.driver is not None:
            options = {**options, "driver": database.driver}
        name, spark_format = "jdbc", True
    else:
        name, spark_format = database.connector, False
    if len(parts) == 1 and len(parts[0].urls) == 1:
        return Endpoint(
            name, {**options, "url": parts[0].urls[0], **parts[0].options}, spark_format
        )
    return Endpoint(name, options, spark_format, tuple(parts))


def _kinds(named: Database, urls: list[tuple[str, ...]], context: PluginContext) -> Database:
    kinds = [
        _database(named, group, f"{context.key('connection')}[{n}].jdbcUrl")
        for n, group in enumerate(urls)
    ]
    if any(kind != kinds[0] for kind in kinds):
        raise refused(
            context.key("connection"), "urls of several kinds of database", "urls of one kind"
        )
    return kinds[0]


def database_reader(
    named: Database, parameter: dict[str, Any], context: PluginContext
) -> ParsedPlugin:
    """Every table, or every querySql, is a part of the reader; one of them alone is the reader itself."""
    plugin = context.read(DatabaseReader, parameter)
    database = _kinds(named, [connection.jdbc_url for connection in plugin.connection], context)
    urls = [url for connection in plugin.connection for url in connection.jdbc_url]
    options = {**_login(plugin), **_session(plugin.session, database)}
    if database.connector is not None:
        options = {**reading_options(database.connector, urls), **options}
        options |= mode_options(database.connector, (*urls, *plugin.session))
        options |= zone_options(database.connector, (*urls, *plugin.session))
    if plugin.jdbc_config and database.connector is None:
        options = {**plugin.jdbc_config, **options}
    elif plugin.jdbc_config:
        context.ineffective.append(f"{context.key('jdbcConfig')} (no JDBC driver takes part)")
    if plugin.fetch_size is not None:
        options["fetchsize"] = str(plugin.fetch_size)
    by_query = [bool(connection.query_sql) for connection in plugin.connection]
    for number, connection in enumerate(plugin.connection):
        if bool(connection.table) == bool(connection.query_sql):
            got = "both table and querySql" if connection.table else "neither table nor querySql"
            raise refused(f"{context.key('connection')}[{number}]", got, "one of them")
    if any(by_query) and not all(by_query):
        raise refused(
            context.key("connection"), "table here and querySql there", "one of them for all"
        )
    if all(by_query):
        return _queries(plugin, database, options, context)
    return _tables(plugin, database, options, context)


def _session(statements: tuple[str, ...], database: Database) -> dict[str, str]:
    if not statements:
        return {}
    if database.connector is not None:
        return {"sessionInitStatement": json.dumps(statements)}
    if len(statements) == 1:
        return {"sessionInitStatement": statements[0]}
    bare = [text.strip().rstrip(";") for text in statements]
    if database.dialect == "oracle":
        block = " ".join("EXECUTE IMMEDIATE '" + text.replace("'", "''") + "';" for text in bare)
        return {"sessionInitStatement": f"BEGIN {block} END;"}
    return {"sessionInitStatement": "; ".join(bare)}


def _queries(
    plugin: DatabaseReader, database: Database, options: dict[str, str], context: PluginContext
) -> ParsedPlugin:
    unused = {
        "column": plugin.column,
        "where": plugin.where.strip(),
        "splitPk": plugin.split_pk.strip(),
        "splitFactor": plugin.split_factor,
    }
    context.ineffective.extend(
        f"{context.key(key)} (querySql says all)" for key, value in unused.items() if value
    )
    parts = [
        EndpointOverrides({"query": _query(query, database)}, connection.jdbc_url)
        for connection in plugin.connection
        for query in connection.query_sql
    ]
    if database.connector is not None and any("*" in part.options["query"] for part in parts):
        options["duplicateNames"] = (
            "number"  # the names behind `a.*, b.*` are the database's to say
        )
    return ParsedPlugin(_endpoint(database, options, parts), decimal_steps(database.connector))


def _query(text: str, database: Database) -> str:
    bare = text.strip().rstrip(";").rstrip()
    return bare if database.connector is None else with_unique_names(bare, database.dialect)


def _tables(
    plugin: DatabaseReader, database: Database, options: dict[str, str], context: PluginContext
) -> ParsedPlugin:
    if not plugin.column:
        raise context.missing("column", 'a list of columns and expressions, or ["*"]')
    if "*" in plugin.column and len(plugin.column) > 1:
        raise refused(context.key("column"), "* beside other columns", '["*"] alone, or columns')
    where = _WHERE_END.sub("", plugin.where).strip() or None
    every = plugin.column == ("*",)
    names = None if every else plain_columns(plugin.column, database.dialect, context.key("column"))
    key = _split_key(plugin, database, context)
    direct = database.connector is not None and (every or names is not None)
    columns = plugin.column
    if direct:
        if names is not None:
            options["columns"] = json.dumps(names)
        if where is not None:
            options["where"] = where
    elif key is not None and not every and not selects(columns, key, database.dialect):
        columns = (*columns, plugin.split_pk.strip())
    if key is not None:
        options |= {"partitionColumn": key, **_bounds(plugin, database, context)}
    by_query = not direct and (where is not None or not every)
    select = select_statements(columns, where, database.dialect, context) if by_query else None
    parts = []
    for number, connection in enumerate(plugin.connection):
        for table in expand_tables(
            connection.table, f"{context.key('connection')}[{number}].table"
        ):
            source = {"dbtable": table}
            if select is not None:
                query = select(table)
                source = {"query": query} if key is None else {"dbtable": f"({query}) source"}
            parts.append(EndpointOverrides(source, connection.jdbc_url))
    steps = decimal_steps(database.connector)
    if len(columns) > len(plugin.column):
        without_key = Select(tuple(Output(position) for position in range(len(plugin.column))))
        steps = (*steps, Labelled(without_key, context.key("column")))
    return ParsedPlugin(
        _endpoint(database, options, parts), steps, splits_per_channel=plugin.split_factor
    )


def _split_key(plugin: DatabaseReader, database: Database, context: PluginContext) -> str | None:
    """The column that splits the tables; Spark's JDBC source can split between bounds alone."""
    bounds = {"lowerBound": plugin.lower_bound, "upperBound": plugin.upper_bound}
    bounds_given = {name: value for name, value in bounds.items() if value is not None}
    if len(bounds_given) == 1:
        absent = next(name for name in bounds if name not in bounds_given)
        raise context.missing(absent, "both bounds or none")
    if not plugin.split_pk.strip():
        context.ineffective.extend(
            f"{context.key(name)} (no splitPk is given)" for name in bounds_given
        )
        return None
    names = plain_columns((plugin.split_pk.strip(),), database.dialect, context.key("splitPk"))
    if names is None:
        raise refusal(context.key("splitPk"), plugin.split_pk, "one column's name")
    if database.connector is None and not bounds_given:
        context.warnings.append(
            f"{context.key('splitPk')}: each table is read through one connection, since Spark's JDBC source "
            "splits only between bounds; give lowerBound and upperBound beside splitPk to split it"
        )
        return None
    return names[0]


def _bounds(plugin: DatabaseReader, database: Database, context: PluginContext) -> dict[str, str]:
    if plugin.lower_bound is None or plugin.upper_bound is None or not plugin.split_pk.strip():
        return {}
    bounds = {"lowerBound": plugin.lower_bound, "upperBound": plugin.upper_bound}
    if database.connector is None:
        bounds["numPartitions"] = str(context.channels or 1)
    return bounds


def database_writer(
    named: Database, parameter: dict[str, Any], context: PluginContext
) -> ParsedPlugin:
    plugin = context.read(DatabaseWriter, parameter)
    for number, connection in enumerate(plugin.connection):
        if len(connection.jdbc_url) != 1:
            path = f"{context.key('connection')}[{number}].jdbcUrl"
            raise refused(
                path, f"{len(connection.jdbc_url)} urls", "one url: a write goes to one server"
            )
    database = _kinds(named, [connection.jdbc_url for connection in plugin.connection], context)
    if not plugin.column:
        raise context.missing("column", 'a list of the target\'s columns, or ["*"]')
    if plugin.empty_as_null:
        raise refusal(
            context.key("emptyAsNull"), True, "false; NULLIF in the reader's column makes NULLs"
        )
    tables = [
        (connection.jdbc_url, table)
        for number, connection in enumerate(plugin.connection)
        for table in expand_tables(connection.table, f"{context.key('connection')}[{number}].table")
    ]
    options = _login(plugin)
    names = [table for _, table in tables]
    if database.connector is None:
        shared, overrides, mode = _spark_jdbc(plugin, tables, context)
    else:
        shared, overrides, mode = _own(plugin, names, context, database.connector)
        urls = [url for group, _ in tables for url in group]
        shared |= mode_options(database.connector, (*urls, *plugin.session))
        shared |= zone_options(
            database.connector,
            (*urls, *plugin.session),
            statements=(*plugin.pre_sql, *plugin.post_sql),
        )
    parts = [
        EndpointOverrides({"dbtable": table, **override}, url)
        for (url, table), override in zip(tables, overrides, strict=True)
    ]
    return ParsedPlugin(
        _endpoint(database, {**options, **shared}, parts),
        _renamed(plugin, database, context),
        mode,
        columns=None if plugin.column == ("*",) else len(plugin.column),
        exact_numbers=database.connector is not None,
    )


def _renamed(
    plugin: DatabaseWriter, database: Database, context: PluginContext
) -> tuple[Transformer, ...]:
    path = context.key("column")
    if plugin.column == ("*",):
        context.warnings.append(
            f"{path}: * matches the columns by name, where DataX uses their positions"
        )
        return ()
    names = bare_names(plugin.column, database.dialect, path)
    for number, name in enumerate(names):
        if not name:
            raise refusal(
                f"{path}[{number}]", plugin.column[number], "the name of a target's column"
            )
    refuse_twice(path, names)
    return (Labelled(Rename(names), path),)


Built = tuple[dict[str, str], list[dict[str, str]], SaveMode]


def _statements(texts: tuple[str, ...], table: str) -> str:
    return json.dumps([text.replace("@table", table) for text in texts])


def _own(
    plugin: DatabaseWriter, tables: list[str], context: PluginContext, connector: str
) -> Built:
    options = {"createTable": "false", **_writing(plugin, context, connector)}
    if plugin.batch_size is not None:
        options["batchSize"] = str(plugin.batch_size)
    if plugin.session:
        options["sessionInitStatement"] = json.dumps(plugin.session)
    mode, keys = _write_mode(plugin, context)
    by_every_key = duplicate_options(connector, plugin.write_mode)
    if by_every_key and not (plugin.key_columns or plugin.conflict_column):
        options |= by_every_key
    elif mode != "insert":
        options["writeMode"] = mode
        if keys:
            options["keyColumns"] = json.dumps(keys)
    overrides = []
    for table in tables:
        override = {}
        if plugin.pre_sql:
            if context.commit:
                override["preSql"] = _statements(_emptying(plugin.pre_sql, connector), table)
            else:
                override["startSql"] = _statements(plugin.pre_sql, table)
        if plugin.post_sql:
            override["postSql"] = _statements(plugin.post_sql, table)
        overrides.append(override)
    return options, overrides, "append"


def _writing(plugin: DatabaseWriter, context: PluginContext, connector: str) -> dict[str, str]:
    """A job that asks for no transaction runs also where its role may only change rows, as with DataX."""
    all_options = {
        "stagingSchema": plugin.staging_schema,
        "ledgerTable": plugin.ledger_table,
        "ledger": plugin.ledger,
    }
    options_given = {name: value for name, value in all_options.items() if value is not None}
    defaults = writing_options(connector, promises=bool(context.commit))
    if options_given and "ledger" not in writing_options(connector, promises=False):
        name = next(iter(options_given))
        raise refusal(
            context.key(name),
            options_given[name],
            f"nothing: {connector} keeps its claims beside the table",
        )
    return {**defaults, **options_given}


def _emptying(texts: tuple[str, ...], connector: str) -> tuple[str, ...]:
    """MySQL's TRUNCATE would commit the transaction that it is to be a part of."""
    if connector != "mysql":
        return texts
    return tuple(_TRUNCATE.sub(r"DELETE FROM \1", text) for text in texts)


def _write_mode(plugin: DatabaseWriter, context: PluginContext) -> tuple[str, tuple[str, ...]]:
    text = " ".join(plugin.write_mode.split())
    if text.lower() in ("insert", "insert into", ""):
        return "insert", ()
    if text.lower() in ("insert ignore", "insert ignore into"):
        return "skipExisting", plugin.key_columns or plugin.conflict_column
    update = _UPDATE.fullmatch(text)
    if update is None:
        raise refusal(
            context.key("writeMode"),
            text,
            "insert, insert ignore, replace, update, or update(key, columns)",
        )
    inside = tuple(name.strip() for name in (update.group(1) or "").split(",") if name.strip())
    return "upsert", inside or plugin.key_columns or plugin.conflict_column


def _schemes(urls: Iterable[str]) -> set[str]:
    return {match.group(1).lower() for match in map(_SCHEME.match, urls) if match}


def _spark_jdbc(
    plugin: DatabaseWriter, targets: list[tuple[tuple[str, ...], str]], context: PluginContext
) -> Built:
    """Spark's JDBC writer inserts; any other write mode is refused, since rows would be wrong."""
    mode, _ = _write_mode(plugin, context)
    if mode != "insert":
        raise refusal(
            context.key("writeMode"),
            plugin.write_mode,
            "insert: Spark's JDBC writer knows no other",
        )
    if plugin.post_sql:
        raise refusal(
            context.key("postSql"),
            list(plugin.post_sql),
            "nothing: Spark's JDBC writer runs no SQL",
        )
    tables = [table for _, table in targets]
    options = {"createTable": "false"}
    if plugin.batch_size is not None:
        options["batchsize"] = str(plugin.batch_size)
    if plugin.session:
        context.ineffective.append(
            f"{context.key('session')} (Spark's JDBC writer opens its sessions itself)"
        )
    save_mode: SaveMode = "append"
    if plugin.pre_sql:
        emptied = [_EMPTIES.fullmatch(text.strip()) for text in plugin.pre_sql]
        names = {match.group(1) for match in emptied if match}
        if not all(emptied) or not names <= {"@table", *tables} or len(tables) > 1:
            raise refusal(
                context.key("preSql"),
                list(plugin.pre_sql),
                "`truncate table @table` or `delete from @table`; Spark's JDBC writer runs no other SQL",
            )
        unknown = _schemes(url for urls, _ in targets for url in urls) - _TRUNCATED
        if unknown:
            raise refusal(
                context.key("preSql"),
                list(plugin.pre_sql),
                f"nothing for jdbc:{min(unknown)}: Spark does not know how to empty a table there, "
                "and would drop it and create another; empty it before the job",
            )
        save_mode = "overwrite"
        options["truncate"] = "true"
    return options, [{} for _ in tables], save_mode
