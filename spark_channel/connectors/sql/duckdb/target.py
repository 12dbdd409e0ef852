"""DuckDB's SQL for writing: declarations of new columns, and the values that a column holds exactly."""

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.duckdb.column_types import (
    arrow_type,
    canonical,
    duckdb_type,
    is_text,
    same_type,
)
from spark_channel.connectors.sql.duckdb.dialect import DuckdbDialect
from spark_channel.connectors.sql.fits import fits
from spark_channel.connectors.sql.target import TargetTable, WriteColumn
from spark_channel.connectors.sql.write_dialect import WriteDialect, misfit

__all__ = ["DuckdbWriteDialect", "staged_schema"]


def staged_schema(target: TargetTable) -> pa.Schema:
    """The staged columns, under the table's names, and the operation."""
    fields = [pa.field(column.target, column.kind) for column in target.columns]
    return pa.schema(fields if target.operation is None else [*fields, pa.field(OPERATION, pa.string())])


class DuckdbWriteDialect(DuckdbDialect, WriteDialect):
    """See `WriteDialect`."""

    begin = "BEGIN TRANSACTION"
    has_savepoints = False

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        return duckdb_type(canonical(name, kind))

    def spark_type(self, text: str) -> str | None:
        return None  # DuckDB takes the length of a VARCHAR, and keeps it not

    def number_type(self, column: Column) -> pa.DataType | None:
        found = arrow_type(column.declared)
        is_huge = column.declared in ("HUGEINT", "UHUGEINT") or is_text(column.declared)
        return None if is_huge else found

    def is_same_type(self, found: str, planned: str) -> bool:
        return same_type(found, planned)

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        kind = canonical(field.name, field.type)
        wanted = arrow_type(column.declared)
        natural = duckdb_type(kind)
        if is_text(column.declared):
            fine = pa.types.is_string(kind)
        elif wanted is None:
            fine = same_type(natural, column.declared)
        else:
            fine = natural == column.declared or (arrow_type(natural) is not None and fits(kind, wanted))
        if not fine:
            raise misfit(field, column, wanted, natural=natural)
        return WriteColumn(field.name, column, kind)
