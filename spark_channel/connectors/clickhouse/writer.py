"""Inserts rows in blocks. Each block is visible immediately, and is not removed if the job fails."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext, WritePlan
from spark_channel.connectors.base.overlap import MOST_COUNTED, Stored, counted
from spark_channel.connectors.clickhouse.options import ClickhouseWriteOptions
from spark_channel.connectors.clickhouse.reader import (
    ClickhouseDialect,
    ClickhouseTable,
    bounds_of,
    takes_null,
    zone_of,
)
from spark_channel.connectors.clickhouse.session import ClickhouseSession
from spark_channel.connectors.records.direct_writer import (
    DirectOptions,
    DirectWriter,
    Rejected,
    Sink,
)
from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.session import split_script
from spark_channel.connectors.sql.statements import only_name
from spark_channel.connectors.sql.stored_tables import stored_table
from spark_channel.errors import SchemaError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.lazy import compute as pc
from spark_channel.options import WriteOptions

__all__ = ["ClickhouseWriter"]

_OF_ROWS = re.compile(
    r"TYPE_MISMATCH|CANNOT_CONVERT_TYPE|CANNOT_PARSE_|CANNOT_INSERT_NULL|VALUE_IS_OUT_OF_RANGE|ARGUMENT_OUT_OF_BOUND|"
    r"DECIMAL_OVERFLOW|VIOLATED_CONSTRAINT|UNKNOWN_ELEMENT_OF_ENUM|TOO_LARGE_STRING_SIZE"
)
"""Names of the server's errors that a row is the matter of."""
_ELSEWHERE = re.compile(r"while pushing to view|Received from ")
"""In errors of a materialized view or another server: by then the table, or a part of it, may have the block."""


class ClickhouseWriter(DirectWriter):
    """See `ClickhouseWriteOptions`."""

    Options: ClassVar[type[WriteOptions]] = ClickhouseWriteOptions
    dialect = ClickhouseDialect()

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.options: DirectOptions = options
        self._given = cast(ClickhouseWriteOptions, options)

    def _session(self) -> ClickhouseSession:
        return ClickhouseSession(self._given, TargetError)

    def exists(self) -> bool | None:
        with self._session() as session:
            return self.dialect.find_table(session, self._given.dbtable) is not None

    def stored(self) -> Stored | None:
        with self._session() as session:
            table = self.dialect.find_table(session, self._given.dbtable)
            if table is None:
                return None
            return stored_table(
                session, self.dialect, table.schema, table.name, is_view=table.is_view
            )

    def resource_mark(self) -> str | None:
        host, port = self._given.server
        return f"{host}:{port}"

    def begin(self) -> None:
        self._run(self._given.start_sql, "startSql")

    def _run(self, texts: Iterable[str], option: str) -> None:
        statements = split_script(texts, option, "clickhouse", ())
        if statements:
            with self._session() as session:
                for statement in statements:
                    session.command(statement)

    def check(self, schema: pa.Schema) -> None:
        with self._session() as session:
            self._columns(session, schema)

    def _table(self, session: ClickhouseSession) -> ClickhouseTable:
        table = self.dialect.find_table(session, self._given.dbtable)
        if table is None:
            missing = TargetError(
                f"table {self._given.dbtable!r} does not exist in {session.place}; create it first, with the engine "
                f"and the order that you need. There are: {', '.join(self.dialect.table_names(session)[:20]) or 'none'}"
            )
            raise of_input(missing)
        return table

    def _columns(self, session: ClickhouseSession, schema: pa.Schema) -> pa.Schema:
        """The target's columns of the rows, with the types in which they are sent."""
        table = self._table(session)
        writable = [column for column in table.columns if not column.generated]
        fields = []
        for field in schema:
            name = self.dialect.same_name(field.name, [column.name for column in writable])
            if name is None:
                raise SchemaError(
                    f"table {table.label!r} in {session.place} has no column {field.name!r} "
                    f"that can be written; it has {', '.join(column.name for column in writable)}"
                )
            about = next(column for column in writable if column.name == name)
            kind = self.dialect.arrow_type(about)
            if not _fits(field.type, kind):
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, and {about.declared} in {table.label!r}, read as {kind}: "
                    "cast it, or set option 'convert' to lenient"
                )
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    @property
    def before(self) -> Mapping[str, bool]:
        return {"preSql": bool(self._given.pre_sql)}

    def foreign_content(self, schema: pa.Schema) -> str:
        with self._session() as session:
            table = self.dialect.find_table(session, self._given.dbtable)
            if table is None:
                return ""
            name = f"{self.dialect.quoted(table.schema)}.{self.dialect.quoted(table.name)}"
            first = f"SELECT 1 FROM {name} LIMIT {MOST_COUNTED + 1}"  # noqa: S608 - a quoted name
            count = int(session.rows(f"SELECT count() FROM ({first})")[0][0])  # noqa: S608 - made here
        return (
            f"{counted(count, 'row')} of table {table.label}, whoever wrote them" if count else ""
        )

    def probe(self, *, empty: bool) -> None:
        if not empty:
            return
        with self._session() as session:
            table = self._table(session)
            session.command(
                f"TRUNCATE TABLE {self.dialect.quoted(table.schema)}.{self.dialect.quoted(table.name)}"
            )

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        plan = super().prepare(context, schema)
        self._run(self._given.pre_sql, "preSql")
        return plan

    def connect(self, schema: pa.Schema) -> Sink:
        session = self._session()
        with session.closed_on_failure():
            table = self._table(session)
            declared = [
                about.declared if (about := table_column(table, name)) else ""
                for name in schema.names
            ]
            server = str(session.value("SELECT timezone()"))
            session_zone = self._given.session_time_zone
            zones = [session_zone or zone_of(column_type) or server for column_type in declared]
            return _Inserts(session, table, self._columns(session, schema), declared, zones)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        self._run(self._given.post_sql, "postSql")


