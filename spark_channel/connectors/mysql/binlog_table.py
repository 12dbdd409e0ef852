"""The table that a binary log's feed follows: as the catalog has it, and as a position of its stream does."""

from collections.abc import Mapping
from typing import Any, cast

from spark_channel.connectors.mysql.binlog_decoder import FollowedTable
from spark_channel.connectors.mysql.binlog_position import GtidSet
from spark_channel.connectors.mysql.binlog_schema import charsets
from spark_channel.connectors.mysql.dialect import MysqlDialect, MysqlTable
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.sql.catalog import Column, ReadColumn
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.connectors.sql.statements import custom_kinds
from spark_channel.errors import SourceError

__all__ = ["followed", "noted_table", "recalled"]


def followed(
    session: MysqlSession, source: ReadSource, options: MysqlReadOptions, gtids: type[GtidSet]
) -> FollowedTable:
    table = cast(MysqlTable, source.table)
    key = table.primary or (table.unique[0] if table.unique else ())
    return FollowedTable(
        database=table.schema,
        name=table.name,
        label=source.label,
        columns=source.columns,
        names=tuple(source.names),
        key=key,
        charsets=charsets(session),
        gtids=gtids,
        zero_dates=options.zero_dates == "null",
        folds=_folds(session),
        generated=frozenset(each.name for each in table.columns if each.generated),
        apart=tuple(dict.fromkeys(name for each in table.held for name in each)),
    )


def noted_table(table: FollowedTable) -> dict[str, Any]:
    """What a position keeps of the table, so that its range can be read when the table is not there any more."""
    return {
        "database": table.database,
        "name": table.name,
        "columns": [[each.name, each.declared] for each in table.columns],
        "names": list(table.names),
        "key": list(table.key),
        "apart": list(table.apart),
        "generated": sorted(table.generated),
    }


def recalled(
    session: MysqlSession, reader: SqlReader, found: Mapping[str, Any], gtids: type[GtidSet]
) -> FollowedTable:
    """
    Raises:
        SourceError: it was damaged.
    """
    options, dialect = cast(MysqlReadOptions, reader.options), cast(MysqlDialect, reader.dialect)
    try:
        declared = {str(name): str(kind) for name, kind in found["columns"]}
        custom = custom_kinds(options.custom_schema, list(declared), dialect.same_name)
        columns = [
            ReadColumn(name, kind, custom.get(name) or dialect.arrow_type(Column(name, kind)), "")
            for name, kind in declared.items()
        ]
        database, name = str(found["database"]), str(found["name"])
        names, key, generated = (
            tuple(map(str, found[each])) for each in ("names", "key", "generated")
        )
        apart = tuple(map(str, found.get("apart", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"the checkpoint's columns {str(dict(found))[:200]} are damaged: reset the tunnel, or begin with a new "
            "checkpoint directory"
        ) from error
    return FollowedTable(
        database=database,
        name=name,
        label=f"table {name!r}",
        columns=tuple(columns),
        names=names,
        key=key,
        charsets=charsets(session),
        gtids=gtids,
        zero_dates=options.zero_dates == "null",
        folds=_folds(session),
        generated=frozenset(generated),
        apart=apart,
    )


def _folds(session: MysqlSession) -> bool:
    return str(session.value("SELECT @@lower_case_table_names")) != "0"
