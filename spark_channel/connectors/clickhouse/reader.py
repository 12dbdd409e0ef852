"""Reads a table, a view or a query of ClickHouse, with its SQL and catalog."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.clickhouse.options import ClickhouseReadOptions
from spark_channel.connectors.clickhouse.session import ClickhouseSession, is_lost
from spark_channel.connectors.sql.catalog import Column, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.splits import Quantiles, Splitter, distinct
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import only_name
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = [
    "ClickhouseDialect",
    "ClickhouseReader",
    "ClickhouseTable",
    "bounds_of",
    "takes_null",
    "zone_of",
]


_PLAIN = {
    "Bool": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "Date": pa.date32(),
    "Date32": pa.date32(),
}
_DECIMAL = re.compile(r"Decimal\((\d+), (\d+)\)")
_ZONE = re.compile(r"DateTime(?:64)?\((?:\d+, )?'([^']+)'\)")
_DAY = 86_400 * 1_000_000
_AROUND = re.compile(r"(?:Nullable|LowCardinality)\((.*)\)", re.DOTALL)
_SAMPLE = 10_000


@dataclass(frozen=True, slots=True)
class ClickhouseTable(Table):
    """`sorted_by`: the first column of the sorting key, if it is one; "" = none. `engine` as the catalog has it."""

    sorted_by: str = ""
    engine: str = ""


def _bare(declared: str) -> str:
    while (match := _AROUND.fullmatch(declared)) is not None:
        declared = match[1]
    return declared


def zone_of(declared: str) -> str:
    """The zone of a DateTime column; "" = the server's."""
    match = _ZONE.search(declared)
    return match[1] if match else ""


def bounds_of(declared: str) -> tuple[int, int] | None:
    """The least and the greatest value of a day (in days) or a moment (in microseconds); None = another type.

    The server takes others for some value within.
    """
    bare = _bare(declared)
    if bare == "Date":
        return 0, 65_535
    if bare == "Date32":
        return _day(1900), _day(2300) - 1
    if bare.startswith("DateTime64(9"):
        return _day(1900) * _DAY, 9_223_372_036_854_775
    if bare.startswith("DateTime64"):
        return _day(1900) * _DAY, _day(2300) * _DAY - 1
    return (0, (1 << 32) * 1_000_000 - 1) if bare.startswith("DateTime") else None


def takes_null(declared: str) -> bool:
    """Whether a column keeps a NULL, of which the server makes a default else
    (findings/clickhouse-null-becomes-default.sh).
    """
    return "Nullable(" in declared or declared.startswith(("Variant", "Dynamic", "JSON", "Object"))


