"""A small table's source and target, as they are planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.base.contract import native_data
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.read.reader import PostgresReader
from spark_channel.connectors.postgresql.types import encode
from spark_channel.connectors.postgresql.write.dialect import (
    DIALECT,
    create_statement,
    match_target,
    written_columns,
)
from spark_channel.connectors.postgresql.write.new_table import types_of_texts
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.write.plan import NumberedColumn, WriteTarget
from spark_channel.connectors.sql.write.small_tables import SmallPlan
from spark_channel.connectors.sql.write.target_columns import NO_TYPES
from spark_channel.errors import SchemaError, SourceError, TargetError
from spark_channel.planning import Split

__all__ = ["PgSmallPlan", "copied_rows", "is_special", "planned", "source_of"]

_BASES: Mapping[str, str] = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "numeric": "numeric",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
}
"""By the words of `WriteDialect.created_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PgSmallPlan(SmallPlan):
    """`there`: the table that the rows replace; None = it is to be made, by `create`. `new`: as its source is, whole.

    `numbers`: see `SqlPlan`. `rows`: as COPY takes them.
    """

    source: ReadSource
    native: bool
    create: str
    there: PgTable | None
    numbers: tuple[NumberedColumn, ...] = ()
    rows: Sequence[CopyRows] = ()


def is_special(table: PgTable) -> bool:
    return table.kind != "r" or table.is_parent or table.is_ruled


class _Known:
    """Stands for a session in which a table was looked up before."""

    place = ""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    def repeated(self, *_: object) -> list[tuple[Any, ...]]:
        return [self._row]


def source_of(reader: PostgresReader, row: tuple[Any, ...] | None) -> tuple[ReadSource, Any]:
    """The source, and its native rows if it has such."""
    if row is None:
        raise SourceError(f"there is no table {reader.options.dbtable}")
    source = reader.known(cast(Any, _Known(row)))
    if source.table is None or source.table.is_view or not reader.is_builtin:
        raise SourceError(f"{source.label} is read alone")
    return source, reader.native_rows([Split({"kind": "all", "row_bytes": 1})])


def planned(
    table: SmallTable, source: ReadSource, native: Any, place: WriteTarget, there: PgTable | None
) -> PgSmallPlan:
    """
    Raises:
        ChannelError: the rows do not fit, or not without a staging table.
    """
    options = cast(PostgresWriteOptions, table.writer.options)
    sql = DIALECT.place(place.schema, place.name)
    if there is not None and is_special(there):
        raise TargetError(f"table {there.label} is written alone")
    if there is None and options.create_table == "full":
        create, into = "", _alike(place, source)
    else:
        types = _own_types(source, options)
        create = _create(sql, source, options, types) if there is None else ""
        into = there or _created(place, source, types)
    target, is_native = match_target(into, source.schema, options, native=native)
    # What COPY writes into an identity column, only `numbers` follow.
    counts = options.create_table == "full"
    if any(each.cast or (each.column.identity and not counts) for each in written_columns(target)):
        raise SchemaError(f"rows of {place.label} are cast by the server")
    kept = replace(place, table=None)
    return PgSmallPlan(
        source=source, native=is_native, place=kept, target=target, create=create, there=there
    )


def _own_types(source: ReadSource, options: PostgresWriteOptions) -> Mapping[str, str]:
    """The types of columns that a new table has from its source, by name.

    Raises:
        SchemaError: a type that another server need not have, as a domain.
    """
    if options.create_table == "columns" or source.table is None:
        return NO_TYPES
    assert isinstance(source.table, PgTable)
    types = types_of_texts(source.table.columns, source.schema)
    for column in source.table.columns:
        words = column.declared.removesuffix("[]").partition("(")[0]
        if column.name in types and words != (column.element or column.base):
            raise SchemaError(f"the type of column {column.name!r} is tried alone")
    return types


def _create(
    sql: str, source: ReadSource, options: PostgresWriteOptions, types: Mapping[str, str]
) -> str:
    """CREATE TABLE, with as much of the source's definition as a copy of one table would give it.

    Raises:
        SchemaError: the type of a column, or a key that does not hold for all rows that are read.
    """
    table = source.table
    if options.create_table == "columns" or table is None:
        return create_statement(sql, source.schema, options)
    assert isinstance(table, PgTable)
    if table.is_parent or table.kind != "r":
        raise SchemaError(f"{table.label} has parts, and is made alone")
    never_null = {column.name for column in table.columns if DIALECT.is_never_null(table, column)}
    fields = [field.with_nullable(field.name not in never_null) for field in source.schema]
    key = table.primary or table.period_key
    return create_statement(sql, pa.schema(fields), options, key, types)


def _alike(place: WriteTarget, source: ReadSource) -> PgTable:
    """The table as it is made with the columns of its source.

    Raises:
        SchemaError: the source has parts, whose keys may not hold for all of its rows.
    """
    table = source.table
    assert isinstance(table, PgTable)
    if table.is_parent or table.kind != "r":
        raise SchemaError(f"{table.label} has parts, and is made alone")
    columns = [replace(column, identity="") for column in table.columns]
    return PgTable(place.schema, place.name, tuple(columns), kind="r")


def _created(place: WriteTarget, source: ReadSource, types: Mapping[str, str]) -> PgTable:
    """The table as CREATE TABLE makes it."""
    columns = []
    for field in source.schema:
        if field.name in types:
            assert isinstance(source.table, PgTable)
            (column,) = (column for column in source.table.columns if column.name == field.name)
            columns.append(replace(column, identity=""))
            continue
        declared = DIALECT.created_type(field.name, field.type, key=False)
        words, _, sizes = declared.partition("(")
        if words not in _BASES or pa.types.is_dictionary(field.type):
            raise SchemaError(f"column {field.name!r} is {field.type}")
        typmod = -1
        if sizes:
            precision, scale = map(int, sizes.rstrip(")").split(","))
            typmod = ((precision << 16) | scale) + 4
        columns.append(
            PgColumn(field.name, declared, base=_BASES[words], typmod=typmod, builtin=True)
        )
    return PgTable(place.schema, place.name, tuple(columns), kind="r")


def copied_rows(table: SmallTable) -> list[CopyRows]:
    """The rows as COPY takes them."""
    plan: PgSmallPlan = table.plan
    if plan.native:
        return [
            CopyRows(plan.target.names, each.num_rows, [native_data(each)])
            for each in table.batches
        ]
    from spark_channel.connectors.postgresql.copy.encoding import copy_rows  # it imports numpy

    columns = written_columns(plan.target)
    return [copy_rows(encode(each, columns)) for each in table.batches]
