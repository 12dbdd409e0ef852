"""The SQL of any database that sqlglot can write; types are those of the driver."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.adbc.session import AdbcSession
from spark_channel.connectors.sql.catalog import Column, ReadColumn, Table
from spark_channel.connectors.sql.named import only_name, parsed_name
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import identifier
from spark_channel.connectors.sql.write_dialect import WriteDialect

__all__ = ["AdbcColumn", "AdbcDialect"]


@dataclass(frozen=True, slots=True)
class AdbcColumn(Column):
    """`kind` is the driver's type."""

    kind: pa.DataType = field(default_factory=pa.null)


class AdbcDialect(WriteDialect):
    """`sql` is sqlglot's name of the SQL."""

    product = "ADBC"
    no_keys = "ADBC drivers do not say which keys are unique"

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.has_savepoints = sql in ("postgres", "mysql", "sqlite")

    def quoted(self, name: str) -> str:
        return identifier(name).sql(self.sql or None)

    def literal(self, value: Any, column: Column | None) -> str:
        given = str(value) if isinstance(value, date | Decimal) else value
        return exp.convert(given).sql(self.sql or None)

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def limited(self, query: str, rows: int, after: int = 0) -> str:
        tree = cast(exp.Select, sqlglot.parse_one(query, read=self.sql or None)).limit(rows)
        return (tree.offset(after) if after else tree).sql(self.sql or None)

    def find_table(self, session: Session, text: str) -> Table | None:
        """The driver says when it is not there."""
        if text.lstrip().startswith("("):
            return None
        schema, name = self.named(text)
        query = f"SELECT * FROM {self.place(schema, name)}"  # noqa: S608 - quoted
        return Table(schema or "", name, self.describe(session, query))

    def named(self, text: str) -> tuple[str | None, str]:
        """(schema, name) that `dbtable` means; a text that this SQL cannot read as a name is the name itself."""
        tree = parsed_name(text, self.sql)
        return (None, text) if tree is None else (tree.db or None, tree.name)

    def table_names(self, session: Session) -> list[str]:
        return []

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """By running it: some drivers take a column's type from its first rows."""
        schema = cast(AdbcSession, session).schema_of(query)
        return tuple(AdbcColumn(each.name, str(each.type), kind=each.type) for each in schema)

    def arrow_type(self, column: Column) -> pa.DataType:
        return cast(AdbcColumn, column).kind

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind = self.arrow_type(column)
        ordered = (
            pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string,
            pa.types.is_large_string, pa.types.is_date, pa.types.is_timestamp,
        )  # fmt: skip
        return kind if any(is_kind(kind) for is_kind in ordered) else None

    def size(self, text: str) -> str | None:
        return None

    def misfit_advice(self, column: ReadColumn) -> str:
        return "Drivers take a column's type from its first rows: make it one type in 'query'"
