"""How rows meet a table, and their values as the driver takes them."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from firebird_connector.dialect import FirebirdDialect

from spark_channel.connectors.sql import Column, Place, SqlPlan, SqlWriteOptions, match_columns, plain_kind
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.errors import BatchRefusedError

__all__ = ["ATTEMPT", "DIALECT", "FirebirdPlan", "planned", "values"]

ATTEMPT = "SPARK_CHANNEL_ATTEMPT"
DIALECT = FirebirdDialect()
_TYPES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "SMALLINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER",
    pa.int64(): "BIGINT", pa.uint8(): "SMALLINT", pa.uint16(): "INTEGER", pa.uint32(): "BIGINT",
    pa.float16(): "FLOAT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE PRECISION", pa.date32(): "DATE",
    pa.time64("us"): "TIME", pa.timestamp("us"): "TIMESTAMP", pa.string(): "BLOB SUB_TYPE TEXT",
    pa.binary(): "BLOB",
}  # fmt: skip
_KEY_TYPES = {**_TYPES, pa.string(): "VARCHAR(250)"}
"""A BLOB cannot be a key."""
_TICK = 100
"""Microseconds: Firebird keeps four digits behind the second."""


@dataclass(frozen=True)
class FirebirdPlan(SqlPlan):
    """`columns` are (name in the rows, the table's column); `create` makes a table that was not there."""

    columns: tuple[tuple[str, Column], ...] = ()
    key: tuple[str, ...] = ()
    mode: str = "insert"
    create: str | None = None

    @property
    def table(self) -> str:
        return DIALECT.quoted(self.place.name)

    @property
    def names(self) -> list[str]:
        return [DIALECT.quoted(column.name) for _, column in self.columns]

    @property
    def operation(self) -> list[str]:
        return [DIALECT.quoted(OPERATION)] if self.mode == "apply" else []

    @property
    def create_stage(self) -> str:
        """One table for all attempts of the run."""
        own = [f"{ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
        own += [f"{name} VARCHAR(20)" for name in self.operation]
        own += [f"{DIALECT.quoted(column.name)} {column.declared}" for _, column in self.columns]
        return f"CREATE TABLE {DIALECT.quoted(self.stage)} ({', '.join(own)}, PRIMARY KEY ({ATTEMPT}, {PLACE}))"


def planned(plan: SqlPlan, place: Place, options: SqlWriteOptions) -> FirebirdPlan:
    """How the columns meet the table's."""
    types = _TYPES if options.write_mode == "insert" else _KEY_TYPES
    columns, key = match_columns(DIALECT, place.label, place.table, plan.schema, options, types, _decimal)
    create = None
    if place.table is None:
        parts = [f"{DIALECT.quoted(c.name)} {c.declared}{' NOT NULL' * c.not_null}" for _, c in columns]
        parts += [f"PRIMARY KEY ({', '.join(map(DIALECT.quoted, key))})"] if key else []
        more = options.create_table_options or ""
        create = f"CREATE TABLE {DIALECT.quoted(place.name)} ({', '.join(parts)}) {more}"
    return FirebirdPlan(**vars(plan), columns=columns, key=key, mode=options.write_mode, create=create)


def _decimal(digits: int, scale: int) -> str | None:
    return f"DECIMAL({digits}, {scale})" if digits <= 18 else None


def values(plan: FirebirdPlan, batch: pa.RecordBatch) -> list[list[Any]]:
    """The columns of a batch, the operation of a change feed first.

    Raises:
        BatchRefusedError: a time with more digits than Firebird keeps.
    """
    operation = [batch.column(OPERATION).to_pylist()] if plan.operation else []
    return [*operation, *(_values(name, batch.column(name), plan) for name, _ in plan.columns)]


def _values(name: str, array: pa.Array, plan: FirebirdPlan) -> list[Any]:
    try:
        array = pc.cast(array, plain_kind(array.type))
        if pa.types.is_timestamp(array.type) or pa.types.is_time(array.type):
            ticks = pc.cast(array, pa.int64())
            if pc.any(pc.not_equal(pc.multiply(pc.divide(ticks, _TICK), _TICK), ticks)).as_py():
                raise pa.ArrowInvalid("Firebird keeps four digits behind the second; round it")
    except pa.ArrowInvalid as error:
        where = f"column {name!r} cannot be stored in table {plan.place.label!r} exactly"
        raise BatchRefusedError(f"{where}: {error}") from None
    return list(array.to_pylist())
