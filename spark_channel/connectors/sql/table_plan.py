"""The plan of a write that stages its rows in one table of the database, beside the target."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.matching import Declare, match_columns
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.writer import Place, SqlPlan

__all__ = ["ATTEMPT", "TablePlan", "plan_table"]

ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of: by a number of its own.

A driver that begins the same job again counts its attempts anew.
"""


@dataclass(frozen=True)
class TablePlan(SqlPlan):
    """`columns` are (name in the rows, the table's column); `create` makes a table that was not there."""

    dialect: Dialect = field(kw_only=True)
    columns: tuple[tuple[str, Column], ...] = ()
    key: tuple[str, ...] = ()
    mode: str = "insert"
    create: str | None = None

    @property
    def table(self) -> str:
        schema = f"{self.dialect.quoted(self.place.schema)}." if self.place.schema else ""
        return f"{schema}{self.dialect.quoted(self.place.name)}"

    @property
    def staging(self) -> str:
        """The staging table: one for all attempts of the run."""
        schema = f"{self.dialect.quoted(self.place.schema)}." if self.place.schema else ""
        return f"{schema}{self.dialect.quoted(self.stage)}"

    @property
    def names(self) -> list[str]:
        return [self.dialect.quoted(column.name) for _, column in self.columns]

    @property
    def operation(self) -> list[str]:
        return [self.dialect.quoted(OPERATION)] if self.mode == "apply" else []

    @property
    def create_staging(self) -> str:
        own = [f"{ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
        own += [f"{name} VARCHAR(20)" for name in self.operation]
        own += [f"{self.dialect.quoted(column.name)} {column.declared}" for _, column in self.columns]
        return f"CREATE TABLE {self.staging} ({', '.join(own)}, PRIMARY KEY ({ATTEMPT}, {PLACE}))"


def plan_table(
    plan: SqlPlan,
    place: Place,
    dialect: Dialect,
    options: SqlWriteOptions,
    types: Mapping[pa.DataType, str],
    decimal: Declare,
) -> TablePlan:
    """How the columns meet the table's; see `match_columns`."""
    columns, key = match_columns(dialect, place.label, place.table, plan.schema, options, types, decimal)
    found = TablePlan(**vars(plan), dialect=dialect, columns=columns, key=key, mode=options.write_mode)
    if place.table is not None:
        return found
    parts = [
        f"{dialect.quoted(each.name)} {each.declared}{' NOT NULL' if each.not_null else ''}"
        for _, each in columns
    ]
    parts += [f"PRIMARY KEY ({', '.join(map(dialect.quoted, key))})"] if key else []
    create = f"CREATE TABLE {found.table} ({', '.join(parts)}) {options.create_table_options or ''}"
    return TablePlan(**{**vars(found), "create": create.rstrip()})