def _day(year: int) -> int:
    return date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal()


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class ClickhouseDialect(Dialect):
    """See `Dialect`. `local`: a DateTime is read as `zone` shows it, without the zone; "" = its own zone."""

    product = "ClickHouse"
    sql = "clickhouse"
    alias = "source"
    no_keys = "ClickHouse holds no column unique"

    def __init__(self, *, local: bool = False, zone: str = "") -> None:
        self.local, self.zone = local, zone

    def quoted(self, name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def literal(self, value: object, column: Column | None) -> str:
        return _literal(value) if isinstance(value, str) else super().literal(value, column)

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def find_table(self, session: Session, text: str) -> ClickhouseTable | None:
        names = [("currentDatabase()", text)]
        try:
            tree = exp.to_table(text, dialect="clickhouse")
            names.append((_literal(tree.db) if tree.db else "currentDatabase()", tree.name))
        except sqlglot.errors.SqlglotError:
            pass  # a text that cannot be read is a name
        for database, name in names:
            rows = session.rows(
                f"SELECT database, engine, sorting_key FROM system.tables WHERE database = {database} "  # noqa: S608 - names are quoted
                f"AND name = {_literal(name)}"
            )
            if rows:
                schema, engine, key = rows[0]
                return self._described(session, schema, name, engine, key)
        return None

    def _described(
        self, session: Session, schema: str, name: str, engine: str, key: str
    ) -> ClickhouseTable:
        rows = session.rows(
            "SELECT name, type, default_kind FROM system.columns WHERE database = "  # noqa: S608 - quoted
            f"{_literal(schema)} AND table = {_literal(name)} AND default_kind NOT IN ('EPHEMERAL') ORDER BY position"
        )
        columns = tuple(
            Column(
                column,
                kind,
                not takes_null(kind),
                default != "",
                default in ("MATERIALIZED", "ALIAS"),
            )
            for column, kind, default in rows
        )
        first = key.split(",", maxsplit=1)[0].strip().strip("`")
        sorted_by = first if any(column.name == first for column in columns) else ""
        return ClickhouseTable(
            schema, name, columns, engine.endswith("View"), sorted_by=sorted_by, engine=engine
        )

    def table_names(self, session: Session) -> list[str]:
        query = "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY name LIMIT 100"
        rows = session.rows(query)
        return [str(name) for (name,) in rows]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        return tuple(
            Column(str(row[0]), str(row[1])) for row in session.rows(f"DESCRIBE TABLE ({query})")
        )

    def arrow_type(self, column: Column) -> pa.DataType:
        """Types without one in Arrow are read as texts: UUID, Enum, IPv4, wide integers; arrays and maps as JSON."""
        bare = _bare(column.declared)
        decimal = _DECIMAL.fullmatch(bare)
        if decimal is not None and int(decimal[1]) <= 38:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if bare.startswith("DateTime"):
            return pa.timestamp("us", None if self.local else "UTC")
        return _PLAIN.get(bare, pa.string())

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        bare = _bare(column.declared)
        if bare.startswith("DateTime"):
            if not pa.types.is_timestamp(kind):
                return f"toString({text})"
            zone = self.zone or zone_of(column.declared)
            zone_argument = f", {_literal(zone)}" if zone else ""
            # Arrow has no local time of ClickHouse's: its text is cast by `decode`.
            return (
                f"toDateTime64({text}, 6, 'UTC')"
                if kind.tz
                else f"toString(toDateTime64({text}, 6{zone_argument}))"
            )
        if bare.startswith("Date"):
            return f"toDate32({text})"
        if bare.startswith(
            ("Array", "Map", "Tuple", "Nested", "JSON", "Object", "Variant", "Dynamic")
        ):
            return f"toJSONString({text})"
        if bare.startswith("Float") and pa.types.is_string(kind):
            return f"toString({text})"
        return text if bare in _PLAIN or _DECIMAL.fullmatch(bare) else f"toString({text})"

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind, bare = self.arrow_type(column), _bare(column.declared)
        plain = pa.types.is_integer(kind) or pa.types.is_date(kind) or bare == "String"
        return kind if plain else None

    def size(self, text: str) -> str | None:
        return f"byteSize({text})"

    def is_passing(self, error: BaseException) -> bool:
        return is_lost(error)


class _Splitter(Splitter):
    """Ranges of the sorting key, by which the server skips the parts of the others."""

    def ranges(self) -> list[Split] | None:
        table = self.source.table
        assert isinstance(table, ClickhouseTable)
        column = self.source.about(table.sorted_by)
        if column is None or self.source.dialect.key_type(column, None) is None:
            return None
        return self._by_column(column.name)

    def divided(self, splits: list[Split]) -> list[Split]:
        """As they are: the server finds rows by the sorting key alone."""
        return splits

    def quantiles(self, name: str) -> Quantiles:
        """From a sample that the server takes in one pass, without a sort."""
        column, about = self.source.column(name), self.source.about(name)
        assert about is not None
        # A bound is a number or a text; texts of dates have the order of dates.
        is_date = pa.types.is_date(ClickhouseDialect().arrow_type(about))
        value = f"toString({column})" if is_date else column
        # The client shows other bytes by their digits, which have another order.
        among = (
            f", isValidUTF8({column})"
            if pa.types.is_string(ClickhouseDialect().arrow_type(about))
            else ", 1"
        )
        sample = f"arraySort(groupArraySampleIf({_SAMPLE}, 1)({value}{among}))"
        whole = [f"count({column})", f"count() - count({column})", sample]
        ((present, nulls, values),) = self.session.rows(self.source.sql(whole))
        parts = min(self.advice, len(values))
        places = [len(values) * part // parts for part in range(parts)] if parts > 1 else []
        return Quantiles(distinct([values[index] for index in places]), int(present), int(nulls))


class ClickhouseReader(SqlReader):
    """Splits by ranges of the sorting key. Each split sees its own state: ClickHouse has no snapshot for several."""

    Options: ClassVar[type[ReadOptions]] = ClickhouseReadOptions
    Splitter: ClassVar[type[Splitter]] = _Splitter
    options: ClickhouseReadOptions
    feed = Reader.feed  # none: nothing says in which order rows become visible

    def __init__(self, options: ClickhouseReadOptions) -> None:
        super().__init__(
            options,
            ClickhouseDialect(
                local=options.timestamps_as == "local", zone=options.session_time_zone or ""
            ),
        )

    def resource_mark(self, split: Split) -> str | None:
        host, port = self.options.server
        return f"{host}:{port}"

    def connect(self, purpose: str) -> AbstractContextManager[Session]:
        return ClickhouseSession(self.options, SourceError)