def _fits(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of one type are sent as the other: each of them, or a refused row."""
    types = pa.types
    if source == kind or (types.is_integer(source) and types.is_integer(kind)):
        return True
    if types.is_timestamp(source) and types.is_timestamp(kind):
        return bool(source.tz) == bool(kind.tz) or not source.tz
    if types.is_floating(source) and types.is_floating(kind):
        return bool(source.bit_width <= kind.bit_width)
    pairs = (
        (types.is_decimal, types.is_decimal),
        (types.is_string, types.is_string),
        (types.is_large_string, types.is_string),
        (types.is_date, types.is_date),
        (types.is_boolean, types.is_integer),
        (types.is_integer, types.is_decimal),
        (types.is_binary, types.is_string),
    )
    return any(one(source) and other(kind) for one, other in pairs)


def table_column(table: ClickhouseTable, name: str) -> Column | None:
    column_name = only_name(name, [column.name for column in table.columns])
    return next((column for column in table.columns if column.name == column_name), None)


class _Inserts:
    """An INSERT for each batch; where the server refuses rows, halves of it find out which.

    `declared`: the columns' types in ClickHouse; `zones`: those of their local times.
    """

    def __init__(
        self,
        session: ClickhouseSession,
        table: ClickhouseTable,
        schema: pa.Schema,
        declared: Sequence[str],
        zones: Sequence[str],
    ) -> None:
        self._session, self._schema = session, schema
        self._zones = zones
        self._declared = declared
        self._name = f"`{table.schema}`.`{table.name}`"

    def close(self) -> None:
        self._session.close()

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        return self._sent(batch, 0)

    def _sent(self, batch: pa.RecordBatch, first: int) -> list[Rejected]:
        if not batch.num_rows:
            return []
        try:
            arrays = [
                _held(_cast(array, field.type, zone), declared, field.name)
                for array, field, zone, declared in zip(
                    batch.columns, self._schema, self._zones, self._declared, strict=True
                )
            ]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            self._session.insert(self._name, self._schema.names, rows)
        except (pa.ArrowInvalid, TargetError) as error:
            text = str(error.__cause__ or error)
            if isinstance(error, TargetError):
                if _ELSEWHERE.search(text):
                    raise TargetError(
                        f"{error}. Whether the table has the {batch.num_rows} rows of this INSERT is not known: they "
                        "are not sent again by this task"
                    ) from error
                if not _OF_ROWS.search(text):
                    raise
            if batch.num_rows == 1:
                return [(first, str(error)[:400])]
            half = batch.num_rows // 2
            return [
                *self._sent(batch.slice(0, half), first),
                *self._sent(batch.slice(half), first + half),
            ]
        return []


def _held(array: pa.Array, declared: str, name: str) -> pa.Array:
    """The array, once `declared` is known to hold its values: the server would store others in their place
    (findings/clickhouse-stores-other-values.sh).
    """
    if array.null_count and not takes_null(declared):
        raise pa.ArrowInvalid(f"column {name!r}: a NULL, and its type is {declared}")
    bounds = bounds_of(declared)
    if bounds is None or not pa.types.is_temporal(array.type):
        return array
    numbers = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None and not (
        bounds[0] <= extremes["min"] and extremes["max"] <= bounds[1]
    ):
        raise pa.ArrowInvalid(f"column {name!r}: a time that {declared} does not hold")
    return array


def _cast(array: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """As the column's type; a value that it cannot hold raises ArrowInvalid: the server would cut it.

    A local time is one of the column's zone, as in a text that the server reads.
    """
    if (
        pa.types.is_timestamp(array.type)
        and not array.type.tz
        and pa.types.is_timestamp(kind)
        and kind.tz
    ):
        local = array.cast(pa.timestamp("us"))
        return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest").cast(
            kind
        )
    return array.cast(kind)
